/** The list of events: filters in the address, pages by cursor, and actions on many. */

import { get, inTenant, query } from "./api.js";
import { confirmAction, countMatching } from "./bulk.js";
import { h } from "./dom.js";
import { chosen, filterBar } from "./filters.js";
import { count, empty, flushCard, heading, plural, segments, status, table, tell } from "./parts.js";
import { time } from "./time.js";

/** @typedef {import("./pages.js").Context} Context */

const PAGE = 50;
/** How many tags of an event are shown in its row. */
const TAGS = 2;
const STATUSES = /** @type {const} */ ([
  ["", "Pending"],
  ["scheduled", "Scheduled"],
  ["retrying", "Retrying"],
  ["waiting", "Waiting"],
  ["delivering", "Delivering"],
  ["paused", "Paused"],
  ["dead", "Dead"],
  ["delivered", "Delivered"],
  ["cancelled", "Cancelled"],
  ["expired", "Expired"],
]);
const FINISHED = new Set(["delivered", "cancelled", "expired"]);

/** @param {Context} context @returns {import("./pages.js").View} */
export function events(context) {
  /** @type {any[]} */ let found = [];
  /** @type {string | undefined} */ let following;
  /** @type {Map<string, {id: string, version: number}>} */ const selected = new Map();
  /** @type {{count: number, more: boolean} | null} */ let matching = null;
  let last = "";

  const search = () => chosen(context.params, ["status"]);
  const isFinished = () => FINISHED.has(search()["status"] ?? "");
  const actions = () =>
    !context.can("schedule") || isFinished()
      ? []
      : search()["status"] === "dead"
        ? ["redrive", "discard"]
        : ["deliver", "move", "cancel"];

  /** @param {AbortSignal} signal */
  async function load(signal) {
    const asked = query({ ...search(), limit: PAGE, cursor: context.params.get("cursor") });
    if (asked !== last) clear();
    last = asked;
    const page = await get(inTenant(context.tenant, "events") + asked, signal);
    found = page.events;
    following = page.cursor;
  }

  function clear() {
    selected.clear();
    matching = null;
  }

  /** @param {Record<string, string>} fields */
  function change(fields) {
    context.go("events", [], fields);
  }

  /** @param {any} event */
  function toggle(event) {
    matching = null;
    if (!selected.delete(event.id)) selected.set(event.id, { id: event.id, version: event.version });
    context.update();
  }

  function toggleAll() {
    const isAll = found.every((event) => selected.has(event.id));
    clear();
    if (!isAll) for (const event of found) selected.set(event.id, { id: event.id, version: event.version });
    context.update();
  }

  async function selectMatching() {
    const counted = await tell(
      () => countMatching(context.tenant, search()),
      (result) => `${plural(result.count, "event matches", "events match")}`,
    );
    if (counted) matching = counted;
    context.update();
  }

  /** @param {string} name */
  function begin(name) {
    const named = matching ? null : [...selected.values()];
    confirmAction(
      name,
      {
        tenant: context.tenant,
        search: search(),
        named,
        total: matching?.count ?? selected.size,
        isMore: matching?.more ?? false,
      },
      () => {
        clear();
        context.reload();
      },
    );
  }

  function bulkBar() {
    if (!selected.size) return null;
    const names = {
      cancel: "Cancel…",
      move: "Move…",
      deliver: "Deliver now…",
      redrive: "Redrive…",
      discard: "Discard…",
    };
    return h(
      "div",
      { class: "bulk", role: "region", "aria-label": "Actions on the selection" },
      h(
        "strong",
        null,
        matching
          ? `All ${count(matching.count)}${matching.more ? "+" : ""} matching events`
          : `${plural(selected.size, "event")} selected`,
      ),
      !matching &&
        following &&
        selected.size === found.length &&
        h("button", { type: "button", class: "plain", onclick: selectMatching }, "Select all matching"),
      h(
        "span",
        { class: "actions" },
        actions().map((name) =>
          h(
            "button",
            {
              type: "button",
              class: name === "cancel" || name === "discard" ? "danger" : "",
              onclick: () => begin(name),
            },
            names[/** @type {keyof typeof names} */ (name)],
          ),
        ),
      ),
      h(
        "button",
        {
          type: "button",
          class: "plain",
          onclick: () => {
            clear();
            context.update();
          },
        },
        "Clear the selection",
      ),
    );
  }

  /** @param {any} event */
  function row(event) {
    const tags = /** @type {string[]} */ (event.tags ?? []);
    return h(
      "tr",
      { key: event.id, class: selected.has(event.id) ? "is-selected" : "", tabindex: "-1", "data-id": event.id },
      actions().length > 0 &&
        h(
          "td",
          { class: "check-cell" },
          h("input", {
            type: "checkbox",
            checked: selected.has(event.id),
            "aria-label": `Select ${event.id}`,
            onchange: () => toggle(event),
          }),
        ),
      h("td", null, status(event.status)),
      h(
        "td",
        { class: "lead" },
        h("a", { class: "mono clip", href: context.link("event", [event.id]), title: event.id }, event.id),
      ),
      h("td", { class: "nowrap" }, time(event.finished_at ?? event.next_attempt_at ?? event.at)),
      h("td", { class: "wide-only" }, h("span", { class: "clip", title: event.to }, event.to)),
      h(
        "td",
        { class: "wide-only" },
        event.key
          ? h(
              "a",
              { class: "clip", href: context.link("events", [], { ...search(), key: event.key }), title: event.key },
              event.key,
            )
          : h("span", { class: "faint" }, "–"),
      ),
      h(
        "td",
        { class: "wide-only nowrap" },
        tags.slice(0, TAGS).map((tag) =>
          h("a", { class: "tag", href: context.link("events", [], { ...search(), tag }) }, tag),
        ),
        tags.length > TAGS &&
          h("span", { class: "faint small", title: tags.slice(TAGS).join(", ") }, `+${tags.length - TAGS}`),
      ),
      h("td", { class: "number" }, event.attempt_count || h("span", { class: "faint" }, "0")),
    );
  }

  /** @param {KeyboardEvent} press */
  function key(press) {
    const rows = /** @type {HTMLElement[]} */ ([...document.querySelectorAll("tbody tr[data-id]")]);
    const at = rows.findIndex((each) => each.contains(document.activeElement));
    if (press.key === "j" || press.key === "k")
      rows[Math.min(Math.max(at + (press.key === "j" ? 1 : -1), 0), rows.length - 1)]?.focus();
    else if (press.key === "x" && at >= 0 && actions().length) toggle(found[at]);
    else if (press.key === "Enter" && document.activeElement === rows[at]) context.go("event", [found[at].id]);
  }

  function list() {
    const selectAll = () =>
      h("input", {
        type: "checkbox",
        "aria-label": "Select all on this page",
        checked: found.every((event) => selected.has(event.id)),
        indeterminate: selected.size > 0 && !found.every((event) => selected.has(event.id)),
        onchange: toggleAll,
      });
    const columns = /** @type {[import("./dom.js").Child, string?][]} */ ([
      ...(actions().length ? [[selectAll(), "check-cell"]] : []),
      ["Status"],
      ["Id"],
      [isFinished() ? "Ended" : "Due"],
      ["Target", "wide-only"],
      ["Key", "wide-only"],
      ["Tags", "wide-only"],
      ["Attempts", "number"],
    ]);
    if (!found.length)
      return empty(
        "events",
        "No events match",
        context.params.get("cursor")
          ? h("span", null, "This page is empty; the search goes on.")
          : h("span", null, "Nothing of this tenant fits these filters."),
      );
    return table(columns, found.map(row), "Events");
  }

  return {
    title: "Events",
    load,
    key,
    isHeld: () => selected.size > 0,
    view: () => [
      heading(
        "Events",
        h(
          "span",
          { class: "wide-only" },
          "Keys: ",
          h("kbd", null, "j"),
          " ",
          h("kbd", null, "k"),
          " move, ",
          h("kbd", null, "x"),
          " selects, ",
          h("kbd", null, "Enter"),
          " opens.",
        ),
      ),
      flushCard(
        null,
        null,
        h(
          "div",
          { class: "filters" },
          segments("Status", STATUSES, /** @type {any} */ (search()["status"] ?? ""), (value) => {
            const { status: _, ...rest } = search();
            change(value ? { ...rest, status: value } : rest);
          }),
          filterBar(search(), change),
        ),
        bulkBar(),
        list(),
        h(
          "div",
          { class: "pager" },
          h("span", null, plural(found.length, "event"), " on this page", following ? "; there are more" : ""),
          h(
            "span",
            { class: "actions" },
            context.params.get("cursor") &&
              h("button", { type: "button", onclick: () => change(search()) }, "First page"),
            following &&
              h(
                "button",
                { type: "button", onclick: () => change({ ...search(), cursor: /** @type {string} */ (following) }) },
                "Next page",
              ),
          ),
        ),
      ),
    ],
  };
}
