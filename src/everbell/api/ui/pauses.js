/** Pausing and resuming a tenant, a key, a target or a queue. */

import { call, inTenant, query } from "./api.js";
import { h } from "./dom.js";
import { icon } from "./icons.js";
import { ask, badge, field, tell, toast } from "./parts.js";
import { relative, utc } from "./time.js";

/** @typedef {import("./pages.js").Context} Context */
/** @typedef {"tenant" | "key" | "target" | "queue"} What */

/** What can be paused, each with a name of that kind. @type {Record<What, string>} */
const EXAMPLES = { target: "https://shop.example", queue: "mail", key: "order-17", tenant: "all of its events" };

/** The badge of a pause, with its details. @param {any} pause */
export function pauseBadge(pause) {
  const more = [
    `since ${utc(pause.since)}`,
    pause.by && `by ${pause.by}`,
    pause.note,
    pause.until && `until ${utc(pause.until)}`,
  ]
    .filter(Boolean)
    .join(", ");
  return h(
    "span",
    { title: more },
    badge("paused", "warn", "pause"),
    " ",
    h("span", { class: "small muted text" }, pause.note ?? `since ${relative(pause.since)}`),
  );
}

/** A button that pauses something, or resumes it. @param {Context} context @param {What} what @param {string | null} name @param {any} pause the pause in force, if any */
export function pauseButton(context, what, name, pause) {
  if (!context.can("admin")) return null;
  if (pause && (!pause.what || pause.what === what))
    return h("button", { type: "button", onclick: () => resume(context, what, name) }, icon("play"), "Resume");
  return h("button", { type: "button", onclick: () => askPause(context, what, name) }, icon("pause"), "Pause…");
}

/** @param {Context} context @param {What} what @param {string | null} name */
export function resume(context, what, name) {
  return tell(
    () => call("DELETE", inTenant(context.tenant, "pauses") + query({ what, name })).then(context.reload),
    `${name ?? context.tenant} goes on`,
  );
}

/** @param {Context} context @param {What} what @param {string | null} name */
export function askPause(context, what, name) {
  ask({
    title: name === null ? "Pause deliveries" : `Pause ${what} ${name}`,
    text: "Nothing of it starts any more until it is resumed. Events are kept, and stay in order.",
    content: h(
      "div",
      { class: "fields" },
      name === null &&
        field(
          "What",
          h(
            "select",
            {
              name: "what",
              onchange: (/** @type {any} */ event) => {
                const named = event.target.form.elements.name;
                named.disabled = event.target.value === "tenant";
                named.placeholder = EXAMPLES[/** @type {What} */ (event.target.value)];
              },
            },
            Object.keys(EXAMPLES).map((each) => h("option", { value: each }, each)),
          ),
        ),
      name === null &&
        field("Name", h("input", { name: "name", required: true, placeholder: EXAMPLES.target })),
      field("Note", h("input", { name: "note", maxlength: "1000", placeholder: "why, for others" })),
      field("For", h("input", { name: "for", placeholder: "until resumed" }), "a duration"),
    ),
    action: "Pause",
    submit: async (values) => {
      const chosen = values["what"] ?? what;
      const body = {
        what: chosen,
        ...(chosen === "tenant" ? {} : { name: values["name"] ?? name }),
        ...(values["note"] ? { note: values["note"] } : {}),
        ...(values["for"] ? { for: values["for"] } : {}),
      };
      const made = await call("POST", inTenant(context.tenant, "pauses"), { body });
      toast(made.unheard?.length ? `Paused; not heard yet by ${made.unheard.join(", ")}` : "Paused");
      context.reload();
    },
  });
}
