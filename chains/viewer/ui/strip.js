// The slowest turn of each call over time, to brush a time range with pointer or keys.

import { clear, h, svg } from "./dom.js";
import { clock, many, moment, ms } from "./format.js";

const HEIGHT = 84;
const LEFT = 46;
const LANE = 12; // below the bins: where calls failed
const BOTTOM = 16 + LANE;
const TOP = 5;

export class Strip {
  /** `chosen(from, to)` is called with ms since 1970, or with nulls for the whole time. */
  constructor(root, chosen) {
    this.chosen = chosen;
    this.data = null;
    this.range = null;
    this.drag = null;
    this.element = h("div", { class: "strip", tabindex: "0", role: "group",
      "aria-label": "Slowest turn over time. Arrow keys choose a range of time, Escape the whole time.",
      onpointerdown: (event) => this.press(event), onpointermove: (event) => this.move(event),
      onpointerup: (event) => this.release(event), onpointercancel: () => this.stop(),
      onkeydown: (event) => this.key(event) });
    this.said = h("p", { class: "hidden", "aria-live": "polite" });
    root.append(this.element, this.said);
    this.resized = new ResizeObserver(() => this.draw());
    this.resized.observe(this.element);
  }

  close() {
    this.resized.disconnect();
  }

  /** `versions` are [name, first ms] pairs, marked where they begin. */
  show(data, range, versions = []) {
    this.data = data;
    this.versions = versions;
    this.range = range;
    this.draw();
  }

  get width() {
    return Math.max(160, this.element.clientWidth);
  }

  x(at) {
    const { from, to } = this.data;
    return LEFT + ((at - from) / Math.max(1, to - from)) * (this.width - LEFT - 4);
  }

  at(x) {
    const { from, to } = this.data;
    const share = Math.min(1, Math.max(0, (x - LEFT) / (this.width - LEFT - 4)));
    return from + share * (to - from);
  }

  draw() {
    const data = this.data;
    if (!data || data.bins.length === 0) {
      clear(this.element);
      this.element.hidden = true;
      return;
    }
    this.element.hidden = false;
    const sizes = data.bins.flatMap((bin) => [bin[2], bin[3]]).filter((value) => value > 0);
    const low = Math.log10(Math.max(0.1, Math.min(...sizes) * 0.7));
    const high = Math.max(low + 0.5, Math.log10(Math.max(...sizes) * 1.15));
    this.y = (value) => HEIGHT - BOTTOM - ((Math.log10(Math.max(0.1, value)) - low) / (high - low)) * (HEIGHT - BOTTOM - TOP);
    const picture = svg("svg", { width: this.width, height: HEIGHT, "aria-hidden": "true" },
      this.lines(low, high), this.bins(), this.begins(), this.times(),
      svg("text", { class: "what", x: LEFT + 4, y: 10 }, "slowest turn"), this.brush());
    clear(this.element, picture);
  }

  lines(low, high) {
    const found = [];
    for (let power = -1; power < 7; power += 1) {
      for (const digit of high - low < 0.9 ? [1, 1.5, 2, 3, 5, 7] : [1, 3]) {
        const value = digit * 10 ** power;
        if (Math.log10(value) < low || Math.log10(value) > high) continue;
        const y = Math.round(this.y(value)) + 0.5;
        found.push([y, value]);
      }
    }
    const kept = [];
    for (const one of found) if (kept.length === 0 || kept[kept.length - 1][0] - one[0] >= 13) kept.push(one);
    return kept.map(([y, value]) => svg("g", {},
      svg("line", { class: "grid", x1: LEFT, x2: this.width, y1: y, y2: y }),
      svg("text", { x: LEFT - 6, y: y + 3.5, "text-anchor": "end" }, value >= 1000 ? `${value / 1000} s` : `${value} ms`)));
  }

  bins() {
    const { from, to, bins } = this.data;
    const step = this.data.step || (to - from) / 96;
    const wide = Math.max(2, Math.min(14, this.x(from + step) - this.x(from) - 1.5));
    return bins.map(([at, calls, p50, max, failed]) => {
      const x = Math.min(this.x(at), this.width - wide - 2);
      const middle = x + wide / 2;
      const title = `${moment(at)}: ${many(calls, "call")}, slowest turn p50 ${ms(p50)}, worst ${ms(max)}${failed ? `, ${failed} failed` : ""}`;
      return svg("g", {}, svg("title", {}, title),
        svg("rect", { class: "span", x, width: wide, y: this.y(max), height: Math.max(2, this.y(p50) - this.y(max)), rx: 1.5 }),
        svg("rect", { class: "median", x, width: wide, y: this.y(p50) - 1.5, height: 3, rx: 1 }),
        failed ? svg("path", { class: "failed", d: wide > 6 ? cross(middle, HEIGHT - BOTTOM + LANE / 2) : `M${middle} ${HEIGHT - BOTTOM + 3}v${LANE - 6}` }) : null);
    });
  }

  begins() {
    const { from, to } = this.data;
    const inside = this.versions.filter(([, at]) => at > from + (to - from) / 200 && at < to).slice(0, 12);
    return inside.map(([name, at]) => {
      const x = Math.round(this.x(at)) + 0.5;
      const left = x > this.width - 90;
      return svg("g", { class: "version" }, svg("line", { x1: x, x2: x, y1: 0, y2: HEIGHT - BOTTOM + LANE }),
        svg("text", { x: left ? x - 4 : x + 4, y: 10, "text-anchor": left ? "end" : "start" }, name));
    });
  }

  times() {
    const { from, to } = this.data;
    const n = Math.max(2, Math.min(7, Math.floor(this.width / 150)));
    const day = to - from > 20 * 3600e3;
    let last = "";
    return Array.from({ length: n }, (_, index) => {
      const at = from + ((to - from) * index) / (n - 1);
      const text = day ? moment(at, 0).replace(/:\d\d$/, "") : to - from > 600e3 ? clock(at).slice(0, 5) : clock(at);
      if (text === last) return null; // less than a second apart
      last = text;
      const anchor = index === 0 ? "start" : index === n - 1 ? "end" : "middle";
      return svg("text", { x: this.x(at), y: HEIGHT - 3, "text-anchor": anchor }, text);
    });
  }

  brush() {
    if (!this.range) return null;
    const a = this.x(Math.max(this.data.from, this.range[0] ?? this.data.from));
    const b = this.x(Math.min(this.data.to, this.range[1] ?? this.data.to));
    const [left, right] = [Math.min(a, b), Math.max(a, b, Math.min(a, b) + 2)];
    const tall = HEIGHT - BOTTOM + LANE;
    return svg("g", { class: "brush" },
      svg("rect", { class: "veil", x: LEFT, y: 0, width: Math.max(0, left - LEFT), height: tall }),
      svg("rect", { class: "veil", x: right, y: 0, width: Math.max(0, this.width - right), height: tall }),
      svg("rect", { class: "frame-line", x: left, y: 0.5, width: right - left, height: tall - 1 }));
  }

  press(event) {
    if (!this.data || event.button !== 0) return;
    const x = event.clientX - this.element.getBoundingClientRect().left;
    this.drag = { x, at: this.at(x) };
    this.element.setPointerCapture(event.pointerId);
  }

  move(event) {
    if (!this.drag) return;
    const x = event.clientX - this.element.getBoundingClientRect().left;
    if (Math.abs(x - this.drag.x) < 4) return;
    this.range = [this.drag.at, this.at(x)].sort((a, b) => a - b);
    this.draw();
  }

  release(event) {
    if (!this.drag) return;
    const x = event.clientX - this.element.getBoundingClientRect().left;
    const clicked = Math.abs(x - this.drag.x) < 4;
    this.drag = null;
    this.choose(clicked ? null : this.range); // a click without a drag: the whole time again
  }

  stop() {
    this.drag = null;
    this.draw();
  }

  choose(range) {
    this.range = range;
    this.draw();
    this.said.textContent = range ? `From ${moment(range[0])} to ${moment(range[1])}` : "The whole time";
    if (range) this.chosen(Math.floor(range[0]), Math.ceil(range[1]));
    else this.chosen(null, null);
  }

  key(event) {
    if (!this.data) return;
    const { from, to } = this.data;
    const step = (to - from) / 24;
    const side = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape" && this.range) this.choose(null);
    else if (side && !this.range) this.choose(side < 0 ? [to - step, to] : [from, from + step]);
    else if (side && event.shiftKey) {
      const [a, b] = this.range;
      this.choose(side < 0 ? [Math.max(from, a - step), b] : [a, Math.min(to, b + step)]);
    } else if (side) {
      const [a, b] = [this.range[0] ?? from, this.range[1] ?? to];
      const moved = Math.max(from - a, Math.min(to - b, side * step));
      this.choose([a + moved, b + moved]);
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }
}

/** What the viewer's /api/strip would say, from rows that are loaded. */
export function binsOf(rows, count = 96) {
  const timed = rows.filter((row) => row.slowest_ms > 0);
  if (timed.length === 0) return { from: 0, to: 0, bins: [] };
  const from = Math.min(...timed.map((row) => row.started_ms));
  const to = Math.max(...timed.map((row) => row.started_ms)) + 1;
  const step = (to - from) / count;
  const bins = new Map();
  for (const row of timed) {
    const at = Math.floor((row.started_ms - from) / step);
    if (!bins.has(at)) bins.set(at, []);
    bins.get(at).push(row);
  }
  const told = [...bins].sort((a, b) => a[0] - b[0]).map(([at, members]) => {
    const sizes = members.map((row) => row.slowest_ms).sort((a, b) => a - b);
    return [from + at * step, sizes.length, sizes[sizes.length >> 1], sizes[sizes.length - 1], members.filter((row) => row.outcome === "error").length];
  });
  return { from, to, step, bins: told };
}

function cross(x, y) {
  return `M${x - 3} ${y - 3}L${x + 3} ${y + 3}M${x + 3} ${y - 3}L${x - 3} ${y + 3}`;
}
