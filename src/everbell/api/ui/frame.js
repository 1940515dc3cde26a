/** The frame of the page: the navigation, the bar at the top, and the form that asks for an access key. */

import { accessKey } from "./api.js";
import { h } from "./dom.js";
import { icon } from "./icons.js";
import { PAGES } from "./pages.js";
import { badge } from "./parts.js";
import { manner, setManner } from "./time.js";

/** @typedef {import("./pages.js").Context} Context */

/** @param {string | null} wrong @param {(key: string) => void} submit */
export function loginForm(wrong, submit) {
  const input = h("input", {
    type: "password",
    name: "key",
    autocomplete: "off",
    spellcheck: "false",
    placeholder: "evk_…",
    required: true,
    "aria-label": "Access key",
  });
  return h(
    "main",
    { class: "login" },
    h(
      "form",
      {
        class: "card",
        onsubmit: (/** @type {SubmitEvent} */ event) => {
          event.preventDefault();
          submit(String(new FormData(/** @type {HTMLFormElement} */ (event.currentTarget)).get("key")).trim());
        },
      },
      h("span", { class: "brand" }, icon("bell"), "Everbell"),
      h("h1", null, "Access key"),
      h("p", { class: "muted" }, "This server requires an access key. It is kept for this tab only."),
      input,
      wrong && h("p", { class: "bad-text", role: "alert" }, wrong),
      h("button", { class: "primary", type: "submit" }, "Sign in"),
    ),
  );
}

/** The navigation, with the pages that the caller may see. @param {Context} context @param {string} name the page that is shown */
export function sideBar(context, name) {
  return h(
    "nav",
    { class: "side", "aria-label": "Pages" },
    h("a", { class: "brand", href: context.link("overview") }, icon("bell"), "Everbell"),
    PAGES.map((page) =>
      (!page.needs || context.can(page.needs, page.global ? "*" : context.tenant)) && page.icon
        ? [
            page.group && h("h2", null, page.group),
            h(
              "a",
              {
                class: "nav",
                href: context.link(page.name),
                "aria-current": page.name === name || page.also?.includes(name) ? "page" : null,
              },
              icon(page.icon),
              page.title,
            ),
          ]
        : null,
    ),
    h(
      "div",
      { class: "foot" },
      context.health?.node ? h("span", null, `Node ${context.health.node}`) : null,
      h("a", { href: "/docs" }, "API documentation"),
    ),
  );
}

/**
 * @typedef {object} TopBar
 * @property {"Live" | "Paused" | "Held" | "No answer"} state
 * @property {"light" | "dark"} theme
 * @property {() => void} togglePause
 * @property {() => void} toggleTheme
 * @property {() => void} signOut
 * @property {(name: string) => void} pickTenant
 */

/** @param {Context} context @param {TopBar} bar */
export function topBar(context, { state, theme, togglePause, toggleTheme, signOut, pickTenant }) {
  return h(
    "header",
    { class: "top" },
    context.caller.tenant === "*"
      ? h("label", null, h("span", { class: "wide-only" }, "Tenant"), tenantPicker(context, pickTenant))
      : badge(context.tenant, "accent", "tenant"),
    h(
      "form",
      {
        class: "jump",
        role: "search",
        onsubmit: (/** @type {SubmitEvent} */ event) => {
          event.preventDefault();
          const form = /** @type {HTMLFormElement} */ (event.currentTarget),
            id = String(new FormData(form).get("id")).trim();
          if (id) context.go("event", [id]);
          form.reset();
        },
      },
      h("input", {
        name: "id",
        type: "search",
        placeholder: "Event id  ( / )",
        "aria-label": "Open an event by its id",
        autocomplete: "off",
        spellcheck: "false",
      }),
    ),
    h("span", { class: "spring" }),
    h(
      "select",
      {
        "aria-label": "How times are shown",
        class: "wide-only",
        onchange: (/** @type {any} */ event) => {
          setManner(event.target.value);
          context.update();
        },
        value: manner(),
      },
      h("option", { value: "relative" }, "relative times"),
      h("option", { value: "utc" }, "UTC"),
      h("option", { value: "local" }, "local times"),
    ),
    h(
      "button",
      {
        class: `live ${state === "Live" ? "is-on" : "is-held"}`,
        type: "button",
        "aria-pressed": String(state === "Paused"),
        title: "Pause or resume the updates (p)",
        onclick: togglePause,
      },
      h("span", { class: "dot" }),
      state,
    ),
    h(
      "button",
      {
        class: "icon plain",
        type: "button",
        "aria-label": theme === "dark" ? "Use the light theme" : "Use the dark theme",
        onclick: toggleTheme,
      },
      icon(theme === "dark" ? "sun" : "moon"),
    ),
    accessKey() !== null && h("button", { class: "plain", type: "button", onclick: signOut }, "Sign out"),
    context.can("schedule") &&
      h(
        "a",
        { class: "button primary", href: context.link("schedule"), "aria-label": "Schedule an event" },
        icon("plus"),
        h("span", { class: "wide-only" }, "Schedule"),
      ),
  );
}

/** @param {Context} context @param {(name: string) => void} pick */
function tenantPicker(context, pick) {
  const { tenants } = context;
  const known = tenants.includes(context.tenant) ? tenants : [...tenants, context.tenant].sort();
  return h(
    "select",
    {
      "aria-label": "Tenant",
      value: context.tenant,
      onchange: (/** @type {any} */ event) => pick(event.target.value),
    },
    known.map((name) => h("option", { value: name, key: name }, name)),
    h("option", { value: "", key: "" }, "another…"),
  );
}
