/** Dead events, grouped by target and reason, with redrive. */

import { get, getIfPossible, inTenant, query } from "./api.js";
import { confirmAction, countMatching } from "./bulk.js";
import { h } from "./dom.js";
import { icon } from "./icons.js";
import { count, empty, flushCard, heading, plural, table, tell } from "./parts.js";
import { time } from "./time.js";

const LISTED = 1_000;
const EVERY_MS = 5_000;

/** @typedef {{to: string, reason: string, count: number, example: string, latest: string}} Group */

/** @param {import("./pages.js").Context} context @returns {import("./pages.js").View} */
export function dead(context) {
  /** @type {Group[]} */ let groups = [];
  /** @type {number} */ let counted = 0;
  let isMore = false;

  /** @param {AbortSignal} signal */
  async function load(signal) {
    const answer = await getIfPossible(inTenant(context.tenant, "dead", "groups"), signal);
    if (answer) [groups, counted, isMore] = [answer.groups, answer.counted, answer.more];
    else await groupHere(signal);
  }

  /** Group the first events here, for a node that does not group them. @param {AbortSignal} signal */
  async function groupHere(signal) {
    const page = await get(inTenant(context.tenant, "dead") + query({ limit: LISTED }), signal);
    /** @type {Map<string, Group>} */
    const found = new Map();
    for (const event of page.events) {
      const to = targetGroup(event.to),
        reason = event.reason ?? "",
        name = `${to}\n${reason}`;
      const group = found.get(name) ?? { to, reason, count: 0, example: event.id, latest: event.at };
      group.count++;
      if (event.at > group.latest) group.latest = event.at;
      found.set(name, group);
    }
    groups = [...found.values()].sort((a, b) => b.count - a.count);
    [counted, isMore] = [page.events.length, Boolean(page.cursor)];
  }

  /** @param {string} action @param {Group | null} group */
  async function begin(action, group) {
    const search = { status: "dead", ...(group ? { to: group.to } : {}) };
    if (!group) {
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
      return;
    }
    // A group is a target and a reason. The server searches by target, so the events of this reason are named.
    /** @type {{id: string, version: number}[]} */
    const named = [];
    let cursor;
    do {
      /** @type {any} */
      const page = await get(inTenant(context.tenant, "dead") + query({ limit: LISTED, cursor }));
      named.push(
        ...page.events.filter(
          (/** @type {any} */ each) =>
            (targetGroup(each.to) === group.to || each.to.startsWith(`${group.to}/`)) &&
            (each.reason ?? "") === group.reason,
        ),
      );
      cursor = page.cursor;
    } while (cursor && named.length < group.count);
    confirmAction(
      action,
      { tenant: context.tenant, search, named, total: named.length, isMore: false },
      context.reload,
    );
  }

  /** @param {Group} group */
  function row(group) {
    return h(
      "tr",
      { key: `${group.to}\n${group.reason}` },
      h("td", { class: "number" }, h("strong", null, count(group.count))),
      h("td", null, h("span", { class: "clip", title: group.to }, group.to)),
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

/** The part of a target that stands for its receiver, with its port. @param {string} to */
function targetGroup(to) {
  const url = /^(https?):\/\/([^/?#]+)/.exec(to);
  if (!url) return to;
  const [, scheme, host = ""] = url;
  return `${scheme}://${/:\d+$/.test(host) ? host : `${host}:${scheme === "https" ? 443 : 80}`}`;
}
