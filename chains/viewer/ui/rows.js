// A long list of which only the rows in sight are elements. Rows are of one height, keyed, and kept while in sight.

const AROUND = 12; // rows drawn beyond each edge, so that a quick scroll finds them there

export class VirtualRows {
  /**
   * `scroller` scrolls, `body` inside it holds the rows. `key(index)` is a string, null while the row is not
   * loaded; `draw(index)` makes its element; `shown(first, last)` is told what came into sight.
   */
  constructor(scroller, body, { key, draw, shown }) {
    Object.assign(this, { scroller, body, key, draw, shown, count: 0, height: 34, elements: new Map(), due: 0 });
    this.onScroll = () => this.schedule();
    scroller.addEventListener("scroll", this.onScroll, { passive: true });
    this.resized = new ResizeObserver(() => this.measure());
    this.resized.observe(scroller);
    this.measure();
  }

  close() {
    this.scroller.removeEventListener("scroll", this.onScroll);
    this.resized.disconnect();
    cancelAnimationFrame(this.due);
  }

  measure() {
    this.height = parseFloat(getComputedStyle(this.scroller).getPropertyValue("--row-height")) || 34;
    this.resize();
  }

  setCount(count) {
    this.count = count;
    this.resize();
  }

  resize() {
    this.body.style.height = `${this.count * this.height}px`;
    this.render();
  }

  /** Draws anew the rows of these keys, or all in sight. */
  forget(keys = [...this.elements.keys()]) {
    for (const key of keys) {
      const element = this.elements.get(key);
      if (!element) continue;
      element.dataset.stale = "";
    }
    this.schedule();
  }

  schedule() {
    if (!this.due) this.due = requestAnimationFrame(() => this.render());
  }

  range() {
    const first = Math.floor(this.scroller.scrollTop / this.height);
    const visible = Math.ceil(this.scroller.clientHeight / this.height);
    return [Math.max(0, first - AROUND), Math.min(this.count - 1, first + visible + AROUND)];
  }

  render() {
    cancelAnimationFrame(this.due);
    this.due = 0;
    const [first, last] = this.range();
    const wanted = new Set();
    for (let index = first; index <= last; index += 1) {
      const key = this.key(index);
      if (key === null) continue;
      wanted.add(key);
      this.place(key, index);
    }
    for (const [key, element] of this.elements) {
      if (wanted.has(key)) continue;
      element.remove();
      this.elements.delete(key);
    }
    this.shown(first, last);
  }

  place(key, index) {
    const old = this.elements.get(key);
    let element = old;
    if (!old || "stale" in old.dataset) {
      element = this.draw(index);
      const focused = old && old.contains(document.activeElement);
      if (old) old.replaceWith(element);
      else this.body.append(element);
      this.elements.set(key, element);
      if (focused) element.querySelector("a").focus({ preventScroll: true });
    }
    if (element.dataset.index !== String(index)) {
      element.dataset.index = String(index);
      element.style.transform = `translateY(${index * this.height}px)`;
      element.setAttribute("aria-rowindex", String(index + 2)); // the first row is the head
      element.classList.toggle("odd", index % 2 === 1);
    }
  }

  /** Scrolls row `index` into sight and focuses its link; false while it is not loaded. */
  focus(index, under = 0) {
    const top = index * this.height;
    const room = this.scroller.clientHeight - under - this.height;
    if (top < this.scroller.scrollTop) this.scroller.scrollTop = top;
    else if (top > this.scroller.scrollTop + room) this.scroller.scrollTop = top - room;
    this.render();
    const element = this.elements.get(this.key(index));
    if (!element) return false;
    element.querySelector("a").focus({ preventScroll: true });
    return true;
  }

  focused() {
    const row = document.activeElement && document.activeElement.closest("[data-index]");
    return row && this.body.contains(row) ? Number(row.dataset.index) : -1;
  }
}
