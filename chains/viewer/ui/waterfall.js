// The tree of hops over time. Rows are few elements that are used again, so 100,000 spans scroll as 30 do.

import { clear, h } from "./dom.js";
import { PARTS, many, ms } from "./format.js";
import { drawGround, drawRow, freshCanvas, stacked } from "./bars.js";
import { keyOf } from "./callmodel.js";
import { PART_WORDS, at, doing, took } from "./callwords.js";
import { gestures } from "./timeview.js";

const MANY = 400;

export class Waterfall {
  /** `hooks`: paint(), select(span), open(span), seek(time), need(spans): their segments are not here yet. */
  constructor(view, hooks) {
    this.view = view;
    this.hooks = hooks;
    this.tall = matchMedia("(pointer: coarse)").matches ? 32 : 26;
    this.collapsed = new Set();
    this.rows = [];
    this.selected = null;
    this.pool = [];
    this.canvas = h("canvas", { class: "c-canvas c-bars", "aria-hidden": "true" });
    this.list = h("div", { class: "c-rows", role: "presentation" });
    this.layer = h("div", { class: "c-layer", role: "presentation" }, this.list, this.canvas);
    this.spacer = h("div", { role: "presentation" }, this.layer);
    this.none = h("p", { class: "c-none soft", hidden: true });
    this.scroll = h("div", { class: "c-scroll", role: "treegrid", tabindex: "0", "aria-label": "Waterfall: hops by turn, on one time axis", "aria-keyshortcuts": "ArrowUp ArrowDown ArrowLeft ArrowRight Enter" }, this.none, this.spacer);
    this.tip = h("div", { class: "c-tip", role: "tooltip", hidden: true });
    this.said = h("div", { class: "hidden", "aria-live": "polite" });
    this.root = h("div", { class: "c-waterfall" }, this.scroll, this.tip, this.said);
    this._listen();
  }

  _listen() {
    this.scroll.addEventListener("scroll", () => this.hooks.redraw(), { passive: true });
    this.list.addEventListener("click", (event) => this._clicked(event));
    this.list.addEventListener("dblclick", (event) => this._spanAt(event) && this.view.around(...this._edges(this._spanAt(event))));
    gestures(this.canvas, this.view, {
      left: () => 0,
      width: () => this.width,
      click: (event, time) => {
        const span = this._spanAt(event);
        this.scroll.focus({ preventScroll: true });
        if (event.detail === 2 && span) this.view.around(...this._edges(span));
        else if (span) this._choose(span, true);
        if (event.altKey) this.hooks.seek(time);
      },
      hover: (event, time) => this._hover(event, time),
    });
    this.canvas.addEventListener("dblclick", (event) => this._spanAt(event) && this.view.around(...this._edges(this._spanAt(event))));
  }

  _edges(span) {
    return [span.start, span.start + span.ms];
  }

  /** Shows `model`; `matches` is the filter's test or null. */
  show(model, matches) {
    if (!this.model && model.order.length > MANY) {
      for (const span of model.turnSpans.values()) this.collapsed.add(keyOf(span));
    }
    this.model = model;
    this.matches = matches;
    this._rows();
  }

  _rows() {
    this.rows = this.model.rows(this.collapsed, this.matches);
    this.spacer.style.setProperty("height", `${this.rows.length * this.tall}px`);
    this.scroll.setAttribute("aria-rowcount", this.rows.length);
    const nothing = this.matches && !this.rows.length;
    this.none.hidden = !nothing;
    clear(this.none, nothing && "No span matches the filter. Words match names and replicas; also >50ms, is:error, is:path, is:retried, turn:3, replica:x.");
    this.hooks.redraw();
  }

  get width() {
    return this.wide || 1;
  }

  /** The scroll bar's width, by which the lanes above are narrower. */
  get bar() {
    return this.scroll.offsetWidth - this.scroll.clientWidth;
  }

  draw(band, width, tall) {
    if (!tall || !this.model) return;
    this.wide = width;
    const first = Math.max(Math.floor(this.scroll.scrollTop / this.tall), 0);
    const shift = first * this.tall - this.scroll.scrollTop;
    const shown = this.rows.slice(first, first + Math.ceil(tall / this.tall) + 1);
    this.layer.style.setProperty("height", `${tall}px`);
    this._labels(shown, first, shift);
    const paint = this.hooks.paint();
    const ctx = freshCanvas(this.canvas, width, tall);
    drawGround(ctx, this.view, width, Math.min(tall, shown.length * this.tall + shift), paint, band);
    const need = [];
    for (const [n, span] of shown.entries()) {
      span.thrown = this.model.turn(span.turn)?.state === "dropped" && span.kind !== "call";
      drawRow(ctx, span, shift + n * this.tall, this.tall, this.view, width, paint, span.segments);
      if (!span.segments && span.parts && !span.asked) need.push(span);
    }
    if (need.length && this.hooks.need) this.hooks.need(need);
  }

  _labels(shown, first, shift) {
    while (this.pool.length < shown.length) {
      const row = emptyRow();
      this.pool.push(row);
      this.list.append(row.root);
    }
    this.list.style.setProperty("transform", `translateY(${shift}px)`);
    for (const [n, row] of this.pool.entries()) {
      row.root.hidden = n >= shown.length;
      if (n < shown.length) this._label(row, shown[n], first + n);
    }
    const chosen = this.rows.indexOf(this.selected);
    if (chosen >= first && chosen < first + shown.length) this.scroll.setAttribute("aria-activedescendant", `c-row-${chosen}`);
    else this.scroll.removeAttribute("aria-activedescendant");
  }

  _label(row, span, index) {
    const { root } = row;
    root.id = `c-row-${index}`;
    root.style.setProperty("height", `${this.tall}px`);
    root.style.setProperty("--c-depth", Math.min(span.depth, 12));
    root.className = `c-row c-kind-${span.kind}${span === this.selected ? " c-chosen" : ""}${span.status === 2 ? " c-failed" : ""}${span.thrown ? " c-thrown" : ""}`;
    if (this.matches && !this.model.matched.has(span)) root.classList.add("c-above");
    root.setAttribute("aria-level", span.depth + 1);
    root.setAttribute("aria-rowindex", index + 1);
    root.setAttribute("aria-setsize", span.up ? span.up.children.length : 1);
    root.setAttribute("aria-posinset", span.place);
    root.setAttribute("aria-selected", span === this.selected);
    const closed = this.collapsed.has(keyOf(span)) && !this.matches;
    if (span.children.length) root.setAttribute("aria-expanded", !closed);
    else root.removeAttribute("aria-expanded");
    row.twist.textContent = span.children.length ? (closed ? "▸" : "▾") : "";
    row.name.textContent = span.name;
    row.replica.textContent = span.replica || "";
    row.more.textContent = closed ? `+${span.size - 1}` : "";
    const moved = this.model.sources.get(span.source)?.estimated;
    row.sign.textContent = span.status === 2 ? "✕" : span.live ? "●" : moved ? "≈" : "";
    root.classList.toggle("c-approx", Boolean(moved) && span.status !== 2);
    row.words.textContent = this.describe(span);
    row.label.title = `${span.name}${span.replica ? ` on ${span.replica}` : ""}`;
  }

  /** A span in one sentence, for those who hear the page. */
  describe(span) {
    const words = [span.kind === "hop" ? "" : span.kind, `from ${at(span.start, 2)}`, took(span)];
    if (span.parts) {
      for (const [n, part] of PARTS.entries()) if (span.parts[n] >= 0.5) words.push(`${part} ${ms(span.parts[n])}`);
    }
    if (span.onPath >= 0.5) words.push(`${ms(span.onPath)} on the critical path`);
    if (span.attempts > 1) words.push(many(span.attempts, "attempt"));
    if (span.status === 2) words.push(`failed: ${span.error || "error"}`);
    if (this.model.sources.get(span.source)?.estimated) words.push("drawn at an estimated time");
    if (span.thrown) words.push("dropped: speculated and thrown away");
    return words.filter(Boolean).join(", ");
  }

  _spanAt(event) {
    const y = event.clientY - this.scroll.getBoundingClientRect().top + this.scroll.scrollTop;
    return this.rows[Math.floor(y / this.tall)] || null;
  }

  _clicked(event) {
    const span = this._spanAt(event);
    if (!span) return;
    this.scroll.focus({ preventScroll: true });
    if (event.target.classList.contains("c-twist") && span.children.length) this.toggle(span);
    else this._choose(span, true);
  }

  _hover(event, time) {
    const span = event && this._spanAt(event);
    this.tip.hidden = !span;
    if (!span) return;
    const inside = time - span.start;
    const segments = span.segments || (span.parts ? stacked(span) : []);
    const here = segments.find(([, from, long]) => inside >= from && inside <= from + long);
    const step = span.path.find((one) => time >= one.start && time <= one.start + one.ms);
    clear(this.tip, h("strong", {}, span.name), h("span", {}, [took(span), span.replica].filter(Boolean).join(" · ")),
      here && h("span", {}, `here: ${here[3] && here[0] === "compute" ? here[3] : here[0]} ${ms(here[2])}, ${PART_WORDS[here[0]] || ""}`),
      step && h("span", {}, `on the critical path: ${doing(step.part, step.name)} ${ms(step.ms)}`),
      span.thrown && h("span", {}, "dropped: speculated and thrown away"),
      h("span", { class: "soft" }, `at ${at(time, 3)}`));
    const box = this.root.getBoundingClientRect();
    const left = Math.min(event.clientX - box.left + 14, box.width - this.tip.offsetWidth - 6);
    const below = event.clientY - box.top + 18;
    this.tip.style.setProperty("left", `${Math.max(left, 4)}px`);
    this.tip.style.setProperty("top", `${below + this.tip.offsetHeight > box.height ? below - this.tip.offsetHeight - 30 : below}px`);
  }

  toggle(span, open = this.collapsed.has(keyOf(span))) {
    if (open) this.collapsed.delete(keyOf(span));
    else this.collapsed.add(keyOf(span));
    this._rows();
  }

  toggleAll() {
    const open = this.collapsed.size > 0;
    this.collapsed.clear();
    if (!open) for (const span of this.model.order) if (span.children.length && span !== this.model.root) this.collapsed.add(keyOf(span));
    this._rows();
  }

  _choose(span, open) {
    this.select(span);
    if (open) this.hooks.open(span);
    else this.hooks.select(span);
  }

  /** Marks `span` (null: none), opens what it is hidden in and scrolls to it. */
  select(span) {
    this.selected = span;
    if (span) {
      let hidden = false;
      for (let up = span.up; up; up = up.up) hidden = this.collapsed.delete(keyOf(up)) || hidden;
      if (hidden) this._rows();
      const top = this.rows.indexOf(span) * this.tall;
      const { scrollTop, clientHeight } = this.scroll;
      if (top < scrollTop) this.scroll.scrollTop = top - this.tall;
      else if (top + this.tall > scrollTop + clientHeight) this.scroll.scrollTop = top - clientHeight + 2 * this.tall;
      this.said.textContent = `${span.name}${span.replica ? ` on ${span.replica}` : ""}, ${this.describe(span)}`;
    }
    this.hooks.redraw();
  }

  /** Scrolls so that `span` is the first row. */
  top(span) {
    const index = this.rows.indexOf(span);
    if (index >= 0) this.scroll.scrollTop = index * this.tall;
  }

  /** A key press; true when it was one of the waterfall's. */
  key(event) {
    const index = this.rows.indexOf(this.selected);
    const page = Math.max(Math.floor(this.scroll.clientHeight / this.tall) - 2, 1);
    const steps = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: page, PageUp: -page, Home: -this.rows.length, End: this.rows.length };
    const span = this.selected;
    if (event.key in steps) {
      if (!this.rows.length) return true;
      const next = index < 0 ? 0 : Math.min(Math.max(index + steps[event.key], 0), this.rows.length - 1);
      this._choose(this.rows[next], false);
    } else if (event.key === "ArrowRight" && span) {
      if (this.collapsed.has(keyOf(span))) this.toggle(span, true);
      else if (span.children.length) this._choose(span.children[0], false);
    } else if (event.key === "ArrowLeft" && span) {
      if (span.children.length && !this.collapsed.has(keyOf(span))) this.toggle(span, false);
      else if (span.up) this._choose(span.up, false);
    } else if (event.key === "Enter" && span) this.hooks.open(span, true);
    else if (event.key === "*") this.toggleAll();
    else return false;
    return true;
  }
}

function emptyRow() {
  const twist = h("span", { class: "c-twist", "aria-hidden": "true" });
  const sign = h("span", { class: "c-sign", "aria-hidden": "true" });
  const name = h("span", { class: "c-name" });
  const more = h("span", { class: "c-more soft", "aria-hidden": "true" });
  const replica = h("span", { class: "c-replica" });
  const label = h("div", { class: "c-label", role: "gridcell" }, twist, sign, name, more, replica);
  const words = h("span", { class: "hidden" });
  const root = h("div", { role: "row" }, label, h("div", { class: "c-cell", role: "gridcell" }, words));
  return { root, label, twist, sign, name, more, replica, words };
}
