// What was said, by whom and when; what the caller never heard of it; the line that is being played.

import { clear, h } from "./dom.js";
import { ms } from "./format.js";
import { at } from "./callwords.js";

export class Transcript {
  /** `hooks`: seek(time), turn(number). */
  constructor(hooks) {
    this.hooks = hooks;
    this.list = h("ol", { class: "c-said-list" });
    this.root = h("section", { class: "c-transcript", id: "c-panel-transcript", role: "tabpanel", "aria-label": "Transcript" }, this.list);
    this.lines = [];
  }

  show(model) {
    const rows = latest(model.transcript);
    const key = JSON.stringify([rows, model.turns.map((turn) => [turn.state, turn.played_ms])]);
    if (key === this.key) return;
    this.key = key;
    this.current = null;
    if (!rows.length) {
      const after = /^(.+)-after-[^-]+$/.exec(model.call.id);
      clear(this.list, after ? h("li", { class: "c-silent" }, `This is work that call ${after[1]} left to be done after its end: nobody speaks in it.`)
        : h("li", { class: "c-silent" }, "No words were kept of this call. Speech and text are kept only where the chain was started with ",
        h("code", {}, "--record"), "."));
      this.lines = [];
      return;
    }
    this.lines = rows.map((row) => ({ ...row, root: this._line(row, model) }));
    const { scrollHeight, scrollTop, clientHeight } = this.root;
    const last = model.call.live && scrollHeight - scrollTop - clientHeight < 60;
    clear(this.list, ...this.lines.map((line) => line.root));
    if (last) this.root.scrollTop = this.root.scrollHeight;
  }

  _line(row, model) {
    const caller = isCaller(row.role);
    const turn = model.turn(row.turn);
    const heard = caller ? "all" : hearing(row, turn, model);
    const text = h("span", { class: "c-words" });
    if (typeof heard === "number") {
      text.append(row.text.slice(0, heard), h("del", { class: "c-unheard" }, row.text.slice(heard)));
    } else text.append(heard === "none" ? h("del", { class: "c-unheard" }, row.text) : row.text);
    const note = heardNote(heard, turn);
    const press = h("button", { type: "button", class: "c-line", title: `To ${at(row.at)}`, onclick: () => this.hooks.seek(row.at) },
      h("span", { class: "c-when mono" }, at(row.at)), h("span", { class: "c-who" }, caller ? "Caller" : "Reply"), text,
      row.final === false && h("em", { class: "soft" }, " …"), note && h("span", { class: "c-note" }, note));
    const jump = row.turn ? h("button", { type: "button", class: "c-turn-link", title: `Show turn ${row.turn}`, onclick: () => this.hooks.turn(row.turn) }, `turn ${row.turn}`) : null;
    return h("li", { class: `c-entry ${caller ? "c-caller" : "c-reply"}` }, press, jump);
  }

  /** Marks what is said at `time`, and brings it into sight while playing. */
  follow(time, scroll) {
    let now = null;
    for (const line of this.lines) {
      if (line.at <= time + 1) now = line;
      else break;
    }
    if (now === this.current) return;
    this.current?.root.removeAttribute("aria-current");
    this.current = now;
    if (!now) return;
    now.root.setAttribute("aria-current", "true");
    if (scroll) {
      const box = this.root;
      const top = now.root.offsetTop - box.offsetTop;
      if (top < box.scrollTop || top + now.root.offsetHeight > box.scrollTop + box.clientHeight) box.scrollTop = Math.max(top - 40, 0);
    }
  }
}

function isCaller(role) {
  return role === "caller" || role === "user" || role === "in";
}

// Text that was still being recognised gives way to what was made of it.
function latest(rows) {
  const kept = [];
  for (const row of [...rows].sort((a, b) => a.at - b.at)) {
    const before = kept.findLastIndex((one) => one.role === row.role && one.turn === row.turn && one.final === false);
    if (before >= 0) kept[before] = { ...row, at: kept[before].at };
    else kept.push({ ...row });
  }
  return kept;
}

// "all", "none", "part" (cut somewhere), or the number of characters that were heard.
function hearing(row, turn, model) {
  if (Number.isInteger(row.heard)) return row.heard >= row.text.length ? "all" : row.heard || "none";
  if (!turn || turn.state === "answered" || turn.state === "live") return "all";
  if (turn.state === "dropped") return "none";
  if (turn.state !== "interrupted") return "all";
  const first = turn.marks?.first_audio;
  if (first === undefined || turn.played_ms === null || turn.played_ms === undefined) return "part";
  const until = first + turn.played_ms;
  if (row.at >= until) return "none";
  const next = model.transcript.find((one) => one.turn === row.turn && !isCaller(one.role) && one.at > row.at);
  return next && next.at <= until ? "all" : "part";
}

function heardNote(heard, turn) {
  if (heard === "none") return turn?.state === "dropped" ? "dropped: never said" : "not heard: the caller interrupted";
  if (heard === "part" || typeof heard === "number") {
    return turn?.played_ms ? `cut off: ${ms(turn.played_ms)} of the reply were heard` : "cut off by the caller";
  }
  return "";
}
