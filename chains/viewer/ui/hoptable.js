// Each hop's figures, with its replicas below it; a replica unlike its peers is marked and said in words.

import { clear, h, svg } from "./dom.js";
import { PARTS, count, delta, many, ms, percent } from "./format.js";
import { partsBar } from "./partsbar.js";

const HEAD = ["Hop", "Calls", "Errors", "p50", "p95", "p99", "Parts of its time", "On the critical path", "Replicas"];

/** {element, reveal(node)}: the table, and what opens and scrolls to a chainlet's first hop. */
export function hopTable(hops, turns, callsUrl) {
  const highest = Math.max(1e-9, ...hops.map((hop) => spent(hop)));
  const sorted = [...hops].sort((a, b) => spent(b) - spent(a) || b.p50 - a.p50);
  const groups = sorted.map((hop) => hopGroup(hop, highest, turns, callsUrl));
  const element = h("div", { class: "scroll-x" }, h("table", { class: "hops" },
    h("thead", {}, h("tr", {}, HEAD.map((name, index) => h("th", { scope: "col", class: index > 0 && index < 6 ? "figure" : "" }, name)))),
    groups.map((group) => group.body)));
  const reveal = (node) => {
    const found = groups.find((group) => group.hop.node === node);
    if (!found) return;
    if (found.hop.replicas.length) found.open(true);
    found.body.scrollIntoView({ block: "center", behavior: "instant" });
    found.focus.focus({ preventScroll: true });
  };
  return { element, reveal };
}

function spent(hop) {
  return hop.on_path ? hop.on_path.ms_mean * hop.on_path.share : 0;
}

function hopGroup(hop, highest, turns, callsUrl) {
  const odd = hop.replicas.filter((one) => one.outlier);
  const body = h("tbody", { class: odd.length ? "marked" : "" });
  let shown = odd.length > 0;
  const replicas = hop.replicas.length;
  const toggle = h("button", { type: "button", class: "quiet expand", onclick: () => open(!shown) });
  const link = h("a", { href: callsUrl({ hop: hop.hop }), title: `Slowest calls through ${hop.hop}` }, hop.hop);
  const open = (wanted) => {
    shown = wanted;
    toggle.setAttribute("aria-expanded", String(shown));
    clear(toggle, h("span", { "aria-hidden": "true" }, shown ? "▾ " : "▸ "), replicas ? many(replicas, "replica") : "–");
    const first = row(hop, highest, turns, link, replicas ? [toggle, replicas > 1 ? dots(hop.replicas) : null] : [h("span", { class: "soft" }, "–")]);
    clear(body, first, ...(shown ? [...hop.replicas].sort((a, b) => b.p50 - a.p50).map((one) => replicaRow(hop, one, callsUrl)) : []));
  };
  open(shown);
  return { hop, body, open, focus: replicas ? toggle : link };
}

function cell(label, ...inside) {
  return h("td", { "data-label": label }, ...inside);
}

function figure(label, value, kind = "") {
  return h("td", { class: `figure ${kind}`, "data-label": label }, value);
}

function row(hop, highest, turns, link, replicas) {
  const on = hop.on_path || { share: 0, ms_mean: 0, turns: 0 };
  const means = Object.fromEntries(PARTS.map((part) => [part, hop.parts[part] ? hop.parts[part].mean : 0]));
  const path = on.share > 0
    ? h("div", { class: "onpath" }, h("span", { class: "meter", "aria-hidden": "true" }, h("i", { style: { width: `${(100 * spent(hop)) / highest}%` } })),
      h("span", {}, h("b", {}, ms(on.ms_mean)), ` on ${percent(on.share)} of turns`))
    : h("span", { class: "soft" }, turns ? "never" : "no turns");
  return h("tr", {}, h("th", { scope: "row" }, link), figure("Calls", count(hop.calls)), errors(hop.errors),
    figure("p50", ms(hop.p50)), figure("p95", ms(hop.p95)), figure("p99", ms(hop.p99)),
    cell("Parts", partsBar(means)), cell("On path", path), h("td", { class: "replicas", "data-label": "Replicas" }, replicas));
}

function replicaRow(hop, one, callsUrl) {
  const words = one.outlier ? one.why : peers(hop, one);
  return h("tr", { class: one.outlier ? "replica outlier" : "replica" },
    h("th", { scope: "row" }, h("span", { class: "branch", "aria-hidden": "true" }, one.outlier ? "▲ " : "└ "),
      h("a", { href: callsUrl({ hop: hop.hop, replica: one.replica }), title: `Slowest calls through ${one.replica}` }, one.replica)),
    figure("Calls", count(one.calls)), errors(one.errors), figure("p50", ms(one.p50)), figure("p95", ms(one.p95)), figure("p99", ms(one.p99)),
    cell("Parts", partsBar(one.parts)),
    h("td", { colspan: "2", class: "words", "data-label": "Against its peers" }, one.outlier ? h("strong", {}, "Unlike its peers: ", words) : h("span", { class: "soft" }, words)));
}

/** How a replica stands to those of its peers that are not unlike themselves. */
function peers(hop, one) {
  const others = hop.replicas.filter((peer) => peer !== one && !peer.outlier).map((peer) => peer.p50).sort((a, b) => a - b);
  if (others.length === 0) return hop.replicas.length < 2 ? "the only replica" : "";
  const apart = one.p50 - others[others.length >> 1];
  if (one.why && !hop.replicas.some((peer) => peer.outlier)) return one.why;
  return Math.abs(apart) < 0.5 ? "like its peers" : `like its peers (p50 ${delta(apart)})`;
}

function errors(value) {
  return figure("Errors", value ? `✕ ${count(value)}` : "0", value ? "bad" : "soft");
}

/** Each replica's p50 on one line: a round dot, a triangle where it is unlike its peers. */
function dots(replicas) {
  const sizes = replicas.map((one) => one.p50);
  const [low, high] = [Math.min(...sizes), Math.max(...sizes)];
  const room = Math.max(high - low, high * 0.5, 1e-9);
  const x = (value) => 6 + ((value - low) / room) * 76;
  return svg("svg", { class: "dots", width: 90, height: 16, "aria-hidden": "true" }, svg("line", { x1: 2, x2: 88, y1: 8.5, y2: 8.5 }),
    replicas.map((one) => (one.outlier
      ? svg("path", { class: "odd", d: `M${x(one.p50)} 2l6 11h-12z` })
      : svg("circle", { cx: x(one.p50), cy: 8.5, r: 3.5 }))));
}
