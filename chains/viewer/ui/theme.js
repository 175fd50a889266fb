// Auto, light or dark; and the theme's colours for what draws on a canvas.

const ORDER = ["auto", "light", "dark"];
const listeners = new Set();
const system = window.matchMedia("(prefers-color-scheme: dark)");

export function theme() {
  return document.documentElement.dataset.theme || "auto";
}

export function nextTheme() {
  const next = ORDER[(ORDER.indexOf(theme()) + 1) % ORDER.length];
  if (next === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = next;
  try {
    localStorage.setItem("chains.theme", next);
  } catch {
    // kept for this page alone
  }
  tell();
  return next;
}

/** The value of a registered colour variable as the theme has it now, e.g. color("--part-compute"). */
export function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** Calls `listener` whenever the colours change; returns what ends it. */
export function onTheme(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function tell() {
  for (const listener of listeners) listener();
}

system.addEventListener("change", tell);
