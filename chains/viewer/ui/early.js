// Before the first paint: a chosen theme must not flash, and the view's data and all its modules can be on their way at
// once. Without this a module is asked for only when the one that imports it is there.
try {
  const chosen = localStorage.getItem("chains.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // no storage here: the system's theme it is
}
const call = /^\/calls\/([^/]+)$/.exec(location.pathname);
const list = location.pathname === "/" && !location.search;
if (call || list) {
  const hint = document.createElement("link");
  // the very address that the view asks for: see Calls.load
  Object.assign(hint, { rel: "preload", as: "fetch", crossOrigin: "anonymous", href: call ? `/api/calls/${call[1]}` : "/api/calls?limit=200" });
  document.head.append(hint);
}
const MODULES = {
  calls: ["calls", "filters", "findings", "notice", "rows", "strip", "timerange"],
  call: ["call", "callmodel", "callwords", "inspect", "timeview", "timeline", "transcript", "turnstrip", "audio", "bars", "overview", "waterfall", "forget"],
  chain: ["chain", "findings", "graph", "hoptable", "partsbar", "timerange"],
  compare: ["compare", "compact", "findings", "partsbar", "sidepicker", "specs", "bars", "callmodel", "timeview"],
};
for (const name of MODULES[call ? "call" : location.pathname.slice(1) || "calls"] || []) {
  const hint = document.createElement("link");
  Object.assign(hint, { rel: "modulepreload", href: `/ui/${name}.js` });
  document.head.append(hint);
}
