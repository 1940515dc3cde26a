/**
 * One action on many events: on those that are selected, or on all that match a search.
 *
 * The server does the work, page by page, so that the progress is real and the user can stop between two pages. A
 * repeated page does no harm: cancelled and redriven events leave the search, and moved events are named by version.
 */

import { call, get, inTenant, query } from "./api.js";
import { h } from "./dom.js";
import { ask, count, field, plural, toast, told } from "./parts.js";

const PAGE = 500;
const AT_A_TIME = 8;

/** @typedef {{id: string, version: number}} Named */
/** @typedef {{tenant: string, search: Record<string, string>, named: Named[] | null, total: number, isMore: boolean}} Selection */
/** @typedef {{verb: string, done: string, danger?: boolean, content?: () => HTMLElement, act: (selection: Selection, values: Record<string, string>, report: (done: number) => void, signal: AbortSignal) => Promise<number>}} Action */

/** @type {Record<string, Action>} */
export const ACTIONS = {
  cancel: {
    verb: "Cancel",
    done: "cancelled",
    danger: true,
    act: (selection, _, report, signal) => cancel(selection, "events", report, signal),
  },
  discard: {
    verb: "Discard",
    done: "discarded",
    danger: true,
    act: (selection, _, report, signal) => cancel(selection, "dead", report, signal),
  },
  deliver: {
    verb: "Deliver now",
    done: "made due",
    act: (selection, _, report, signal) =>
      each(selection, (tenant, event) => call("POST", inTenant(tenant, "events", event.id, "deliver")), report, signal),
  },
  move: {
    verb: "Move",
    done: "moved",
    content: () =>
      h(
        "div",
        { class: "fields" },
        field("Move by", h("input", { name: "by", placeholder: "2h, or -30m" }), "a duration later, or earlier"),
        field("or to", h("input", { name: "at", placeholder: "2026-11-20T10:00:00Z" }), "a time"),
      ),
    act: move,
  },
  redrive: {
    verb: "Redrive",
    done: "redriven",
    content: () =>
      field(
        "At a rate of",
        h("input", { name: "rate", type: "number", min: "0.01", step: "any", placeholder: "all at once" }),
        "events a second",
      ),
    act: redrive,
  },
};

/** @param {string} tenant @param {Record<string, string>} search @returns {Promise<{count: number, more: boolean}>} */
export function countMatching(tenant, search) {
  return get(inTenant(tenant, "count") + query(search));
}

/** Ask for confirmation with the count, then act and show the progress. @param {string} name @param {Selection} selection @param {() => void} after */
export function confirmAction(name, selection, after) {
  const action = /** @type {Action} */ (ACTIONS[name]);
  const number = `${count(selection.total)}${selection.isMore ? " or more" : ""} ${selection.total === 1 ? "event" : "events"}`;
  ask({
    title: `${action.verb} ${number}?`,
    text: selection.named
      ? "The selected events."
      : `All events of tenant ${selection.tenant} that match${
          Object.keys(selection.search).length
            ? `: ${Object.entries(selection.search)
                .map(([field, value]) => `${field} ${value}`)
                .join(", ")}`
            : " (every pending event)"
        }.`,
    content: action.content?.(),
    action: `${action.verb} ${number}`,
    danger: action.danger ?? false,
    submit: async (values) => {
      if (name === "move" && Boolean(values["by"]) === Boolean(values["at"]))
        throw new Error("Give one of the two: a duration or a time.");
      progress(action, selection, values, after);
    },
  });
}

/** @param {Action} action @param {Selection} selection @param {Record<string, string>} values @param {() => void} after */
async function progress(action, selection, values, after) {
  const stop = new AbortController();
  const bar = /** @type {HTMLProgressElement} */ (
    h("progress", { max: String(Math.max(selection.total, 1)), "aria-label": "Progress" })
  );
  const line = h("p", { class: "muted", role: "status" }, "Begins…");
  const dialog = /** @type {HTMLDialogElement} */ (
    h(
      "dialog",
      { "aria-label": action.verb },
      h(
        "form",
        { method: "dialog" },
        h("h2", null, `${action.verb}…`),
        bar,
        line,
        h("footer", null, h("button", { type: "button", onclick: () => stop.abort() }, "Stop")),
      ),
    )
  );
  dialog.addEventListener("cancel", (event) => {
    event.preventDefault();
    stop.abort();
  });
  document.body.append(dialog);
  dialog.showModal();
  const report = (/** @type {number} */ done) => {
    bar.value = done;
    line.textContent = `${count(done)} of ${count(selection.total)} ${action.done}`;
  };
  try {
    const done = await action.act(selection, values, report, stop.signal);
    toast(
      `${plural(done, "event")} ${action.done}${stop.signal.aborted ? "; stopped" : ""}${done < selection.total && !stop.signal.aborted ? `; ${count(selection.total - done)} had changed meanwhile` : ""}`,
    );
  } catch (error) {
    toast(told(error), "bad");
  } finally {
    dialog.close();
    dialog.remove();
    after();
  }
}

/** The pages of a search, one after the other. @param {Selection} selection @param {AbortSignal} signal */
async function* pages(selection, signal) {
  if (selection.named) {
    for (let start = 0; start < selection.named.length && !signal.aborted; start += PAGE)
      yield selection.named.slice(start, start + PAGE);
    return;
  }
  let cursor;
  do {
    /** @type {{events: Named[], cursor?: string}} */
    const page = await call(
      "GET",
      inTenant(selection.tenant, "events") + query({ ...selection.search, limit: PAGE, cursor }),
    );
    yield page.events;
    cursor = page.cursor;
  } while (cursor && !signal.aborted);
}

/** Call something for each event, a few at a time. @param {Selection} selection @param {(tenant: string, event: Named) => Promise<any>} act @param {(done: number) => void} report @param {AbortSignal} signal */
async function each(selection, act, report, signal) {
  let done = 0;
  for await (const page of pages(selection, signal)) {
    const left = [...page];
    const work = async () => {
      for (let event = left.shift(); event && !signal.aborted; event = left.shift()) {
        try {
          await act(selection.tenant, event);
          report(++done);
        } catch (error) {
          // The event ended or changed since it was listed.
          const status = /** @type {any} */ (error).status;
          if (status !== 404 && status !== 409 && status !== 412) throw error;
        }
      }
    };
    await Promise.all(Array.from({ length: AT_A_TIME }, work));
  }
  return done;
}

/** @param {Selection} selection @param {"events" | "dead"} where @param {(done: number) => void} report @param {AbortSignal} signal */
async function cancel(selection, where, report, signal) {
  const { status, ...rest } = selection.search;
  const isWhole = where === "dead" || (!status && Object.keys(rest).length > 0);
  if (selection.named || !isWhole)
    return each(selection, (tenant, event) => call("DELETE", inTenant(tenant, "events", event.id)), report, signal);
  let done = 0,
    cursor;
  do {
    /** @type {{cancelled: number, cursor?: string}} */
    const page = await call("DELETE", inTenant(selection.tenant, where) + query({ ...rest, limit: PAGE, cursor }));
    report((done += page.cancelled));
    cursor = page.cursor;
  } while (cursor && !signal.aborted);
  return done;
}

/** @param {Selection} selection @param {Record<string, string>} values @param {(done: number) => void} report @param {AbortSignal} signal */
async function move(selection, values, report, signal) {
  const when = values["by"] ? { by: values["by"] } : { at: new Date(values["at"] ?? "").toISOString() };
  // A moved event may come up again on a later page. The list is complete before the first event moves.
  const all = [];
  for await (const page of pages(selection, signal)) all.push(...page);
  let done = 0;
  for (let start = 0; start < all.length && !signal.aborted; start += PAGE) {
    const events = all.slice(start, start + PAGE).map(({ id, version }) => ({ id, version }));
    done += (await call("PATCH", inTenant(selection.tenant, "events"), { body: { ...when, events } })).rescheduled;
    report(done);
  }
  return done;
}

/** @param {Selection} selection @param {Record<string, string>} values @param {(done: number) => void} report @param {AbortSignal} signal */
async function redrive(selection, values, report, signal) {
  const rate = Number(values["rate"] || 0);
  const path = inTenant(selection.tenant, "dead", "redrive");
  const { status: _, attempts, ...rest } = selection.search;
  // A rate is kept over all events, so one request names them all.
  if (rate && selection.named)
    return (await call("POST", path, { body: { ids: selection.named.map((event) => event.id), rate } })).redriven;
  if (rate) {
    const body = { all: true, ...rest, ...(attempts ? { attempts: Number(attempts) } : {}), rate };
    return (await call("POST", path, { body })).redriven;
  }
  let done = 0;
  for await (const page of pages(selection, signal)) {
    if (page.length)
      report((done += (await call("POST", path, { body: { ids: page.map((event) => event.id) } })).redriven));
  }
  return done;
}
