// A range of time as fields: a preset, or two moments. Bounds are "", "-1h" or ms since 1970.

import { h } from "./dom.js";
import { fromField, moment, toField } from "./format.js";

const PRESETS = [["", "any time"], ["-15m", "last 15 minutes"], ["-1h", "last hour"], ["-24h", "last day"]];

/** A bound in words. */
export function boundText(value) {
  return /^\d+(\.\d+)?$/.test(value) ? moment(Number(value)) : value;
}

export function rangeText(from, to) {
  if (!from && !to) return "any time";
  if (to && to !== "now") return `${from ? boundText(from) : "start"} to ${boundText(to)}`;
  const preset = PRESETS.find(([value]) => value === from);
  return preset ? preset[1] : `since ${boundText(from)}`;
}

/** Three labelled fields; `changed({from, to})` is called with what was chosen. */
export function rangeFields({ from, to }, changed) {
  const known = !to && PRESETS.some(([value]) => value === from);
  const preset = h("select", { "aria-label": "Time", onchange: () => preset.value !== "-" && changed({ from: preset.value, to: "" }) },
    [...PRESETS, ...(known ? [] : [["-", "from – to"]])].map(([value, text]) => h("option", { value, selected: value === (known ? from : "-") }, text)));
  const field = (label, value, name) => h("label", {}, h("span", {}, label), h("input", { type: "datetime-local", step: "1",
    value: /^\d/.test(value) ? toField(Number(value)) : "",
    onchange: (event) => changed({ from, to, [name]: String(fromField(event.target.value) ?? "") }) }));
  return [h("label", {}, h("span", {}, "Time"), preset), field("From", from, "from"), field("To", to, "to")];
}
