// The chain as a picture: layers from left to right, a box for each chainlet, thick edges where turns spend time.

import { svg } from "./dom.js";
import { PARTS, many, ms, percent } from "./format.js";

const WIDE = 178;
const TALL = 88;
const BETWEEN = 20;
const EDGE = 12;
const NARROW = 520; // px; below it the graph is a list

/** Each node's layer: one more than that of its farthest caller; an edge that closes a circle counts for nothing. */
export function layersOf(nodes, edges) {
  const callees = new Map(nodes.map((node) => [node, []]));
  for (const [from, to] of edges) if (callees.has(from) && callees.has(to)) callees.get(from).push(to);
  const layer = new Map();
  const walk = (node, depth, path) => {
    if (path.has(node) || (layer.get(node) ?? -1) >= depth) return;
    layer.set(node, depth);
    path.add(node);
    for (const callee of callees.get(node)) walk(callee, depth + 1, path);
    path.delete(node);
  };
  const called = new Set(edges.map(([, to]) => to));
  for (const node of nodes) if (!called.has(node)) walk(node, 0, new Set());
  for (const node of nodes) if (!layer.has(node)) walk(node, 0, new Set());
  const layers = [];
  for (const node of nodes) (layers[layer.get(node)] ??= []).push(node);
  return order(layers.filter(Boolean), edges);
}

/** Within each layer, nodes stand near the middle of those that call them. */
function order(layers, edges) {
  for (let index = 1; index < layers.length; index += 1) {
    const place = new Map(layers.slice(0, index).flatMap((layer) => layer.map((node, at) => [node, (at + 0.5) / layer.length])));
    const middle = (node) => {
      const found = edges.filter(([from, to]) => to === node && place.has(from)).map(([from]) => place.get(from));
      return found.length ? found.reduce((a, b) => a + b, 0) / found.length : 1;
    };
    const keys = new Map(layers[index].map((node) => [node, middle(node)]));
    layers[index].sort((a, b) => keys.get(a) - keys.get(b));
  }
  return layers;
}

/** The figures of a chainlet, from those of its methods: the method that weighs most, and the path's share of all. */
export function nodeFigures(node, hops) {
  const own = hops.filter((hop) => hop.node === node);
  if (own.length === 0) return null;
  const weight = (hop) => (hop.on_path ? hop.on_path.ms_mean * hop.on_path.turns : 0) + 1e-6 * hop.calls;
  const main = own.reduce((a, b) => (weight(b) > weight(a) ? b : a));
  const share = Math.max(...own.map((hop) => (hop.on_path && hop.on_path.share) || 0));
  const spent = own.reduce((sum, hop) => sum + (hop.on_path ? hop.on_path.ms_mean * hop.on_path.share : 0), 0);
  return { main, share, spent, calls: own.reduce((sum, hop) => sum + hop.calls, 0) };
}

/** The picture of a chain (as the viewer tells it) in `width` px; `marks` maps a node to a short text; `chosen(node)` is called on click or Enter. */
export function drawGraph({ graph, hops, turns }, width, marks, chosen) {
  const layers = layersOf(graph.nodes, graph.edges);
  const { places, full, height, line } = width < NARROW ? listed(layers, graph.edges, width) : layered(layers, width);
  const figures = new Map(graph.nodes.map((node) => [node, nodeFigures(node, hops)]));
  const spent = Math.max(1e-9, ...[...figures.values()].map((one) => (one ? one.spent : 0)));
  return svg("svg", { class: "graph", width: full, height, viewBox: `0 0 ${full} ${height}`, role: "group", "aria-label": "Graph of the chain" },
    svg("defs", {}, PARTS.map(patternOf)),
    graph.edges.filter(([a, b]) => places.has(a) && places.has(b)).map(([a, b]) => edge(line(places.get(a), places.get(b)), figures.get(b), spent, width < NARROW ? 4 : 9)),
    graph.nodes.map((node) => box(node, places.get(node), figures.get(node), marks.get(node), turns.count, chosen)));
}

/** Layers side by side, edges as curves. */
function layered(layers, width) {
  const gap = layers.length > 1 ? Math.min(110, Math.max(38, (width - 2 * EDGE - layers.length * WIDE) / (layers.length - 1))) : 0;
  const most = Math.max(...layers.map((layer) => layer.length));
  const height = most * TALL + (most - 1) * BETWEEN + 2 * EDGE;
  const places = new Map();
  layers.forEach((layer, column) => {
    const top = (height - layer.length * TALL - (layer.length - 1) * BETWEEN) / 2;
    layer.forEach((node, row) => places.set(node, { x: EDGE + column * (WIDE + gap), y: top + row * (TALL + BETWEEN), wide: WIDE }));
  });
  const line = (a, b) => {
    const [x1, y1, x2, y2] = [a.x + a.wide, a.y + TALL / 2, b.x, b.y + TALL / 2];
    const bend = Math.max(18, Math.abs(x2 - x1) / 2);
    return `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`;
  };
  return { places, full: 2 * EDGE + layers.length * WIDE + (layers.length - 1) * gap, height, line };
}

/** On a phone: one below the other, each set in below who calls it. */
function listed(layers, edges, width) {
  const places = new Map();
  const put = (node, depth) => {
    if (places.has(node)) return;
    const x = 4 + depth * 22;
    places.set(node, { x, y: 4 + places.size * (TALL + 12), wide: width - x - 4 });
    for (const [from, to] of edges) if (from === node) put(to, Math.min(depth + 1, 5));
  };
  for (const layer of layers) for (const node of layer) put(node, 0);
  const line = (a, b) => `M${a.x + 10} ${a.y < b.y ? a.y + TALL : a.y}V${b.y + TALL / 2}H${b.x}`;
  return { places, full: width, height: 8 + places.size * (TALL + 12) - 12, line };
}

/** The same patterns as those of the bars in the tables: stripes, dots, slants. */
function patternOf(part) {
  const turned = { queue: "rotate(-45)", wait: "rotate(45)" }[part];
  const over = { serialise: { width: 1.5, height: 6 }, queue: { width: 1.2, height: 6 }, wait: { width: 1.6, height: 6 } }[part];
  const wide = { serialise: 6, wire: 6, queue: 4.3, wait: 4.3, compute: 6 }[part];
  return svg("pattern", { id: `fill-${part}`, width: wide, height: 6, patternUnits: "userSpaceOnUse", patternTransform: turned },
    svg("rect", { class: `of-${part}`, width: wide, height: 6 }),
    over && svg("rect", { class: `over-${part}`, ...over }),
    part === "wire" && svg("circle", { class: "over-wire", cx: 2, cy: 2, r: 1.2 }));
}

function edge(line, figures, most, thickest) {
  const share = figures ? figures.spent / most : 0;
  return svg("path", { class: share > 0.02 ? "edge used" : "edge", d: line, "stroke-width": (1.25 + thickest * share).toFixed(2) },
    svg("title", {}, figures ? `on the critical path of ${percent(figures.share)} of the turns, ${ms(figures.spent)} of each turn` : "not called"));
}

function box(node, { x, y, wide }, figures, mark, turns, chosen) {
  const press = (event) => {
    if (event.type === "keydown" && event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    chosen(node);
  };
  const said = figures
    ? `${node}: p50 ${ms(figures.main.p50)}, p95 ${ms(figures.main.p95)}, on the critical path of ${percent(figures.share)} of the turns${mark ? `; ${mark}` : ""}`
    : `${node}: not called`;
  const frame = svg("g", { class: `node${mark ? " marked" : ""}${figures ? "" : " idle"}`, transform: `translate(${x} ${y})`, role: "button", tabindex: "0",
    "aria-label": said, onclick: press, onkeydown: press },
  svg("rect", { class: "box", width: wide, height: TALL, rx: 8 }),
  within(wide, svg("text", { class: "name", x: 11, y: 20 }, node.length > 21 && svg("title", {}, node), cut(node, 21))));
  if (!figures) {
    frame.append(svg("text", { class: "soft", x: 11, y: 40 }, "not called"));
    return frame;
  }
  frame.append(svg("text", { x: 11, y: 38 }, `p50 ${ms(figures.main.p50)} · p95 ${ms(figures.main.p95)}`), ...bar(figures.main, wide));
  frame.append(mark
    ? within(wide, svg("text", { class: "mark", x: 11, y: 77 }, cut(mark, 25)))
    : svg("text", { class: "soft", x: 11, y: 77 }, figures.share > 0 ? `on ${percent(figures.share)} of paths, ${ms(figures.spent)}`
      : turns ? "never on the path" : many(figures.calls, "call")));
  return frame;
}

function bar(hop, room) {
  const sizes = PARTS.map((part) => Math.max(0, (hop.parts[part] && hop.parts[part].mean) || 0));
  const sum = sizes.reduce((a, b) => a + b, 0) || 1;
  let at = 11;
  return PARTS.map((part, index) => {
    const wide = (sizes[index] / sum) * (room - 22);
    const rect = svg("rect", { fill: `url(#fill-${part})`, x: at, y: 48, width: Math.max(0, wide - 0.75), height: 10 });
    at += wide;
    return rect;
  });
}

/** Letters may be of any width: what runs over the box's edge is not shown. */
function within(wide, text) {
  return svg("svg", { width: wide - 6, height: TALL, overflow: "hidden" }, text);
}

function cut(text, most) {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}
