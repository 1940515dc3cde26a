/** Access keys, and the latest lines of the audit log. */

import { call, get, getIfPossible } from "./api.js";
import { h } from "./dom.js";
import { ask, badge, copy, empty, field, flushCard, heading, reveal, segments, table } from "./parts.js";
import { time } from "./time.js";

const SCOPES = /** @type {const} */ ([
  ["read", "look at events"],
  ["schedule", "make, change and cancel events"],
  ["work", "lease events from queues"],
  ["admin", "all of these, and policies and pauses"],
]);

/** @param {import("./pages.js").Context} context @returns {import("./pages.js").View} */
export function access(context) {
  /** @type {any[]} */ let keys = [];
  /** @type {any} */ let audit = null;
  /** @type {"valid" | "all"} */ let which = "valid";

  /** @param {AbortSignal} signal */
  async function load(signal) {
    keys = (await get("/v1/keys", signal)).keys;
    audit = await getIfPossible("/v1/audit", signal);
  }

  function create() {
    const isFirst = !keys.some((key) => !key.revoked_at);
    ask({
      title: "Create an access key",
      text: isFirst
        ? "The first key has to be an operator's: all tenants, with the scope admin. From then on, every request needs a key."
        : "Its text is shown once.",
      content: h(
        "div",
        { class: "stack" },
        field(
          "Tenant",
          h("input", { name: "tenant", required: true, value: isFirst ? "*" : context.tenant }),
          "* for all tenants",
        ),
        h(
          "div",
          null,
          SCOPES.map(([scope, about]) =>
            h(
              "label",
              { class: "check" },
              h("input", {
                type: "checkbox",
                name: `scope-${scope}`,
                checked: isFirst ? scope === "admin" : scope === "read",
              }),
              h("strong", null, scope),
              h("span", { class: "muted small" }, about),
            ),
          ),
        ),
        field("Note", h("input", { name: "note", maxlength: "200", placeholder: "who holds it" })),
      ),
      action: "Create it",
      submit: async (values) => {
        const scopes = SCOPES.map(([scope]) => scope).filter((scope) => values[`scope-${scope}`]);
        const made = await call("POST", "/v1/keys", {
          body: { tenant: values["tenant"], scopes, note: values["note"] ?? "" },
        });
        reveal(
          "The new key",
          h("p", null, "Copy it now. It cannot be shown again."),
          h("pre", { class: "code text", tabindex: "0" }, made.key),
          h("p", null, h("button", { type: "button", onclick: () => copy(made.key, "the key") }, "Copy")),
        );
        context.reload();
      },
    });
  }

  /** @param {any} key */
  function row(key) {
    return h(
      "tr",
      { key: key.id },
      h("td", null, h("code", null, key.id), key.id === context.caller.id && h("span", { class: "faint" }, " (yours)")),
      h("td", null, key.tenant === "*" ? "all tenants" : key.tenant),
      h(
        "td",
        null,
        key.scopes.map((/** @type {string} */ scope) => h("span", { class: "tag" }, scope)),
      ),
      h("td", { class: "text" }, key.note || h("span", { class: "faint" }, "–")),
      h("td", { class: "nowrap wide-only" }, time(key.created_at)),
      h("td", null, key.revoked_at ? badge("revoked", "calm", "cross") : badge("valid", "good", "check")),
      h(
        "td",
        { class: "number" },
        !key.revoked_at &&
          h(
            "button",
            {
              type: "button",
              class: "danger",
              onclick: () =>
                ask({
                  title: `Revoke ${key.id}?`,
                  text: `${key.note ? `${key.note}. ` : ""}Requests with it are refused at once, on every node. It cannot become valid again.`,
                  action: "Revoke it",
                  danger: true,
                  submit: () => call("DELETE", `/v1/keys/${encodeURIComponent(key.id)}`).then(context.reload),
                }),
            },
            "Revoke…",
          ),
      ),
    );
  }

  function auditCard() {
    if (!audit) return null;
    return flushCard(
      "Audit log",
      h("span", { class: "muted small" }, audit.extent === "off" ? "switched off" : "the latest entries of this node"),
      audit.lines.length
        ? table(
            [["When"], ["Caller"], ["Operation"], ["Tenant", "wide-only"], ["About"], ["Status", "number"]],
            audit.lines.map((/** @type {any} */ line, /** @type {number} */ index) =>
              h(
                "tr",
                { key: `${line.at}${index}` },
                h("td", { class: "nowrap" }, time(line.at)),
                h("td", null, h("code", null, line.who)),
                h("td", null, line.operation),
                h("td", { class: "wide-only" }, line.tenant ?? "–"),
                h("td", null, h("span", { class: "clip", title: line.subject ?? "" }, line.subject ?? "–")),
                h(
                  "td",
                  { class: "number" },
                  badge(String(line.status), line.status < 400 ? "good" : "bad", line.status < 400 ? "check" : "cross"),
                ),
              ),
            ),
            "Audit log",
          )
        : empty(
            "key",
            "No entries yet",
            h("span", null, audit.extent === "off" ? "The server runs with --audit off." : "Changes appear here."),
          ),
    );
  }

  return {
    title: "Access keys",
    load,
    every: 4_000,
    view: () => {
      const shown = keys.filter((key) => which === "all" || !key.revoked_at);
      return [
        heading(
          "Access keys",
          keys.length ? "Every request needs one of these keys." : "There are no keys: every caller may do everything.",
          h("button", { type: "button", class: "primary", onclick: create }, "Create a key…"),
        ),
        h(
          "div",
          { class: "stack" },
          flushCard(
            "Keys",
            segments(
              "Which keys",
              [
                ["valid", "Valid"],
                ["all", "All"],
              ],
              which,
              (value) => {
                which = value;
                context.update();
              },
            ),
            shown.length
              ? table(
                  [["Id"], ["Tenant"], ["Scopes"], ["Note"], ["Created", "wide-only"], ["State"], ["", "number"]],
                  shown.map(row),
                  "Access keys",
                )
              : empty("key", "No keys"),
          ),
          auditCard(),
        ),
      ];
    },
  };
}
