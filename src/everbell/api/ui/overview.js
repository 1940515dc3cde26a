/** The overview: what is due, what happened lately, and what is wrong. */

import { get, getIfPossible, inTenant, query } from "./api.js";
import { alertsOf } from "./alerts.js";
import { futureBars, heatMap, legend, pastLines } from "./charts.js";
import { h } from "./dom.js";
import { icon } from "./icons.js";
import { card, count, empty, heading, plural, segments, short, status } from "./parts.js";
import { clock, duration, time, weekday } from "./time.js";

/** @typedef {import("./pages.js").Context} Context */
/** @typedef {import("./charts.js").Bar} Bar */

/** What each span asks the forecast for, and how many answers make one bar. */
const SPANS = /** @type {const} */ ({
  hour: { per: "minute", count: 60, fold: 1, words: "hour" },
  day: { per: "minute", count: 1_440, fold: 15, words: "day" },
  week: { per: "hour", count: 168, fold: 1, words: "week" },
});
/** @typedef {keyof typeof SPANS} Span */

/** A forecast may read many rows. The server shares an expensive one between viewers for this long at most. */
const FORECAST_SHARED_S = 300;
const FORECAST_EVERY_MS = 5_000;
const NEXT_UP = 8;

/** @param {Context} context @returns {import("./pages.js").View} */
export function overview(context) {
  /** @type {any} */ let forecast = null;
  /** @type {any} */ let history = null;
  /** @type {any[]} */ let next = [];
  /** @type {import("./alerts.js").Alert[]} */ let alerts = [];
  /** @type {Span} */ let span = "hour";
  /** @type {"minutes" | "hours"} */ let past = "minutes";
  let isEverything = context.caller.tenant === "*" && context.can("read", "*");
  let forecastAt = 0;

  const mayBeAll = isEverything;
  const where = (/** @type {string} */ name) => (isEverything ? `/v1/${name}` : inTenant(context.tenant, name));

  /** @param {AbortSignal} signal */
  async function loadForecast(signal) {
    if (Date.now() < forecastAt) return;
    const { per, count: spans } = SPANS[span];
    forecast = await get(where("forecast") + query({ per, count: spans }), signal, FORECAST_SHARED_S);
    forecastAt = Date.now() + FORECAST_EVERY_MS;
  }

  /** @param {AbortSignal} signal */
  async function load(signal) {
    const found = await Promise.all([
      loadForecast(signal),
      getIfPossible(where("history") + query({ span: past }), signal),
      get(inTenant(context.tenant, "events") + query({ limit: NEXT_UP }), signal),
      alertsOf(context, signal),
    ]);
    history = found[1];
    next = found[2].events;
    alerts = found[3];
  }

  /** @returns {Bar[]} */
  function bars() {
    const { fold } = SPANS[span],
      known = forecast.known_until ? Date.parse(forecast.known_until) : Infinity;
    /** @type {Bar[]} */
    const made = [];
    for (let start = 0; start < forecast.spans.length; start += fold) {
      const group = forecast.spans.slice(start, start + fold),
        at = Date.parse(group[0].at);
      made.push({
        at,
        value: group.reduce((/** @type {number} */ sum, /** @type {any} */ each) => sum + each.due, 0),
        isUnknown: at >= known,
      });
    }
    return made;
  }

  /** @param {Bar} bar @param {number} stepMs */
  function openBar(bar, stepMs) {
    context.go("events", [], {
      from: new Date(bar.at).toISOString(),
      until: new Date(bar.at + stepMs - 1).toISOString(),
    });
  }

  function future() {
    const made = bars(),
      { per, fold, words } = SPANS[span],
      stepMs = (per === "hour" ? 3_600_000 : 60_000) * fold;
    const total = made.reduce((sum, bar) => sum + bar.value, 0),
      best = made.reduce((high, bar) => (bar.value > high.value ? bar : high), made[0] ?? { at: 0, value: 0 });
    const label = `Events due in the next ${words}: ${total}. The busiest time begins at ${clock(best.at)} with ${best.value}`;
    const pick = (/** @type {Bar} */ bar) => openBar(bar, stepMs);
    const choose = segments(
      "Span of the chart",
      [
        ["hour", "Hour"],
        ["day", "Day"],
        ["week", "Week"],
      ],
      span,
      (value) => {
        span = value;
        forecastAt = 0;
        context.reload();
      },
    );
    return card(
      `Due in the next ${words}`,
      choose,
      span === "week"
        ? heatMap({ id: "heat", bars: made, label, pick })
        : futureBars({ id: "future", bars: made, stepMs, label, pick }),
      h(
        "div",
        { class: "facts-line" },
        h("span", null, "In all ", h("b", null, count(total))),
        best.value > 0 &&
          h(
            "span",
            null,
            "Busiest ",
            h("b", null, `${span === "week" ? `${weekday(best.at)} ` : ""}${clock(best.at)}`),
            ` with ${count(best.value)}`,
          ),
        total > 0 &&
          h(
            "span",
            null,
            "Idle ",
            h("b", null, `${Math.round((100 * made.filter((bar) => !bar.value).length) / made.length)}%`),
            " of the time",
          ),
        forecast.known_until &&
          h(
            "span",
            { class: "warn-text" },
            "Counted until ",
            clock(Date.parse(forecast.known_until)),
            "; later bars may be higher",
          ),
      ),
    );
  }

  function tiles() {
    const now = history?.now ?? {},
      samples = history?.samples ?? [],
      last = samples.at(-2) ?? samples.at(-1);
    const perS = (/** @type {number} */ n) => short((n * 1_000) / history.step_ms);
    const due = forecast.spans.reduce((/** @type {number} */ sum, /** @type {any} */ each) => sum + each.due, 0);
    const dead = now.dead_events;
    return h(
      "div",
      { class: "tiles" },
      tile("Pending", now.pending === undefined ? "–" : short(now.pending), "not finished yet", context.link("events")),
      tile(
        "Overdue",
        count(forecast.overdue),
        forecast.oldest_overdue
          ? `oldest ${forecast.oldest_overdue.replace(/(\d[smh])\d+m?s$/, "$1")}`
          : "nothing waits",
        context.link("events", [], { until: new Date().toISOString() }),
        forecast.overdue > 0 ? "is-warn" : "",
      ),
      tile(
        `Due in a${span === "hour" ? "n" : ""} ${SPANS[span].words}`,
        short(due),
        "from the forecast",
        context.link("events"),
      ),
      tile("Scheduled", last ? `${perS(last.scheduled)}/s` : "–", "events coming in"),
      tile(
        "Delivered",
        last ? `${perS(last.delivered)}/s` : "–",
        last?.failed ? plural(last.failed, "failure") : "no failures",
      ),
      tile("Lateness", last?.late_p99_ms === undefined ? "–" : duration(last.late_p99_ms), "99% start within"),
      tile("In flight", count(now.in_flight), "under way now", context.link("targets")),
      tile("Dead", count(dead), dead ? "need a decision" : "none", context.link("dead"), dead ? "is-bad" : ""),
    );
  }

  function charts() {
    if (!history) return null;
    const samples = history.samples,
      at = samples.map((/** @type {any} */ each) => Date.parse(each.at)),
      stepMs = history.step_ms;
    const rate = (/** @type {string} */ name) =>
      samples.map((/** @type {any} */ each) => (each[name] * 1_000) / stepMs);
    const value = (/** @type {string} */ name) => samples.map((/** @type {any} */ each) => each[name] ?? null);
    const choose = segments(
      "Span of the charts",
      [
        ["minutes", "15 min"],
        ["hours", "24 h"],
      ],
      past,
      (chosen) => {
        past = chosen;
        context.reload();
      },
    );
    if (samples.length < 2)
      return card(
        "Lately",
        choose,
        empty("clock", "History begins now", h("span", null, "The nodes keep it in memory since they started.")),
      );
    const latest = (/** @type {(number | null)[]} */ values) => values.filter((each) => each !== null).at(-1) ?? null;
    const perS = (/** @type {number} */ n) => `${short(n)}/s`;
    const draw = (
      /** @type {string} */ id,
      /** @type {string} */ title,
      /** @type {[string, "a" | "b" | "c", (number | null)[]][]} */ given,
      /** @type {(n: number) => string} */ format,
      /** @type {any} */ tools,
    ) => {
      const lines = given.map(([name, kind, values]) => ({ name, kind, values }));
      const entries = lines.map(({ name, kind, values }) => {
        const end = latest(values);
        return { name, kind, value: end === null ? "–" : format(end) };
      });
      return card(
        title,
        tools,
        pastLines({
          id,
          at,
          stepMs,
          lines,
          format,
          label: `${title}: ${entries.map((each) => `${each.name} ${each.value}`).join(", ")}`,
        }),
        legend(entries),
      );
    };
    return h(
      "div",
      { class: "grid charts" },
      draw(
        "throughput",
        "Throughput",
        [
          ["scheduled", "a", rate("scheduled")],
          ["delivered", "b", rate("delivered")],
          ["failed", "c", rate("failed")],
        ],
        perS,
        choose,
      ),
      draw(
        "lateness",
        "Lateness",
        [
          ["p50", "a", value("late_p50_ms")],
          ["p99", "b", value("late_p99_ms")],
        ],
        (ms) => duration(ms),
        null,
      ),
      draw(
        "waiting",
        "Due and waiting",
        [
          ["waiting", "a", value("waiting")],
          ["in flight", "b", value("in_flight")],
        ],
        short,
        null,
      ),
    );
  }

  return {
    title: "Overview",
    load,
    view: () => [
      heading(
        "Overview",
        isEverything ? "All tenants of this server" : `Tenant ${context.tenant}`,
        mayBeAll &&
          segments(
            "Which tenants",
            [
              ["all", "All tenants"],
              ["one", context.tenant],
            ],
            isEverything ? "all" : "one",
            (value) => {
              isEverything = value === "all";
              forecastAt = 0;
              context.reload();
            },
          ),
      ),
      alerts.length > 0 &&
        h(
          "div",
          { class: "alerts" },
          alerts.map((alert) =>
            h(
              "div",
              { class: `alert ${alert.kind === "bad" ? "is-bad" : ""}` },
              icon(alert.kind === "bad" ? "dead" : "warning"),
              h(
                "div",
                null,
                h("strong", null, alert.title),
                h("p", null, alert.text, " ", alert.href && h("a", { href: alert.href }, alert.action ?? "Look")),
              ),
            ),
          ),
        ),
      tiles(),
      h(
        "div",
        { class: "stack" },
        future(),
        charts(),
        card(
          `Next up in ${context.tenant}`,
          h("a", { href: context.link("events") }, "All events"),
          next.length
            ? h(
                "ul",
                { class: "list" },
                next.map((each) =>
                  h(
                    "li",
                    { key: each.id },
                    status(each.status),
                    h("a", { class: "grow mono text", href: context.link("event", [each.id]) }, each.id),
                    h("span", { class: "grow muted wide-only text" }, each.to),
                    h("span", { class: "nowrap" }, time(each.next_attempt_at ?? each.at)),
                  ),
                ),
              )
            : empty(
                "clock",
                "Nothing is scheduled",
                context.can("schedule") &&
                  h(
                    "a",
                    { class: "button primary", href: context.link("schedule") },
                    icon("plus"),
                    "Schedule an event",
                  ),
              ),
        ),
      ),
    ],
  };
}

/** @param {string} label @param {string} value @param {string} note @param {string} [href] @param {string} [kind] */
function tile(label, value, note, href, kind = "") {
  return h(
    href ? "a" : "div",
    { class: `tile ${kind}`, href: href ?? null },
    h("div", { class: "label" }, label),
    h("div", { class: "value" }, value),
    h("div", { class: "note" }, note),
  );
}
