/** Queues and the workers that pull from them. */

import { getIfPossible, inTenant } from "./api.js";
import { h } from "./dom.js";
import { badge, count, empty, flushCard, heading, plural, table } from "./parts.js";
import { pauseBadge, pauseButton } from "./pauses.js";
import { duration, time } from "./time.js";

/** @param {import("./pages.js").Context} context @returns {import("./pages.js").View} */
export function queues(context) {
  /** @type {any} */ let answer = null;

  /** @param {any} queue */
  function state(queue) {
    if (queue.paused) return pauseBadge(queue.paused);
    if (queue.stalled) return badge("no worker", "bad", "warning");
    if (queue.workers?.length || queue.last_contact) return badge("served", "good", "check");
    return badge("no worker yet", "calm", "hourglass");
  }

  /** @param {any} queue */
  function row(queue) {
    return h(
      "tr",
      { key: queue.name },
      h(
        "td",
        null,
        h(
          "a",
          { class: "clip", href: context.link("events", [], { to: `queue:${queue.name}` }), title: queue.name },
          queue.name,
        ),
      ),
      h("td", null, state(queue)),
      h("td", { class: "number" }, count(queue.waiting), queue.more ? "+" : ""),
      h("td", { class: "number" }, queue.oldest_wait_ms === undefined ? "–" : duration(queue.oldest_wait_ms)),
      h("td", { class: "number" }, count(queue.in_flight)),
      h(
        "td",
        { class: "number wide-only" },
        count(queue.last_minute?.delivered),
        queue.last_minute?.failed > 0 &&
          h("span", { class: "bad-text" }, ` / ${count(queue.last_minute.failed)} failed`),
      ),
      h(
        "td",
        { class: "wide-only" },
        plural(queue.workers?.length ?? 0, "worker"),
        queue.last_contact && h("span", { class: "faint" }, ", ", time(queue.last_contact)),
      ),
      h("td", { class: "number" }, pauseButton(context, "queue", queue.name, queue.paused)),
    );
  }

  function workers() {
    /** @type {Map<string, any>} */
    const found = new Map();
    for (const queue of answer.queues) for (const worker of queue.workers ?? []) found.set(worker.name, worker);
    const rows = [...found.values()].map((worker) =>
      h(
        "tr",
        { key: worker.name },
        h("td", null, h("span", { class: "mono clip", title: worker.name }, worker.name)),
        h("td", { class: "wide-only" }, worker.host ?? "–"),
        h("td", { class: "wide-only" }, worker.version ?? "–"),
        h(
          "td",
          null,
          (worker.queues ?? worker.handlers ?? []).map((/** @type {string} */ name) =>
            h("span", { class: "tag" }, name),
          ),
        ),
        h("td", { class: "nowrap" }, time(worker.last_contact)),
      ),
    );
    return flushCard(
      "Workers",
      null,
      rows.length
        ? table(
            [["Name"], ["Host", "wide-only"], ["Version", "wide-only"], ["Handles"], ["Last contact"]],
            rows,
            "Workers",
          )
        : empty(
            "queue",
            "No named worker called in the last ten minutes",
            h("span", null, "Start one: ", h("code", null, "everbell worker app:app")),
          ),
    );
  }

  return {
    title: "Queues and workers",
    load: async (signal) => {
      answer = await getIfPossible(inTenant(context.tenant, "queues"), signal);
    },
    view: () => [
      heading("Queues and workers", "Events to queue:name wait until a worker leases them."),
      !answer
        ? flushCard(
            null,
            null,
            empty(
              "info",
              "This node does not list queues",
              h("span", null, "It is of an older version, or the access key does not allow it."),
            ),
          )
        : h(
            "div",
            { class: "stack" },
            unheard(answer),
            flushCard(
              "Queues",
              null,
              answer.queues.length
                ? table(
                    [
                      ["Queue"],
                      ["State"],
                      ["Waiting", "number"],
                      ["Oldest", "number"],
                      ["In flight", "number"],
                      ["Last minute", "number wide-only"],
                      ["Workers", "wide-only"],
                      ["", "number"],
                    ],
                    answer.queues.map(row),
                    "Queues",
                  )
                : empty("queue", "No queues", h("span", null, "A queue exists from its first event on.")),
            ),
            workers(),
          ),
    ],
  };
}

/** Says which nodes did not answer. @param {any} answer */
export function unheard(answer) {
  if (!answer.unheard?.length) return null;
  return h(
    "div",
    { class: "alert" },
    h("p", null, `No answer from ${answer.unheard.join(", ")}: the figures may be too low.`),
  );
}
