/** The actions on one event. Which of them are offered follows from its state and from the scopes of the caller. */

import { inTenant } from "./api.js";
import { h } from "./dom.js";
import { icon } from "./icons.js";
import { ask, field, reveal, tell } from "./parts.js";

const FINISHED = new Set(["delivered", "cancelled", "expired"]);

/**
 * @param {import("./pages.js").Context} context @param {any} event
 * @param {typeof import("./api.js").call} call
 */
export function actionsOf(context, event, call) {
  const path = inTenant(context.tenant, "events", event.id);
  const after = () => context.reload();
  const clone =
    context.can("schedule") &&
    event.payload !== undefined &&
    h("a", { class: "button", href: context.link("schedule", [], { like: event.id }) }, "Schedule another");
  if (!context.can("schedule") || FINISHED.has(event.status)) return [clone];
  const change = (/** @type {any} */ body) => call("PATCH", path, { body, version: event.version }).then(after);
  const button = (/** @type {string} */ text, /** @type {() => void} */ onclick, kind = "") =>
    h("button", { type: "button", class: kind, onclick }, text);

  if (event.status === "dead") {
    return [
      button(
        "Redrive",
        () =>
          tell(
            () => call("POST", inTenant(context.tenant, "dead", "redrive"), { body: { ids: [event.id] } }).then(after),
            "It gets a new set of attempts",
          ),
        "primary",
      ),
      button(
        "Discard…",
        () =>
          ask({
            title: "Discard this dead event?",
            text: "It counts as cancelled, and its key goes on.",
            action: "Discard it",
            danger: true,
            submit: () => call("DELETE", path).then(after),
          }),
        "danger",
      ),
      clone,
    ];
  }
  return [
    h(
      "button",
      {
        type: "button",
        class: "primary",
        onclick: () => tell(() => call("POST", `${path}/deliver`).then(after), "It is due now"),
      },
      icon("send"),
      "Deliver now",
    ),
    !event.to.startsWith("queue:") &&
      button("Try it…", () =>
        ask({
          title: "Make one attempt that changes nothing?",
          text: `The receiver ${event.to} does get it.`,
          action: "Try it",
          submit: async () => {
            const { outcome } = await call("POST", `${path}/deliver?dry_run=true`);
            reveal(
              "The outcome",
              h("p", null, h("strong", null, outcome.result), outcome.code ? ` with HTTP ${outcome.code}` : ""),
              outcome.reason && h("pre", { class: "code text" }, outcome.reason),
            );
          },
        }),
      ),
    button("Reschedule…", () =>
      ask({
        title: "Reschedule it",
        content: h(
          "div",
          { class: "fields" },
          field("In", h("input", { name: "in", placeholder: "20m" })),
          field("or at", h("input", { name: "at", placeholder: "2026-11-20T10:00:00Z" })),
          field("or by", h("input", { name: "by", placeholder: "2h, or -30m" })),
        ),
        action: "Reschedule",
        submit: (values) => {
          const given = Object.entries(values).filter(([, value]) => value);
          if (given.length !== 1) throw new Error("Give one of the three.");
          return change(Object.fromEntries(given));
        },
      }),
    ),
    button("Snooze…", () =>
      ask({
        title: "Snooze it",
        content: field("By", h("input", { name: "by", placeholder: "10m", required: true })),
        action: "Snooze",
        submit: (values) =>
          call("POST", `${path}/snooze`, { body: { by: values["by"] }, version: event.version }).then(after),
      }),
    ),
    event.repeat &&
      (event.paused
        ? button("Resume", () => tell(() => change({ paused: false }), "It goes on"))
        : button("Pause…", () =>
            ask({
              title: "Pause this recurring event",
              content: field("Note", h("input", { name: "note", maxlength: "1000" }), "why, for others"),
              action: "Pause",
              submit: (values) => change({ paused: true, ...(values["note"] ? { note: values["note"] } : {}) }),
            }),
          )),
    event.repeat && h("a", { class: "button", href: context.link("schedule", [], { edit: event.id }) }, "Edit"),
    event.repeat &&
      button("Backfill…", () =>
        ask({
          title: "Deliver for a past range",
          text: "Each time of the range becomes an event that is due now. Repeating this does no harm.",
          content: h(
            "div",
            { class: "fields" },
            field("From", h("input", { name: "from", placeholder: "2026-11-01T00:00:00Z", required: true })),
            field("Until", h("input", { name: "until", placeholder: "2026-11-02T00:00:00Z", required: true })),
          ),
          action: "Backfill",
          submit: async (values) => {
            const made = await call("POST", `${path}/backfill`, {
              body: { from: values["from"], until: values["until"] },
            });
            reveal("Backfilled", h("p", null, `${made.scheduled} scheduled, ${made.existing} existed already.`));
            after();
          },
        }),
      ),
    clone,
    button(
      "Cancel…",
      () =>
        ask({
          title: "Cancel this event?",
          text: event.repeat
            ? "It ends with all its occurrences. No attempt starts any more."
            : "No attempt starts any more.",
          action: "Cancel it",
          danger: true,
          submit: () => call("DELETE", path, { version: event.version }).then(after),
        }),
      "danger",
    ),
  ];
}
