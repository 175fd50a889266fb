// Figures as people read them: a unit beside each, few digits, a real minus.

export const PARTS = ["serialise", "wire", "queue", "compute", "wait"];

/** 0.42 ms, 4.2 ms, 423 ms, 2.34 s, 1m 04s, 2h 03m; a dash for none. */
export function ms(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  const sign = value < 0 ? "−" : "";
  if (size < 0.005) return "0 ms";
  if (size < 1) return `${sign}${size.toFixed(2)} ms`;
  if (size < 9.95) return `${sign}${size.toFixed(1)} ms`;
  if (size < 999.5) return `${sign}${Math.round(size)} ms`;
  if (size < 9995) return `${sign}${(size / 1000).toFixed(2)} s`;
  if (size < 59950) return `${sign}${(size / 1000).toFixed(1)} s`;
  const seconds = Math.round(size / 1000);
  if (seconds < 3600) return `${sign}${Math.floor(seconds / 60)}m ${pad(seconds % 60)}s`;
  return `${sign}${Math.floor(seconds / 3600)}h ${pad(Math.floor(seconds / 60) % 60)}m`;
}

/** A difference, its sign always shown: +81 ms, −4.2 ms, ±0 ms. */
export function delta(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (Math.abs(value) < 0.05) return "±0 ms";
  return value > 0 ? `+${ms(value)}` : ms(value);
}

const WHOLE = new Intl.NumberFormat("en");

export function count(value) {
  return value === null || value === undefined ? "–" : WHOLE.format(value);
}

/** "1 call", "2,000 calls". */
export function many(value, one, more = `${one}s`) {
  return `${count(value)} ${value === 1 ? one : more}`;
}

export function percent(share) {
  if (share === null || share === undefined || Number.isNaN(share)) return "–";
  const value = share * 100;
  return value > 0 && value < 1 ? "<1 %" : `${Math.round(value)} %`;
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KB", "MB", "GB", "TB"];
  let size = value;
  let unit = 0;
  while (size >= 1000 && unit < units.length - 1) {
    size /= 1000;
    unit += 1;
  }
  return `${size < 10 && unit > 0 ? size.toFixed(1) : Math.round(size)} ${units[unit]}`;
}

/** The time of day, 14:03:22. */
export function clock(atMs) {
  const at = new Date(atMs);
  return `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
}

const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/** The time of day, with the date before it when that is not today's. */
export function moment(atMs, nowMs = Date.now()) {
  const at = new Date(atMs);
  if (at.toDateString() === new Date(nowMs).toDateString()) return clock(atMs);
  return `${at.getDate()} ${MONTHS[at.getMonth()]} ${clock(atMs)}`;
}

/** What <input type="datetime-local" step="1"> holds, and back. */
export function toField(atMs) {
  if (atMs === null || atMs === undefined || !Number.isFinite(atMs)) return "";
  const at = new Date(atMs);
  return `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())}T${clock(atMs)}`;
}

export function fromField(text) {
  const at = new Date(text).getTime();
  return Number.isFinite(at) ? at : null;
}

/** A call's id short enough for a column; the whole id is in the title and in the link. */
export function shortId(id) {
  return id.length > 13 ? `${id.slice(0, 12)}…` : id;
}

function pad(value) {
  return String(value).padStart(2, "0");
}
