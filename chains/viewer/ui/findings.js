// What the figures say, in words, the weightiest first.

import { h } from "./dom.js";
import { delta } from "./format.js";

export const KINDS = {
  replica: ["▲", "one replica"],
  queue: ["≡", "queue"],
  client: ["◁", "client"],
  model: ["◆", "compute"],
  wire: ["↔", "wire"],
  errors: ["✕", "errors"],
  new: ["+", "new"],
  unsure: ["?", "not sure"],
};

/** A list of findings; `links(finding)` gives [text, href] pairs to follow one up. Without any, `none` says so; that
 * is good news only where there was enough to judge by (`sure`). */
export function findingsList(findings, links, none, sure = true) {
  if (findings.length === 0) return h("p", { class: sure ? "calm" : "soft" }, h("span", { "aria-hidden": "true" }, sure ? "✓ " : "? "), none);
  return h("ol", { class: "findings" }, findings.map((one) => {
    const [mark, word] = KINDS[one.kind] || ["•", one.kind];
    return h("li", { class: `finding kind-${one.kind}` },
      h("span", { class: "kind" }, h("span", { "aria-hidden": "true" }, `${mark} `), word),
      h("p", {}, one.text),
      one.ms ? h("b", { class: "figure" }, delta(one.ms)) : h("span", {}),
      h("span", { class: "links" }, links(one).map(([text, href]) => h("a", { href }, text))));
  }));
}
