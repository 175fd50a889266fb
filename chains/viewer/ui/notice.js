// Above the list: what is weightiest of all that the chain's figures say, with the way to the rest.

import { getJson, withQuery } from "./api.js";
import { clear, h } from "./dom.js";
import { KINDS } from "./findings.js";
import { count } from "./format.js";

const LATELY_MS = 3600e3;

export class Notice {
  constructor(root) {
    this.root = h("p", { class: "notice", "aria-live": "polite", hidden: true });
    this.looking = new AbortController();
    root.append(this.root);
  }

  /** Look again: at the chain that is filtered by, or the one called last. What cannot be had is no news. */
  async look(info, filters) {
    this.close();
    const { signal } = (this.looking = new AbortController());
    const where = placeOf(info, filters);
    try {
      this.draw(where ? (await getJson(withQuery("/api/chain", where), { signal })).findings : [], where);
    } catch (error) {
      if (error.name !== "AbortError") this.root.hidden = true;
    }
  }

  close() {
    this.looking.abort();
  }

  draw(findings, where) {
    this.root.hidden = findings.length === 0;
    if (this.root.hidden) return;
    const [first] = findings;
    const [mark, word] = KINDS[first.kind] || ["•", first.kind];
    const more = findings.length - 1;
    const all = where.from || where.to ? "" : "&from="; // the whole time, asked for
    clear(this.root,
      h("b", { class: `kind-${first.kind}` }, h("span", { "aria-hidden": "true" }, `${mark} `), word), " ", h("span", {}, first.text), " ",
      h("a", { href: withQuery("/chain", where) + all }, more ? `All of ${where.chain}: ${count(more)} more` : `All of ${where.chain}`));
  }
}

/** The chain and the range: the last hour, when there were calls in it and no other is chosen. */
function placeOf(info, { chain, app, version, from, to }) {
  const mine = info.chains.filter((one) => (!chain || one.chain === chain) && (!app || one.app === app));
  if (mine.length === 0) return null;
  const lately = mine[0].versions.some((one) => (!version || one.version === version) && one.last_ms > info.now_ms - LATELY_MS);
  return { chain: mine[0].chain, app, version, from: from || (lately && !to ? "-1h" : ""), to };
}
