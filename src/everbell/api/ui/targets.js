/** Targets: what goes out to each receiver, how it fares, and what holds it back. */

import { getIfPossible, inTenant } from "./api.js";
import { h } from "./dom.js";
import { badge, count, empty, flushCard, heading, table } from "./parts.js";
import { pauseBadge, pauseButton } from "./pauses.js";
import { unheard } from "./queues.js";
import { duration, relative, time } from "./time.js";

/** @param {import("./pages.js").Context} context @returns {import("./pages.js").View} */
export function targets(context) {
  /** @type {any} */ let answer = null;

  /** @param {any} target */
  function state(target) {
    const { breaker, rate, paused, last_minute: minute } = target;
    return [
      paused && pauseBadge(paused),
      breaker?.state === "open" &&
        badge(`breaker open${breaker.until ? `, probe ${relative(breaker.until)}` : ""}`, "bad", "warning"),
      breaker?.state === "probing" && badge("breaker probes", "warn", "repeat"),
      rate?.until && badge(`throttled to ${rate.per_s}/s`, "warn", "hourglass"),
      target.cap !== undefined && target.in_flight >= target.cap && badge("at its cap", "warn", "hourglass"),
      !paused &&
        (!breaker || breaker.state === "closed") &&
        !rate?.until &&
        (minute?.failed > 0 && !minute?.delivered ? badge("failing", "bad", "cross") : badge("ok", "good", "check")),
    ];
  }

  /** @param {any} target */
  function row(target) {
    const minute = target.last_minute ?? {},
      total = (minute.delivered ?? 0) + (minute.failed ?? 0),
      [scheme] = target.target.split(":");
    return h(
      "tr",
      { key: target.target },
      h(
        "td",
        null,
        h(
          "a",
          {
            class: "clip",
            href: context.link("events", [], { to: target.target.replace(/:(80|443)$/, "") }),
            title: target.target,
          },
          target.target,
        ),
      ),
      h("td", null, state(target)),
      h(
        "td",
        { class: "number" },
        count(target.waiting),
        target.more ? "+" : "",
        target.oldest_wait_ms > 0 && h("div", { class: "small faint" }, duration(target.oldest_wait_ms)),
      ),
      h(
        "td",
        { class: "number" },
        count(target.in_flight),
        target.cap !== undefined && h("span", { class: "faint" }, ` / ${target.cap}`),
      ),
      h(
        "td",
        { class: "number" },
        count(total),
        minute.failed > 0 &&
          h("div", { class: "small bad-text" }, `${Math.round((100 * minute.failed) / total)}% failed`),
      ),
      h("td", { class: "number wide-only" }, minute.p50_ms === undefined ? "–" : duration(minute.p50_ms)),
      h("td", { class: "number wide-only" }, minute.p99_ms === undefined ? "–" : duration(minute.p99_ms)),
      h(
        "td",
        { class: "wide-only" },
        target.last_error
          ? [
              h(
                "span",
                { class: "clip", title: target.last_error.reason },
                target.last_error.code ? `HTTP ${target.last_error.code} ` : "",
                target.last_error.reason ?? "",
              ),
              h(
                "div",
                { class: "small faint" },
                time(target.last_error.at),
                target.last_error.event && [
                  " · ",
                  h("a", { href: context.link("event", [target.last_error.event]) }, "event"),
                ],
              ),
            ]
          : h("span", { class: "faint" }, "–"),
      ),
      h(
        "td",
        { class: "number" },
        scheme === "queue"
          ? pauseButton(context, "queue", target.target.slice(6), target.paused)
          : scheme === "http" || scheme === "https"
            ? pauseButton(
                context,
                "target",
                target.target.replace(/^(http:.*):80$|^(https:.*):443$/, "$1$2"),
                target.paused,
              )
            : null,
      ),
    );
  }

  return {
    title: "Targets",
    load: async (signal) => {
      answer = await getIfPossible(inTenant(context.tenant, "targets"), signal);
    },
    view: () => [
      heading("Targets", "A slow or failing target delays no other. Figures of attempts are those of the last minute."),
      !answer
        ? flushCard(
            null,
            null,
            empty(
              "info",
              "This node does not list targets",
              h("span", null, "It is of an older version, or the access key does not allow it."),
            ),
          )
        : h(
            "div",
            { class: "stack" },
            unheard(answer),
            flushCard(
              null,
              null,
              answer.targets.length
                ? table(
                    [
                      ["Target"],
                      ["State"],
                      ["Waiting", "number"],
                      ["In flight", "number"],
                      ["Attempts", "number"],
                      ["p50", "number wide-only"],
                      ["p99", "number wide-only"],
                      ["Last error", "wide-only"],
                      ["", "number"],
                    ],
                    answer.targets.map(row),
                    "Targets",
                  )
                : empty("target", "No targets", h("span", null, "Nothing was delivered since the nodes started.")),
            ),
          ),
    ],
  };
}
