/** Ordering keys: the heads that block others, and how to unblock them. */

import { ApiError, call, get, getIfPossible, inTenant, query } from "./api.js";
import { h } from "./dom.js";
import { ask, card, count, empty, flushCard, heading, plural, status, table } from "./parts.js";
import { pauseBadge, pauseButton } from "./pauses.js";
import { time } from "./time.js";

/** @param {import("./pages.js").Context} context @returns {import("./pages.js").View} */
export function orderingKeys(context) {
  const name = context.rest.join("/");
  /** @type {any} */ let blocked = null;
  /** @type {any} */ let line = null;
  /** @type {any[]} */ let events = [];
  /** @type {any} */ let pause = null;

  /** @param {AbortSignal} signal */
  async function load(signal) {
    if (!name) {
      blocked = await get(inTenant(context.tenant, "keys") + query({ limit: 100 }), signal);
      return;
    }
    try {
      line = await get(inTenant(context.tenant, "keys", name), signal);
    } catch (error) {
      if (!(error instanceof ApiError) || error.status !== 404) throw error;
      line = { key: name, waiting: 0 };
    }
    const [found, listed] = await Promise.all([
      get(inTenant(context.tenant, "events") + query({ key: name, limit: 50 }), signal),
      getIfPossible(inTenant(context.tenant, "pauses"), signal),
    ]);
    events = found.events;
    pause =
      listed?.pauses.find((/** @type {any} */ each) => each.what === "key" && each.name === name) ?? null;
  }

  /** @param {string} key @param {any} head */
  function unblock(key, head) {
    ask({
      title: `Cancel the head of ${key}?`,
      text: `${head.id} is ${head.status}. When it is cancelled, the next event of the key starts. A recurring head ends with all its occurrences.`,
      action: "Cancel the head",
      danger: true,
      submit: () =>
        call("DELETE", inTenant(context.tenant, "keys", key, "head"), { version: head.version }).then(context.reload),
    });
  }

  function one() {
    return [
      h(
        "div",
        { class: "head" },
        h(
          "div",
          null,
          h("p", { class: "crumb" }, h("a", { href: context.link("keys") }, "Ordering keys"), " / ", context.tenant),
          h("h1", { class: "text" }, name),
          pause && h("p", null, pauseBadge(pause)),
        ),
        h(
          "div",
          { class: "actions" },
          context.can("schedule") &&
            line.head &&
            h(
              "button",
              { type: "button", class: "danger", onclick: () => unblock(name, line.head) },
              "Cancel the head…",
            ),
          pauseButton(context, "key", name, pause),
        ),
      ),
      h(
        "div",
        { class: "stack" },
        card(
          "The head",
          null,
          line.head
            ? [
                h(
                  "p",
                  null,
                  status(line.head.status),
                  " ",
                  h("a", { class: "mono text", href: context.link("event", [line.head.id]) }, line.head.id),
                ),
                h(
                  "p",
                  { class: "muted" },
                  `${plural(line.waiting, "event waits", "events wait")}${line.more ? " or more" : ""} behind it.`,
                ),
                line.head.reason && h("p", { class: "text" }, line.head.reason),
              ]
            : h("p", { class: "muted" }, "None of its events is due."),
        ),
        flushCard(
          "Its events, in order",
          null,
          events.length
            ? table(
                [["Status"], ["Id"], ["Due"], ["Attempts", "number"]],
                events.map((each) =>
                  h(
                    "tr",
                    { key: each.id },
                    h("td", null, status(each.status)),
                    h("td", null, h("a", { class: "mono clip", href: context.link("event", [each.id]) }, each.id)),
                    h("td", null, time(each.at)),
                    h("td", { class: "number" }, count(each.attempt_count)),
                  ),
                ),
                "Events of the key",
              )
            : empty("order", "No pending events have this key"),
        ),
      ),
    ];
  }

  function all() {
    const keys = blocked?.keys ?? [];
    return [
      heading(
        "Ordering keys",
        "Events of one key go one at a time, in order. A head that fails or died blocks the others.",
      ),
      h(
        "div",
        { class: "stack" },
        h(
          "form",
          {
            class: "card actions",
            onsubmit: (/** @type {SubmitEvent} */ event) => {
              event.preventDefault();
              const key = String(new FormData(/** @type {HTMLFormElement} */ (event.currentTarget)).get("key")).trim();
              if (key) context.go("keys", [key]);
            },
          },
          h("input", { name: "key", "aria-label": "Key", placeholder: "order-17", spellcheck: "false" }),
          h("button", { type: "submit" }, "Open the key"),
        ),
        flushCard(
          "Blocked keys",
          null,
          keys.length
            ? table(
                [["Key"], ["Head"], ["State"], ["Waiting", "number"], ["", "number"]],
                keys.map((/** @type {any} */ each) =>
                  h(
                    "tr",
                    { key: each.key },
                    h("td", null, h("a", { class: "clip", href: context.link("keys", [each.key]) }, each.key)),
                    h(
                      "td",
                      null,
                      h("a", { class: "mono clip", href: context.link("event", [each.head.id]) }, each.head.id),
                    ),
                    h("td", null, status(each.head.status)),
                    h("td", { class: "number" }, count(each.waiting), each.more ? "+" : ""),
                    h(
                      "td",
                      { class: "number" },
                      context.can("schedule") &&
                        h(
                          "button",
                          { type: "button", class: "danger", onclick: () => unblock(each.key, each.head) },
                          "Cancel the head…",
                        ),
                    ),
                  ),
                ),
                "Blocked keys",
              )
            : empty("check", "No key is blocked"),
        ),
      ),
    ];
  }

  return { title: name || "Ordering keys", load, view: () => (name ? one() : all()) };
}
