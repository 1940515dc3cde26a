/** Dead events, grouped by target and reason, with redrive. */

import { get, inTenant } from "./api.js";
import { confirmAction, countMatching } from "./bulk.js";
import { h } from "./dom.js";
import { icon } from "./icons.js";
import { count, empty, flushCard, heading, plural, table, tell } from "./parts.js";
import { time } from "./time.js";

// Grouping reads many events, so the page asks for it less often than for other figures.
const EVERY_MS = 10_000;

/** @typedef {{target: string, reason: string, count: number, example: string, latest: string}} Group */

/** @param {import("./pages.js").Context} context @returns {import("./pages.js").View} */
export function dead(context) {
  /** @type {Group[]} */ let groups = [];
  /** @type {number} */ let counted = 0;
  let isMore = false;

  /** @param {AbortSignal} signal */
  async function load(signal) {
    const answer = await get(inTenant(context.tenant, "dead", "groups"), signal);
    [groups, counted, isMore] = [answer.groups, answer.counted, answer.more];
  }

  /** @param {string} action @param {Group | null} group */
  async function begin(action, group) {
    const search = { status: "dead", ...(group ? { target: group.target, reason: group.reason } : {}) };
    const all = await tell(
      () => countMatching(context.tenant, search),
      (result) => plural(result.count, "dead event"),
    );
    if (all)
      confirmAction(
        action,
        { tenant: context.tenant, search, named: null, total: all.count, isMore: all.more },
        context.reload,
      );
  }

  /** @param {Group} group */
  function row(group) {
    return h(
      "tr",
      { key: `${group.target}\n${group.reason}` },
      h("td", { class: "number" }, h("strong", null, count(group.count))),
      h("td", null, h("span", { class: "clip", title: group.target }, group.target)),
      h("td", null, h("span", { class: "text" }, group.reason.slice(0, 300) || "–")),
      h("td", { class: "nowrap wide-only" }, time(group.latest)),
      h(
        "td",
        { class: "wide-only" },
        h("a", { class: "mono clip", href: context.link("event", [group.example]) }, group.example),
      ),
      h(
        "td",
        { class: "number" },
        context.can("schedule") && [
          h("button", { type: "button", onclick: () => begin("redrive", group) }, icon("repeat"), "Redrive…"),
          " ",
          h("button", { type: "button", class: "danger", onclick: () => begin("discard", group) }, "Discard…"),
        ],
      ),
    );
  }

  return {
    title: "Dead events",
    load,
    every: EVERY_MS,
    view: () => [
      heading(
        "Dead events",
        "They used up their attempts or were refused. They wait for a decision: a new set of attempts, or the end.",
        groups.length > 0 &&
          context.can("schedule") && [
            h(
              "button",
              { type: "button", class: "primary", onclick: () => begin("redrive", null) },
              icon("repeat"),
              "Redrive all…",
            ),
            h("button", { type: "button", class: "danger", onclick: () => begin("discard", null) }, "Discard all…"),
            h("a", { class: "button", href: context.link("events", [], { status: "dead" }) }, "List them"),
          ],
      ),
      flushCard(
        groups.length
          ? `${plural(groups.length, "group")} of ${plural(counted, "event")}${isMore ? " or more" : ""}`
          : null,
        null,
        groups.length
          ? table(
              [
                ["Events", "number"],
                ["Target"],
                ["Reason"],
                ["Latest", "wide-only"],
                ["For example", "wide-only"],
                ["", "number"],
              ],
              groups.map(row),
              "Groups of dead events",
            )
          : empty(
              "check",
              "No dead events",
              h("span", null, "Everything that was due has been delivered, or is still being tried."),
            ),
      ),
    ],
  };
}
