// The shell: routes to views by the URL, and what stands around each view (store, stream, theme, keys).

import { failure, getJson, subscribe } from "./api.js";
import { clear, h, typing } from "./dom.js";
import { bytes, many } from "./format.js";
import { nextTheme, theme } from "./theme.js";

const ROUTES = [
  { path: /^\/(calls)?$/, view: "calls", title: "Calls", load: () => import("./calls.js") },
  { path: /^\/calls\/([^/]+)$/, view: "calls", title: "Call", load: () => import("./call.js") },
  { path: /^\/chain$/, view: "chain", title: "Chain", load: () => import("./chain.js") },
  { path: /^\/compare$/, view: "compare", title: "Compare", load: () => import("./compare.js") },
  { path: /^\/info$/, view: "info", title: "Store", load: () => import("./info.js") },
];
const KEYS = [
  ["Everywhere", [["g c", "calls"], ["g h", "chain"], ["g d", "compare"], ["t", "theme"], ["?", "these keys"]]],
  ["List of calls", [["j  k", "next, previous call"], ["Enter", "open it"], ["/", "search"], ["Home  End", "first, last"],
    ["Esc", "leave the search"]]],
  ["A call", [["j  k", "next, previous row"], ["←  →", "collapse, expand"], ["Enter", "what the row knows"], ["/", "find a hop"],
    ["[  ]", "previous, next turn"], ["c", "the critical path alone"], ["Space", "play the audio"], ["+  −", "zoom"], ["0", "the whole call"],
    ["n", "follow a running call"], ["Esc", "back"]]],
  ["Strip of time", [["← →", "move the range"], ["Shift ← →", "widen it"], ["Esc", "the whole time again"]]],
];

const root = document.getElementById("view");
let cleanup = null;
let showing = 0;
let shown = "";

/** Draws the view that the address names; `back`: the reader came by Back or Forward, to where it was. */
async function route({ back = false } = {}) {
  if (cleanup && cleanup.update && shown === location.pathname) {
    cleanup.update(new URLSearchParams(location.search)); // the same page, another part of it
    return;
  }
  const mine = ++showing;
  shown = location.pathname;
  const found = ROUTES.map((one) => [one, one.path.exec(location.pathname)]).find(([, match]) => match);
  if (cleanup) cleanup();
  cleanup = null;
  for (const link of document.querySelectorAll("nav.views a")) {
    if (found && link.dataset.view === found[0].view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (!found) {
    clear(root, h("div", { class: "empty" }, h("h1", {}, "There is no such page"),
      h("p", {}, h("a", { href: "/" }, "To the list of calls"))));
    return;
  }
  const [one, match] = found;
  const id = match[1] ? decodeURIComponent(match[1]) : null;
  document.title = `${id || one.title} · Chains`;
  root.dataset.view = one.title.toLowerCase();
  const frame = h("div", { class: "frame" });
  clear(root, frame);
  try {
    const module = await one.load();
    if (mine !== showing) return;
    const ended = await module.show(frame, { id, query: new URLSearchParams(location.search), navigate, back });
    if (mine === showing) cleanup = ended || null;
    else if (ended) ended();
  } catch (error) {
    if (error.name !== "AbortError" && mine === showing) clear(frame, failure(error, () => route()));
  }
}

/** Goes to `url` of this page; `quiet` changes the address alone (a view that has drawn the change itself). */
function navigate(url, { replace = false, quiet = false } = {}) {
  if (replace) history.replaceState(null, "", url);
  else history.pushState(null, "", url);
  if (!quiet) {
    route();
    root.scrollTop = 0;
    root.focus({ preventScroll: true });
  }
}

function follow(event) {
  const link = event.target instanceof Element ? event.target.closest("a[href]") : null;
  const plain = event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey && !event.altKey;
  if (!link || !plain || event.defaultPrevented || link.target || link.hasAttribute("download")) return;
  const url = new URL(link.href, location.href);
  const ours = url.origin === location.origin && ROUTES.some((one) => one.path.test(url.pathname));
  if (!ours || url.hash) return;
  event.preventDefault();
  navigate(url.pathname + url.search);
}

function drawTheme() {
  const name = theme();
  const button = document.getElementById("theme");
  clear(button, { auto: "◐ Auto", light: "○ Light", dark: "● Dark" }[name]);
  button.setAttribute("aria-label", `Theme: ${name}. Press for the next one`);
}

const known = {}; // the stream tells the totals alone, what was asked for first tells the rest

function drawInfo(told) {
  const info = Object.assign(known, told);
  const dropped = info.dropped || 0;
  clear(document.getElementById("store"),
    h("a", { href: "/info" }, many(info.calls, "call")), h("span", {}, many(info.spans, "span")),
    h("span", {}, `${bytes(info.bytes)} on disk`),
    dropped ? h("a", { class: "lost", href: "/info" }, `⚠ ${many(dropped, "span")} dropped`) : h("span", {}, "no span dropped"),
    h("span", { class: "version" }, info.version ? `chains ${info.version}` : ""));
}

function drawStream(state) {
  const place = document.getElementById("stream");
  place.dataset.state = state;
  clear(place, state === "live" ? "Live" : state === "lost" ? "Not live: reconnecting" : "");
}

function drawKeys() {
  const dialog = document.getElementById("keys");
  clear(dialog, h("h2", { id: "keys-title" }, "Keys"),
    h("div", { class: "keys" }, KEYS.map(([where, pairs]) => h("section", {}, h("h3", {}, where),
      h("dl", {}, pairs.map(([key, does]) => [h("dt", {}, key.split("  ").map((one) => h("kbd", {}, one))), h("dd", {}, does)]).flat())))),
    h("form", { method: "dialog" }, h("button", { autofocus: true }, "Close")));
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
}

let prefix = 0;
const GOES = { c: "/", h: "/chain", d: "/compare" };

function press(event) {
  if (typing(event) || event.metaKey || event.ctrlKey || event.altKey || event.defaultPrevented) return;
  const after = Date.now() - prefix < 1200;
  prefix = 0;
  if (after && GOES[event.key]) navigate(GOES[event.key]);
  else if (event.key === "g") prefix = Date.now();
  else if (event.key === "t") changeTheme();
  else if (event.key === "?") document.getElementById("keys").showModal();
  else return;
  event.preventDefault();
}

function changeTheme() {
  nextTheme();
  drawTheme();
}

async function info() {
  try {
    drawInfo(await getJson("/api/info"));
  } catch (error) {
    clear(document.getElementById("store"), failure(error, info));
  }
}

document.addEventListener("click", follow);
document.addEventListener("keydown", press);
window.addEventListener("popstate", () => route({ back: true }));
document.getElementById("theme").addEventListener("click", changeTheme);
document.getElementById("help").addEventListener("click", () => document.getElementById("keys").showModal());
drawTheme();
drawKeys();
route();
info();
subscribe("state", drawStream);
subscribe("info", drawInfo);
