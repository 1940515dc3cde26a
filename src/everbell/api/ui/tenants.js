/** All tenants, with the numbers of their events. */

import { get } from "./api.js";
import { h } from "./dom.js";
import { ask, badge, count, empty, field, flushCard, heading, table } from "./parts.js";

/** Ask for a tenant by name. @param {(name: string) => void} enter */
export function askTenant(enter) {
  ask({
    title: "Open a tenant",
    text: "A tenant exists from its first event or policy on.",
    content: field(
      "Name",
      h("input", { name: "name", required: true, pattern: "[A-Za-z0-9][A-Za-z0-9._\\-]{0,63}" }),
    ),
    action: "Open it",
    submit: async (values) => enter(values["name"] ?? "default"),
  });
}

/** @param {import("./pages.js").Context} context @returns {import("./pages.js").View} */
export function tenants(context) {
  /** @type {any[]} */ let found = [];

  /** @param {string} name @param {string} page */
  function enter(name, page) {
    context.chooseTenant(name);
    context.go(page);
  }

  return {
    title: "Tenants",
    every: 4_000,
    load: async (signal) => {
      found = (await get("/v1/tenants", signal)).tenants;
    },
    view: () => [
      heading(
        "Tenants",
        "Those with events, a policy of their own, or a pause.",
        h(
          "button",
          {
            type: "button",
            onclick: () => askTenant((name) => enter(name, "tenant")),
          },
          "Open another…",
        ),
      ),
      flushCard(
        null,
        null,
        found.length
          ? table(
              [["Tenant"], ["Pending", "number"], ["Dead", "number"], ["Policy"], ["Pauses"], ["", "number"]],
              found.map((each) =>
                h(
                  "tr",
                  { key: each.name },
                  h("td", null, h("strong", { class: "text" }, each.name)),
                  h("td", { class: "number" }, count(each.pending)),
                  h("td", { class: "number" }, each.dead ? h("span", { class: "bad-text" }, count(each.dead)) : "0"),
                  h(
                    "td",
                    null,
                    each.version
                      ? badge(`version ${each.version}`, "accent")
                      : h("span", { class: "faint" }, "settings"),
                  ),
                  h(
                    "td",
                    null,
                    each.pauses
                      ? badge(`${each.pauses} paused`, "warn", "pause")
                      : h("span", { class: "faint" }, "none"),
                  ),
                  h(
                    "td",
                    { class: "number" },
                    h("button", { type: "button", onclick: () => enter(each.name, "events") }, "Events"),
                    " ",
                    h("button", { type: "button", onclick: () => enter(each.name, "tenant") }, "Policy"),
                  ),
                ),
              ),
              "Tenants",
            )
          : empty("tenant", "No tenants yet"),
      ),
    ],
  };
}
