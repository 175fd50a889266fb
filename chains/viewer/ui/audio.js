// Both sides' sound on the call's time axis: loudness, what was not heard, playing and the moment that is played.

import { getJson, withQuery } from "./api.js";
import { clear, h } from "./dom.js";
import { drawGround, freshCanvas } from "./bars.js";
import { at } from "./callwords.js";
import { gestures } from "./timeview.js";

const LANE = 38;
const SIDES = [["caller", "Caller"], ["reply", "Reply"]];

export class AudioLanes {
  /** `hooks`: paint(), seek(time), moved(time): the head has moved while playing, redraw(). */
  constructor(view, hooks) {
    this.view = view;
    this.hooks = hooks;
    this.peaks = new Map();
    this.player = null;
    this.head = 0;
    this.side = "both";
    this.play = h("button", { type: "button", class: "c-play", "aria-label": "Play", title: "Play (Space)", onclick: () => this.toggle() }, "▶");
    this.pick = h("select", { "aria-label": "Which side to play", onchange: () => this._side(this.pick.value) },
      h("option", { value: "both" }, "both"), h("option", { value: "caller" }, "caller"), h("option", { value: "reply" }, "reply"));
    this.clock = h("span", { class: "c-clock mono" }, "0:00.0");
    this.root = h("div", { class: "c-audio" });
    this.lanes = [];
  }

  /** Makes the lanes for what was recorded, or the line that says how to record. */
  show(model, source) {
    this.model = model;
    this.source = source;
    const has = SIDES.filter(([side]) => model.audio[side]);
    const key = [...has.map(([side]) => side), model.call.live].join();
    if (this.key === key && has.length) return this._refresh();
    this.key = key;
    this.root.hidden = !has.length && !model.turns.some((turn) => turn.number > 0) && !model.call.live; // no conversation
    if (!has.length) {
      clear(this.root, h("p", { class: "c-silent" }, model.call.live ? "No sound so far. " : "No sound was kept of this call. ",
        "To keep both sides, start the chain with ", h("code", {}, "chains run … --record"), "."));
      this.lanes = [];
      return undefined;
    }
    this.lanes = has.map(([side, word]) => this._lane(side, word));
    clear(this.root, ...this.lanes.map((lane) => lane.root),
      model.audio.incomplete && !model.call.live ? h("p", { class: "c-silent" }, `The recording is not whole: ${model.audio.incomplete}.`) : null);
    return this._refresh();
  }

  _lane(side, word) {
    const canvas = h("canvas", { class: "c-canvas", role: "img", "aria-label": `Loudness of the ${side}'s side` });
    gestures(canvas, this.view, { left: () => 0, width: () => canvas.clientWidth, click: (_, time) => this.hooks.seek(time) });
    return { side, canvas, root: h("div", { class: "c-lane" }, h("div", { class: "c-label" }, word), canvas) };
  }

  async _refresh() {
    if (this.asking || this.peaksOf === this.model.audio.ms) return;
    this.asking = true;
    this.peaksOf = this.model.audio.ms;
    for (const { side } of this.lanes) this.peaks.set(side, await this._peaks(side));
    this.asking = false;
    this.hooks.redraw();
  }

  async _peaks(side) {
    if (this.source.peaks) return this.source.peaks[side] || null;
    const bins = Math.min(Math.max(Math.round(this.model.audio.ms / 20), 200), 20_000);
    try {
      return await getJson(withQuery(`${this.source.path}/peaks`, { side, bins }));
    } catch {
      return null; // the lane stays flat; playing says what is wrong
    }
  }

  draw(band, width) {
    const paint = this.hooks.paint();
    for (const { side, canvas } of this.lanes) {
      const ctx = freshCanvas(canvas, width, LANE);
      drawGround(ctx, this.view, width, LANE, paint, band);
      const found = this.peaks.get(side);
      ctx.fillStyle = paint["line-strong"];
      ctx.fillRect(0, LANE / 2, width, 1);
      if (found) this._wave(ctx, found, width, side === "caller" ? paint["text-2"] : paint.accent);
      if (side === "reply") this._unheard(ctx, width, paint);
      this._cuts(ctx, width, paint, side);
    }
  }

  _wave(ctx, { ms, peaks }, width, fill) {
    const bin = ms / peaks.length;
    ctx.fillStyle = fill;
    for (let x = 0; x < width; x++) {
      const from = Math.floor(this.view.time(x, width) / bin);
      const to = Math.max(Math.ceil(this.view.time(x + 1, width) / bin), from + 1);
      let loud = 0;
      for (let n = Math.max(from, 0); n < Math.min(to, peaks.length); n++) if (peaks[n] > loud) loud = peaks[n];
      if (loud > 0) {
        const tall = Math.max(Math.sqrt(loud) * (LANE - 6), 1);
        ctx.fillRect(x, (LANE - tall) / 2, 1, tall);
      }
    }
  }

  // What was sent and never played to the caller.
  _unheard(ctx, width, paint) {
    const known = this.model.audio.unheard || [];
    for (const [, start, long] of known) {
      const [left, right] = [this.view.x(start, width), this.view.x(start + long, width)];
      if (right < 0 || left > width) continue;
      ctx.fillStyle = paint["surface-1"];
      ctx.globalAlpha = 0.65;
      ctx.fillRect(left, 1, right - left, LANE - 2);
      ctx.globalAlpha = 1;
      ctx.fillStyle = paint.hatch;
      ctx.fillRect(left, 1, right - left, LANE - 2);
    }
  }

  _cuts(ctx, width, paint, side) {
    for (const turn of this.model.turns) {
      if (turn.state !== "interrupted" || !turn.end) continue;
      const x = this.view.x(turn.end, width);
      if (x < 0 || x > width) continue;
      ctx.fillStyle = paint["state-interrupted"];
      ctx.fillRect(x - 1, 0, 2, LANE);
      if (side !== "reply" && this.lanes.length > 1) continue;
      const words = "✂ interrupted";
      const long = ctx.measureText(words).width;
      if (this.view.span > 90_000) continue;
      ctx.fillStyle = paint["surface-1"];
      ctx.fillRect(x + 3, LANE - 15, long + 4, 14);
      ctx.fillStyle = paint["state-interrupted"];
      ctx.fillText(words, x + 5, LANE - 8);
    }
  }

  // ---- playing

  get playing() {
    return this.player !== null && !this.player.paused;
  }

  get can() {
    return this.lanes.length > 0 && (!this.source.inlined || Boolean(this.source.wav));
  }

  _player() {
    if (this.player) return this.player;
    this.player = new Audio(this._url());
    this.player.preload = "metadata";
    for (const event of ["play", "pause", "ended"]) this.player.addEventListener(event, () => this._changed());
    this.player.addEventListener("error", () => this.hooks.failed("The sound could not be loaded."));
    return this.player;
  }

  _url() {
    return this.source.wav || withQuery(`${this.source.path}/audio.wav`, { side: this.side });
  }

  _side(side) {
    this.side = side;
    if (!this.player || this.source.wav) return;
    const go = this.playing;
    this.player.src = this._url();
    this.player.currentTime = this.head / 1000;
    if (go) this._start();
  }

  toggle() {
    if (!this.can) return;
    if (this.playing) this.player.pause();
    else this._start();
  }

  _start() {
    const player = this._player();
    if (this.head >= this.model.audio.ms - 50) this.head = 0;
    player.currentTime = this.head / 1000;
    player.play().catch(() => this.hooks.failed("The browser did not play the sound."));
  }

  _changed() {
    this.play.textContent = this.playing ? "❚❚" : "▶";
    this.play.setAttribute("aria-label", this.playing ? "Pause" : "Play");
    const step = () => {
      if (!this.playing) return;
      this.set(this.player.currentTime * 1000);
      this.hooks.moved(this.head);
      requestAnimationFrame(step);
    };
    step();
  }

  /** The play head is at `time`. */
  set(time) {
    this.head = time;
    this.clock.textContent = at(time);
  }

  seek(time) {
    this.set(Math.min(Math.max(time, 0), this.model.end));
    if (this.player) this.player.currentTime = this.head / 1000;
  }

  close() {
    if (!this.player) return;
    this.player.pause();
    this.player.removeAttribute("src");
  }
}
