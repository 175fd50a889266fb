// What is compared: a version, a range of time or a call, written as the viewer's API takes it.

const RANGES = [["-1h..now", "last hour"], ["-2h..-1h", "the hour before"], ["-24h..now", "last day"], ["-48h..-24h", "the day before"],
  ["-7d..now", "last 7 days"]];

export function rangeChoices() {
  return RANGES;
}

/** {kind, value, chain} of "version:V;chain=X"; kind "" for an empty or unknown text. */
export function readSpec(text) {
  const [head, ...more] = (text || "").split(";");
  const at = head.indexOf(":");
  const kind = at > 0 ? head.slice(0, at) : "";
  const chain = more.map((one) => one.split("=")).find(([name]) => name === "chain");
  if (!["version", "range", "call"].includes(kind)) return { kind: "", value: "", chain: "" };
  return { kind, value: head.slice(at + 1), chain: chain ? chain.slice(1).join("=") : "" };
}

export function writeSpec({ kind, value, chain }) {
  if (!kind || !value) return "";
  return `${kind}:${value}${chain && kind !== "call" ? `;chain=${chain}` : ""}`;
}

/** The two newest versions of the chain with most calls; with one version, the last hour against the one before. */
export function usual(chains) {
  const calls = (one) => one.versions.reduce((sum, version) => sum + version.calls, 0);
  const chain = [...chains].sort((a, b) => calls(b) - calls(a))[0];
  if (!chain) return ["", ""];
  const versions = [...chain.versions].sort((a, b) => b.last_ms - a.last_ms);
  if (versions.length > 1) {
    return [versions[1], versions[0]].map((one) => writeSpec({ kind: "version", value: one.version, chain: chain.chain }));
  }
  return ["-2h..-1h", "-1h..now"].map((value) => writeSpec({ kind: "range", value, chain: chain.chain }));
}
