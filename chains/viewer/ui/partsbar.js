// The five parts of a hop's time as one bar, and what the colours mean.

import { h } from "./dom.js";
import { PARTS, ms } from "./format.js";

const MEANS = {
  serialise: "serialise: made into bytes and back",
  wire: "wire: under way between processes",
  queue: "queue: waited for a free place",
  compute: "compute: the chainlet's own work",
  wait: "wait: on other hops or on who reads",
};

/** A bar of `values` {part: ms}; as wide as `share` (0..1) of its place. */
export function partsBar(values, share = 1) {
  const sizes = PARTS.map((part) => Math.max(0, values[part] || 0));
  const sum = sizes.reduce((a, b) => a + b, 0);
  const said = PARTS.map((part, index) => [part, sizes[index]]).filter(([, size]) => size > 0).map(([part, size]) => `${part} ${ms(size)}`).join(", ");
  const bar = h("div", { class: "parts", role: "img", "aria-label": said || "no time", title: said });
  if (sum === 0) return bar;
  for (let index = 0; index < PARTS.length; index += 1) {
    if (sizes[index] / sum < 0.004) continue;
    bar.append(h("span", { class: `part-${PARTS[index]}`, style: { width: `${(100 * share * sizes[index]) / sum}%` } }));
  }
  return bar;
}

export function legend() {
  return h("ul", { class: "legend", "aria-label": "Parts of a hop's time" },
    PARTS.map((part) => h("li", { title: MEANS[part] }, h("i", { class: `part-${part}` }), part)));
}

/** The largest part of `values` and its share of the whole: ["compute", 0.8]. */
export function mainPart(values) {
  const sum = PARTS.reduce((total, part) => total + (values[part] || 0), 0);
  const part = PARTS.reduce((best, one) => ((values[one] || 0) > (values[best] || 0) ? one : best));
  return [part, sum ? values[part] / sum : 0];
}
