// The list of calls: live on top, paged below, only what is in sight drawn.

import { failure, getJson, subscribe, withQuery } from "./api.js";
import { clear, h, later, paced, typing } from "./dom.js";
import { clock, count, many, moment, ms, shortId } from "./format.js";
import { Filters, plain, read } from "./filters.js";
import { Notice } from "./notice.js";
import { VirtualRows } from "./rows.js";
import { Strip, binsOf } from "./strip.js";

const FIRST = 200;
const PAGE = 1000;
const MOST_ROWS = 400000; // an element can be some 16 million px tall in every browser
const HEAD = ["When", "Call", "Chain", "Duration", "Turns", "Slowest turn", "Interrupted", "Dropped", "Errors", "State"];

// Where the list stood when it was left, for who comes back to it.
const left = { search: null, top: 0, id: null };

export async function show(root, { query, navigate, back }) {
  const { search } = location;
  const list = new Calls(root, read(query), navigate);
  await list.load();
  if (back && left.search === search) list.returnTo(left);
  return () => {
    Object.assign(left, { search: list.search, ...list.place() });
    list.close();
  };
}

class Calls {
  constructor(root, filters, navigate) {
    this.filters = filters;
    this.navigate = navigate;
    this.search = location.search;
    this.rows = [];
    this.byId = new Map();
    this.total = 0;
    this.next = null;
    this.fetching = null;
    this.early = [];
    this.whole = new AbortController();
    this.fresh = 0;
    this.skew = 0;
    this.highest = 1;
    this.build(root);
    this.ends = [subscribe("calls", (event) => this.arrived(event)), subscribe("info", (info) => this.form.setInfo({ ...this.form.info, ...info }))];
    this.refetch = later(() => this.mergeFirst(), 400);
    this.restrip = paced(() => this.drawStrip(this.whole.signal), 2500);
    this.look = later(() => this.notice.look(this.form.info, this.filters), 50);
    this.relook = paced(this.look, 20_000);
    this.onKey = (event) => this.press(event);
    document.addEventListener("keydown", this.onKey);
    this.ticking = setInterval(() => this.tick(), 1000);
  }

  close() {
    document.removeEventListener("keydown", this.onKey);
    clearInterval(this.ticking);
    this.refetch.cancel();
    this.restrip.cancel();
    this.relook.cancel();
    this.look.cancel();
    this.notice.close();
    this.whole.abort();
    for (const end of this.ends) end();
    if (this.fetching) this.fetching.abort();
    this.list.close();
    this.strip.close();
  }

  build(root) {
    const above = h("section", { class: "list-head", "aria-label": "Filters" });
    this.strip = new Strip(above, (from, to) => this.form.set({ from: from === null ? "" : String(from), to: to === null ? "" : String(to) }));
    this.form = new Filters(above, this.filters, () => this.changed());
    this.notice = new Notice(above);
    this.body = h("div", { class: "rows", role: "rowgroup" });
    this.table = h("div", { class: "calls", role: "table", "aria-label": "Calls" },
      h("div", { class: "call head", role: "row", "aria-rowindex": "1" }, HEAD.map((name, index) => h("span", { role: "columnheader", class: `c${index}` }, name))),
      this.body);
    this.pill = h("button", { type: "button", class: "pill", hidden: true, onclick: () => this.toTop() });
    this.note = h("div", { class: "note" });
    this.scroller = h("div", { class: "scroller" }, this.table, this.note);
    root.append(h("h1", { class: "hidden" }, "Calls"), above, h("div", { class: "list" }, this.pill, this.scroller));
    this.list = new VirtualRows(this.scroller, this.body, {
      key: (index) => (this.rows[index] ? this.rows[index].id : null),
      draw: (index) => this.draw(this.rows[index]),
      shown: (first, last) => this.shown(first, last),
    });
  }

  changed() {
    this.navigate(withQuery("/", this.filters), { quiet: true });
    this.search = location.search;
    this.scroller.scrollTop = 0;
    this.load();
  }

  async load() {
    if (this.fetching) this.fetching.abort();
    const mine = new AbortController();
    this.fetching = mine;
    this.scroller.setAttribute("aria-busy", "true");
    try {
      const asked = getJson(this.path({ limit: FIRST }), { signal: mine.signal });
      if (!this.form.info.version) this.learn(mine.signal);
      const page = await asked;
      this.rows = objects(page);
      this.byId = new Map(this.rows.map((row) => [row.id, row]));
      this.fresh = 0;
      this.take(page);
      this.list.forget();
      this.setCount();
      this.drawNote();
      this.drawStrip(mine.signal).then(this.look);
    } catch (error) {
      if (error.name !== "AbortError") this.failed(error, () => this.load());
    } finally {
      if (this.fetching === mine) this.fetching = null;
      this.scroller.removeAttribute("aria-busy");
    }
    if (!this.fetching) this.caughtUp();
  }

  async learn(signal) {
    try {
      const info = await getJson("/api/info", { signal });
      this.skew = info.now_ms - Date.now();
      this.form.setInfo(info);
      if (this.stripped) this.strip.show(...this.stripped, this.versions());
      this.look();
    } catch {
      // the footer says it; the list does without the names to choose from
    }
  }

  path(values) {
    return withQuery("/api/calls", { ...this.filters, ...values });
  }

  take(page) {
    this.total = page.total;
    this.more = Boolean(page.more); // the total is a lower bound
    this.next = page.next;
    this.highest = Math.max(1, ...this.rows.slice(0, PAGE).map((row) => row.slowest_ms || 0));
    this.drawTotal();
  }

  /** Pages are asked for one after another until what is in sight is there. */
  async shown(first, last) {
    if (last < this.rows.length || this.fetching || !this.next) return;
    const mine = new AbortController();
    this.fetching = mine;
    try {
      const page = await getJson(this.path({ limit: PAGE, cursor: this.next }), { signal: mine.signal });
      for (const row of objects(page)) {
        if (this.byId.has(row.id)) continue;
        this.rows.push(row);
        this.byId.set(row.id, row);
      }
      this.next = page.next;
      if (!this.next) {
        this.total = this.rows.length;
        this.more = false;
        this.drawTotal();
      }
    } catch (error) {
      if (error.name === "AbortError") return;
      this.next = null;
      this.failed(error, () => this.load());
    } finally {
      if (this.fetching === mine) this.fetching = null;
    }
    this.setCount();
    this.caughtUp();
  }

  /** One row more than is loaded where there are more than is known: that it comes into sight fetches the next page. */
  setCount() {
    this.list.setCount(Math.min(Math.max(this.total, this.rows.length + (this.next ? 1 : 0)), MOST_ROWS));
  }

  failed(error, retry) {
    clear(this.note, failure(error, retry));
  }

  drawTotal() {
    clear(this.form.total, this.more ? `more than ${many(this.total, "call")}` : many(this.total, "call"), this.filters.sort === "slowest" ? ", slowest first" : "");
    this.table.setAttribute("aria-rowcount", String(this.total + 1));
  }

  async drawStrip(signal) {
    const { from, to } = this.filters;
    const bounds = (value) => (/^\d/.test(value) ? Number(value) : null);
    const range = bounds(from) !== null || bounds(to) !== null ? [bounds(from), bounds(to)] : null;
    let data;
    try {
      const whole = range ? { from: "", to: "" } : {};
      data = await getJson(withQuery("/api/strip", { ...this.filters, sort: "", ...whole, bins: 96 }), { signal });
    } catch (error) {
      if (error.name === "AbortError") return;
      data = binsOf(this.rows);
    }
    this.stripped = [data, range];
    if (!this.strip.drag) this.strip.show(data, range, this.versions());
  }

  /** Where each version of the one chain that is shown began. */
  versions() {
    const chains = this.form.info.chains.filter((one) => !this.filters.chain || one.chain === this.filters.chain);
    const mine = this.filters.chain ? chains : [...chains].sort((a, b) => b.versions.length - a.versions.length).slice(0, 1);
    return mine.flatMap((one) => one.versions.map((version) => [version.version, version.first_ms]));
  }

  drawNote() {
    this.table.hidden = this.rows.length === 0;
    if (this.rows.length) clear(this.note, this.total > MOST_ROWS && h("p", { class: "soft" }, "Only the first calls can be scrolled to: narrow the filters."));
    else clear(this.note, plain(this.filters) ? nothingYet() : this.nothingFound());
  }

  nothingFound() {
    return h("div", { class: "empty" }, h("h2", {}, "No call matches these filters"),
      h("p", {}, h("button", { type: "button", onclick: () => this.form.clearAll() }, "Clear all filters")));
  }

  place() {
    const row = this.rows[this.list.focused()];
    return { top: this.scroller.scrollTop, id: row ? row.id : this.opened };
  }

  returnTo({ top, id }) {
    this.scroller.scrollTop = top;
    this.list.render();
    const element = this.list.elements.get(id);
    if (element) element.querySelector("a").focus({ preventScroll: true });
  }

  draw(row) {
    const failed = row.outcome === "error" || row.outcome === "lost";
    const live = row.live || row.outcome === "live";
    const cell = (index, ...inside) => h("span", { role: "cell", class: `c${index}` }, ...inside);
    const counted = (value, mark) => (value ? `${mark} ${count(value)}` : h("span", { class: "none" }, "·"));
    const element = h("div", { class: `call${failed ? " failed" : ""}${row.isNew ? " new" : ""}`, role: "row", onclick: (event) => this.open(event, row) },
      cell(0, h("time", { title: new Date(row.started_ms).toISOString() }, moment(row.started_ms))),
      cell(1, h("a", { href: `/calls/${encodeURIComponent(row.id)}`, title: row.id }, shortId(row.id))),
      cell(2, h("b", {}, row.chain), " ", h("span", { class: "soft mono" }, row.version)),
      cell(3, h("span", { class: "lasted" }, this.lasted(row))),
      cell(4, count(row.turns), h("span", { class: "unit" }, row.turns === 1 ? " turn" : " turns")),
      cell(5, h("span", { class: "num" }, ms(row.slowest_ms)), h("span", { class: "meter", "aria-hidden": "true" }, meter(row.slowest_ms, this.highest))),
      cell(6, counted(row.interrupted, "‖")), cell(7, counted(row.dropped, "◌")), cell(8, counted(row.errors, "✕")),
      cell(9, stateOf(row, live), row.recorded ? h("span", { class: "rec", title: "Recorded: the audio can be played" }, "◉ rec") : null));
    delete row.isNew;
    return element;
  }

  lasted(row) {
    return row.live ? ms(Math.max(0, Date.now() + this.skew - row.started_ms)) : ms(row.ms);
  }

  open(event, row) {
    this.opened = row.id;
    if (event.target.closest("a") || event.ctrlKey || event.metaKey || String(getSelection())) return;
    this.navigate(`/calls/${encodeURIComponent(row.id)}`);
  }

  arrived(event) {
    if (this.fetching) {
      this.early.push(event); // looked at when the page is there: what it holds already is not new
      return;
    }
    const known = [];
    const fresh = [];
    for (const row of objects(event)) {
      const old = this.byId.get(row.id);
      if (old) known.push(Object.assign(old, row).id);
      else if (this.onTop(row)) fresh.push(row);
    }
    if (known.length) this.list.forget(known);
    if (!event.reset) {
      this.restrip();
      this.relook();
    }
    if (fresh.length === 0) return;
    if (plain(this.filters) && this.filters.sort !== "slowest") this.prepend(fresh);
    else if (this.filters.sort !== "slowest" && !this.filters.to) this.refetch();
  }

  /** False for a row of a page further down that is not loaded yet. */
  onTop(row) {
    return !this.next || this.rows.length === 0 || row.started_ms > this.rows[this.rows.length - 1].started_ms;
  }

  caughtUp() {
    for (const event of this.early.splice(0)) this.arrived(event);
  }

  async mergeFirst() {
    try {
      const page = await getJson(this.path({ limit: 50 }));
      this.prepend(objects(page).filter((row) => !this.byId.has(row.id)));
    } catch {
      // the stream's state is shown above; the next event tries again
    }
  }

  prepend(fresh) {
    if (fresh.length === 0) return;
    const away = this.scroller.scrollTop > 4;
    for (const row of fresh) {
      row.isNew = true;
      this.byId.set(row.id, row);
    }
    this.rows = [...fresh, ...this.rows].sort((a, b) => b.started_ms - a.started_ms);
    this.total += fresh.length;
    this.drawTotal();
    this.drawNote();
    this.setCount();
    if (away) {
      this.scroller.scrollTop += fresh.length * this.list.height; // what somebody reads stays where it is
      this.fresh += fresh.length;
      this.drawPill();
    }
    this.list.render();
  }

  drawPill() {
    this.pill.hidden = this.fresh === 0;
    clear(this.pill, `↑ ${count(this.fresh)} new`);
  }

  toTop() {
    this.scroller.scrollTop = 0;
    this.fresh = 0;
    this.drawPill();
  }

  tick() {
    if (this.fresh && this.scroller.scrollTop <= 4) this.toTop();
    for (const [id, element] of this.list.elements) {
      const row = this.byId.get(id);
      if (row && row.live) clear(element.querySelector(".lasted"), this.lasted(row));
    }
  }

  press(event) {
    if (event.key === "Escape" && event.target === this.form.search) {
      this.focus(0);
    } else if (typing(event) || event.metaKey || event.ctrlKey || event.altKey || event.defaultPrevented) return;
    else if (event.key === "/") this.form.search.focus();
    else if (event.key === "j") this.focus(this.list.focused() + 1);
    else if (event.key === "k") this.focus(Math.max(0, this.list.focused() - 1));
    else if (this.list.focused() < 0) return;
    else if (event.key === "ArrowDown") this.focus(this.list.focused() + 1);
    else if (event.key === "ArrowUp") this.focus(Math.max(0, this.list.focused() - 1));
    else if (event.key === "Home") this.focus(0);
    else if (event.key === "End") this.focus(this.rows.length - 1);
    else return;
    event.preventDefault();
  }

  focus(index) {
    if (index < this.rows.length) this.list.focus(index, this.list.height);
  }
}

const COLUMNS = ["id", "chain", "version", "started_ms", "ms", "outcome", "reason", "method", "turns", "interrupted", "dropped",
  "errors", "spans", "slowest_ms", "recorded", "live"];

function objects({ rows, columns = COLUMNS }) {
  return rows.map((row) => {
    const one = {};
    for (let index = 0; index < columns.length; index += 1) one[columns[index]] = row[index];
    return one;
  });
}

function stateOf(row, live) {
  if (live) return h("span", { class: "state state-live" }, "● live");
  const why = row.reason ? h("span", { class: "why", title: row.reason }, row.reason) : null;
  if (row.outcome === "error") return h("span", { class: "state state-error" }, "✕ failed", why);
  if (row.outcome === "cancelled" && row.reason === "hang-up") return h("span", { class: "state state-ok", title: "The caller hung up, as phone calls end" }, "✓ hung up");
  if (row.outcome === "cancelled") return h("span", { class: "state state-dropped" }, "⊘ cancelled", why);
  if (row.outcome === "lost") return h("span", { class: "state state-error", title: "Nothing more was heard of it" }, "? lost", why);
  return h("span", { class: "state state-ok" }, "✓ done");
}

function meter(value, highest) {
  const bar = h("i", {});
  bar.style.width = `${Math.max(0, Math.min(100, (100 * (value || 0)) / highest))}%`;
  return bar;
}

function nothingYet() {
  return h("div", { class: "empty" }, h("h2", {}, "No call yet"),
    h("p", {}, "Calls stand here as they happen. Serve a chain and call it:"),
    h("pre", {}, "chains run call.py\ncurl -N -d '{\"name\": \"Ada\"}' localhost:8000/v1/call/run"),
    h("p", { class: "soft" }, "Any program can send its spans here as well: set OTEL_EXPORTER_OTLP_ENDPOINT to ", h("code", {}, location.origin), "."),
    h("p", { class: "soft" }, `Looked at ${clock(Date.now())}; this page is live, there is no need to reload it.`));
}
