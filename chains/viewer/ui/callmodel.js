// A call as the page holds it: its spans as a tree, its turns, and which row of the waterfall shows which span.

const NONE = Object.freeze([]); // shared by the many spans without children or without a path

export class CallModel {
  constructor(body) {
    this.spans = new Map();
    this.byTurn = true;
    this.take(body);
  }

  // The body of /api/calls/ID: all of it, or what is new since `last`.
  take(body) {
    this.call = body.call;
    this.turns = body.turns || [];
    this.sources = new Map((body.sources || []).map((source) => [source.id, source]));
    this.transcript = body.transcript || [];
    this.audio = body.audio || {};
    this.checks = body.checks || {};
    this.last = body.last;
    const column = Object.fromEntries((body.columns || []).map((name, index) => [name, index]));
    for (const row of body.spans || []) this.spans.set(row[column.id], spanOf(row, column));
    if (body.paths) this._onPath(new Map(body.paths));
    this.end = this._end();
    this.build();
  }

  // A turn that has ended since may run through spans that were sent before.
  _onPath(paths) {
    for (const span of this.spans.values()) if (paths.has(span.row)) span.onPath = paths.get(span.row);
  }

  _end() {
    let end = this.call.ended_ms ? this.call.ended_ms - this.call.started_ms : 0;
    for (const span of this.spans.values()) end = Math.max(end, span.start + (span.ms || 0));
    for (const turn of this.turns) end = Math.max(end, turn.end || turn.start || 0);
    return Math.max(end, this.audio.ms || 0, 1);
  }

  /** The running call has come to `time`: what runs grows with it. */
  now(time) {
    this.end = Math.max(this.end, time);
    for (const span of [this.root, ...this.turnSpans.values()]) if (span.live) span.ms = this.end - span.start;
  }

  // The tree, by turn (a hop stands under its turn, then under its caller) or by caller alone.
  build() {
    const spans = [...this.spans.values()].sort((a, b) => a.start - b.start || b.ms - a.ms);
    for (const span of spans) {
      span.children = NONE;
      span.path = NONE;
    }
    this.root = this._root(spans);
    this.turnSpans = this._turnSpans(spans);
    const grouped = this.byTurn && this.turnSpans.size > 0;
    for (const span of [...this.turnSpans.values()].filter((turn) => turn.made)) {
      if (grouped) this._hang(span, this.root);
    }
    for (const span of spans) {
      if (span === this.root || (span.kind === "turn" && !grouped)) continue;
      let up = this.spans.get(span.parent) || this.root;
      const turn = grouped && span.kind !== "turn" && span.turn ? this.turnSpans.get(span.turn) : null;
      if (turn && up.turn !== span.turn) up = turn;
      this._hang(span, up === span ? this.root : up);
    }
    if (grouped) this._turnsLast();
    this.order = flatten(this.root, spans, (span) => this._hang(span, this.root));
    this._paths(spans);
  }

  _hang(span, up) {
    span.up = up;
    if (up.children === NONE) up.children = [span];
    else up.children.push(span);
  }

  _turnsLast() {
    const turns = this.root.children.filter((span) => span.kind === "turn").sort((a, b) => a.turn - b.turn);
    this.root.children = this.root.children.filter((span) => span.kind !== "turn").concat(turns);
  }

  _root(spans) {
    const call = spans.find((span) => span.kind === "call");
    if (call) return call;
    const roots = spans.filter((span) => !this.spans.has(span.parent));
    if (roots.length === 1 && !this.call.live && !this.turns.some((turn) => turn.number > 0)) return roots[0];
    const name = this.call.live ? "call (running)" : "call";
    return made({ id: "call", kind: "call", name, start: 0, ms: this.end, turn: 0, live: this.call.live });
  }

  // The span of each turn; one that still runs has none yet, so it is made from what is known.
  _turnSpans(spans) {
    const found = new Map(spans.filter((span) => span.kind === "turn").map((span) => [span.turn, span]));
    for (const turn of this.turns) {
      if (!turn.number) continue;
      const live = turn.end === null || turn.end === undefined;
      if (!found.has(turn.number)) {
        const end = live ? this.end : turn.end;
        const row = { id: `turn-${turn.number}`, kind: "turn", name: `turn ${turn.number}`, start: turn.start, ms: end - turn.start };
        found.set(turn.number, made({ ...row, turn: turn.number, live }));
      }
      found.get(turn.number).of = turn;
    }
    return found;
  }

  // Lay each turn's critical path over the spans it runs through.
  _paths(spans) {
    const index = new Map();
    for (const span of spans) {
      if (span.kind === "turn" || span.kind === "call") continue;
      const key = `${span.name}|${span.turn}`;
      if (!index.has(key)) index.set(key, []);
      index.get(key).push(span);
    }
    for (const turn of this.turns) {
      for (const [hop, part, name, replica, start, ms] of turn.path || []) {
        const middle = start + ms / 2;
        const some = [...(index.get(`${hop}|${turn.number}`) || []), ...(index.get(`${hop}|0`) || [])];
        const over = some.filter((span) => span.start <= middle + 0.5 && span.start + span.ms >= middle - 0.5);
        const best = over.find((span) => span.replica === replica) || over[0];
        if (!best) continue;
        if (best.path === NONE) best.path = [];
        best.path.push({ start, ms, part, name, turn: turn.number });
      }
    }
  }

  /** The span of that key (see keyOf), or null. */
  find(key) {
    if (key === "call") return this.root;
    const turn = /^turn-(\d+)$/.exec(key);
    return (turn ? this.turnSpans.get(Number(turn[1])) : this.spans.get(key)) || null;
  }

  turn(number) {
    return this.turns.find((turn) => turn.number === number) || null;
  }

  get slowest() {
    const answered = this.turns.filter((turn) => turn.latency_ms && turn.state !== "dropped");
    return answered.reduce((worst, turn) => (!worst || turn.latency_ms > worst.latency_ms ? turn : worst), null);
  }

  // The rows to show: without what is collapsed; of a filter, what matches and what stands above it.
  rows(collapsed, matches) {
    const rows = [];
    const keep = matches ? this._keep(matches) : null;
    for (let at = 0; at < this.order.length; ) {
      const span = this.order[at];
      if (keep && !keep.has(span)) {
        at += span.size;
        continue;
      }
      rows.push(span);
      at += collapsed.has(keyOf(span)) && !keep ? span.size : 1;
    }
    return rows;
  }

  _keep(matches) {
    const keep = new Set();
    this.matched = new Set();
    for (const span of this.order) {
      if (!matches(span)) continue;
      this.matched.add(span);
      for (let up = span; up && !keep.has(up); up = up.up) keep.add(up);
    }
    return keep;
  }
}

// One shape for all, so that 100,000 of them stay small.
function spanOf(row, column) {
  return {
    row: row[column.row], id: row[column.id], parent: row[column.parent], name: row[column.name], kind: row[column.kind],
    turn: row[column.turn], replica: row[column.replica], source: row[column.source], start: row[column.start],
    ms: row[column.ms], status: row[column.status], parts: row[column.parts], segments: row[column.segments],
    onPath: row[column.on_path], attempts: row[column.attempts], itemsIn: row[column.items_in],
    itemsOut: row[column.items_out], firstMs: row[column.first_ms], error: row[column.error],
    made: false, up: null, children: NONE, path: NONE, depth: 0, size: 1, place: 1,
  };
}

/** What names a span while it runs and after: a turn and the call get their own span only when they end. */
export function keyOf(span) {
  return span.kind === "turn" ? `turn-${span.turn}` : span.kind === "call" ? "call" : span.id;
}

function made(row) {
  const empty = { parent: "", replica: "", source: null, status: 0, parts: null, segments: null, onPath: 0 };
  return { ...empty, ...row, made: true, up: null, children: NONE, path: NONE, depth: 0, size: 1, place: 1 };
}

// Depth first; `adopt` hangs up what no walk reaches (a ring of parents, in spans of others).
function flatten(root, spans, adopt) {
  const order = walk(root);
  if (order.length < spans.length) {
    const seen = new Set(order);
    for (const span of spans) {
      if (seen.has(span) || span.kind === "turn") continue;
      span.up.children = span.up.children.filter((child) => child !== span);
      adopt(span);
      for (const below of walk(span)) seen.add(below);
    }
    return walk(root);
  }
  return order;
}

function walk(root) {
  const order = [];
  const seen = new Set();
  const stack = [root];
  root.depth = 0;
  while (stack.length) {
    const span = stack.pop();
    if (seen.has(span)) continue;
    seen.add(span);
    order.push(span);
    for (let n = span.children.length - 1; n >= 0; n--) {
      const child = span.children[n];
      child.depth = span.depth + 1;
      child.place = n + 1;
      stack.push(child);
    }
  }
  for (const span of order) span.size = 1;
  for (let n = order.length - 1; n > 0; n--) order[n].up.size += order[n].size;
  return order;
}

// "ears >50 is:error turn:3": all of its words must hold. null when it asks for nothing.
export function filterOf(text, onlyPath) {
  const words = text.trim().toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length && !onlyPath) return null;
  const tests = words.map(condition);
  if (onlyPath) tests.push((span) => span.onPath > 0 || span.path.length > 0);
  return (span) => tests.every((holds) => holds(span));
}

function condition(word) {
  const longer = /^>(\d+(?:\.\d+)?)(ms|s)?$/.exec(word);
  if (longer) {
    const ms = Number(longer[1]) * (longer[2] === "s" ? 1000 : 1);
    return (span) => span.ms >= ms;
  }
  const [key, value] = word.includes(":") ? [word.slice(0, word.indexOf(":")), word.slice(word.indexOf(":") + 1)] : ["", word];
  if (key === "is" && value === "error") return (span) => span.status === 2;
  if (key === "is" && value === "path") return (span) => span.onPath > 0 || span.path.length > 0;
  if (key === "is" && value === "retried") return (span) => span.attempts > 1;
  if (key === "turn") return (span) => String(span.turn) === value;
  if (key === "replica") return (span) => String(span.replica || "").toLowerCase().includes(value);
  return (span) => `${span.name} ${span.replica || ""} ${span.error || ""}`.toLowerCase().includes(word);
}
