// Everything that is known of one row: its parts and their sum, tokens, attempts, attributes, events, its usual time.

import { ApiError, getJson, withQuery } from "./api.js";
import { clear, h } from "./dom.js";
import { PARTS, count, delta, many, ms, percent } from "./format.js";
import { PART_WORDS, at, checked, doing, exact, stateOf, sums, swatch, took } from "./callwords.js";

const TOKENS = [
  ["gen_ai.request.model", "model", String], ["gen_ai.usage.input_tokens", "input tokens", count],
  ["chains.cached_tokens", "of them cached", count], ["gen_ai.usage.output_tokens", "output tokens", count],
  ["chains.guessed_tokens", "guessed and checked", count], ["chains.right_guesses", "of them right", count],
  ["chains.ttft_ms", "time to first token", ms], ["gen_ai.response.finish_reasons", "finished by", String],
];
const SHOWN_ELSEWHERE = new Set([...TOKENS.map(([key]) => key), ...PARTS.map((part) => `chains.${part}_ms`), "chains.call", "chains.kind", "chains.turn",
  "chains.node", "chains.replica", "chains.attempts", "chains.items_in", "chains.items_out", "chains.first_item_ms", "chains.waits", "chains.works", "chains.path", "error.type"]);

export class Inspector {
  /** `source`: path, details (of a self-contained file); `hooks`: seek(time), zoom(span), close(), span(id). */
  constructor(source, hooks) {
    this.source = source;
    this.hooks = hooks;
    this.usual = null;
    this.root = h("section", { class: "c-inspector", id: "c-panel-details", role: "tabpanel", "aria-label": "What the row knows", tabindex: "-1" });
    this.empty();
  }

  empty() {
    this.span = null;
    clear(this.root, h("p", { class: "c-silent" }, "Choose a row of the waterfall (arrow keys, then Enter) to see its parts, tokens, attempts and attributes."));
  }

  async show(span, model) {
    this.span = span;
    this._draw(span, model, null, "");
    let details = null;
    let trouble = "";
    try {
      details = await this._details(span);
      if (span.kind === "hop") await this._learn(model);
    } catch (error) {
      trouble = error instanceof ApiError ? `${error.message} ${error.mend || ""}` : error.message;
    }
    if (this.span === span) this._draw(span, model, details, trouble);
  }

  _details(span) {
    if (span.made) return null;
    if (this.source.inlined) return (this.source.details || {})[span.id] || null;
    return getJson(`${this.source.path}/spans/${span.id}`);
  }

  // What this chain's hops usually take: asked for once.
  async _learn(model) {
    if (this.usual || this.source.inlined) return;
    this.usual = new Map();
    try {
      const body = await getJson(withQuery("/api/chain", { chain: model.call.chain, app: model.call.app }));
      this.usual = new Map((body.hops || []).map((hop) => [hop.hop, hop]));
    } catch {
      // the page does without
    }
  }

  _draw(span, model, details, trouble) {
    const attributes = (details && details.attributes) || {};
    clear(this.root, this._head(span, model), this._where(span, model), trouble && h("p", { class: "state-error" }, trouble),
      this._parts(span), span.kind === "turn" && span.of ? this._turn(span.of) : null, this._usual(span, model),
      this._tokens(attributes), this._flow(span), this._path(span), this._attributes(attributes), this._events(details, span));
  }

  _head(span, model) {
    const state = span.status === 2 ? h("span", { class: "state state-error" }, `✕ ${span.error || "error"}`)
      : span.kind === "turn" && span.of ? h("span", { class: `state state-${stateOf(span.of).look}` }, `${stateOf(span.of).sign} ${stateOf(span.of).word}`) : null;
    return h("header", { class: "c-inspect-head" },
      h("div", {}, h("h2", {}, span.name), h("p", { class: "soft" }, `${took(span)} · from ${at(span.start, 3)}`, span.turn ? ` · turn ${span.turn}` : "", state && " ", state)),
      h("div", { class: "c-actions" },
        h("button", { type: "button", title: "Zoom to it (z)", onclick: () => this.hooks.zoom(span) }, "Zoom"),
        h("button", { type: "button", title: "Listen from here", onclick: () => this.hooks.seek(span.start) }, "To here"),
        h("button", { type: "button", class: "quiet", "aria-label": "Close (Esc)", title: "Close (Esc)", onclick: () => this.hooks.close() }, "✕")),
      span.up && h("p", { class: "soft c-caller-line" }, "under ", h("button", { type: "button", class: "c-linky", onclick: () => this.hooks.span(span.up) }, span.up.name)));
  }

  _where(span, model) {
    const lines = [];
    if (span.replica) {
      const link = withQuery("/chain", { chain: model.call.chain, hop: span.name, replica: span.replica });
      lines.push(h("p", {}, "Replica ", this.source.inlined ? h("b", {}, span.replica) : h("a", { href: link, title: "This replica beside its peers" }, span.replica)));
    }
    const source = model.sources.get(span.source);
    if (source && source.estimated) {
      lines.push(h("p", { class: "c-clock-note" }, `The clock of ${source.instance || source.service} seems ${ms(Math.abs(source.offset_ms))} ${source.offset_ms > 0 ? "ahead" : "behind"}. `,
        "Its spans are drawn moved by that estimate; the figures are measured on one clock each and do not use it."));
    }
    return lines.length ? h("div", { class: "c-where" }, lines) : null;
  }

  _parts(span) {
    if (!span.parts) return span.kind === "span" ? h("p", { class: "soft" }, "A span of another program: it says how long it took, not what the time went into.") : null;
    const sum = span.parts.reduce((total, one) => total + one, 0);
    const [said, holds] = checked(sum, span.ms);
    const largest = Math.max(...span.parts);
    const rows = PARTS.map((part, n) => h("tr", { title: PART_WORDS[part] }, h("th", { scope: "row" }, swatch(part), part),
      h("td", { class: "c-part-bar" }, h("i", { class: `c-${part}`, style: { width: `${largest ? (span.parts[n] / largest) * 100 : 0}%` } })),
      h("td", { class: "figure" }, exact(span.parts[n])), h("td", { class: "figure soft" }, span.ms ? percent(span.parts[n] / span.ms) : "")));
    return h("section", {}, h("h3", {}, "Where its time went"), h("table", { class: "c-parts" }, h("tbody", {}, rows)), h("p", { class: holds ? "c-check state-ok" : "c-check state-error" }, said));
  }

  _turn(turn) {
    const state = stateOf(turn);
    const marks = Object.entries(turn.marks || {}).sort((a, b) => a[1] - b[1]);
    const rows = sums(turn.path || []).map((step) => h("tr", {}, h("th", { scope: "row" }, swatch(step.part), `${step.hop} `, h("span", { class: "soft" }, `${doing(step.part, step.name)}${step.replica ? ` · ${step.replica}` : ""}`)),
      h("td", { class: "figure" }, exact(step.ms))));
    const total = (turn.path || []).reduce((sum, step) => sum + step[5], 0);
    const [said, holds] = checked(total, turn.latency_ms || 0);
    return h("section", {}, state.long && h("p", {}, `It was ${state.long}.`), turn.reason && h("p", {}, `Reason: ${turn.reason}`), turn.played_ms ? h("p", {}, `${ms(turn.played_ms)} of the reply were heard.`) : null,
      rows.length ? [h("h3", {}, `Critical path of ${ms(turn.latency_ms)}`), h("table", { class: "c-parts" }, h("tbody", {}, rows)), h("p", { class: holds ? "c-check state-ok" : "c-check state-error" }, said.replace("the parts", "the steps"))] : null,
      marks.length ? [h("h3", {}, "Marks"), pairs(marks.map(([name, when]) => [name.replaceAll("_", " "), at(when, 3)]))] : null);
  }

  _usual(span, model) {
    const usual = this.usual && this.usual.get(span.name);
    if (!usual || span.kind !== "hop") return null;
    const mine = (usual.replicas || []).find((one) => one.replica === span.replica);
    const far = usual.p50 ? `, this one ${delta(span.ms - usual.p50)}` : "";
    return h("section", {}, h("h3", {}, "What it usually takes"),
      h("p", {}, `p50 ${ms(usual.p50)}, p95 ${ms(usual.p95)} over ${many(usual.calls, "call")} of ${model.call.chain}${far}.`),
      mine && h("p", {}, `On ${mine.replica}: p50 ${ms(mine.p50)}, p95 ${ms(mine.p95)}.`, mine.outlier && h("strong", { class: "state-error" }, ` It differs from its peers: ${mine.why}.`)));
  }

  _tokens(attributes) {
    const known = TOKENS.filter(([key]) => attributes[key] !== undefined).map(([key, word, say]) => [word, say(attributes[key])]);
    return known.length ? h("section", {}, h("h3", {}, "Model and tokens"), pairs(known)) : null;
  }

  _flow(span) {
    if (span.kind !== "hop") return null;
    const rows = [];
    if (span.attempts > 1) rows.push(["attempts", `${span.attempts} (the time of the failed ones counts as wire)`]);
    if (span.itemsIn > 1) rows.push(["items in", count(span.itemsIn)]);
    if (span.itemsOut > 1) rows.push(["items out", count(span.itemsOut)]);
    if (span.firstMs) rows.push(["first item after", ms(span.firstMs)]);
    return rows.length ? h("section", {}, h("h3", {}, "Stream"), pairs(rows)) : null;
  }

  _path(span) {
    if (!span.path.length) return null;
    const total = span.path.reduce((sum, step) => sum + step.ms, 0);
    return h("section", {}, h("h3", {}, `On the critical path for ${exact(total)}`),
      pairs(span.path.slice(0, 40).map((step) => [`${step.turn ? `turn ${step.turn}, ` : ""}${at(step.start, 2)}`, `${doing(step.part, step.name)} ${ms(step.ms)}`])));
  }

  _attributes(attributes) {
    const rest = Object.entries(attributes).filter(([key]) => !SHOWN_ELSEWHERE.has(key)).sort(([a], [b]) => a.localeCompare(b));
    return rest.length ? h("section", {}, h("h3", {}, "Attributes"), pairs(rest.map(([key, value]) => [key, typeof value === "object" ? JSON.stringify(value) : String(value)]))) : null;
  }

  _events(details, span) {
    const events = (details && details.events) || [];
    if (!events.length || span.kind === "turn") return null;
    return h("section", {}, h("h3", {}, "Events"), pairs(events.map((event) => [at(event.at, 3), `${event.name}${words(event.attributes)}`])));
  }
}

function words(attributes) {
  const known = Object.entries(attributes || {});
  return known.length ? ` (${known.map(([key, value]) => `${key} ${value}`).join(", ")})` : "";
}

function pairs(rows) {
  return h("dl", { class: "c-pairs" }, rows.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}
