// Elements without markup in strings: text goes in as text, so nothing that a call said can become HTML.

const SVG = "http://www.w3.org/2000/svg";

/** h("button", {class: "x", onclick: f, "aria-label": "..", title: ".."}, "text", child): an element. */
export function h(tag, properties = {}, ...children) {
  return fill(document.createElement(tag), properties, children);
}

export function svg(tag, properties = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

export function clear(element, ...children) {
  element.replaceChildren(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, one] of Object.entries(value)) element.style.setProperty(key, one);
    else if (name === "value" || name === "checked" || name === "selected") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined && child !== false) element.append(child);
  }
  return element;
}

/** The same function, called once `waitMs` after the last of a burst; `.cancel()` drops what is due. */
export function later(action, waitMs) {
  let timer = 0;
  const due = (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...values), waitMs);
  };
  due.cancel = () => clearTimeout(timer);
  return due;
}

/** The same function, called at most once in `everyMs` however often it is asked for; `.cancel()` drops what is due. */
export function paced(action, everyMs) {
  let timer = 0;
  const ask = () => {
    timer ||= setTimeout(() => {
      timer = 0;
      action();
    }, everyMs);
  };
  ask.cancel = () => clearTimeout(timer);
  return ask;
}

/** True where a key press belongs to a field in which somebody types. */
export function typing(event) {
  const at = event.target;
  return at instanceof HTMLElement && (at.isContentEditable || /^(INPUT|SELECT|TEXTAREA)$/.test(at.tagName));
}
