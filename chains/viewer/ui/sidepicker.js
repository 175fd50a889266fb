// One side of a comparison, chosen by kind: version, time or call.

import { clear, h } from "./dom.js";
import { fromField, many, toField } from "./format.js";
import { rangeChoices } from "./specs.js";

/** A fieldset for side `name`; `changed(spec)` is called with each whole choice. */
export function sidePicker(name, spec, info, recent, changed) {
  const chosen = { ...spec, kind: spec.kind || "version" };
  const place = h("div", { class: "choose" });
  const set = (values) => {
    Object.assign(chosen, values);
    if (chosen.value) changed(chosen);
  };
  const draw = () => clear(place,
    labelled("By", choice([["version", "version"], ["range", "time"], ["call", "call"]], chosen.kind, (kind) => {
      Object.assign(chosen, { kind, value: "" });
      draw();
      place.querySelector("select").focus();
    })), ...fields(chosen, info, recent, set));
  draw();
  return h("fieldset", { class: "side" }, h("legend", {}, name), place);
}

function labelled(label, field) {
  return h("label", {}, h("span", {}, label), field);
}

function choice(options, chosen, changed) {
  const field = h("select", { onchange: () => changed(field.value) },
    options.map(([value, text]) => h("option", { value, selected: value === chosen }, text)));
  return field;
}

function fields(chosen, info, recent, set) {
  if (chosen.kind === "call") return callField(chosen, recent, set);
  const chains = [...new Set(info.chains.map((one) => one.chain))];
  if (!chains.includes(chosen.chain)) chosen.chain = chains[0] || "";
  const chain = labelled("Chain", choice(chains.map((one) => [one, one]), chosen.chain, (value) => set({ chain: value, value: chosen.kind === "range" ? chosen.value : "" })));
  if (chosen.kind === "range") return [chain, ...rangeField(chosen, set)];
  const versions = info.chains.filter((one) => one.chain === chosen.chain).flatMap((one) => one.versions);
  const options = versions.map((one) => [one.version, `${one.version} (${many(one.calls, "call")})`]);
  if (!versions.some((one) => one.version === chosen.value)) options.unshift([chosen.value, chosen.value || "choose a version"]);
  return [chain, labelled("Version", choice(options, chosen.value, (value) => set({ value })))];
}

function rangeField(chosen, set) {
  const known = rangeChoices().some(([value]) => value === chosen.value);
  const [from, to] = chosen.value.split("..").map((one) => (/^\d/.test(one || "") ? Number(one) : null));
  const preset = choice([...rangeChoices(), ...(known ? [] : [["", chosen.value ? "from – to" : "choose a time"]])], known ? chosen.value : "", (value) => value && set({ value }));
  const fromAt = h("input", { type: "datetime-local", step: "1", value: toField(from) });
  const toAt = h("input", { type: "datetime-local", step: "1", value: toField(to) });
  const both = () => {
    const [a, b] = [fromField(fromAt.value), fromField(toAt.value)];
    if (a !== null && b !== null && a < b) set({ value: `${a}..${b}` });
  };
  fromAt.addEventListener("change", both);
  toAt.addEventListener("change", both);
  return [labelled("Time", preset), labelled("From", fromAt), labelled("To", toAt)];
}

function callField(chosen, recent, set) {
  const list = `recent-${Math.random().toString(36).slice(2)}`;
  const input = h("input", { value: chosen.value, placeholder: "id of a call", list, onchange: () => set({ value: input.value.trim() }) });
  return [labelled("Call", input), h("datalist", { id: list }, recent.map((one) => h("option", { value: one })))];
}
