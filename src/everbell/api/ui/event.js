/** One event: why it is where it is, its attempts, its payload, its neighbours, and what can be done with it. */

import { ApiError, call, get, getIfPossible, inTenant, query } from "./api.js";
import { scheduleInWords } from "./cron_words.js";
import { h } from "./dom.js";
import { actionsOf } from "./event_actions.js";
import { icon } from "./icons.js";
import { badge, card, copy, count, empty, facts, plural, segments, status } from "./parts.js";
import { tree } from "./payload.js";
import { readSnippets, scheduleSnippets } from "./snippets.js";
import { duration, local, relative, time, utc, wall } from "./time.js";

/** @typedef {import("./pages.js").Context} Context */

const FINISHED = new Set(["delivered", "cancelled", "expired"]);
const OCCURRENCES = 5;
const NEIGHBOURS = 6;
const TROUBLE = new Set(["dead", "no-worker", "no-handler", "no-owner", "store-away"]);
const HINDERED = new Set([
  "retrying",
  "paused",
  "behind",
  "breaker-open",
  "rate-limited",
  "target-at-cap",
  "node-at-cap",
  "memory-full",
]);

/** @param {Context} context @returns {import("./pages.js").View} */
export function event(context) {
  const id = context.rest.join("/");
  /** @type {any} */ let found = null;
  /** @type {any} */ let line = null;
  /** @type {any[]} */ let neighbours = [];
  /** @type {any} */ let next = null;
  let isMissing = false;
  /** @type {"curl" | "cli" | "python"} */ let language = "curl";

  const path = inTenant(context.tenant, "events", id);

  /** @param {AbortSignal} signal */
  async function load(signal) {
    try {
      found = await get(path, signal);
      isMissing = false;
    } catch (error) {
      if (!(error instanceof ApiError) || error.status !== 404) throw error;
      isMissing = true;
      return;
    }
    const isOver = FINISHED.has(found.status);
    [line, neighbours, next] = await Promise.all([
      found.key && !isOver
        ? getIfPossible(inTenant(context.tenant, "keys", found.key), signal).catch(() => null)
        : null,
      found.key
        ? get(inTenant(context.tenant, "events") + query({ key: found.key, limit: NEIGHBOURS + 1 }), signal).then(
            (page) => page.events.filter((/** @type {any} */ each) => each.id !== id).slice(0, NEIGHBOURS),
          )
        : [],
      found.repeat && !isOver && found.status !== "dead"
        ? get(`${path}/preview${query({ count: OCCURRENCES })}`, signal).catch(() => null)
        : null,
    ]);
  }

  function why() {
    const sentence = found.why?.sentence ?? guess();
    if (!sentence) return null;
    const code = found.why?.code ?? found.status;
    const kind = TROUBLE.has(code) ? "is-bad" : HINDERED.has(code) ? "is-warn" : "";
    return h(
      "div",
      { class: `why ${kind}` },
      icon(kind === "is-bad" ? "dead" : kind ? "warning" : "info"),
      h(
        "div",
        null,
        h("strong", null, "Why it is here"),
        h("p", { class: "text" }, sentence),
        found.why?.event &&
          h("p", null, h("a", { href: context.link("event", [found.why.event]) }, `Look at ${found.why.event}`)),
      ),
      h("code", null, code),
    );
  }

  /** A sentence from the event alone, for a node that gives none. */
  function guess() {
    if (found.status === "dead") return `It is dead: ${found.reason ?? "its attempts are used up"}.`;
    if (found.status === "scheduled")
      return Date.parse(found.at) > Date.now()
        ? `It is due ${relative(found.at)}, at ${utc(found.at)}.`
        : "It is due, and starts in a moment.";
    if (found.status === "retrying")
      return `Attempt ${found.attempt_count} failed. The next one starts ${relative(found.next_attempt_at ?? found.at)}.`;
    if (found.status === "waiting") return `It waits behind another event of its key ${found.key ?? ""}.`;
    if (found.status === "paused") return `It is paused${found.paused?.note ? `: ${found.paused.note}` : ""}.`;
    return found.status === "delivering" ? "An attempt is under way." : null;
  }

  function attempts() {
    const made = found.attempts ?? [];
    if (!made.length && !found.next_attempt_at) return empty("send", "No attempts yet");
    return h(
      "ol",
      { class: "timeline" },
      made.map((/** @type {any} */ each) =>
        h(
          "li",
          { class: each.result === "delivered" ? "good" : "bad", key: `${each.number}` },
          h(
            "div",
            { class: "row" },
            h("strong", null, `Attempt ${each.number}`),
            badge(
              each.result,
              each.result === "delivered" ? "good" : "bad",
              each.result === "delivered" ? "check" : "cross",
            ),
            each.code && badge(`HTTP ${each.code}`),
            h("span", { class: "muted" }, time(each.started_at)),
            h("span", { class: "faint" }, `took ${duration(each.duration_ms)}`),
            each.node && h("span", { class: "faint" }, `on ${each.node}`),
          ),
          each.reason && h("pre", null, each.reason),
        ),
      ),
      !FINISHED.has(found.status) &&
        found.status !== "dead" &&
        h(
          "li",
          { class: "next" },
          h(
            "div",
            { class: "row" },
            h("strong", null, "Next attempt"),
            h("span", { class: "muted" }, time(found.next_attempt_at ?? found.at)),
          ),
        ),
    );
  }

  function details() {
    return facts([
      [
        "Due",
        h(
          "span",
          null,
          relative(found.at),
          h("br"),
          h("span", { class: "muted small nowrap" }, utc(found.at)),
          h("br"),
          h("span", { class: "muted small nowrap" }, local(found.at)),
        ),
      ],
      ["Target", h("a", { class: "text", href: context.link("events", [], { to: found.to }) }, found.to)],
      ["Key", found.key && h("a", { class: "text", href: context.link("events", [], { key: found.key }) }, found.key)],
      [
        "Tags",
        found.tags &&
          found.tags.map((/** @type {string} */ tag) =>
            h("a", { class: "tag", href: context.link("events", [], { tag }) }, tag),
          ),
      ],
      ["Produced", found.produced_at && time(found.produced_at)],
      ["Created", time(found.created_at)],
      ["Ended", found.finished_at && time(found.finished_at)],
      ["Reason", found.reason && h("span", { class: "text" }, found.reason)],
      ["Attempts", count(found.attempt_count)],
      [
        "Retries",
        found.retry &&
          `${found.retry.max_attempts} attempts, ${found.retry.backoff} to ${found.retry.max_backoff} apart`,
      ],
      ["Expires", found.expires && `${found.expires} after it was due`],
      ["Occurrence", found.occurrence > 1 || found.repeat ? count(found.occurrence) : null],
      [
        "Part of",
        found.repeat_of && h("a", { class: "text", href: context.link("event", [found.repeat_of]) }, found.repeat_of),
      ],
      ["Version", count(found.version)],
      [
        "Replicas",
        found.replicas &&
          `${count(found.replicas.count)}, held by ${found.replicas.held_by.join(", ")}${found.replicas.next ? `; ${found.replicas.next} is next in line` : ""}`,
      ],
      [
        "Trace",
        found.traceparent &&
          h(
            "span",
            null,
            h("code", { class: "text" }, found.traceparent.split("-")[1] ?? found.traceparent),
            " ",
            h(
              "button",
              {
                type: "button",
                class: "plain",
                onclick: () => copy(found.traceparent.split("-")[1] ?? "", "the trace id"),
              },
              "copy",
            ),
          ),
      ],
    ]);
  }

  function keyCard() {
    if (!found.key) return null;
    return card(
      `Key ${found.key}`,
      h("a", { href: context.link("keys", [found.key]) }, "Open the key"),
      line &&
        h(
          "p",
          { class: "muted" },
          line.head
            ? [
                line.head.id === id
                  ? "This event is the head: "
                  : ["The head is ", h("a", { href: context.link("event", [line.head.id]) }, line.head.id), ": "],
                `${plural(line.waiting, "event waits", "events wait")} behind it.`,
              ]
            : "None of its events is due.",
        ),
      neighbours.length
        ? h(
            "ul",
            { class: "list" },
            neighbours.map((each) =>
              h(
                "li",
                { key: each.id },
                status(each.status),
                h("a", { class: "grow mono text", href: context.link("event", [each.id]) }, each.id),
                time(each.at),
              ),
            ),
          )
        : h("p", { class: "faint" }, "No other pending events have this key."),
    );
  }

  function repeatCard() {
    if (!found.repeat) return null;
    const { fired = 0, missed = 0, skipped = 0 } = found.counters ?? {};
    return card(
      "Recurrence",
      null,
      h("p", null, scheduleInWords(found.repeat)),
      h("p", { class: "muted small" }, `${count(fired)} delivered, ${count(missed)} missed, ${count(skipped)} skipped`),
      next &&
        h(
          "ul",
          { class: "list" },
          next.occurrences.map((/** @type {any} */ each) =>
            h(
              "li",
              { key: each.number },
              h("span", { class: "faint" }, `#${each.number}`),
              h("span", { class: "grow", title: each.local ?? each.at }, wall(each.local ?? each.at)),
              h("span", { class: "muted" }, relative(each.at)),
            ),
          ),
        ),
    );
  }

  function copies() {
    const texts = { ...readSnippets(context.tenant, id, context.caller.keys_required) };
    if (!FINISHED.has(found.status) && found.payload !== undefined) {
      const { payload, to, key, tags, headers, repeat, expires } = found;
      Object.assign(
        texts,
        scheduleSnippets(
          context.tenant,
          JSON.parse(JSON.stringify({ id, at: found.at, to, key, tags, headers, repeat, expires, payload })),
          context.caller.keys_required,
        ),
      );
    }
    return card(
      "Copy as",
      segments(
        "Language",
        [
          ["curl", "curl"],
          ["cli", "CLI"],
          ["python", "Python"],
        ],
        language,
        (value) => {
          language = value;
          context.update();
        },
      ),
      h("pre", { class: "code text", tabindex: "0" }, texts[language]),
      h(
        "p",
        null,
        h("button", { type: "button", onclick: () => copy(texts[language], language) }, icon("copy"), "Copy"),
      ),
    );
  }

  function payload() {
    if (found.payload_base64 !== undefined && found.payload_base64 !== null)
      return h("pre", { class: "code text", tabindex: "0" }, found.payload_base64.slice(0, 4_000));
    if (found.payload === undefined)
      return h(
        "p",
        { class: "faint" },
        FINISHED.has(found.status) ? "Payloads are kept until the event ends." : "The payload is not shown.",
      );
    return h("div", { class: "tree", tabindex: "0", role: "region", "aria-label": "Payload" }, tree(found.payload));
  }

  return {
    title: id,
    load,
    view: () =>
      isMissing
        ? empty(
            "events",
            "There is no such event",
            h("span", { class: "mono text" }, id),
            h(
              "span",
              null,
              `in tenant ${context.tenant}; it may have ended longer ago than the retention of the tenant.`,
            ),
          )
        : [
            h(
              "div",
              { class: "head" },
              h(
                "div",
                null,
                h("p", { class: "crumb" }, h("a", { href: context.link("events") }, "Events"), " / ", context.tenant),
                h("h1", { class: "text" }, id),
                h("p", null, status(found.status), " ", found.repeat && badge("repeats", "accent", "repeat")),
              ),
              h("div", { class: "actions" }, actionsOf(context, found, call)),
            ),
            why(),
            h(
              "div",
              { class: "grid wide" },
              h(
                "div",
                { class: "stack" },
                card("Attempts", null, attempts()),
                card(
                  "Payload",
                  found.content_type && badge(found.content_type),
                  payload(),
                  found.headers && [
                    h("h3", null, "Headers"),
                    facts(
                      Object.entries(found.headers).map(([name, value]) => [
                        name,
                        h("span", { class: "text" }, String(value)),
                      ]),
                    ),
                  ],
                ),
                copies(),
              ),
              h("div", { class: "stack" }, card("Details", null, details()), repeatCard(), keyCard()),
            ),
          ],
  };
}
