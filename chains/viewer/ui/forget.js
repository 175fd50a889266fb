// Somebody's wish to be forgotten: what was said alone, or all of a call.

import { h } from "./dom.js";

/** A button that asks first. `path` is the call's in the API; `done(all)` is called when it is gone. */
export function forgetter(path, recorded, done) {
  const said = h("p", { class: "state-error", role: "alert" });
  const forget = async (all) => {
    said.textContent = "";
    try {
      const response = await fetch(all ? path : `${path}?recording=1`, { method: "DELETE", credentials: "same-origin" });
      if (!response.ok) throw new Error(`The viewer answered ${response.status}.`);
      dialog.close();
      done(all);
    } catch (error) {
      said.textContent = `It is still there. ${error.message}`;
    }
  };
  const dialog = h("dialog", { class: "c-forget", "aria-labelledby": "c-forget-title" },
    h("h2", { id: "c-forget-title" }, "Delete this call?"),
    h("p", {}, "What is deleted is overwritten on the disk and cannot be brought back."), said,
    h("div", { class: "c-actions" }, recorded && h("button", { type: "button", onclick: () => forget(false) }, "What was said"),
      h("button", { type: "button", onclick: () => forget(true) }, "All of the call"),
      h("button", { type: "button", autofocus: true, onclick: () => dialog.close() }, "Keep it")));
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  return [h("button", { type: "button", class: "quiet", "aria-haspopup": "dialog", onclick: () => dialog.showModal() }, "Delete…"), dialog];
}
