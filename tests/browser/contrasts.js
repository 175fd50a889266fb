// Texts that stand out too little from what they stand on: the nearest background below that is not see-through.
() => {
  const parse = (text) => {
    const probe = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    probe.fillStyle = text;
    probe.fillRect(0, 0, 1, 1);
    return [...probe.getImageData(0, 0, 1, 1).data];
  };
  const known = new Map();
  const rgba = (text) => known.get(text) ?? known.set(text, parse(text)).get(text);
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((m, n) => n - m); return (x + 0.05) / (y + 0.05); };
  const below = (element) => {
    for (let at = element; at; at = at.parentElement) {
      if (at.tagName === "g" || at instanceof SVGSVGElement) {
        const box = at.tagName === "g" && at.querySelector(":scope > .box");
        if (box) return rgba(getComputedStyle(box).fill);
      }
      const found = rgba(getComputedStyle(at).backgroundColor);
      if (found[3] > 250) return found;
    }
    return [255, 255, 255, 255];
  };
  const bad = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const text = walk.currentNode.textContent.trim();
    const element = walk.currentNode.parentElement;
    if (!text || !element.checkVisibility({ opacityProperty: true, visibilityProperty: true }) || element.closest("title, .hidden, .skip, noscript, option")) continue;
    if (element.textContent.trim() === "·") continue; // the sign for none: decoration
    const style = getComputedStyle(element);
    const color = element instanceof SVGElement ? style.fill : style.color;
    const size = parseFloat(style.fontSize);
    const enough = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700) ? 3 : 4.5;
    const found = ratio(rgba(color), below(element));
    if (found < enough) bad.push(`${found.toFixed(2)} ${element.tagName}.${element.getAttribute("class") || ""}: ${text.slice(0, 40)}`);
  }
  return bad;
}
