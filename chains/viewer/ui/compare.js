// Two versions, times or calls beside one another: what changed, first in words, then hop by hop.

import { failure, getJson, withQuery } from "./api.js";
import { clear, h } from "./dom.js";
import { drawCompact } from "./compact.js";
import { findingsList } from "./findings.js";
import { PARTS, count, delta, ms, shortId } from "./format.js";
import { legend } from "./partsbar.js";
import { sidePicker } from "./sidepicker.js";
import { readSpec, usual, writeSpec } from "./specs.js";

const SURE = 12; // turns of a side; fewer may differ by chance

export async function show(root, { query, navigate }) {
  const view = new Compare(root, query.get("a") || "", query.get("b") || "", navigate);
  await view.open();
  return () => view.close();
}

class Compare {
  constructor(root, a, b, navigate) {
    Object.assign(this, { a, b, navigate, ends: [], abort: new AbortController() });
    this.sides = h("div", { class: "sides" });
    this.place = h("div", { class: "sections" });
    this.swap = h("button", { type: "button", onclick: () => this.go(this.b, this.a) }, "⇄ Swap A and B");
    root.append(h("div", { class: "page" }, h("div", { class: "heading" }, h("h1", {}, "Compare"), this.swap), this.sides, this.place));
  }

  close() {
    this.abort.abort();
    for (const end of this.ends) end();
  }

  go(a, b) {
    this.navigate(withQuery("/compare", { a, b }));
  }

  async open() {
    const { signal } = this.abort;
    try {
      const [info, page] = await Promise.all([getJson("/api/info", { signal }), getJson("/api/calls?limit=40", { signal })]);
      if (info.chains.length === 0) return this.nothing();
      if (!this.a && !this.b) {
        [this.a, this.b] = usual(info.chains);
        this.navigate(withQuery("/compare", { a: this.a, b: this.b }), { replace: true, quiet: true });
      }
      this.drawSides(info, page.rows.map((row) => row[page.columns.indexOf("id")]));
      if (!this.a || !this.b) return clear(this.place, h("p", { class: "loading" }, "Choose both sides."));
      clear(this.place, h("p", { class: "loading" }, "Comparing…"));
      const told = await getJson(withQuery("/api/compare", { a: this.a, b: this.b }), { signal });
      this.draw(told);
      await this.drawCalls(signal);
    } catch (error) {
      if (error.name !== "AbortError") clear(this.place, failure(error, () => this.open()));
    }
    return null;
  }

  nothing() {
    clear(this.place, h("div", { class: "empty" }, h("h2", {}, "There is nothing to compare yet"), h("p", {}, "Serve a chain and call it, then change it and call it again:"),
      h("pre", {}, "chains run call.py")));
  }

  drawSides(info, recent) {
    const side = (name, which) => sidePicker(name, readSpec(this[which]), info, recent, (spec) => {
      const both = { a: this.a, b: this.b, [which]: writeSpec(spec) };
      this.go(both.a, both.b);
    });
    clear(this.sides, side("A, before", "a"), side("B, after", "b"));
  }

  draw(told) {
    const { a, b } = told;
    clear(this.place,
      h("section", { class: "panel", "aria-label": "Verdict" }, verdict(a, b), turnsTable(a, b)),
      h("section", { class: "panel", "aria-label": "What changed" }, h("h2", {}, "What changed"),
        findingsList(allFindings(told), (one) => this.links(one), tooFew(told.hops) || "No hop changed by more than its usual spread.", !tooFew(told.hops))),
      h("section", { class: "panel", "aria-label": "Hops" }, h("div", { class: "with-legend" }, h("h2", {}, "Hop by hop"), legend()),
        changes(told.hops, Math.max((a.turns || {}).p95 || 0, (b.turns || {}).p95 || 0)),
        h("p", { class: "soft small" }, "Bars to the left: B is faster than A; striped bars to the right: slower. » marks a bar longer than its place.")));
  }

  links(one) {
    if (!one.hop) return [];
    const spec = readSpec(this.b);
    if (spec.kind === "call") return [["call B", `/calls/${encodeURIComponent(spec.value)}`]];
    const [from, to] = spec.kind === "range" ? spec.value.split("..") : ["", ""];
    return [["slowest calls of B through this hop", withQuery("/", { hop: one.hop, replica: one.replica, chain: spec.chain,
      version: spec.kind === "version" ? spec.value : "", from, to: to === "now" ? "" : to, sort: "slowest" })]];
  }

  /** For two calls: both waterfalls on one scale, one above the other. */
  async drawCalls(signal) {
    const calls = [readSpec(this.a), readSpec(this.b)];
    if (calls.some((one) => one.kind !== "call")) return;
    const bodies = await Promise.all(calls.map((one) => getJson(`/api/calls/${encodeURIComponent(one.value)}`, { signal })));
    const scaleMs = Math.max(...bodies.map(lengthOf), 1);
    const rooms = bodies.map((body, index) => [h("div", { class: "one-call", tabindex: "0", role: "region", "aria-label": `Call ${"AB"[index]}` }), body, "AB"[index]]);
    this.place.children[1].before(h("section", { class: "panel waterfalls", "aria-label": "Both calls" },
      h("div", { class: "with-legend" }, h("h2", {}, "Both calls, on one scale"), h("span", { class: "soft small" }, `0 to ${ms(scaleMs)}`)),
      rooms.map(([room, body, name]) => h("div", {}, h("h3", {}, `${name}  `, h("a", { href: `/calls/${encodeURIComponent(body.call.id)}` }, shortId(body.call.id)),
        `  ${body.call.chain} ${body.call.version}, ${ms(lengthOf(body))}`), room))));
    for (const [room, body] of rooms) this.ends.push(drawCompact(room, body, { scaleMs }));
  }
}

function lengthOf(body) {
  const ends = body.spans.map((span) => span[body.columns.indexOf("start")] + span[body.columns.indexOf("ms")]);
  return Math.max(0, ...ends);
}

function verdict(a, b) {
  const empty = [["A", a], ["B", b]].filter(([, side]) => !side.calls).map(([name]) => name);
  if (empty.length) return h("p", { class: "verdict" }, `? ${empty.join(" and ")} ${empty.length > 1 ? "have" : "has"} no calls: there is nothing to compare.`);
  const [noun, before, after] = a.turns.count || b.turns.count ? ["turn", a.turns, b.turns] : ["call", entryOf(a), entryOf(b)];
  if (!before.count || !after.count) return h("p", { class: "verdict" }, `${before.count ? "B" : "A"} has no turns: there is nothing to set against those of ${before.count ? "A" : "B"}.`);
  const p50 = after.p50 - before.p50;
  const p95 = after.p95 - before.p95;
  const matters = (change, before) => Math.abs(change) >= Math.max(2, 0.03 * before);
  const few = Math.min(before.count, after.count);
  if (few < SURE) return h("p", { class: "verdict" }, `? B's ${noun}s took ${delta(p50)} at p50, but ${few === 1 ? `one ${noun} is` : `${few} ${noun}s are`} too few to be sure`);
  if (!matters(p50, before.p50) && !matters(p95, before.p95)) return h("p", { class: "verdict" }, `≈ ${noun === "turn" ? "Turns" : "Calls"} take as long as before (p50 ${delta(p50)}, p95 ${delta(p95)})`);
  const main = matters(p50, before.p50) ? p50 : p95;
  const word = main > 0 ? "slower" : "faster";
  const told = (change) => (Math.abs(change) < 0.05 ? "as long" : `${ms(Math.abs(change))} ${change > 0 ? "longer" : "less"}`);
  return h("p", { class: `verdict ${word}` }, `${main > 0 ? "▲" : "▼"} B is ${word}: a ${noun} takes ${told(p50)} at p50 (${percentOf(p50, before.p50)}), ${told(p95)} at p95 (${percentOf(p95, before.p95)})`);
}

/** What calls without turns took: their outermost hop. */
function entryOf(side) {
  const entry = side.hops.find((hop) => hop.node === side.graph.nodes[0]) || side.hops[0];
  return entry ? { count: entry.calls, p50: entry.p50, p95: entry.p95 } : { count: 0, p50: 0, p95: 0 };
}

function tooFew(hops) {
  return hops.length > 0 && hops.every((hop) => ["unsure", "new", "gone"].includes(hop.verdict)) ? "There are too few calls on both sides to say what changed." : "";
}

function percentOf(change, before) {
  return `${change < 0 ? "−" : "+"}${Math.round((100 * Math.abs(change)) / before)} %`;
}

/** What changed; and first what the chain's own findings say of B that they did not say of A. */
function allFindings(told) {
  const key = (one) => [one.kind, one.hop, one.replica].join(" ");
  const before = new Set((told.a.findings || []).map(key));
  const fresh = (told.b.findings || []).filter((one) => !before.has(key(one)) && one.kind !== "errors");
  return [...fresh, ...told.findings];
}

function turnsTable(a, b) {
  const names = ["", "turns", "p50", "p95", "p99"];
  const line = (name, side) => [h("b", {}, name), ...(side.turns && side.turns.count
    ? [count(side.turns.count), ms(side.turns.p50), ms(side.turns.p95), ms(side.turns.p99)] : ["0", "–", "–", "–"]).map((text) => h("span", { class: "figure" }, text)), h("span", { class: "soft where" }, side.label || "")];
  const change = (key) => h("span", { class: "figure" }, a.turns && b.turns && a.turns.count && b.turns.count ? delta(b.turns[key] - a.turns[key]) : "–");
  return h("div", { class: "both" }, names.map((name) => h("span", { class: "soft figure" }, name)), h("span", {}),
    line("A", a), line("B", b), h("b", {}, "B − A"), h("span", {}), change("p50"), change("p95"), change("p99"), h("span", {}));
}

function changes(hops, usualMs) {
  // A hop that lasts as long as the call says little about turns, and would dwarf what does.
  const lasting = (hop) => Boolean(usualMs && hop.a && hop.b && Math.min(hop.a.p50, hop.b.p50) > 2 * usualMs);
  const sizes = hops.flatMap((hop) => [hop.path_delta_ms, ...(lasting(hop) ? [] : [hop.delta_p50, hop.delta_p95])]);
  const widest = Math.max(1, ...sizes.map((size) => Math.abs(size || 0)));
  const head = ["Hop", "Verdict", "Of a turn's time", "p50 A", "p50 B", "p50 change", "p95 change", "Change of its parts (mean)"];
  return h("div", { class: "scroll-x" }, h("table", { class: "hops" },
    h("thead", {}, h("tr", {}, head.map((name, index) => h("th", { scope: "col", class: index === 3 || index === 4 ? "figure" : "" }, name)))),
    h("tbody", {}, hops.map((hop) => changeRow(hop, widest)))));
}

function changeRow(hop, widest) {
  const marks = { slower: "▲ slower", faster: "▼ faster", same: "≈ same", unsure: "? not sure", new: "+ new", gone: "− gone" };
  const cell = (label, inside, kind = "") => h("td", { "data-label": label, class: kind }, inside);
  return h("tr", {}, h("th", { scope: "row", class: "mono" }, hop.hop), cell("Verdict", marks[hop.verdict] || hop.verdict, `verdict-${hop.verdict}`),
    cell("Of a turn's time", diverging(hop.path_delta_ms, widest)),
    cell("p50 A", hop.a ? ms(hop.a.p50) : "–", "figure"), cell("p50 B", hop.b ? ms(hop.b.p50) : "–", "figure"),
    cell("p50 change", diverging(hop.delta_p50, widest)), cell("p95 change", diverging(hop.delta_p95, widest)), cell("Parts", partDeltas(hop.parts || {})));
}

/** A bar left of the middle for less time, right for more; » where it is longer than its place. */
function diverging(value, widest) {
  if (value === null || value === undefined) return h("span", { class: "soft" }, "–");
  const size = Math.min(1, Math.abs(value) / widest);
  const beyond = Math.abs(value) > widest * 1.001 ? " beyond" : "";
  const bar = () => h("i", { style: { width: `${100 * size}%` } });
  return h("div", { class: "change" }, h("span", { class: "num" }, delta(value)),
    h("div", { class: "diverging", "aria-hidden": "true" }, h("span", { class: `less${value < 0 ? beyond : ""}` }, value < 0 ? bar() : null),
      h("span", { class: `more-time${value > 0 ? beyond : ""}` }, value > 0 ? bar() : null)));
}

function partDeltas(parts) {
  const shown = PARTS.filter((part) => Math.abs(parts[part] || 0) >= 0.5);
  if (shown.length === 0) return h("span", { class: "soft" }, "–");
  return h("div", { class: "partdeltas" }, shown.sort((x, y) => Math.abs(parts[y]) - Math.abs(parts[x]))
    .map((part) => h("span", {}, h("i", { class: `part-${part}` }), `${part} ${delta(parts[part])}`)));
}
