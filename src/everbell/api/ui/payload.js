/** JSON as a folded tree. Large values are cut, so that a payload of 256 KiB does not slow the page down. */

import { h } from "./dom.js";

const CHILDREN_MAX = 200;
const TEXT_MAX = 2_000;
const OPEN_DEPTH = 2;

/** @param {any} value @param {string | null} [name] @param {number} [depth] @returns {HTMLElement} */
export function tree(value, name = null, depth = 0) {
  const label = name === null ? null : [h("span", { class: "name" }, name), ": "];
  if (value?.rawJSON !== undefined && /** @type {any} */ (JSON).isRawJSON?.(value))
    return h("div", null, label, h("span", { class: "literal" }, value.rawJSON));
  if (value === null || typeof value !== "object") return h("div", null, label, leaf(value));
  const entries = /** @type {[string, any][]} */ (Object.entries(value));
  const [first, last] = Array.isArray(value) ? ["[", "]"] : ["{", "}"];
  if (!entries.length) return h("div", null, label, `${first}${last}`);
  const shown = entries.slice(0, CHILDREN_MAX);
  return h(
    "details",
    { open: depth < OPEN_DEPTH && entries.length <= 50 },
    h("summary", null, label, h("span", { class: "faint" }, `${first} ${entries.length} ${last}`)),
    h(
      "div",
      null,
      shown.map(([key, child]) => tree(child, key, depth + 1)),
      entries.length > shown.length && h("div", { class: "faint" }, `… and ${entries.length - shown.length} more`),
    ),
  );
}

/** @param {any} value */
function leaf(value) {
  if (typeof value !== "string") return h("span", { class: "literal" }, String(value));
  const cut =
    value.length > TEXT_MAX
      ? `${value.slice(0, TEXT_MAX)}… (${value.length.toLocaleString("en-GB")} characters)`
      : value;
  return h("span", { class: "string" }, JSON.stringify(cut));
}
