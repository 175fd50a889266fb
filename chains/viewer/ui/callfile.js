// The entry of a call that was saved as one file: the same page, its data inlined, its state behind the #.

import { show } from "./call.js";

if (window.CHAINS_CALL) {
  const query = () => new URLSearchParams(location.hash.slice(1));
  const navigate = (url, { replace }) => history[replace ? "replaceState" : "pushState"](null, "", `#${url.replace(/^\?/, "")}`);
  const main = document.getElementById("view");
  document.title = `${window.CHAINS_CALL.call.id} · Chains`;
  show(main, { id: window.CHAINS_CALL.call.id, query: query(), navigate }).then((page) => {
    window.addEventListener("popstate", () => page.update(query()));
  });
}
