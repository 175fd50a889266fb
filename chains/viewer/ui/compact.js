// A call's waterfall drawn once, as small as it goes: two of them side by side can be compared by eye.

import { h } from "./dom.js";
import { many, ms } from "./format.js";
import { drawGround, drawRow, freshCanvas, paints } from "./bars.js";
import { CallModel } from "./callmodel.js";
import { onTheme } from "./theme.js";
import { TimeView, tickText } from "./timeview.js";

const ROW = 22;
const TOP = 20;
const MOST = 400;

/** Draws the body of /api/calls/ID into `root`, `scaleMs` wide (the call's own length without it). Returns what ends it. */
export function drawCompact(root, data, { scaleMs } = {}) {
  const model = new CallModel(data);
  const rows = model.order.slice(0, MOST);
  const view = new TimeView(scaleMs || model.end);
  const canvas = h("canvas", { class: "c-canvas", role: "img", "aria-label": summary(model) });
  const names = rows.map((span) => h("li", { class: `c-small-row c-kind-${span.kind}`, style: { "--c-depth": Math.min(span.depth, 6), height: `${ROW}px` }, title: `${span.name} ${span.replica || ""}: ${ms(span.ms)}` },
    h("span", {}, span.name)));
  const left = model.order.length - rows.length;
  const box = h("div", { class: "c-small" }, h("ol", { class: "c-small-names" }, names), h("div", { class: "c-small-bars" }, canvas));
  root.replaceChildren(box, left ? h("p", { class: "soft" }, `${many(left, "more span")} on the call's own page`) : "");
  const draw = () => {
    const width = box.lastElementChild.clientWidth;
    const tall = rows.length * ROW + TOP;
    if (!width) return;
    const paint = paints();
    const ctx = freshCanvas(canvas, width, tall);
    drawGround(ctx, view, width, tall, paint, null);
    const { ticks, step } = view.ticks(width);
    ctx.fillStyle = paint["text-2"];
    for (const tick of ticks) {
      const x = view.x(tick, width) + 3;
      if (x + ctx.measureText(tickText(tick, step)).width < width) ctx.fillText(tickText(tick, step), x, TOP / 2);
    }
    for (const [n, span] of rows.entries()) {
      span.thrown = span.kind !== "call" && model.turn(span.turn)?.state === "dropped";
      drawRow(ctx, span, TOP + n * ROW, ROW, view, width, paint, span.segments);
    }
  };
  const resized = new ResizeObserver(draw);
  resized.observe(box);
  const themed = onTheme(draw);
  draw();
  return () => {
    resized.disconnect();
    themed();
  };
}

function summary(model) {
  const turns = model.turns.filter((turn) => turn.latency_ms).map((turn) => `turn ${turn.number} ${ms(turn.latency_ms)}`);
  return `Waterfall of call ${model.call.id}, ${ms(model.end)}${turns.length ? `: ${turns.join(", ")}` : ""}`;
}
