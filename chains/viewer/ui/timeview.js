// The stretch of time that is shown: one for the overview, the audio and the waterfall, so that they always agree.

const SMALLEST = 0.02;

export class TimeView {
  constructor(whole) {
    this.whole = Math.max(whole, 1);
    this.lo = 0;
    this.hi = this.whole;
    this.moved = false; // by the user: then a live call no longer pulls it along
    this.watchers = new Set();
  }

  watch(fn) {
    this.watchers.add(fn);
    return () => this.watchers.delete(fn);
  }

  get span() {
    return this.hi - this.lo;
  }

  get full() {
    return this.lo <= 0 && this.hi >= this.whole;
  }

  set(lo, hi, { moved = true } = {}) {
    const span = Math.min(Math.max(hi - lo, SMALLEST), this.whole);
    this.lo = Math.min(Math.max(lo, 0), this.whole - span);
    this.hi = this.lo + span;
    this.moved = moved;
    for (const fn of this.watchers) fn();
  }

  zoom(factor, at = (this.lo + this.hi) / 2) {
    const span = Math.min(Math.max(this.span * factor, SMALLEST), this.whole);
    const lo = at - ((at - this.lo) / this.span) * span;
    this.set(lo, lo + span);
  }

  pan(ms) {
    this.set(this.lo + ms, this.hi + ms);
  }

  all() {
    this.set(0, this.whole, { moved: false });
  }

  // The call has gone on until `whole`.
  grow(whole) {
    const wasFull = this.full;
    const span = this.span;
    this.whole = Math.max(whole, 1);
    if (this.moved) this.set(this.lo, this.hi);
    else if (wasFull) this.set(0, this.whole, { moved: false });
    else this.set(this.whole - span, this.whole, { moved: false });
  }

  // Show [lo, hi] with some room on both sides.
  around(lo, hi) {
    const room = Math.max((hi - lo) * 0.08, 0.1);
    this.set(lo - room, hi + room);
  }

  x(time, width) {
    return ((time - this.lo) / this.span) * width;
  }

  time(x, width) {
    return this.lo + (x / width) * this.span;
  }

  // Round moments, about one in each `every` pixels.
  ticks(width, every = 90) {
    const rough = (this.span / Math.max(width, 1)) * every;
    const power = 10 ** Math.floor(Math.log10(rough));
    let step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
    if (rough > 10_000) step = [15_000, 30_000, 60_000, 120_000, 300_000, 600_000, 1_800_000].find((n) => n >= rough) || 3_600_000;
    const ticks = [];
    for (let n = Math.ceil(this.lo / step); n * step <= this.hi; n++) ticks.push(n * step);
    return { ticks, step };
  }
}

// Digits that tell neighbouring ticks apart.
export function tickText(time, step) {
  if (time < 1000 && step < 200) return `${Number(time.toFixed(3))} ms`;
  if (step < 10) return `${(time / 1000).toFixed(step < 0.1 ? 5 : step < 1 ? 4 : 3)} s`;
  if (time < 60_000) return step >= 1000 ? `${Math.round(time / 1000)} s` : `${(time / 1000).toFixed(step >= 100 ? 1 : 2)} s`;
  const minutes = Math.floor(time / 60_000);
  const seconds = (time - minutes * 60_000) / 1000;
  const digits = step >= 1000 ? 0 : step >= 100 ? 1 : 2;
  return `${minutes}:${seconds < 10 ? "0" : ""}${seconds.toFixed(digits)}`;
}

// Wheel, drag and pinch on `target`, whose time axis begins at `left()` and is `width()` wide.
export function gestures(target, view, { left, width, click, hover }) {
  const fingers = new Map();
  let moved = false;
  let pinch = 0;

  const at = (x) => view.time(x - target.getBoundingClientRect().left - left(), width());

  target.addEventListener(
    "wheel",
    (event) => {
      if (event.ctrlKey || event.metaKey) {
        event.preventDefault();
        view.zoom(Math.exp(Math.min(Math.max(event.deltaY, -60), 60) * 0.008), at(event.clientX));
      } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        event.preventDefault();
        view.pan(((event.deltaX || event.deltaY) / width()) * view.span);
      }
    },
    { passive: false },
  );
  target.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    fingers.set(event.pointerId, event.clientX);
    if (fingers.size === 1) moved = false;
    pinch = 0;
  });
  target.addEventListener("pointermove", (event) => {
    const before = fingers.get(event.pointerId);
    if (before === undefined) {
      hover?.(event, at(event.clientX));
      return;
    }
    if (!moved && Math.abs(event.clientX - before) < 4) return;
    if (!moved) target.setPointerCapture(event.pointerId);
    moved = true;
    const ratio = view.span / width();
    if (fingers.size === 1) view.pan((before - event.clientX) * ratio);
    fingers.set(event.pointerId, event.clientX);
    if (fingers.size === 2) {
      const [a, b] = [...fingers.values()];
      const wide = Math.max(Math.abs(a - b), 8);
      if (pinch) view.zoom(pinch / wide, at((a + b) / 2));
      pinch = wide;
    }
    hover?.(null);
  });
  const up = (event) => {
    if (!fingers.delete(event.pointerId)) return;
    pinch = 0;
    if (!moved && event.type === "pointerup") click?.(event, at(event.clientX));
  };
  target.addEventListener("pointerup", up);
  target.addEventListener("pointercancel", up);
  target.addEventListener("pointerleave", () => hover?.(null));
}
