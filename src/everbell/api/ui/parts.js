/** The parts that views are made of: badges, cards, tables, dialogs, toasts. */

import { ApiError } from "./api.js";
import { h } from "./dom.js";
import { icon } from "./icons.js";

/** @typedef {import("./dom.js").Child} Child */
/** @typedef {import("./icons.js").IconName} IconName */

/** @type {Record<string, [string, IconName]>} */
const STATUS = {
  scheduled: ["info", "clock"],
  delivering: ["accent", "send"],
  retrying: ["warn", "repeat"],
  waiting: ["calm", "hourglass"],
  paused: ["calm", "pause"],
  delivered: ["good", "check"],
  cancelled: ["calm", "cross"],
  expired: ["calm", "hourglass"],
  dead: ["bad", "dead"],
};

/** @param {string} name */
export function status(name) {
  const [kind, sign] = STATUS[name] ?? ["calm", "info"];
  return badge(name, kind, sign);
}

/** @param {string} text @param {string} [kind] @param {IconName} [sign] */
export function badge(text, kind = "calm", sign) {
  return h("span", { class: `badge ${kind}` }, sign && icon(sign), text);
}

const COUNT = new Intl.NumberFormat("en-GB");

/** @param {number | null | undefined} value */
export function count(value) {
  return value === null || value === undefined ? "–" : COUNT.format(value);
}

/** `12.300` as `12.3k`. @param {number} value */
export function short(value) {
  if (value < 10_000) return COUNT.format(Math.round(value * 10) / 10);
  return value < 1_000_000
    ? `${(value / 1_000).toFixed(value < 100_000 ? 1 : 0)}k`
    : `${(value / 1_000_000).toFixed(1)}M`;
}

/** @param {number} n @param {string} one @param {string} [many] */
export function plural(n, one, many = `${one}s`) {
  return `${count(n)} ${n === 1 ? one : many}`;
}

/** A card with a heading. @param {Child} title @param {Child} tools @param {...Child} content */
export function card(title, tools, ...content) {
  return h(
    "section",
    { class: "card" },
    title && h("header", null, h("h2", null, title), h("span", { class: "spring" }), tools),
    ...content,
  );
}

/** A card that its table fills. @param {Child} title @param {Child} tools @param {...Child} content */
export function flushCard(title, tools, ...content) {
  return h(
    "section",
    { class: "card flush" },
    title && h("header", null, h("h2", null, title), h("span", { class: "spring" }), tools),
    ...content,
  );
}

/** @param {IconName} sign @param {string} title @param {...Child} content */
export function empty(sign, title, ...content) {
  return h("div", { class: "empty" }, icon(sign), h("strong", null, title), ...content);
}

/**
 * A choice of one among a few.
 * @template {string} T
 * @param {string} label @param {readonly (readonly [T, string])[]} options @param {T} chosen @param {(value: T) => void} choose
 */
export function segments(label, options, chosen, choose) {
  return h(
    "div",
    { class: "segments", role: "group", "aria-label": label },
    options.map(([value, text]) =>
      h("button", { type: "button", "aria-pressed": String(value === chosen), onclick: () => choose(value) }, text),
    ),
  );
}

/**
 * A table. On a narrow screen its rows become blocks, in which a number stands beside the name of its column. The roles
 * are explicit, because browsers forget those of a table that is laid out otherwise.
 * @param {readonly [Child, string?][]} columns names, each with its class @param {Child[]} rows @param {string} label
 */
export function table(columns, rows, label) {
  const made = h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": label },
    h(
      "table",
      { role: "table" },
      h(
        "thead",
        { role: "rowgroup" },
        h(
          "tr",
          { role: "row" },
          columns.map(([name, kind]) =>
            h(
              "th",
              { class: kind ?? "", scope: "col", role: "columnheader" },
              name || h("span", { class: "visually-hidden" }, "actions"),
            ),
          ),
        ),
      ),
      h("tbody", { role: "rowgroup" }, rows),
    ),
  );
  for (const row of made.querySelectorAll("tbody > tr")) {
    row.setAttribute("role", "row");
    for (const [index, cell] of [...row.children].entries()) {
      const name = columns[index]?.[0];
      cell.setAttribute("role", "cell");
      if (typeof name === "string" && name) cell.setAttribute("data-label", name);
    }
  }
  return made;
}

/** @param {[string, Child][]} pairs */
export function facts(pairs) {
  return h(
    "dl",
    { class: "facts" },
    pairs
      .filter(([, value]) => value !== null && value !== undefined && value !== "")
      .map(([name, value]) => [h("dt", null, name), h("dd", null, value)]),
  );
}

/** @param {string} title @param {Child} about @param {Child} [actions] */
export function heading(title, about, actions) {
  return h(
    "div",
    { class: "head" },
    h("div", null, h("h1", null, title), about && h("p", null, about)),
    actions && h("div", { class: "actions" }, actions),
  );
}

/** @param {string} label @param {HTMLElement} input @param {string} [hint] */
export function field(label, input, hint) {
  return h(
    "label",
    { class: "field" },
    h("span", null, label, hint && h("span", { class: "hint" }, ` ${hint}`)),
    input,
  );
}

/** Tell the user for a few seconds. @param {string} text @param {"good" | "bad"} [kind] */
export function toast(text, kind = "good") {
  let shelf = document.querySelector(".toasts");
  if (!shelf) {
    shelf = h("div", { class: "toasts", role: "status", "aria-live": "polite" });
    document.body.append(shelf);
  }
  const slip = h("div", { class: `toast ${kind}` }, text);
  shelf.append(slip);
  setTimeout(() => slip.remove(), kind === "bad" ? 9_000 : 4_500);
}

/** @param {unknown} error @returns {string} */
export function told(error) {
  if (error instanceof ApiError) return error.field ? `${error.title}: ${error.message}` : error.message;
  return error instanceof Error ? error.message : String(error);
}

/** Do it, and tell its outcome. @template T @param {() => Promise<T>} act @param {string | ((result: T) => string)} done */
export async function tell(act, done) {
  try {
    const result = await act();
    toast(typeof done === "string" ? done : done(result));
    return result;
  } catch (error) {
    toast(told(error), "bad");
    return null;
  }
}

/**
 * Ask in a dialog. `submit` gets the values of the form; the dialog stays open and shows the error when it fails.
 * @param {{title: string, text?: Child, content?: Child, action: string, danger?: boolean, submit: (values: Record<string, string>) => Promise<any>}} options
 */
export function ask({ title, text, content, action, danger, submit }) {
  const wrong = h("p", { class: "bad-text", role: "alert" });
  const confirm = /** @type {HTMLButtonElement} */ (
    h("button", { type: "submit", class: danger ? "danger" : "primary" }, action)
  );
  const form = /** @type {HTMLFormElement} */ (
    h(
      "form",
      { method: "dialog" },
      h("h2", null, title),
      text && h("p", { class: "muted" }, text),
      content,
      wrong,
      h("footer", null, h("button", { type: "button", onclick: () => dialog.close() }, "Back"), confirm),
    )
  );
  const dialog = /** @type {HTMLDialogElement} */ (h("dialog", { "aria-label": title }, form));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    confirm.disabled = true;
    wrong.textContent = "";
    try {
      await submit(/** @type {Record<string, string>} */ (Object.fromEntries(new FormData(form))));
      dialog.close();
    } catch (error) {
      wrong.textContent = told(error);
      confirm.disabled = false;
    }
  });
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/** Show content in a dialog. @param {string} title @param {...Child} content */
export function reveal(title, ...content) {
  const dialog = /** @type {HTMLDialogElement} */ (
    h(
      "dialog",
      { "aria-label": title },
      h(
        "form",
        { method: "dialog" },
        h("h2", null, title),
        ...content,
        h("footer", null, h("button", { type: "submit", class: "primary" }, "Close")),
      ),
    )
  );
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/** @param {string} text @param {string} what */
export async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
    toast(`Copied ${what}`);
  } catch {
    reveal(`Copy ${what}`, h("pre", { class: "code" }, text));
  }
}
