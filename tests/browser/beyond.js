// What reaches beyond the window, unless it stands in something that scrolls by itself.
() => {
  const beyond = [];
  for (const one of document.querySelectorAll("body *")) {
    const box = one.getBoundingClientRect();
    if (box.width === 0 || box.right <= innerWidth + 1 || one.closest(".skip")) continue;
    let at = one.parentElement;
    while (at && !["auto", "scroll", "hidden", "clip"].includes(getComputedStyle(at).overflowX)) at = at.parentElement;
    const scrolls = at && at.tagName !== "MAIN" && at !== document.body && at !== document.documentElement;
    if (!scrolls) beyond.push(`${one.tagName}.${one.getAttribute("class") || ""} to ${Math.round(box.right)}`);
  }
  return [...beyond, ...(document.documentElement.scrollWidth > innerWidth ? ["the page scrolls sideways"] : [])];
}
