// Everything that lies on the time axis, one under another: overview, axis, sound, waterfall, and the play head over all.

import { clear, h } from "./dom.js";
import { ms } from "./format.js";
import { AudioLanes } from "./audio.js";
import { drawGround, freshCanvas, paints } from "./bars.js";
import { at, legend } from "./callwords.js";
import { Overview } from "./overview.js";
import { onTheme } from "./theme.js";
import { gestures, tickText } from "./timeview.js";
import { Waterfall } from "./waterfall.js";

const AXIS = 34;

export class Timeline {
  /** `hooks`: select(span), open(span), seek(time), played(time), filter(), changed(name, value), need(spans), failed(text). */
  constructor(view, hooks) {
    this.view = view;
    this.hooks = hooks;
    this.band = null;
    const redraw = () => this.redraw();
    const shared = { paint: () => this._paint(), redraw, seek: (time) => hooks.seek(time) };
    this.waterfall = new Waterfall(view, { ...shared, select: hooks.select, open: hooks.open, need: hooks.need });
    this.audio = new AudioLanes(view, { ...shared, moved: hooks.played, failed: hooks.failed });
    this.where = h("span", { class: "c-range mono" });
    this.overview = new Overview(view, { label: [h("span", {}, "Whole call"), this.where], paint: shared.paint });
    this.axis = h("canvas", { class: "c-canvas c-axis", "aria-hidden": "true" });
    this.axisLane = h("div", { class: "c-lane c-axis-lane" }, h("div", { class: "c-label c-player" }, this.audio.play, this.audio.clock, this.audio.pick), this.axis);
    this.head = h("div", { class: "c-head-line" });
    this.over = h("div", { class: "c-over", "aria-hidden": "true" }, this.head);
    this.lanes = h("div", { class: "c-lanes" }, this.overview.root, this.axisLane, this.audio.root);
    this.stage = h("div", { class: "c-stage" }, this.lanes, this.waterfall.root, this.over);
    this.root = h("section", { class: "c-timeline", "aria-label": "Timeline" }, this._tools(), this.stage);
    this._listen();
  }

  _tools() {
    const { view, hooks } = this;
    const button = (words, label, action, more = {}) => h("button", { type: "button", "aria-label": label, title: label, onclick: action, ...more }, words);
    this.filter = h("input", { type: "search", class: "c-filter", placeholder: "Filter, e.g. Llm >50ms", "aria-label": "Filter the rows", spellcheck: "false",
      title: "Words match names and replicas; >50ms, is:error, is:path, is:retried, turn:3, replica:x (press /)", oninput: () => hooks.filter() });
    this.onlyPath = button("Critical path", "Only what stood on the critical path (c)", () => hooks.changed("path", !this.pathOnly), { "aria-pressed": "false" });
    this.group = button("By turn", "Group the hops by turn, or by caller alone", () => hooks.changed("group", !this.byCaller), { "aria-pressed": "true" });
    this.now = button("Whole", "The whole call (0)", () => view.all());
    return h("div", { class: "c-tools", role: "toolbar", "aria-label": "Waterfall" }, this.filter, this.onlyPath, this.group,
      button("⊟", "Collapse or expand all (*)", () => this.waterfall.toggleAll()), 
      h("span", { class: "c-zoom" }, button("−", "Zoom out (−)", () => view.zoom(1.6)), button("+", "Zoom in (+)", () => view.zoom(1 / 1.6)), this.now),
      legend());
  }

  _listen() {
    const { view } = this;
    this.ends = [view.watch(() => { this.overview.move(); this.redraw(); }), onTheme(() => { this.paint = null; this.stale = true; this.redraw(); })];
    const resized = new ResizeObserver(() => { this.stale = true; this.redraw(); });
    resized.observe(this.stage);
    resized.observe(this.waterfall.scroll);
    this.ends.push(() => resized.disconnect());
    gestures(this.axis, view, { left: () => 0, width: () => this.axis.clientWidth, click: (_, time) => this.hooks.seek(time) });
  }

  _paint() {
    this.paint = this.paint || paints();
    return this.paint;
  }

  show(model, matches) {
    this.model = model;
    this.stale = true;
    this.waterfall.show(model, matches);
    this.audio.show(model, this.hooks.source);
    this.now.textContent = model.call.live ? "● Now" : "Whole";
    this.now.title = model.call.live ? "Follow the running call (n)" : "The whole call (0)";
    this.now.setAttribute("aria-label", this.now.title);
    for (const part of [this.audio.play, this.audio.pick, this.audio.clock]) part.hidden = !this.audio.can;
    this.redraw();
  }

  modes({ pathOnly, byCaller, text, chosen }) {
    this.pathOnly = pathOnly;
    this.byCaller = byCaller;
    this.chosen = chosen;
    this.onlyPath.setAttribute("aria-pressed", pathOnly);
    this.group.setAttribute("aria-pressed", !byCaller);
    if (this.filter.value !== text) this.filter.value = text;
    const turn = this.model.turn(chosen);
    this.band = turn && turn.latency_ms ? { start: turn.latency_start, end: turn.latency_start + turn.latency_ms, turn } : null;
    this.stale = true;
    this.redraw();
  }

  redraw() {
    if (this.due) return;
    this.due = requestAnimationFrame(() => {
      this.due = 0;
      this._draw();
    });
  }

  _draw() {
    if (!this.model) return;
    const bar = this.waterfall.bar; // all reading comes before all writing: one layout a frame
    const width = this.stage.clientWidth - bar - this.axisLane.firstElementChild.offsetWidth;
    const tall = this.waterfall.scroll.clientHeight;
    if (width <= 0) return;
    if (bar !== this.bar) this.root.style.setProperty("--c-bar", `${bar}px`);
    this.bar = bar;
    if (this.stale) this.overview.draw(this.model, this.chosen, width);
    this.stale = false;
    this._drawAxis(width);
    this.audio.draw(this.band, width);
    this.waterfall.draw(this.band, width, tall);
    this.place(this.audio.head);
    const { view } = this;
    clear(this.where, view.full ? ms(view.whole) : `${at(view.lo, 2)} – ${at(view.hi, 2)}`);
    this.where.title = `${ms(view.span)} are shown`;
    if (this.model.call.live) this.now.setAttribute("aria-pressed", !view.moved);
    else this.now.removeAttribute("aria-pressed");
  }

  _drawAxis(width) {
    const paint = this._paint();
    const ctx = freshCanvas(this.axis, width, AXIS);
    drawGround(ctx, this.view, width, AXIS, paint, this.band);
    const { ticks, step } = this.view.ticks(width);
    ctx.fillStyle = paint["text-2"];
    for (const tick of ticks) {
      const words = tickText(tick, step);
      const x = this.view.x(tick, width) + 4;
      if (x + ctx.measureText(words).width < width) ctx.fillText(words, x, AXIS - 8);
    }
    if (this.band) this._bracket(ctx, width, paint);
  }

  // The chosen turn's latency, from the end of speech to the first audio.
  _bracket(ctx, width, paint) {
    const [left, right] = [this.view.x(this.band.start, width), this.view.x(this.band.end, width)];
    ctx.strokeStyle = ctx.fillStyle = paint.accent;
    ctx.lineWidth = 1.5;
    ctx.beginPath();
    ctx.moveTo(left, 12);
    ctx.lineTo(left, 6);
    ctx.lineTo(right, 6);
    ctx.lineTo(right, 12);
    ctx.stroke();
    const { turn } = this.band;
    const words = `${turn.number ? `turn ${turn.number}: ` : ""}${ms(turn.latency_ms)}`;
    const long = ctx.measureText(words).width;
    const x = right - left > long + 14 ? (Math.max(left, 0) + Math.min(right, width) - long) / 2 : right + 6 + long < width ? right + 6 : left - long - 6;
    ctx.fillStyle = paint["surface-1"];
    ctx.fillRect(x - 3, 0, long + 6, 13);
    ctx.fillStyle = paint.accent;
    ctx.fillText(words, x, 7);
  }

  /** Puts the play head at `time`. */
  place(time) {
    const x = (time - this.view.lo) / this.view.span;
    const shown = x >= 0 && x <= 1 && (time > 0 || this.audio.playing);
    this.head.hidden = !shown;
    if (shown) this.head.style.setProperty("left", `${x * 100}%`);
  }

  close() {
    cancelAnimationFrame(this.due);
    for (const end of this.ends) end();
    this.audio.close();
  }
}
