/** The filters of a list of events. They live in the address, so that a link to a list shows the same events. */

import { h } from "./dom.js";
import { icon } from "./icons.js";
import { instant } from "./time.js";

/** The fields of a search, as the API names them, with their names for people. */
export const FIELDS = /** @type {const} */ ([
  ["key", "key", "order-17"],
  ["tag", "tag", "checkout"],
  ["to", "target begins with", "https://shop.example"],
  ["id_prefix", "id begins with", "order-"],
  ["attempts", "attempts, at least", "3"],
  ["from", "due from", "2026-11-20T10:00:00Z"],
  ["until", "due until", "2026-11-20T11:00:00Z"],
  ["target", "receiver", "https://shop.example:443"],
  ["reason", "died of", "HTTP 503"],
]);

/** The search in the address. @param {URLSearchParams} params @param {string[]} [more] other fields to keep */
export function chosen(params, more = []) {
  /** @type {Record<string, string>} */
  const found = {};
  for (const name of [...FIELDS.map(([field]) => field), ...more]) {
    const value = params.get(name);
    if (value) found[name] = value;
  }
  return found;
}

/**
 * The chips of the filters that are set, and a form for another one.
 * @param {Record<string, string>} set @param {(fields: Record<string, string>) => void} change
 */
export function filterBar(set, change) {
  const without = (/** @type {string} */ name) =>
    Object.fromEntries(Object.entries(set).filter(([field]) => field !== name));
  const given = FIELDS.filter(([name]) => set[name]);
  return [
    given.length > 0 &&
      h(
        "div",
        { class: "chips" },
        given.map(([name, label]) =>
          h(
            "span",
            { class: "chip", key: name },
            h("b", null, `${label} `),
            h("span", { class: "clip" }, set[name] ?? ""),
            h(
              "button",
              {
                type: "button",
                "aria-label": `Remove the filter ${label} ${set[name]}`,
                onclick: () => change(without(name)),
              },
              icon("cross"),
            ),
          ),
        ),
        h(
          "button",
          { type: "button", class: "plain", onclick: () => change(set["status"] ? { status: set["status"] } : {}) },
          "Clear",
        ),
      ),
    h(
      "form",
      {
        onsubmit: (/** @type {SubmitEvent} */ event) => {
          event.preventDefault();
          const form = /** @type {HTMLFormElement} */ (event.currentTarget),
            data = new FormData(form);
          const name = String(data.get("field")),
            value = String(data.get("value")).trim();
          if (value) change({ ...set, [name]: name === "from" || name === "until" ? instant(value) : value });
          form.reset();
        },
      },
      h(
        "select",
        {
          name: "field",
          "aria-label": "Filter by",
          onchange: (/** @type {any} */ event) => {
            const input = event.target.form.elements.value;
            input.placeholder = `such as ${FIELDS.find(([name]) => name === event.target.value)?.[2]}`;
          },
        },
        FIELDS.map(([name, label]) => h("option", { value: name }, label)),
      ),
      h("input", {
        name: "value",
        "aria-label": "Value of the filter",
        placeholder: `such as ${FIELDS[0][2]}`,
        autocomplete: "off",
        spellcheck: "false",
      }),
      h("button", { type: "submit" }, "Add filter"),
    ),
  ];
}
