// One call: which turn was slow, what it waited for, and everything else on one time axis. All of it is in the URL.

import { getJson, subscribe, withQuery } from "./api.js";
import { clear, h, later, typing } from "./dom.js";
import { many, moment, ms } from "./format.js";
import { CallModel, filterOf, keyOf } from "./callmodel.js";
import { copier } from "./callwords.js";
import { forgetter } from "./forget.js";
import { Inspector } from "./inspect.js";
import { TimeView } from "./timeview.js";
import { Timeline } from "./timeline.js";
import { Transcript } from "./transcript.js";
import { TurnStrip } from "./turnstrip.js";

const POLL = 2000;
const SEGMENTS = 300;

/** Shows call `id` in `root`; returns what ends it, whose `update(query)` takes another query of the same call. */
export async function show(root, { id, query, navigate }) {
  const inlined = window.CHAINS_CALL || null;
  const source = inlined ? { inlined: true, details: inlined.details, peaks: inlined.peaks, wav: inlined.wav } : { path: `/api/calls/${encodeURIComponent(id)}` };
  clear(root, h("p", { class: "loading" }, "Loading the call…"));
  const body = inlined || (await getJson(source.path));
  const page = new CallPage(root, body, source, navigate);
  page.apply(query);
  const end = () => page.close();
  end.update = (next) => page.apply(next);
  return end;
}

class CallPage {
  constructor(root, body, source, navigate) {
    this.root = root;
    this.source = source;
    this.navigate = navigate;
    this.model = new CallModel(body);
    this.findings = (body.findings && body.findings.findings) || body.findings || [];
    this.loaded = { at: Date.now(), end: this.model.end };
    this.view = new TimeView(this.model.end);
    this.state = { turn: 0, asked: false, span: "", q: "", path: false, caller: false };
    this.ends = [];
    this._build();
    this._listen();
    if (!this.model.call.live) this._learn();
  }

  // Why the slowest turn was slow, against what this chain usually takes.
  async _learn() {
    if (this.source.inlined || !this.model.slowest) return;
    try {
      const told = await getJson(`${this.source.path}/findings`);
      this.findings = told.findings || [];
      if (this.findings.length) this.strip.show(this.model, this.state.turn, this.state.asked, this.findings);
    } catch {
      // the page says what the path says
    }
  }

  _build() {
    const choose = (number) => this._chooseTurn(number);
    this.strip = new TurnStrip({ turn: choose, hop: (name, replica, turn) => this._chooseHop(name, replica, turn) });
    this.timeline = new Timeline(this.view, {
      source: this.source,
      select: (span) => this._select(span, { replace: true }),
      open: (span, focus) => this._select(span, { open: true, focus }),
      seek: (time) => this._seek(time),
      played: (time) => this._played(time),
      filter: later(() => this._set({ q: this.timeline.filter.value }, { replace: true }), 120),
      changed: (name, value) => this._set(name === "path" ? { path: value } : { caller: value }),
      need: this.source.inlined ? null : (spans) => this._segments(spans),
      failed: (words) => clear(this.trouble, words),
    });
    this.transcript = new Transcript({ seek: (time) => this._seek(time, true), turn: choose });
    this.inspector = new Inspector(this.source, { seek: (time) => this._seek(time, true), zoom: (span) => this._zoom(span), close: () => this._closeInspector(), span: (span) => this._select(span, { open: true }) });
    this.top = h("header", { class: "c-top" });
    this.trouble = h("p", { class: "c-trouble", role: "status" });
    this.tabs = this._tabs();
    this.side = h("aside", { class: "c-side", "aria-label": "Transcript and details" }, this.tabs.root, this.transcript.root, this.inspector.root);
    this.page = h("div", { class: "c-page" }, this.top, this.trouble, this.strip.root, h("div", { class: "c-work" }, this.timeline.root, this.side));
    clear(this.root, this.page);
  }

  _tabs() {
    const tab = (name, words) => h("button", { type: "button", role: "tab", "aria-selected": "false", "aria-controls": `c-panel-${name}`, onclick: () => this._tab(name) }, words);
    const tabs = { transcript: tab("transcript", "Transcript"), details: tab("details", "Details") };
    return { ...tabs, root: h("div", { class: "c-tabs", role: "tablist", "aria-label": "Beside the waterfall" }, tabs.transcript, tabs.details) };
  }

  _tab(name) {
    this.tab = name;
    this.side.dataset.tab = name;
    for (const one of ["transcript", "details"]) this.tabs[one].setAttribute("aria-selected", String(one === name));
  }

  _listen() {
    const keys = (event) => this._key(event);
    document.addEventListener("keydown", keys);
    const remember = later(() => this._address({ replace: true }), 250);
    this.ends.push(() => document.removeEventListener("keydown", keys), this.view.watch(remember), () => remember.cancel());
    if (!this.model.call.live || this.source.inlined) return;
    const soon = later(() => this._refresh(), 150);
    const poll = setInterval(() => this._refresh(), POLL);
    const tick = setInterval(() => this._advance(), 250);
    const heard = subscribe("calls", ({ rows }) => rows.some((row) => row[0] === this.model.call.id) && soon());
    this.stopLive = () => {
      clearInterval(poll);
      clearInterval(tick);
      soon.cancel();
      heard();
    };
    this.ends.push(() => this.stopLive());
  }

  // ---- what is shown

  /** Takes the state from the URL's query. */
  apply(query) {
    const turn = Number(query.get("turn")) || 0;
    this.state = {
      turn: turn || this._worthwhile(), asked: turn > 0, span: query.get("span") || "", q: query.get("q") || "",
      path: query.get("path") === "1", caller: query.get("group") === "caller",
    };
    const [from, to] = [Number(query.get("from")), Number(query.get("to"))];
    if (query.has("to") && to > from) this.view.set(from, to);
    else if (turn && this.model.turn(turn)) this.view.around(...this._stretch(this.model.turn(turn)));
    else this.view.all();
    this._show();
    const span = this.state.span && this.model.find(this.state.span);
    this.timeline.waterfall.select(span || null);
    if (span) this.inspector.show(span, this.model);
    else this.inspector.empty();
    this._tab(span ? "details" : "transcript");
    this.url = this._url();
  }

  // Without a wish: the slowest turn of a call that has ended, the last of one that runs.
  _worthwhile() {
    const turns = this.model.turns;
    if (this.model.call.live) return (turns.findLast((turn) => turn.latency_ms) || { number: 0 }).number;
    return (this.model.slowest || { number: 0 }).number;
  }

  _show() {
    const { state, model } = this;
    if (model.byTurn === state.caller) {
      model.byTurn = !state.caller;
      model.build();
    }
    this._head();
    this.strip.show(model, state.turn, state.asked, this.findings);
    this.timeline.show(model, filterOf(state.q, state.path));
    this.timeline.modes({ pathOnly: state.path, byCaller: state.caller, text: state.q, chosen: state.turn });
    this.transcript.show(model);
  }

  _head() {
    const { call, turns } = this.model;
    const spoken = turns.filter((turn) => turn.number > 0);
    const cut = spoken.filter((turn) => turn.state === "interrupted").length;
    const dropped = spoken.filter((turn) => turn.state === "dropped").length;
    const hungUp = call.outcome === "cancelled" && call.reason === "hang-up"; // that is how a phone call ends
    const outcome = { done: ["ok", "✓ done"], error: ["error", "✕ failed"], cancelled: ["interrupted", "✂ cancelled"], live: ["live", "● running"], lost: ["dropped", "⊘ lost sight of"], hungUp: ["ok", "✓ the caller hung up"] }[call.live ? "live" : hungUp ? "hungUp" : call.outcome] || ["dropped", call.outcome || "ended"];
    const facts = [
      h("span", { class: `state state-${outcome[0]}` }, outcome[1]), call.reason && !hungUp && h("span", {}, call.reason), h("span", {}, h("b", {}, ms(this.model.end)), call.live ? " so far" : ""),
      spoken.length > 0 && h("span", {}, many(spoken.length, "turn")), cut > 0 && h("span", { class: "state-interrupted" }, `✂ ${cut} interrupted`), dropped > 0 && h("span", { class: "state-dropped" }, `⊘ ${dropped} dropped`),
      h("span", { class: call.errors ? "state-error" : "soft" }, call.errors ? `✕ ${many(call.errors, "error")}` : "no error"),
      h("span", { class: "soft" }, many(this.model.spans.size, "span")),
    ];
    const origin = this.source.inlined ? h("span", {}, call.chain) : h("a", { href: withQuery("/chain", { chain: call.chain }) }, call.chain);
    const from = [origin, call.version && h("span", { class: "mono" }, call.version), call.app && call.app !== call.chain && h("span", {}, call.app), 
      h("time", { datetime: new Date(call.started_ms).toISOString() }, moment(call.started_ms)), call.tenant && h("span", {}, `tenant ${call.tenant}`)];
    const before = this.model.audio.replay_of;
    if (before) {
      const both = withQuery("/compare", { a: `call:${before}`, b: `call:${call.id}` });
      facts.push(h("span", {}, "↻ replay of ", this.source.inlined ? before : h("a", { href: both, title: "Both waterfalls side by side" }, before)));
    }
    const key = JSON.stringify([call, before, turns.length, cut, dropped, this.model.spans.size, Math.round(this.model.end / 100)]);
    if (key === this.headKey) return;
    this.headKey = key;
    if (this.facts) {
      clear(this.facts, ...facts);
      if (this.wasLive === call.live) return;
    }
    this.wasLive = call.live;
    this.facts = h("p", { class: "c-facts" }, facts);
    clear(this.top, h("div", { class: "c-title" }, h("h1", {}, "Call ", h("span", { class: "mono" }, call.id)), h("p", { class: "c-from soft", title: [call.method && `entry method ${call.method}`, call.instance && `seen by ${call.instance}`].filter(Boolean).join(", ") }, from)), this.facts, this.source.inlined ? null : this._links(call));
  }

  _links(call) {
    const path = `/calls/${encodeURIComponent(call.id)}`;
    return h("div", { class: "c-links" }, h("a", { href: withQuery("/compare", { a: `call:${call.id}` }) }, "Compare"), h("a", { href: `${path}.json`, download: `${call.id}.json` }, "JSON"),
      h("a", { href: `${path}.html`, download: `${call.id}.html`, title: "One file that shows this page anywhere" }, "HTML"),
      call.recorded ? copier(`chains replay ${call.id}`, "the command that replays this call") : null,
      call.live ? null : forgetter(this.source.path, call.recorded, (all) => (all ? this.navigate("/") : location.reload())));
  }

  // ---- what is chosen

  _set(change, how = {}) {
    Object.assign(this.state, change);
    this._show();
    this._address(how);
  }

  // Around its latency, or all of a turn that has none.
  _stretch(turn) {
    if (!turn.latency_ms) return [turn.start, turn.end ?? this.model.end];
    const room = turn.latency_ms * 0.3;
    return [turn.latency_start - room, turn.latency_start + turn.latency_ms + room];
  }

  _chooseTurn(number) {
    const turn = this.model.turn(number);
    if (!turn) return;
    Object.assign(this.state, { turn: number, asked: true });
    this.view.around(...this._stretch(turn));
    const row = this.model.turnSpans.get(number);
    if (row && !this.state.caller) {
      this.timeline.waterfall.toggle(row, true);
      this.timeline.waterfall.select(row);
      this.timeline.waterfall.top(row);
      this.state.span = keyOf(row);
      this.inspector.show(row, this.model);
    }
    this._show();
    this._address();
  }

  _chooseHop(name, replica, turn) {
    const order = this.model.order.filter((span) => span.name === name && span.path.some((step) => step.turn === turn));
    const span = order.find((one) => one.replica === replica) || order[0] || this.model.order.find((one) => one.name === name && (one.turn === turn || !one.turn));
    if (span) this._select(span, { open: true });
  }

  _select(span, { open = false, replace = false, focus = false } = {}) {
    this.state.span = keyOf(span);
    this.timeline.waterfall.select(span);
    if (span.turn && span.turn !== this.state.turn && this.model.turn(span.turn)) {
      Object.assign(this.state, { turn: span.turn, asked: true });
      this.strip.show(this.model, span.turn, true, this.findings);
      this.timeline.modes({ pathOnly: this.state.path, byCaller: this.state.caller, text: this.state.q, chosen: span.turn });
    }
    if (span.start > this.view.hi || span.start + span.ms < this.view.lo) {
      this.view.set(span.start - this.view.span / 5, span.start + (this.view.span * 4) / 5);
    }
    if (open) this._tab("details");
    if (open && matchMedia("(max-width: 860px)").matches) this.side.scrollIntoView({ block: "nearest" });
    if (open || this.tab === "details") this.inspector.show(span, this.model);
    if (focus) this.inspector.root.focus();
    this._address({ replace });
  }

  _zoom(span) {
    this.view.around(span.start, span.start + span.ms);
  }

  _closeInspector() {
    this._tab("transcript");
    this.timeline.waterfall.scroll.focus({ preventScroll: true });
  }

  _seek(time, show = false) {
    this.timeline.audio.seek(time);
    if (show && (time < this.view.lo || time > this.view.hi)) this.view.set(time - this.view.span / 4, time + (this.view.span * 3) / 4);
    this._played(time);
  }

  // The play head has moved: what is said is marked, and a narrow view turns its page.
  _played(time) {
    this.transcript.follow(time, this.timeline.audio.playing);
    const { view } = this;
    if (this.timeline.audio.playing && time > view.hi && !view.full) view.set(time, time + view.span);
    this.timeline.place(time);
  }

  // ---- URL

  _address({ replace = false } = {}) {
    const url = this._url();
    if (url === this.url) return;
    this.url = url;
    this.navigate(url, { replace, quiet: true });
  }

  _url() {
    const { state, view } = this;
    const query = { turn: state.asked ? state.turn : "", span: state.span, q: state.q, path: state.path ? "1" : "", group: state.caller ? "caller" : "" };
    if (!view.full && (view.moved || !this.model.call.live)) Object.assign(query, { from: view.lo.toFixed(2), to: view.hi.toFixed(2) });
    return withQuery(this.source.inlined ? "" : location.pathname, query);
  }

  // ---- keys

  _key(event) {
    if (event.defaultPrevented || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (typing(event)) {
      if (event.key === "Escape" && event.target === this.timeline.filter) {
        this._set({ q: "" }, { replace: true });
        this.timeline.waterfall.scroll.focus();
      } else if ((event.key === "Enter" || event.key === "ArrowDown") && event.target === this.timeline.filter) this.timeline.waterfall.scroll.focus();
      return;
    }
    if (event.ctrlKey) return;
    const pressed = event.target instanceof Element ? event.target.closest("button, a, [role=tab], summary") : null;
    if (pressed && (event.key === "Enter" || event.key === " ")) return;
    if (this._does(event)) event.preventDefault();
  }

  _does(event) {
    const { view, timeline, state } = this;
    const pan = { ArrowLeft: -0.15, ArrowRight: 0.15 }[event.key];
    if (event.shiftKey && pan) view.pan(pan * view.span);
    else if (event.key === "+" || event.key === "=") view.zoom(1 / 1.6);
    else if (event.key === "-" || event.key === "_") view.zoom(1.6);
    else if (event.key === "0") view.all();
    else if (event.key === " ") timeline.audio.toggle();
    else if (event.key === "/") timeline.filter.select();
    else if (event.key === "c") this._set({ path: !state.path });
    else if (event.key === "n" && this.model.call.live) view.all();
    else if (event.key === "z" && timeline.waterfall.selected) this._zoom(timeline.waterfall.selected);
    else if (event.key === "]" || event.key === "[") this._step(event.key === "]" ? 1 : -1);
    else if (event.key === "Escape") return this._escape();
    else return timeline.waterfall.key(event);
    return true;
  }

  _step(by) {
    const turns = this.model.turns.filter((turn) => turn.number > 0);
    const at = turns.findIndex((turn) => turn.number === this.state.turn);
    const next = turns[Math.min(Math.max(at + by, 0), turns.length - 1)];
    if (next) this._chooseTurn(next.number);
  }

  _escape() {
    if (this.tab === "details") this._closeInspector();
    else if (this.state.q || this.state.path) this._set({ q: "", path: false });
    else if (!this.view.full) this.view.all();
    else return false;
    return true;
  }

  // ---- what comes later

  // Bars of a very large call are asked for as they come into sight.
  async _segments(spans) {
    for (const span of spans) span.asked = true;
    for (let n = 0; n < spans.length; n += SEGMENTS) {
      const some = spans.slice(n, n + SEGMENTS);
      try {
        const { rows } = await getJson(withQuery(`${this.source.path}/segments`, { rows: some.map((span) => span.row).join() }));
        for (const span of some) span.segments = rows[span.row] || null;
        this.timeline.redraw();
      } catch {
        return; // the parts stand in their order without it
      }
    }
  }

  async _refresh() {
    if (this.refreshing) return;
    this.refreshing = true;
    try {
      const body = await getJson(withQuery(this.source.path, { after: this.model.last }));
      const selected = this.timeline.waterfall.selected;
      this.model.take(body);
      this.loaded = { at: Date.now(), end: this.model.end };
      if (selected) this.timeline.waterfall.selected = this.model.find(keyOf(selected));
      if (!this.state.asked) this.state.turn = this._worthwhile();
      this.view.grow(this.model.end);
      this._show();
      clear(this.trouble, "");
      if (!this.model.call.live) {
        this.stopLive();
        this._learn();
      }
    } catch (error) {
      clear(this.trouble, `${error.message} ${error.mend || ""}`);
    }
    this.refreshing = false;
  }

  // A call that runs goes on between two answers, too.
  _advance() {
    const { call } = this.model;
    if (!call.live) return;
    const byClock = Date.now() - call.started_ms;
    const since = this.loaded.end + Date.now() - this.loaded.at;
    this.model.now(byClock >= this.loaded.end && byClock < this.loaded.end + 1_800_000 ? byClock : since);
    this.view.grow(this.model.end);
    this._head();
    this.timeline.stale = true;
    this.timeline.redraw();
  }

  close() {
    for (const end of this.ends) end();
    this.timeline.close();
    this.inspector.span = null;
  }
}
