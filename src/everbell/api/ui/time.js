/** Instants and durations as text: relative, UTC and local. Instants come as RFC 3339 text, durations as milliseconds. */

import { h } from "./dom.js";

/** @typedef {"relative" | "utc" | "local"} Manner */

const MANNER = "everbell.times";
const UNITS = /** @type {[number, string][]} */ ([
  [86_400_000, "d"],
  [3_600_000, "h"],
  [60_000, "m"],
  [1_000, "s"],
]);
const UNIT_MS = /** @type {Record<string, number>} */ ({
  ms: 1,
  s: 1_000,
  m: 60_000,
  h: 3_600_000,
  d: 86_400_000,
  w: 604_800_000,
});

/** @returns {Manner} */
export function manner() {
  return /** @type {Manner} */ (localStorage.getItem(MANNER) ?? "relative");
}

/** @param {Manner} chosen */
export function setManner(chosen) {
  localStorage.setItem(MANNER, chosen);
}

/** `2h 5m`: at most two units. @param {number} ms @returns {string} */
export function duration(ms) {
  const size = Math.abs(ms);
  if (size < 1_000) return `${Math.round(size)}ms`;
  if (size < 10_000) return `${(size / 1_000).toFixed(1)}s`;
  for (const [index, [unit, name]] of UNITS.entries()) {
    if (size < unit) continue;
    const count = Math.floor(size / unit),
      next = UNITS[index + 1];
    const rest = next && count < 10 ? Math.floor((size % unit) / next[0]) : 0;
    return rest && next ? `${count}${name} ${rest}${next[1]}` : `${count}${name}`;
  }
  return "0s";
}

/** `in 5m` or `5m ago`. @param {string} at @returns {string} */
export function relative(at) {
  const ms = Date.parse(at) - Date.now();
  if (Number.isNaN(ms)) return at;
  if (Math.abs(ms) < 1_000) return "now";
  if (Math.abs(ms) > 400 * 86_400_000) return utc(at).slice(0, 10);
  return ms > 0 ? `in ${duration(ms)}` : `${duration(ms)} ago`;
}

/** @param {string} at @returns {string} */
export function utc(at) {
  const date = new Date(at);
  return Number.isNaN(date.getTime())
    ? at
    : date
        .toISOString()
        .replace("T", " ")
        .replace(/\.000Z$/, "Z");
}

/** @param {string} at @returns {string} */
export function local(at) {
  const date = new Date(at);
  if (Number.isNaN(date.getTime())) return at;
  const two = (/** @type {number} */ n) => String(n).padStart(2, "0");
  const shift = -date.getTimezoneOffset(),
    sign = shift < 0 ? "-" : "+";
  const zone = `${sign}${two(Math.floor(Math.abs(shift) / 60))}:${two(Math.abs(shift) % 60)}`;
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())} ${zone}`;
}

/** `Fri 2026-11-20 09:00`: the wall clock of a time, in the zone in which it is written. @param {string} at @returns {string} */
export function wall(at) {
  const [day = "", clock = ""] = at.split("T");
  const date = new Date(`${day}T12:00:00Z`);
  if (Number.isNaN(date.getTime())) return at;
  const name = date.toLocaleDateString("en-GB", { weekday: "short", timeZone: "UTC" });
  return `${name} ${day} ${clock.slice(0, clock.slice(5, 8) === ":00" ? 5 : 8)}${clock.endsWith("Z") ? " UTC" : ""}`;
}

/** A time in the chosen manner; the others are in its tooltip. @param {string | null | undefined} at */
export function time(at) {
  if (!at) return h("span", { class: "faint" }, "–");
  const text = { relative, utc, local }[manner()](at);
  return h("time", { datetime: at, title: `${relative(at)}\n${utc(at)} (UTC)\n${local(at)} (here)` }, text);
}

/** A time as people type it, as RFC 3339; what is no time stays as it is. @template {string | undefined} T @param {T} text @returns {T | string} */
export function instant(text) {
  const at = new Date(text ?? "");
  return Number.isNaN(at.getTime()) ? text : at.toISOString();
}

/** The clock time on an axis. @param {number} at @returns {string} */
export function clock(at) {
  const date = new Date(at);
  return `${String(date.getHours()).padStart(2, "0")}:${String(date.getMinutes()).padStart(2, "0")}`;
}

/** @param {number} at @returns {string} */
export function weekday(at) {
  return new Date(at).toLocaleDateString("en-GB", { weekday: "short", day: "numeric" });
}

/** The milliseconds of `1h30m`; NaN if it is no such duration. @param {string} text @returns {number} */
export function parseDuration(text) {
  if (!/^(\d+(\.\d+)?(ms|s|m|h|d|w))+$/.test(text)) return NaN;
  return [...text.matchAll(/(\d+(?:\.\d+)?)(ms|s|m|h|d|w)/g)].reduce(
    (sum, [, n, unit]) => sum + Number(n) * (UNIT_MS[unit ?? ""] ?? NaN),
    0,
  );
}
