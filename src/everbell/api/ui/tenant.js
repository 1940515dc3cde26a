/** One tenant: the policy in force with the source of each value, its quotas, and its pauses. */

import { call, get, getIfPossible, inTenant } from "./api.js";
import { h } from "./dom.js";
import { ask, badge, card, count, empty, field, flushCard, heading, table, toast } from "./parts.js";
import { askPause, resume } from "./pauses.js";
import { time } from "./time.js";

const SOURCES = /** @type {Record<string, [string, string]>} */ ({
  document: ["set here", "accent"],
  settings: ["server's settings", "info"],
  default: ["default", "calm"],
});
const ABOUT = /** @type {Record<string, string>} */ ({
  to: "the target of events that name none",
  retry: "how failed attempts are repeated",
  on_dead: "whether a dead event blocks its key",
  dead_letter_to: "where copies of dead events go",
  retention: "how long finished events are kept",
  timeout: "of an attempt",
  lease: "how long a worker holds an event",
  in_flight: "attempts at a time, per target",
  rate: "attempts a second, per target",
  breaker: "when a failing target is left alone",
  batch: "events in one delivery",
  mode: "the form of deliveries",
  consistency: "of the store",
  secrets: "that sign deliveries",
  limits: "the largest of everything",
});

/** @param {import("./pages.js").Context} context @returns {import("./pages.js").View} */
export function tenant(context) {
  /** @type {any} */ let found = null;
  /** @type {{pending: number, dead: number} | null} */ let line = null;
  const path = inTenant(context.tenant);
  const mayEdit = () => context.can("admin", "*") && context.caller.tenant === "*";

  /** @param {AbortSignal} signal */
  async function load(signal) {
    found = await get(path, signal);
    const listed = context.can("admin", "*") ? await getIfPossible("/v1/tenants", signal) : null;
    line = listed?.tenants.find((/** @type {any} */ each) => each.name === context.tenant) ?? null;
  }

  /** The fields that the document sets. */
  function documentOf() {
    return Object.fromEntries(Object.entries(found.policy).filter(([name]) => found.sources[name] === "document"));
  }

  function edit() {
    const version = found.version,
      sample = Object.keys(documentOf()).length ? documentOf() : { retention: found.policy.retention };
    ask({
      title: `Policy of ${context.tenant}`,
      text: version
        ? `You edit version ${version}. If another person changes it meanwhile, yours is refused.`
        : "It has no policy of its own yet. Fields that you leave out follow the server's settings.",
      content: field(
        "Fields to set",
        h("textarea", { name: "document", rows: "14", spellcheck: "false", value: JSON.stringify(sample, null, 2) }),
        "JSON",
      ),
      action: "Save",
      submit: async (values) => {
        await call("PUT", path, { body: JSON.parse(values["document"] ?? "{}"), ...(version ? { version } : {}) });
        toast("The policy is in force on every node within a moment");
        context.reload();
      },
    });
  }

  function quotas() {
    const { pending, rate } = found.policy.limits;
    const meter =
      line && pending
        ? h(
            "div",
            {
              class: "meter",
              role: "img",
              "aria-label": `${Math.round((100 * line.pending) / pending)}% of the quota is used`,
            },
            h("span", { style: { width: `${Math.min(100, (100 * line.pending) / pending)}%` } }),
          )
        : null;
    return card(
      "Quotas",
      null,
      h(
        "dl",
        { class: "facts" },
        h("dt", null, "Pending events"),
        h("dd", null, line ? count(line.pending) : "–", pending ? ` of ${count(pending)}` : ", no limit", meter),
        h("dt", null, "Scheduled a second"),
        h("dd", null, rate ? `up to ${count(rate)}` : "no limit"),
        h("dt", null, "Dead events"),
        h("dd", null, line ? h("a", { href: context.link("dead") }, count(line.dead)) : "–"),
      ),
    );
  }

  function pauses() {
    const listed = found.pauses ?? [];
    return flushCard(
      "Pauses",
      context.can("admin") &&
        h(
          "span",
          { class: "actions" },
          h("button", { type: "button", onclick: () => askPause(context, "target", null) }, "Pause…"),
        ),
      listed.length
        ? table(
            [["What"], ["Note"], ["Since"], ["Until"], ["", "number"]],
            listed.map((/** @type {any} */ each) =>
              h(
                "tr",
                { key: `${each.what}\n${each.name ?? ""}` },
                h(
                  "td",
                  null,
                  badge(each.what, "warn", "pause"),
                  " ",
                  h("span", { class: "text" }, each.name ?? context.tenant),
                ),
                h("td", { class: "text" }, each.note ?? "–", h("div", { class: "small faint" }, `by ${each.by}`)),
                h("td", null, time(each.since)),
                h("td", null, each.until ? time(each.until) : "resumed by hand"),
                h(
                  "td",
                  { class: "number" },
                  context.can("admin") &&
                    h(
                      "button",
                      { type: "button", onclick: () => resume(context, each.what, each.name ?? null) },
                      "Resume",
                    ),
                ),
              ),
            ),
            "Pauses",
          )
        : empty("play", "Nothing is paused"),
    );
  }

  function policy() {
    const rows = Object.entries(found.policy).map(([name, value]) => {
      const [words, kind] = SOURCES[found.sources[name]] ?? [found.sources[name], "calm"];
      return h(
        "tr",
        { key: name },
        h("td", null, h("code", null, name), h("div", { class: "small faint" }, ABOUT[name] ?? "")),
        h("td", null, shown(value)),
        h("td", null, badge(words, kind)),
      );
    });
    return flushCard(
      "Policy in force",
      mayEdit() &&
        h(
          "span",
          { class: "actions" },
          h("button", { type: "button", class: "primary", onclick: edit }, "Edit…"),
          found.version > 0 &&
            h(
              "button",
              {
                type: "button",
                class: "danger",
                onclick: () =>
                  ask({
                    title: "Delete this policy?",
                    text: "The server's settings apply again. Events stay as they are.",
                    action: "Delete it",
                    danger: true,
                    submit: () => call("DELETE", path, { version: found.version }).then(context.reload),
                  }),
              },
              "Delete…",
            ),
        ),
      table([["Field"], ["Value"], ["Source"]], rows, "Policy"),
    );
  }

  return {
    title: "Policy and pauses",
    load,
    every: 4_000,
    view: () => [
      heading(
        `Tenant ${context.tenant}`,
        found.version ? `Policy version ${found.version}` : "It has no policy of its own.",
      ),
      h(
        "div",
        { class: "grid wide" },
        h("div", { class: "stack" }, policy()),
        h("div", { class: "stack" }, quotas(), pauses()),
      ),
    ],
  };
}

/** @param {any} value */
function shown(value) {
  if (value === null || (Array.isArray(value) && !value.length)) return h("span", { class: "faint" }, "none");
  if (Array.isArray(value)) return value.map((each) => h("div", { class: "mono text" }, String(each)));
  if (typeof value !== "object") return h("span", { class: "text" }, String(value));
  return h(
    "dl",
    { class: "facts small" },
    Object.entries(value).map(([name, each]) => [
      h("dt", null, name),
      h("dd", null, each === null ? "none" : String(each)),
    ]),
  );
}
