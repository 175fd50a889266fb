// The call's turns in a row, and what the chosen one's latency went into, step after step.

import { clear, h } from "./dom.js";
import { many, ms, percent } from "./format.js";
import { checked, doing, exact, stateOf, sums, swatch } from "./callwords.js";

const SHOWN = 7;
const CHIPS = 240; // of a call with thousands of turns, those around the chosen one

export class TurnStrip {
  /** `hooks`: turn(number), hop(name, replica, turn): show that hop's row. */
  constructor(hooks) {
    this.hooks = hooks;
    this.list = h("ol", { class: "c-turns", "aria-label": "Turns" });
    this.path = h("div", { class: "c-path" });
    this.root = h("section", { class: "c-strip", "aria-label": "Turns and the critical path" }, this.list, this.path);
    this.list.addEventListener("keydown", (event) => this._key(event));
  }

  show(model, chosen, asked, findings = []) {
    const key = JSON.stringify([findings.length, model.turns.map((turn) => [turn.number, turn.state, turn.latency_ms, turn.path?.length]), chosen, asked]);
    if (key === this.key) return;
    this.key = key;
    const slowest = model.slowest;
    const turns = model.turns.filter((turn) => turn.number > 0);
    this.list.hidden = !turns.length;
    const middle = turns.findIndex((turn) => turn.number === chosen);
    const from = Math.max(Math.min(middle - CHIPS / 2, turns.length - CHIPS), 0);
    const some = turns.slice(from, from + CHIPS);
    clear(this.list, this._more(turns[from - 1], from, "earlier"), ...some.map((turn) => this._chip(turn, slowest, chosen, asked)),
      this._more(turns[from + CHIPS], turns.length - from - CHIPS, "later"));
    const turn = model.turn(chosen);
    clear(this.path, ...this._account(turn, model, slowest, findings));
    requestAnimationFrame(() => requestAnimationFrame(() => this._bring())); // once the chips have their widths
  }

  _more(turn, count, when) {
    return turn ? h("li", {}, h("button", { type: "button", class: "c-turn", onclick: () => this.hooks.turn(turn.number) }, many(count, `${when} turn`))) : null;
  }

  // The chosen chip comes into sight.
  _bring() {
    const pressed = this.list.querySelector('[aria-pressed="true"]');
    if (!pressed) return;
    const { offsetLeft, offsetWidth } = pressed.parentElement;
    const { scrollLeft, clientWidth } = this.list;
    if (offsetLeft < scrollLeft || offsetLeft + offsetWidth > scrollLeft + clientWidth) this.list.scrollLeft = Math.max(offsetLeft - clientWidth / 3, 0);
  }

  _chip(turn, slowest, chosen, asked) {
    const state = stateOf(turn);
    const worst = turn === slowest && turn.latency_ms;
    const part = slowest && turn.latency_ms ? Math.min(turn.latency_ms / slowest.latency_ms, 1) : 0;
    const words = `Turn ${turn.number}, ${state.word}${turn.latency_ms ? `, ${ms(turn.latency_ms)}` : ""}${worst ? ", the slowest" : ""}`;
    const chip = h("button", { type: "button", class: `c-turn c-state-${state.look}`, "aria-pressed": String(turn.number === chosen), "aria-label": words,
      title: [words, state.long, turn.reason].filter(Boolean).join(": "), onclick: () => this.hooks.turn(turn.number) },
    h("span", { class: "c-turn-number" }, String(turn.number)),
    h("span", { class: "c-turn-ms" }, turn.latency_ms ? ms(turn.latency_ms) : "–"),
    h("span", { class: `c-turn-state state-${state.look}` }, `${state.sign} ${state.word}`),
    worst && h("span", { class: "c-worst" }, "slowest"),
    h("span", { class: "c-turn-bar", "aria-hidden": "true" }, h("i", { style: { width: `${part * 100}%` } })));
    if (turn.number === chosen && asked) chip.classList.add("c-asked");
    return h("li", {}, chip);
  }

  _account(turn, model, slowest, findings) {
    if (!turn) return [h("div", { class: "c-path-head" }, h("p", { class: "soft" }, model.call.live ? "No turn has been answered yet." : "This call has no turns."))];
    const path = turn.path || [];
    if (!path.length || !turn.latency_ms) {
      const state = stateOf(turn);
      return [h("div", { class: "c-path-head" }, h("p", { class: "soft" }, turn.number ? `Turn ${turn.number} is ${state.word}` : "This trace", state.long ? ` (${state.long})` : "",
        turn.reason ? `: ${turn.reason}.` : ".", " It has no latency to account for."))];
    }
    const all = sums(path);
    const sum = path.reduce((total, step) => total + step[5], 0);
    const [said, holds] = checked(sum, turn.latency_ms);
    const most = all[0];
    const title = turn.number
      ? h("h2", {}, `Turn ${turn.number}: `, h("span", { class: "c-big" }, ms(turn.latency_ms)), turn.spoken ? " from the end of speech to first audio" : " to its first answer",
        turn === slowest && model.turns.length > 1 && h("span", { class: "c-worst" }, "slowest"))
      : h("h2", {}, "Critical path: ", h("span", { class: "c-big" }, ms(turn.latency_ms)));
    const why = h("p", { class: "c-why" }, "Waited most for ", this._hop(most, turn), ` ${doing(most.part, most.name)}`, most.replica ? ` on ${most.replica}` : "", ": ",
      h("strong", {}, ms(most.ms)), ` (${percent(most.ms / turn.latency_ms)} of it).`);
    const check = h("span", { class: holds ? "c-check state-ok" : "c-check state-error" }, said.replace("the parts", "the steps"));
    return [h("div", { class: "c-path-head" }, title, why), turn === slowest && findings.length > 0 && h("ul", { class: "c-findings" }, findings.map((one) => h("li", {}, one.text))), this._bar(path, turn), this._list(all, turn, check)];
  }

  _hop(step, turn) {
    if (step.hop === "the call") return step.hop; // no bar of a hop to go to
    return h("button", { type: "button", class: "c-linky", onclick: () => this.hooks.hop(step.hop, step.replica, turn.number) }, step.hop);
  }

  _bar(path, turn) {
    const pieces = path.map(([hop, part, name, replica, , took]) => {
      const wide = (took / turn.latency_ms) * 100;
      const words = `${hop} ${doing(part, name)}`;
      return h("button", { type: "button", class: `c-piece c-${part}`, style: { "flex-grow": took }, title: `${words}${replica ? ` on ${replica}` : ""}: ${exact(took)}`,
        "aria-label": `${words}, ${ms(took)}`, tabindex: wide < 1 ? "-1" : "0", onclick: () => this.hooks.hop(hop, replica, turn.number) },
      wide > 7 && h("span", { class: wide > 24 ? "c-piece-words c-wide" : "c-piece-words" }, h("b", {}, hop), h("span", {}, `${doing(part, name)} ${ms(took)}`)));
    });
    return h("div", { class: "c-bar", role: "group", "aria-label": `What the ${exact(turn.latency_ms)} went into, in order` }, pieces);
  }

  _list(all, turn, check) {
    const large = all.slice(0, SHOWN);
    const rest = all.slice(SHOWN).reduce((total, step) => total + step.ms, 0);
    const items = large.map((step) => h("li", {}, swatch(step.part), this._hop(step, turn), h("span", { class: "soft" }, doing(step.part, step.name), step.replica ? ` · ${step.replica}` : ""), h("b", {}, ms(step.ms))));
    if (rest > 0) items.push(h("li", { class: "soft" }, many(all.length - SHOWN, "more step"), h("b", {}, ms(rest))));
    return h("ul", { class: "c-steps" }, items, h("li", { class: "c-sum" }, check));
  }

  _key(event) {
    if (event.key !== "ArrowRight" && event.key !== "ArrowLeft") return;
    const chips = [...this.list.querySelectorAll("button")];
    const next = chips[chips.indexOf(document.activeElement) + (event.key === "ArrowRight" ? 1 : -1)];
    if (next) next.focus();
    event.preventDefault();
    event.stopPropagation();
  }
}
