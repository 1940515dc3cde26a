/** Recurring events: the schedule in words, the next times, and how the occurrences fared. */

import { call, get, inTenant, query } from "./api.js";
import { scheduleInWords } from "./cron_words.js";
import { h } from "./dom.js";
import { icon } from "./icons.js";
import { ask, badge, count, empty, field, flushCard, heading, status, table, tell } from "./parts.js";
import { relative, time, wall } from "./time.js";

const PAGE = 50;
const OCCURRENCES = 5;
const EVERY_MS = 5_000;

/** @param {import("./pages.js").Context} context @returns {import("./pages.js").View} */
export function recurring(context) {
  /** @type {any[]} */ let found = [];
  /** @type {string | undefined} */ let following;
  /** @type {Map<string, {version: number, times: any[]}>} */ const previews = new Map();

  /** @param {AbortSignal} signal */
  async function load(signal) {
    const page = await get(
      inTenant(context.tenant, "events") + query({ repeats: true, limit: PAGE, cursor: context.params.get("cursor") }),
      signal,
    );
    found = page.events;
    following = page.cursor;
    await Promise.all(
      found.map(async (event) => {
        if (previews.get(event.id)?.version === event.version && event.status !== "delivering") return;
        const next = await get(
          `${inTenant(context.tenant, "events", event.id, "preview")}${query({ count: OCCURRENCES })}`,
          signal,
        ).catch(() => null);
        if (next) previews.set(event.id, { version: event.version, times: next.occurrences });
      }),
    );
  }

  /** @param {any} event */
  function actions(event) {
    if (!context.can("schedule")) return null;
    const path = inTenant(context.tenant, "events", event.id);
    const change = (/** @type {any} */ body) =>
      call("PATCH", path, { body, version: event.version }).then(context.reload);
    return h(
      "span",
      { class: "nowrap" },
      h(
        "button",
        {
          type: "button",
          onclick: () => tell(() => call("POST", `${path}/deliver`).then(context.reload), `${event.id} is due now`),
        },
        icon("send"),
        "Now",
      ),
      " ",
      event.paused
        ? h(
            "button",
            { type: "button", onclick: () => tell(() => change({ paused: false }), `${event.id} goes on`) },
            icon("play"),
            "Resume",
          )
        : h(
            "button",
            {
              type: "button",
              onclick: () =>
                ask({
                  title: `Pause ${event.id}`,
                  content: field("Note", h("input", { name: "note", maxlength: "1000" }), "why, for others"),
                  action: "Pause",
                  submit: (values) => change({ paused: true, ...(values["note"] ? { note: values["note"] } : {}) }),
                }),
            },
            icon("pause"),
            "Pause…",
          ),
      " ",
      h("a", { class: "button", href: context.link("schedule", [], { edit: event.id }) }, "Edit"),
    );
  }

  /** @param {any} event */
  function row(event) {
    const { fired = 0, missed = 0, skipped = 0 } = event.counters ?? {},
      last = event.attempts?.at(-1);
    const times = previews.get(event.id)?.times ?? [];
    return h(
      "tr",
      { key: event.id },
      h("td", null, status(event.status)),
      h(
        "td",
        null,
        h("a", { class: "mono clip", href: context.link("event", [event.id]), title: event.id }, event.id),
        h("div", { class: "muted small" }, scheduleInWords(event.repeat)),
        event.paused &&
          h(
            "div",
            { class: "small warn-text text" },
            `Paused ${relative(event.paused.since)}${event.paused.note ? `: ${event.paused.note}` : ""}`,
          ),
      ),
      h(
        "td",
        { class: "nowrap" },
        time(event.next_attempt_at ?? event.at),
        times.length > 1 &&
          h(
            "details",
            { class: "small" },
            h("summary", { class: "muted" }, "then"),
            times.slice(1).map((each) => h("div", { class: "muted" }, wall(each.local ?? each.at))),
          ),
      ),
      h("td", { class: "roomy-only" }, h("span", { class: "clip", title: event.to }, event.to)),
      h(
        "td",
        { class: "wide-only" },
        last
          ? [
              badge(
                last.result,
                last.result === "delivered" ? "good" : "bad",
                last.result === "delivered" ? "check" : "cross",
              ),
              " ",
              h("span", { class: "faint" }, time(last.started_at)),
            ]
          : h("span", { class: "faint" }, fired ? "delivered" : "none yet"),
      ),
      h(
        "td",
        { class: "number" },
        count(fired),
        (missed > 0 || skipped > 0) &&
          h("div", { class: "small warn-text" }, `${count(missed)} missed, ${count(skipped)} skipped`),
      ),
      h("td", { class: "number" }, actions(event)),
    );
  }

  return {
    title: "Recurring events",
    load,
    every: EVERY_MS,
    view: () => [
      heading(
        "Recurring events",
        "Each rings again by an interval or a cron expression.",
        context.can("schedule") && h("a", { class: "button", href: context.link("schedule") }, "Schedule one"),
      ),
      flushCard(
        null,
        null,
        found.length
          ? table(
              [
                ["Status"],
                ["Event"],
                ["Next"],
                ["Target", "roomy-only"],
                ["Latest attempt", "wide-only"],
                ["Delivered", "number"],
                ["", "number"],
              ],
              found.map(row),
              "Recurring events",
            )
          : empty("repeat", "No recurring events"),
        (following || context.params.get("cursor")) &&
          h(
            "div",
            { class: "pager" },
            h("span"),
            h(
              "span",
              { class: "actions" },
              context.params.get("cursor") &&
                h("button", { type: "button", onclick: () => context.go("recurring") }, "First page"),
              following &&
                h(
                  "button",
                  { type: "button", onclick: () => context.go("recurring", [], { cursor: following }) },
                  "Next page",
                ),
            ),
          ),
      ),
    ],
  };
}
