// What the store holds: totals, what was dropped and why, and which chains and versions are in it.

import { failure, getJson, withQuery } from "./api.js";
import { clear, h } from "./dom.js";
import { bytes, count, many, moment } from "./format.js";

export async function show(root) {
  const abort = new AbortController();
  const place = h("div", { class: "sections" });
  root.append(h("div", { class: "page" }, h("h1", {}, "What the store holds"), place));
  const open = async () => {
    try {
      draw(place, await getJson("/api/info", { signal: abort.signal }));
    } catch (error) {
      if (error.name !== "AbortError") clear(place, failure(error, open));
    }
  };
  await open();
  return () => abort.abort();
}

function draw(place, info) {
  const stat = (name, value) => h("div", { class: "stat" }, h("span", {}, name), h("b", {}, value));
  clear(place,
    h("section", { class: "panel turns", "aria-label": "Totals" }, stat("calls", count(info.calls)), stat("spans", count(info.spans)),
      stat("on disk", bytes(info.bytes)), stat("spans dropped", count(info.dropped)), stat("chains", info.version)),
    h("section", { class: "panel", "aria-label": "Dropped spans" }, h("h2", {}, "Dropped spans"), drops(info.drops || [])),
    h("section", { class: "panel", "aria-label": "Chains" }, h("h2", {}, "Chains and versions"), versions(info.chains)));
}

function drops(rows) {
  if (rows.length === 0) return h("p", { class: "calm" }, "✓ None: every span that came is in the store, until it is too old.");
  return table(["From", "Why", "Spans"], rows.map(([source, reason, n]) => [source || "–", reason, count(n)]));
}

function versions(chains) {
  if (chains.length === 0) return h("p", { class: "soft" }, "None yet.");
  const rows = chains.flatMap((one) => one.versions.map((version) => [
    h("a", { href: withQuery("/chain", { chain: one.chain, app: one.app, version: version.version }) }, one.chain), version.version || "–",
    moment(version.first_ms), moment(version.last_ms), many(version.calls, "call")]));
  return table(["Chain", "Version", "First call", "Last call", "Calls"], rows);
}

function table(head, rows) {
  return h("div", { class: "scroll-x" }, h("table", { class: "hops" }, h("thead", {}, h("tr", {}, head.map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, row.map((value, index) => h("td", { "data-label": head[index] }, value)))))));
}
