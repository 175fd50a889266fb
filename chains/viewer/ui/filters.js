// The search, the states and the finer filters above the list. Each change is told to `changed(filters)`.

import { clear, h, later } from "./dom.js";
import { ms } from "./format.js";
import { rangeFields, rangeText } from "./timerange.js";

export const NAMES = ["q", "state", "chain", "app", "version", "hop", "replica", "turn", "min_ms", "from", "to", "sort"];
const STATES = [["", "All"], ["slow", "Slow"], ["failed", "Failed"], ["interrupted", "Interrupted"], ["dropped", "Dropped"],
  ["live", "Live"], ["recorded", "Recorded"]];
export function read(query) {
  return Object.fromEntries(NAMES.map((name) => [name, query.get(name) || ""]));
}

/** True when nothing but the order is chosen. */
export function plain(filters) {
  return NAMES.every((name) => name === "sort" || !filters[name]);
}

export class Filters {
  constructor(root, filters, changed) {
    this.filters = filters;
    this.changed = changed;
    this.info = { chains: [] };
    this.search = h("input", { type: "search", value: filters.q, placeholder: "Search id, hop, replica, reason, words said", "aria-label": "Search calls",
      oninput: later(() => this.set({ q: this.search.value.trim() }), 250) });
    this.states = h("div", { class: "states", role: "group", "aria-label": "State" });
    this.sort = this.select("Order", [["", "Newest first"], ["slowest", "Slowest first"]], "sort");
    this.fields = h("div", { class: "fields", id: "filter-fields", hidden: true });
    this.more = h("button", { type: "button", "aria-expanded": "false", "aria-controls": "filter-fields", onclick: () => this.toggle() });
    this.chips = h("div", { class: "chips" });
    this.total = h("span", { class: "total", role: "status" });
    root.append(h("div", { class: "bar" }, this.search, this.states, this.sort, this.more, this.total), this.fields, this.chips);
    this.draw();
  }

  toggle() {
    this.fields.hidden = !this.fields.hidden;
    this.more.setAttribute("aria-expanded", String(!this.fields.hidden));
  }

  setInfo(info) {
    this.info = info;
    this.draw();
  }

  set(values) {
    Object.assign(this.filters, values);
    this.draw();
    this.changed(this.filters);
  }

  draw() {
    const { filters } = this;
    if (document.activeElement !== this.search) this.search.value = filters.q;
    this.sort.value = filters.sort === "slowest" ? "slowest" : "";
    if (!this.states.firstChild) {
      this.states.append(...STATES.map(([name, text]) => h("button", { type: "button", "data-state": name,
        onclick: () => this.set({ state: name }) }, text)));
    }
    for (const button of this.states.children) {
      button.setAttribute("aria-pressed", String(filters.state === button.dataset.state));
    }
    if (!this.fields.contains(document.activeElement)) this.drawFields();
    this.drawChips();
  }

  drawFields() {
    const { filters, info } = this;
    const chains = info.chains.filter((one) => !filters.chain || one.chain === filters.chain);
    const unique = (values) => [...new Set(values)].sort();
    const options = (first, values, chosen) => [["", first],
      ...unique(chosen && !values.includes(chosen) ? [...values, chosen] : values).map((one) => [one, one])];
    const number = (name, label, step) => h("label", {}, h("span", {}, label), h("input", { type: "number", min: "0", step, value: filters[name],
      onchange: (event) => this.set({ [name]: event.target.value }) }));
    clear(this.fields,
      this.labelled("Chain", options("any chain", info.chains.map((one) => one.chain), filters.chain), "chain"),
      this.labelled("Version", options("any version", chains.flatMap((one) => one.versions.map((v) => v.version)), filters.version), "version"),
      this.labelled("Hop", options("any hop", chains.flatMap((one) => one.hops || []), filters.hop), "hop"),
      this.labelled("Replica", options("any replica", chains.flatMap((one) => one.replicas || []), filters.replica), "replica"),
      number("turn", "Turn", "1"), number("min_ms", "Slowest turn at least, ms", "10"),
      ...rangeFields(filters, (range) => this.set(range)),
      h("button", { type: "button", class: "clear", onclick: () => this.clearAll() }, "Clear all"));
  }

  clearAll() {
    document.activeElement.blur();
    this.set(Object.fromEntries(NAMES.filter((name) => name !== "sort").map((name) => [name, ""])));
  }

  labelled(label, options, name) {
    return h("label", {}, h("span", {}, label), this.select(label, options, name));
  }

  select(label, options, name) {
    const element = h("select", { "aria-label": label, onchange: () => this.set({ [name]: element.value }) },
      options.map(([value, text]) => h("option", { value, selected: value === this.filters[name] }, text)));
    return element;
  }

  drawChips() {
    const { filters } = this;
    const chip = (text, values) => h("button", { type: "button", class: "chip", "aria-label": `Remove the filter ${text}`,
      onclick: () => this.set(values) }, text, h("span", { "aria-hidden": "true" }, " ×"));
    const named = ["chain", "app", "version", "hop", "replica", "turn"].filter((name) => filters[name]);
    const chips = named.map((name) => chip(`${name} ${filters[name]}`, { [name]: "" }));
    if (filters.min_ms) chips.push(chip(`at least ${ms(Number(filters.min_ms))}`, { min_ms: "" }));
    if (filters.from || filters.to) {
      const text = rangeText(filters.from, filters.to);
      chips.push(chip(text, { from: "", to: "" }));
    }
    this.more.textContent = chips.length ? `Filters (${chips.length})` : "Filters";
    clear(this.chips, ...chips);
  }
}
