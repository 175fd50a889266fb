// The bars of the waterfall on a canvas: what a hop's time went into, its critical path, its marks.

import { PARTS, ms } from "./format.js";
import { color } from "./theme.js";

const FONT = '11px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif';
const COLORS = ["serialise", "wire", "queue", "compute", "wait"];

/** The canvas made `width` x `height` CSS pixels, sharp on this screen, and empty. */
export function freshCanvas(canvas, width, height) {
  const ratio = Math.min(devicePixelRatio || 1, 2);
  const [w, h] = [Math.max(Math.round(width * ratio), 1), Math.max(Math.round(height * ratio), 1)];
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const ctx = canvas.getContext("2d");
  ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
  ctx.clearRect(0, 0, width, height);
  ctx.font = FONT;
  ctx.textBaseline = "middle";
  return ctx;
}

/** The theme's colours and patterns as canvas paints; make it anew when the theme changes. */
export function paints() {
  const one = {};
  const names = ["text", "text-2", "line", "line-strong", "surface-1", "surface-2", "surface-3", "accent", "accent-soft", "state-error", "state-interrupted", "state-live", "part-wait-2"];
  for (const name of names) one[name] = color(`--${name}`);
  for (const part of COLORS) {
    one[`solid-${part}`] = color(`--part-${part}`);
    one[part] = pattern(part, one[`solid-${part}`], one["part-wait-2"], one["surface-1"]);
  }
  one.mixed = pattern("wait", one["solid-compute"], one["part-wait-2"], one["surface-1"]);
  one.other = one["text-2"];
  one.hatch = hatch(one["text-2"]);
  return one;
}

// Each part has a pattern of its own, so that no two are told apart by colour alone.
function pattern(part, solid, second, paper) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const ctx = tile.getContext("2d");
  ctx.fillStyle = part === "wait" ? second : solid;
  ctx.fillRect(0, 0, 6, 6);
  ctx.strokeStyle = ctx.fillStyle = part === "wait" ? solid : paper;
  ctx.globalAlpha = part === "wait" ? 1 : 0.55;
  ctx.lineWidth = 1.2;
  if (part === "wait") diagonal(ctx, 6, true);
  else if (part === "queue") diagonal(ctx, 6, false);
  else if (part === "wire") ctx.fillRect(1, 1, 2, 2);
  else if (part === "serialise") ctx.fillRect(0, 0, 1.5, 6);
  return document.createElement("canvas").getContext("2d").createPattern(tile, "repeat");
}

function hatch(line) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 7;
  const ctx = tile.getContext("2d");
  ctx.strokeStyle = line;
  ctx.lineWidth = 1.1;
  diagonal(ctx, 7, true);
  return document.createElement("canvas").getContext("2d").createPattern(tile, "repeat");
}

function diagonal(ctx, size, rising) {
  ctx.beginPath();
  for (const shift of [-size, 0, size]) {
    ctx.moveTo(shift, rising ? size : 0);
    ctx.lineTo(shift + size, rising ? 0 : size);
  }
  ctx.stroke();
}

/** The vertical lines of the axis, and the latency of the chosen turn as a band behind everything. */
export function drawGround(ctx, view, width, height, paint, band) {
  if (band) {
    const [left, right] = [view.x(band.start, width), view.x(band.end, width)];
    ctx.fillStyle = paint["accent-soft"];
    ctx.globalAlpha = 0.45;
    ctx.fillRect(left, 0, Math.max(right - left, 1), height);
    ctx.globalAlpha = 1;
  }
  ctx.fillStyle = paint.line;
  for (const tick of view.ticks(width).ticks) ctx.fillRect(Math.round(view.x(tick, width)), 0, 1, height);
}

/** One row: `y` is its top, `tall` its height. */
export function drawRow(ctx, span, y, tall, view, width, paint, segments) {
  const [from, to] = reach(span);
  const left = view.x(from, width);
  const right = view.x(to, width);
  if (right < -1 || left > width + 1) {
    drawOutside(ctx, left > width, y + tall / 2, width, paint);
    return;
  }
  const box = { y: y + 5, tall: tall - 12, left, right: Math.max(right, left + 2) };
  if (span.kind === "turn") drawTurn(ctx, span, box, view, width, paint);
  else if (span.kind === "call") drawPlain(ctx, box, width, paint["line-strong"], 0.5);
  else if (segments && segments.length) drawSegments(ctx, segments, span.start, box, view, width, paint);
  else if (span.parts) drawSegments(ctx, stacked(span), span.start, box, view, width, paint);
  else drawPlain(ctx, box, width, paint.other, 0.75);
  if (span.thrown) drawHatch(ctx, box, width, paint);
  drawPath(ctx, span, box, view, width, paint);
  drawMarks(ctx, span, box, view, width, paint);
  drawFigure(ctx, span, box, width, paint);
}

// From where to where something of a row is drawn: a turn's latency may begin before the turn does.
function reach(span) {
  const ends = span.start + span.ms;
  if (!span.of || !span.of.latency_ms) return [span.start, ends];
  return [Math.min(span.start, span.of.latency_start), Math.max(ends, span.of.latency_start + span.of.latency_ms)];
}

function drawOutside(ctx, later, y, width, paint) {
  ctx.fillStyle = paint["line-strong"];
  ctx.fillText(later ? "▸" : "◂", later ? width - 10 : 2, y);
}

function drawPlain(ctx, box, width, fill, alpha) {
  const [left, right] = [Math.max(box.left, -2), Math.min(box.right, width + 2)];
  ctx.globalAlpha = alpha;
  ctx.fillStyle = fill;
  ctx.beginPath();
  ctx.roundRect(left, box.y, right - left, box.tall, 2);
  ctx.fill();
  ctx.globalAlpha = 1;
}

/** Parts without moments of their own (of a very large call), one after another in the order of a hop. */
export function stacked(span) {
  let from = 0;
  return PARTS.map((part, n) => {
    const took = span.parts[n] || 0;
    from += took;
    return [part, from - took, took, ""];
  }).filter(([, , took]) => took > 0);
}

function drawSegments(ctx, segments, start, box, view, width, paint) {
  ctx.fillStyle = paint["part-wait-2"];
  ctx.fillRect(Math.max(box.left, 0), box.y + box.tall / 2 - 1, Math.min(box.right, width) - Math.max(box.left, 0), 2);
  for (const [part, from, took, label] of segments) {
    const left = Math.max(view.x(start + from, width), -4);
    const right = Math.min(view.x(start + from + took, width), width + 4);
    if (right < 0 || left > width) continue;
    const wide = Math.max(right - left, 0.7);
    const thin = part === "wait";
    ctx.fillStyle = paint[part] || paint.other;
    ctx.fillRect(left, box.y + (thin ? 2 : 0), wide > 3 ? wide - 0.6 : wide, box.tall - (thin ? 4 : 0));
    if (wide > 46) drawLabel(ctx, part === "compute" && label ? label : part, part, left, wide, box, paint);
  }
}

// Text stands on a plain ground of its own: a pattern behind letters cannot be read.
function drawLabel(ctx, text, part, left, wide, box, paint) {
  const long = ctx.measureText(text).width;
  if (long + 12 > wide) return;
  const x = Math.max(left, 0) + 5;
  if (x + long + 4 > left + wide) return;
  if (part !== "compute") {
    ctx.fillStyle = paint["surface-1"];
    ctx.fillRect(x - 2, box.y + 1, long + 4, box.tall - 2);
  }
  ctx.fillStyle = part === "compute" ? paint["surface-1"] : paint.text;
  ctx.fillText(text, x, box.y + box.tall / 2 + 0.5);
}

// A turn's bar: all of it as a frame, its latency filled with what it went into.
function drawTurn(ctx, span, box, view, width, paint) {
  const [left, right] = [Math.max(view.x(span.start, width), -4), Math.min(view.x(span.start + span.ms, width), width + 4)];
  ctx.fillStyle = paint["surface-2"];
  ctx.strokeStyle = paint["line-strong"];
  ctx.lineWidth = 1;
  ctx.beginPath();
  ctx.roundRect(left + 0.5, box.y + 0.5, Math.max(right - left - 1, 1), box.tall - 1, 3);
  ctx.fill();
  ctx.stroke();
  for (const [, part, , , start, took] of (span.of && span.of.path) || []) {
    const [from, to] = [view.x(start, width), view.x(start + took, width)];
    if (to < 0 || from > width) continue;
    ctx.fillStyle = paint[part] || paint.other;
    ctx.fillRect(from, box.y + 1, Math.max(to - from - 0.4, 0.7), box.tall - 2);
  }
}

function drawHatch(ctx, box, width, paint) {
  const [left, right] = [Math.max(box.left, -4), Math.min(box.right, width + 4)];
  ctx.globalAlpha = 0.72;
  ctx.fillStyle = paint["surface-1"];
  ctx.fillRect(left, box.y, right - left, box.tall);
  ctx.globalAlpha = 1;
  ctx.fillStyle = paint.hatch;
  ctx.fillRect(left, box.y, right - left, box.tall);
  ctx.strokeStyle = paint["text-2"];
  ctx.setLineDash([3, 2]);
  ctx.strokeRect(left + 0.5, box.y + 0.5, Math.max(right - left - 1, 1), box.tall - 1);
  ctx.setLineDash([]);
}

// The critical path runs under the bars as a heavy line, where this hop was what the turn waited for.
function drawPath(ctx, span, box, view, width, paint) {
  ctx.fillStyle = paint.text;
  for (const step of span.path) {
    const [left, right] = [view.x(step.start, width), view.x(step.start + step.ms, width)];
    if (right < 0 || left > width) continue;
    ctx.fillRect(left, box.y + box.tall + 1.5, Math.max(right - left, 1), 2.5);
  }
}

function drawMarks(ctx, span, box, view, width, paint) {
  const room = Math.min(box.right, width) - Math.max(box.left, 0) > 9; // on less, marks would hide one another
  if (span.kind === "turn" && span.of && room) {
    for (const [name, when] of Object.entries(span.of.marks || {})) {
      if (name === "speech_end" || name === "first_audio") flag(ctx, view.x(when, width), box, paint, name === "speech_end");
    }
    if (span.of.state === "interrupted") cross(ctx, box.right, box, paint["state-interrupted"]);
  }
  if (span.firstMs && room && span.firstMs <= span.ms) {
    const x = view.x(span.start + span.firstMs, width);
    ctx.fillStyle = paint.text;
    ctx.strokeStyle = paint["surface-1"];
    ctx.lineWidth = 1.2;
    ctx.beginPath();
    ctx.moveTo(x, box.y + box.tall / 2 + 1);
    ctx.lineTo(x - 4, box.y - 3);
    ctx.lineTo(x + 4, box.y - 3);
    ctx.closePath();
    ctx.fill();
    ctx.stroke();
  }
  if (span.status === 2) cross(ctx, Math.min(box.right, width - 6), box, paint["state-error"]);
}

function flag(ctx, x, box, paint, ends) {
  ctx.fillStyle = paint.text;
  ctx.fillRect(Math.round(x) - 0.5, box.y - 4, 1.5, box.tall + 8);
  ctx.beginPath();
  ctx.moveTo(x, box.y - 4);
  ctx.lineTo(x + (ends ? -5 : 5), box.y - 1.5);
  ctx.lineTo(x, box.y + 1);
  ctx.fill();
}

function cross(ctx, x, box, stroke) {
  const y = box.y + box.tall / 2;
  ctx.strokeStyle = stroke;
  ctx.lineWidth = 2.2;
  ctx.beginPath();
  ctx.moveTo(x - 4, y - 4);
  ctx.lineTo(x + 4, y + 4);
  ctx.moveTo(x + 4, y - 4);
  ctx.lineTo(x - 4, y + 4);
  ctx.stroke();
}

// How long it took, and what is out of the ordinary, beside the bar where there is room.
function drawFigure(ctx, span, box, width, paint) {
  const words = figures(span);
  if (!words) return;
  const long = ctx.measureText(words).width;
  const y = box.y + box.tall / 2 + 0.5;
  const after = Math.min(box.right, width) + 7;
  ctx.fillStyle = span.status === 2 ? paint["state-error"] : paint["text-2"];
  if (after + long < width - 2) ctx.fillText(words, after, y);
  else if (box.left - long - 7 > 2) ctx.fillText(words, box.left - long - 7, y);
}

function figures(span) {
  if (span.kind === "call") return "";
  if (span.kind === "turn") {
    const turn = span.of;
    if (!turn) return ms(span.ms);
    const latency = turn.latency_ms ? `${ms(turn.latency_ms)} to first audio` : "";
    return [latency, turn.state === "answered" ? "" : turn.state].filter(Boolean).join(" · ");
  }
  const words = [ms(span.ms)];
  if (span.itemsOut > 1) words.push(`${span.itemsOut} items`);
  if (span.attempts > 1) words.push(`↻ ${span.attempts} attempts`);
  if (span.status === 2) words.push(span.error || "error");
  return words.join(" · ");
}
