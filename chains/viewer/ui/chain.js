// A chain over a range of time: what makes it slow in words, its graph, and each hop's figures.

import { failure, getJson, subscribe, withQuery } from "./api.js";
import { clear, h, later } from "./dom.js";
import { count, many, ms } from "./format.js";
import { KINDS, findingsList } from "./findings.js";
import { drawGraph } from "./graph.js";
import { hopTable } from "./hoptable.js";
import { legend } from "./partsbar.js";
import { rangeFields, rangeText } from "./timerange.js";

const SURE = 20; // calls of a hop; of fewer the findings say nothing
const NAMES = ["chain", "app", "version", "from", "to"];

export async function show(root, { query, navigate }) {
  const view = new Chain(root, Object.fromEntries(NAMES.map((name) => [name, query.get(name) || ""])), navigate);
  view.unsaid = !query.has("from") && !query.has("to");
  await view.open();
  return () => view.close();
}

class Chain {
  constructor(root, chosen, navigate) {
    this.chosen = chosen;
    this.navigate = navigate;
    this.abort = new AbortController();
    this.title = h("h1", {}, "Chain");
    this.fields = h("div", { class: "choose" });
    this.place = h("div", { class: "sections", "aria-busy": "true" });
    this.again = h("button", { type: "button", hidden: true, onclick: () => this.open() });
    root.append(h("div", { class: "page" }, h("div", { class: "heading" }, this.title, this.fields, this.again), this.place));
    this.unsubscribe = subscribe("info", (told) => this.moved(told));
  }

  /** What is read stays as it is; that there is more to count is offered. */
  moved({ calls }) {
    const more = this.info ? calls - this.info.calls : 0;
    this.again.hidden = more <= 0 || Boolean(this.chosen.to);
    clear(this.again, `↻ ${many(more, "new call")}`);
  }

  close() {
    this.abort.abort();
    this.unsubscribe();
    if (this.resized) this.resized.disconnect();
  }

  async open() {
    const { signal } = this.abort;
    this.again.hidden = true;
    clear(this.place, h("p", { class: "loading" }, "Adding up the hops…"));
    try {
      this.info = await getJson("/api/info", { signal });
      const known = this.info.chains;
      if (known.length === 0) return this.nothing();
      if (!this.chosen.chain) this.chosen.chain = [...known].sort((a, b) => callsOf(b) - callsOf(a))[0].chain;
      if (this.unsaid) this.chosen.from = this.lately() ? "-1h" : "";
      this.unsaid = false; // and it stays so when new calls are counted in
      this.drawFields();
      this.draw(await getJson(withQuery("/api/chain", this.chosen), { signal }));
    } catch (error) {
      if (error.name === "AbortError") return null;
      clear(this.place, failure(error, () => this.open()));
    } finally {
      this.place.removeAttribute("aria-busy");
    }
    return null;
  }

  nothing() {
    clear(this.place, h("div", { class: "empty" }, h("h2", {}, "No chain has been called yet"),
      h("p", {}, "Its graph and figures stand here after the first call:"), h("pre", {}, "chains run call.py"),
      h("p", {}, h("a", { href: "/" }, "To the list of calls"))));
  }

  /** Whether there were calls in the last hour: that alone is shown unasked, since older ones hide what began just now. */
  lately() {
    const { chain, app, version } = this.chosen;
    const mine = this.info.chains.filter((one) => one.chain === chain && (!app || one.app === app)).flatMap((one) => one.versions);
    return mine.some((one) => (!version || one.version === version) && one.last_ms > this.info.now_ms - 3600e3);
  }

  set(values) {
    Object.assign(this.chosen, values);
    const url = withQuery("/chain", this.chosen);
    const all = this.chosen.from || this.chosen.to ? "" : "&from="; // the whole time, asked for
    this.navigate(url + all);
  }

  drawFields() {
    const { chosen, info } = this;
    const select = (label, options, name, more = {}) => {
      const field = h("select", { onchange: () => this.set({ [name]: field.value, ...more }) },
        options.map(([value, text]) => h("option", { value, selected: value === chosen[name] }, text)));
      return h("label", {}, h("span", {}, label), field);
    };
    const chains = [...new Set(info.chains.map((one) => one.chain))];
    const mine = info.chains.filter((one) => one.chain === chosen.chain);
    const apps = [...new Set(mine.map((one) => one.app))].filter(Boolean);
    const versions = mine.flatMap((one) => one.versions);
    clear(this.title, chosen.chain);
    clear(this.fields,
      select("Chain", chains.map((one) => [one, one]), "chain", { version: "", app: "" }),
      apps.length > 0 && select("Deployment", [["", "any"], ...apps.map((one) => [one, one])], "app"),
      select("Version", [["", "all versions"], ...versions.map((one) => [one.version, `${one.version} (${many(one.calls, "call")})`])], "version"),
      ...rangeFields(chosen, (range) => this.set(range)));
  }

  draw(data) {
    const { turns } = data;
    if (data.hops.length === 0) {
      clear(this.place, h("div", { class: "empty" }, h("h2", {}, "Nothing was called in this time"),
        h("p", {}, h("button", { type: "button", onclick: () => this.set({ version: "", from: "", to: "" }) }, "Look at all versions and the whole time"))));
      return;
    }
    const most = Math.max(...data.hops.map((hop) => hop.calls));
    this.rows = hopTable(data.hops, turns.count, (values) => this.callsUrl(values));
    const graph = h("div", { class: "scroll-x" });
    clear(this.place,
      h("section", { class: "panel", "aria-label": "Findings" }, h("h2", {}, "What is slow, and why"),
        findingsList(data.findings, (one) => this.links(one), most < SURE
          ? `Nothing is said yet: ${many(most, "call")} of a hop ${most === 1 ? "is" : "are"} too few to judge replicas, queues and clients by; ${SURE} are enough.`
          : "Nothing stands out: no replica differs from its peers, and no queue, wire or client takes a large share.", most >= SURE)),
      h("section", { class: "panel", "aria-label": "Turns" }, this.turnsOf(turns, data)),
      h("section", { class: "panel", "aria-label": "Graph" }, h("div", { class: "with-legend" }, h("h2", {}, "Graph"), legend()), graph,
        h("p", { class: "soft small" }, "Bars show how a hop's time divides. The thicker an edge, the more of a turn's critical path lies behind it.")),
      h("section", { class: "panel", "aria-label": "Hops" }, h("h2", {}, "Hops"), this.rows.element));
    this.drawGraph(graph, data);
  }

  drawGraph(place, data) {
    const marks = new Map();
    for (const one of [...data.findings].reverse()) {
      const [mark, word] = KINDS[one.kind] || ["•", one.kind];
      const node = one.hop.split(".")[0];
      marks.set(node, one.replica ? `${mark} slow: ${one.replica}` : `${mark} ${word}${one.ms ? ` ${ms(one.ms)}` : ""}`);
    }
    let drawn = -1; // an observer tells of the first size as well: what is drawn already stays, with its focus
    const draw = () => {
      if (drawn === place.clientWidth) return;
      drawn = place.clientWidth;
      clear(place, drawGraph(data, Math.max(320, drawn - 2), marks, (node) => this.rows.reveal(node)));
    };
    if (this.resized) this.resized.disconnect();
    this.resized = new ResizeObserver(later(draw, 60));
    draw();
    this.resized.observe(place);
  }

  turnsOf(turns, { graph, hops }) {
    const figure = (name, value) => h("div", { class: "stat" }, h("span", {}, name), h("b", {}, value));
    if (!turns.count) {
      const entry = hops.find((hop) => hop.node === graph.nodes[0]) || hops[0];
      return h("div", { class: "turns" }, figure("calls", count(entry.calls)), figure("p50", ms(entry.p50)), figure("p95", ms(entry.p95)), figure("p99", ms(entry.p99)),
        h("span", { class: "soft small" }, `Time of ${entry.hop}: these calls have no turns`));
    }
    return h("div", { class: "turns" }, figure("turns", count(turns.count)), figure("p50", ms(turns.p50)), figure("p95", ms(turns.p95)), figure("p99", ms(turns.p99)),
      histogram(turns.histogram || []), h("span", { class: "soft small" }, `Latency of a turn, ${rangeText(this.chosen.from, this.chosen.to)}`));
  }

  callsUrl(values) {
    const { chain, app, version, from, to } = this.chosen;
    return withQuery("/", { chain, app, version, from, to, ...values, sort: "slowest" });
  }

  links(one) {
    const slow = one.replica ? [`slowest calls through ${one.replica}`, this.callsUrl({ hop: one.hop, replica: one.replica })]
      : ["slowest calls through this hop", this.callsUrl({ hop: one.hop })];
    return [slow];
  }
}

function callsOf(chain) {
  return chain.versions.reduce((sum, one) => sum + one.calls, 0);
}

/** Bars of [ms, count]; labelled at both ends. */
function histogram(bins) {
  if (bins.length === 0) return null;
  const most = Math.max(...bins.map(([, n]) => n), 1);
  return h("div", { class: "histogram", role: "img", "aria-label": `From ${ms(bins[0][0])} to ${ms(bins[bins.length - 1][0])}` },
    h("div", { class: "columns" }, bins.map(([at, n]) => h("i", { title: `${ms(at)}: ${many(n, "turn")}`, style: { height: `${n ? Math.max(4, (100 * n) / most) : 0}%` } }))),
    h("div", { class: "ends" }, h("span", {}, ms(bins[0][0])), h("span", {}, ms(bins[bins.length - 1][0]))));
}
