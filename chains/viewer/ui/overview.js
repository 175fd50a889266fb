// The whole call in one strip: how much ran when, each turn's latency, errors; and a window on what is shown.

import { h } from "./dom.js";
import { freshCanvas } from "./bars.js";

const STRIP = 44;

export class Overview {
  constructor(view, { label, paint }) {
    this.view = view;
    this.paint = paint;
    this.canvas = h("canvas", { class: "c-canvas", "aria-hidden": "true" });
    this.lens = h("div", { class: "c-lens" });
    this.area = h("div", { class: "c-overview-area" }, this.canvas, this.lens);
    this.root = h("div", { class: "c-lane c-overview" }, h("div", { class: "c-label" }, label), this.area);
    this._listen();
  }

  // Drag makes a new window; a drag that begins inside a smaller one moves it.
  _listen() {
    let from = null;
    let keep = null;
    const timeAt = (event) => {
      const box = this.area.getBoundingClientRect();
      return (Math.min(Math.max(event.clientX - box.left, 0), box.width) / box.width) * this.view.whole;
    };
    this.area.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      from = timeAt(event);
      const inside = !this.view.full && from > this.view.lo && from < this.view.hi;
      keep = inside ? [this.view.lo, this.view.hi] : null;
      this.area.setPointerCapture(event.pointerId);
    });
    this.area.addEventListener("pointermove", (event) => {
      if (from === null) return;
      const now = timeAt(event);
      if (keep) this.view.set(keep[0] + now - from, keep[1] + now - from);
      else if (Math.abs(now - from) / this.view.whole > 0.004) this.view.set(Math.min(from, now), Math.max(from, now));
    });
    const end = (event) => {
      if (from !== null && !keep && event.type === "pointerup" && Math.abs(timeAt(event) - from) / this.view.whole <= 0.004) {
        const half = this.view.full ? this.view.whole / 20 : this.view.span / 2;
        this.view.set(from - half, from + half);
      }
      from = null;
    };
    this.area.addEventListener("pointerup", end);
    this.area.addEventListener("pointercancel", end);
    this.area.addEventListener("dblclick", () => this.view.all());
    this.area.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.view.zoom(Math.exp(Math.min(Math.max(event.deltaY, -60), 60) * 0.008), timeAt(event));
    }, { passive: false });
  }

  draw(model, chosen, width) {
    const paint = this.paint();
    const ctx = freshCanvas(this.canvas, width, STRIP);
    const scale = width / this.view.whole;
    for (const turn of model.turns) {
      if (turn.latency_ms === null || turn.latency_ms === undefined) continue;
      const dropped = turn.state === "dropped";
      ctx.fillStyle = turn.number === chosen ? paint.accent : paint["line-strong"];
      ctx.globalAlpha = dropped ? 0.35 : 1;
      ctx.fillRect(turn.latency_start * scale, STRIP - 7, Math.max(turn.latency_ms * scale, 2), 5);
      ctx.globalAlpha = 1;
    }
    this._density(ctx, model, width, scale, paint);
    this.move();
  }

  // How many hops ran at each moment; long ones of the whole call left out, since they are always there.
  _density(ctx, model, width, scale, paint) {
    const change = new Float64Array(Math.ceil(width) + 2);
    const errors = [];
    for (const span of model.order) {
      if (span.kind === "call" || span.kind === "turn" || span.ms > this.view.whole * 0.6) continue;
      const left = Math.max(Math.floor(span.start * scale), 0);
      const right = Math.min(Math.ceil((span.start + span.ms) * scale), Math.ceil(width));
      change[left] += 1;
      change[Math.max(right, left + 1)] -= 1;
      if (span.status === 2) errors.push(left);
    }
    let most = 1;
    let now = 0;
    for (const step of change) most = Math.max(most, (now += step));
    ctx.fillStyle = paint["text-2"];
    ctx.globalAlpha = 0.6;
    now = 0;
    for (let x = 0; x < width; x++) {
      now += change[x];
      const tall = (now / most) * (STRIP - 14);
      if (tall > 0) ctx.fillRect(x, STRIP - 9 - Math.max(tall, 1), 1, Math.max(tall, 1));
    }
    ctx.globalAlpha = 1;
    ctx.fillStyle = paint["state-error"];
    for (const x of errors) ctx.fillRect(x - 1, 0, 2, 6);
  }

  move() {
    const { lo, hi, whole, full } = this.view;
    this.lens.hidden = full;
    this.lens.style.setProperty("left", `${(lo / whole) * 100}%`);
    this.lens.style.setProperty("width", `${Math.max(((hi - lo) / whole) * 100, 0.25)}%`);
  }
}
