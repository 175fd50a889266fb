// What the call page says: moments inside a call, parts and states in words, what can be copied.

import { h } from "./dom.js";
import { PARTS, ms } from "./format.js";

export const PART_WORDS = {
  serialise: "encoding and decoding values",
  wire: "on the way between processes",
  queue: "waiting for a free slot of the replica",
  compute: "the chainlet's own work",
  wait: "waiting for other hops, for input, or for a slow reader",
  mixed: "work and waiting that were not kept apart: only the last of a long hop are",
  other: "a span of another program: not divided",
};

const DOING = { serialise: "encoding values", wire: "on the wire", queue: "waiting in the queue", compute: "computing", mixed: "working or waiting", wait: "waiting" };

export const STATES = {
  answered: { sign: "✓", word: "answered", look: "ok" },
  interrupted: { sign: "✂", word: "interrupted", look: "interrupted" },
  dropped: { sign: "⊘", word: "dropped", look: "dropped", long: "speculated and thrown away: nothing of it was heard" },
  failed: { sign: "✕", word: "failed", look: "error" },
  live: { sign: "●", word: "running", look: "live" },
};

/** How a turn ended, or that it runs. */
export function stateOf(turn) {
  return STATES[turn.state] || STATES[turn.end === null || turn.end === undefined ? "live" : "answered"];
}

/** A moment inside the call: 0:07.3 */
export function at(offset, digits = 1) {
  const tenth = 10 ** digits;
  const size = Math.round((Math.abs(offset) / 1000) * tenth) / tenth;
  const minutes = Math.floor(size / 60);
  const seconds = (size - minutes * 60).toFixed(digits);
  return `${offset < 0 ? "−" : ""}${minutes}:${Number(seconds) < 10 ? "0" : ""}${seconds}`;
}

/** What a stretch of a path did: "prefill", or the part in words. */
export function doing(part, name) {
  if (part === "wait" && name === "credit") return "waiting for a slow reader";
  if (part === "wait" && name === "input") return "waiting for input";
  if (part === "wait" && /^(before|after) /.test(name)) return name; // the call itself, beside its outermost hop
  return name && name !== part && part !== "wait" ? name : DOING[part] || part;
}

/** A path summed by hop, part and replica, the largest first: [{hop, part, name, replica, ms}]. */
export function sums(path) {
  const found = new Map();
  for (const [hop, part, name, replica, , took] of path) {
    const key = JSON.stringify([hop, part, name, replica]);
    const sum = found.get(key) || { hop, part, name, replica, ms: 0 };
    sum.ms += took;
    found.set(key, sum);
  }
  return [...found.values()].sort((a, b) => b.ms - a.ms);
}

/** The small square of a part, with the pattern that its bars have. */
export function swatch(part) {
  return h("i", { class: `c-swatch c-${part || "other"}`, "aria-hidden": "true" });
}

export function legend() {
  const items = PARTS.map((part) => h("li", { title: PART_WORDS[part] }, swatch(part), part));
  const path = h("li", { title: "What the turn's latency went into, step after step" }, h("i", { class: "c-swatch c-onpath", "aria-hidden": "true" }), "critical path");
  const first = h("li", { title: "When the hop gave its first item" }, h("i", { class: "c-swatch c-firstitem", "aria-hidden": "true" }), "first item");
  return h("ul", { class: "legend c-legend", "aria-label": "What the bars show" }, items, path, first);
}

/** How the sum of parts stands to the whole: ["✓ sums to 412.0 ms", true]. */
export function checked(sum, whole) {
  const holds = Math.abs(sum - whole) <= 1;
  return [holds ? `✓ the parts sum to ${exact(sum)}` : `✕ the parts sum to ${exact(sum)}, the whole is ${exact(whole)}`, holds];
}

/** Milliseconds to a tenth, for sums that are to be checked. */
export function exact(value) {
  return `${value.toLocaleString("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 })} ms`;
}

export function took(span) {
  return span.live ? `${ms(span.ms)} so far` : ms(span.ms);
}

/** A command with a button that copies it. */
export function copier(text, label) {
  const code = h("code", {}, text);
  const said = h("span", { class: "c-said", role: "status" });
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      said.textContent = "copied";
    } catch {
      getSelection().selectAllChildren(code);
      said.textContent = "press Ctrl+C";
    }
    setTimeout(() => (said.textContent = ""), 2500);
  };
  return h("span", { class: "c-copier" }, code, h("button", { type: "button", "aria-label": `Copy ${label}`, onclick: copy }, "Copy"), said);
}
