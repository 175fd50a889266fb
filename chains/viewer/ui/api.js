// What the viewer answers, and what went wrong in words that say the mend.

import { h } from "./dom.js";

export class ApiError extends Error {
  constructor(message, mend, status) {
    super(message);
    this.mend = mend;
    this.status = status;
  }
}

/** The JSON behind `path`; an ApiError whose message and mend are meant to be shown. */
export async function getJson(path, { signal } = {}) {
  let response;
  try {
    response = await fetch(path, { signal, headers: { accept: "application/json" }, credentials: "same-origin" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The viewer does not answer.", "Start it again: chains view", 0);
  }
  if (!response.ok) throw await refusal(response);
  try {
    return await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The viewer's answer broke off.", "Try again.", response.status);
  }
}

async function refusal(response) {
  if (response.status === 401 || response.status === 403) {
    return new ApiError("This page needs its key.", "Open the whole link that chains printed.", response.status);
  }
  let said = null;
  try {
    said = (await response.json()).error;
  } catch {
    // no JSON: the status is all there is
  }
  const message = (said && said.message) || `The viewer answered ${response.status}.`;
  return new ApiError(message, (said && said.mend) || "", response.status);
}

/** A line that says what failed, with a button that tries again. */
export function failure(error, retry) {
  const mend = error instanceof ApiError ? error.mend : "";
  const message = error instanceof ApiError ? error.message : `This page failed: ${error.message}`;
  return h("div", { class: "failure", role: "alert" },
    h("strong", {}, message), mend && h("span", {}, mend),
    retry && h("button", { type: "button", onclick: retry }, "Try again"));
}

/** `path` with the query's names whose value is not empty. */
export function withQuery(path, values) {
  const query = new URLSearchParams();
  const pairs = values instanceof URLSearchParams ? values : Object.entries(values);
  for (const [name, value] of pairs) {
    if (value !== null && value !== undefined && value !== "") query.append(name, value);
  }
  const text = query.toString();
  return text ? `${path}?${text}` : path;
}

// One stream of events for the whole page, opened by the first who listens; the browser reconnects by itself.
const stream = { source: null, listeners: new Map(), state: "closed" };

/** Calls `listener(data)` for each event of that name; "state" tells "live" and "lost". Returns what ends it. */
export function subscribe(event, listener) {
  if (!stream.listeners.has(event)) {
    stream.listeners.set(event, new Set());
    if (stream.source && event !== "state") hear(event);
  }
  stream.listeners.get(event).add(listener);
  if (!stream.source) open();
  else if (event === "state") listener(stream.state);
  return () => stream.listeners.get(event).delete(listener);
}

function open() {
  stream.source = new EventSource("/api/live");
  stream.source.onopen = () => state("live");
  stream.source.onerror = () => {
    state("lost");
    if (stream.source.readyState === EventSource.CLOSED) setTimeout(reopen, 5000);
  };
  for (const event of stream.listeners.keys()) if (event !== "state") hear(event);
}

function reopen() {
  stream.source.close();
  open();
}

function hear(event) {
  stream.source.addEventListener(event, (message) => {
    const data = JSON.parse(message.data);
    for (const listener of stream.listeners.get(event)) listener(data);
  });
}

function state(name) {
  stream.state = name;
  for (const listener of stream.listeners.get("state") || []) listener(name);
}
