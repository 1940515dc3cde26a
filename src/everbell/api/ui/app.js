/** The shell: it signs in, finds the view of the address, keeps it fresh, and draws the frame around it. */

import { accessKey, allows, connection, get, getIfPossible, keepAccessKey } from "./api.js";
import { h, show } from "./dom.js";
import { loginForm, sideBar, topBar } from "./frame.js";
import { icon } from "./icons.js";
import { told } from "./parts.js";
import { askTenant } from "./tenants.js";
import { viewOf } from "./pages.js";

/** @typedef {import("./api.js").Caller} Caller */
/** @typedef {import("./pages.js").View} View */
/** @typedef {import("./pages.js").Context} Context */

const EVERY_MS = 2_000;
const HEALTH_EVERY_MS = 5_000;
const TENANT = "everbell.tenant";
const THEME = "everbell.theme";

const root = /** @type {HTMLElement} */ (document.getElementById("app"));

/** @type {Caller | null} */
let caller = null;
/** @type {string[]} */
let tenants = [];
/** @type {{node?: string, state?: string, reason?: string} | null} */
let health = null;
/** @type {{name: string, url: string}[]} */
let nodes = [];
/** @type {View | null} */
let view = null;
/** @type {unknown} */
let failure = null;
let isLoaded = false;
let isPaused = false;
let address = "";
/** @type {ReturnType<typeof setTimeout> | undefined} */
let timer;
/** @type {ReturnType<typeof setTimeout> | undefined} */
let healthTimer;
/** @type {AbortController | null} */
let loading = null;

/** @returns {{name: string, rest: string[], params: URLSearchParams}} */
function here() {
  const [path, search] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = (path || "overview").split("/").map(decodeURIComponent);
  return { name: name ?? "overview", rest, params: new URLSearchParams(search ?? "") };
}

/** The address of a view. @param {string} name @param {string[]} [rest] @param {Record<string, any>} [fields] */
function link(name, rest = [], fields = {}) {
  const given = Object.entries(fields).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const search = new URLSearchParams(given.map(([key, value]) => [key, String(value)])).toString();
  return `#/${[name, ...rest].map(encodeURIComponent).join("/")}${search ? `?${search}` : ""}`;
}

/** @type {Context} */
const context = {
  get tenant() {
    return sessionStorage.getItem(TENANT) ?? "default";
  },
  get caller() {
    return /** @type {Caller} */ (caller);
  },
  get params() {
    return here().params;
  },
  get rest() {
    return here().rest;
  },
  get tenants() {
    return tenants;
  },
  get health() {
    return health;
  },
  can: (scope, tenant = context.tenant) => allows(caller, scope, tenant),
  link,
  go: (name, rest, fields) => {
    location.hash = link(name, rest, fields);
  },
  update: () => draw(),
  reload: () => refresh(),
  chooseTenant: (name) => {
    sessionStorage.setItem(TENANT, name);
    if (!tenants.includes(name)) tenants = [...tenants, name].sort();
  },
};

async function signIn() {
  try {
    caller = await get("/v1/whoami");
    connection.needsKey = false;
  } catch (error) {
    failure = error;
    caller = null;
    draw();
    if (!connection.needsKey) timer = setTimeout(signIn, EVERY_MS);
    return;
  }
  if (caller?.tenant !== "*") {
    tenants = [caller?.tenant ?? "default"];
    context.chooseTenant(tenants[0] ?? "default");
  } else await learnTenants();
  open();
}

/** @param {string} key */
async function signInWith(key) {
  keepAccessKey(key);
  await signIn();
}

async function learnTenants() {
  const listed = context.can("admin", "*") ? await getIfPossible("/v1/tenants") : null;
  const found = /** @type {{name: string, pending: number}[]} */ (listed?.tenants ?? []);
  tenants = [
    ...new Set([...found.map((each) => each.name), ...(sessionStorage.getItem(TENANT) ? [context.tenant] : [])]),
  ].sort();
  if (!sessionStorage.getItem(TENANT)) {
    const busiest = found.reduce((best, each) => (each.pending > (best?.pending ?? -1) ? each : best), found[0]);
    context.chooseTenant(busiest?.name ?? "default");
  }
}

function open() {
  // The address may change before the server has said which caller this is. Signing in opens it then.
  if (!caller) return;
  const { name, rest, params } = here();
  const wanted = params.get("tenant");
  if (wanted && wanted !== context.tenant && caller?.tenant === "*") context.chooseTenant(wanted);
  const next = [name, ...rest, context.tenant].join("\n");
  if (next !== address || !view) {
    view?.leave?.();
    address = next;
    isLoaded = false;
    view = viewOf(name, context);
    document.title = `${view.title} · Everbell`;
    window.scrollTo(0, 0);
  }
  draw();
  showPlace();
  refresh();
}

/** On a narrow screen the navigation scrolls sideways: bring the page that is shown into sight. */
function showPlace() {
  const side = document.querySelector(".side"),
    place = /** @type {HTMLElement | null} */ (document.querySelector(".nav[aria-current]"));
  if (side && place) side.scrollLeft = place.offsetLeft - (side.clientWidth - place.offsetWidth) / 2;
}

async function refresh() {
  if (!view || !caller) return;
  clearTimeout(timer);
  loading?.abort();
  const mine = (loading = new AbortController()),
    shown = view;
  try {
    await shown.load(mine.signal);
    failure = null;
    // Charts are drawn for the width of their place, which is known when they were shown once.
    if (!isLoaded) requestAnimationFrame(draw);
    isLoaded = true;
  } catch (error) {
    if (mine.signal.aborted) return;
    failure = error;
  }
  if (mine.signal.aborted || shown !== view) return;
  draw();
  timer = setTimeout(tick, shown.every ?? EVERY_MS);
}

function isHeld() {
  return isPaused || document.hidden || Boolean(view?.isHeld?.()) || document.querySelector("dialog[open]") !== null;
}

function tick() {
  if (document.hidden || (isHeld() && !connection.isDown)) timer = setTimeout(tick, 500);
  else refresh();
}

async function watchHealth() {
  clearTimeout(healthTimer);
  try {
    health = await get("/readyz");
    const cluster = caller && context.can("read", "*") ? await getIfPossible("/v1/cluster") : null;
    if (cluster)
      nodes = cluster.members
        .filter((/** @type {any} */ member) => member.name !== cluster.node)
        .flatMap((/** @type {any} */ member) =>
          (member.addresses ?? [])
            .filter((/** @type {string} */ each) => /^https?:/.test(each))
            .map((/** @type {string} */ url) => ({ name: member.name, url })),
        );
    draw();
  } catch {
    draw();
  }
  // A hidden tab asks nothing. It asks again when it is shown.
  if (!document.hidden) healthTimer = setTimeout(watchHealth, HEALTH_EVERY_MS);
}

/** @returns {"light" | "dark"} */
function theme() {
  const chosen = localStorage.getItem(THEME);
  if (chosen === "dark" || chosen === "light") return chosen;
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

function toggleTheme() {
  localStorage.setItem(THEME, theme() === "dark" ? "light" : "dark");
  draw();
}

function draw() {
  document.documentElement.dataset["theme"] = theme();
  if (!caller)
    return show(
      root,
      connection.needsKey
        ? loginForm(accessKey() !== null && failure ? told(failure) : null, signInWith)
        : h("main", null, failure ? banner() : h("p", { class: "muted" }, "Connecting…")),
    );
  show(
    root,
    h(
      "a",
      {
        class: "skip",
        href: "#content",
        onclick: (/** @type {Event} */ event) => {
          event.preventDefault();
          document.querySelector("main")?.focus();
        },
      },
      "Skip to the content",
    ),
    sideBar(context, here().name),
    topBar(context, {
      state: isPaused ? "Paused" : connection.isDown ? "No answer" : view?.isHeld?.() ? "Held" : "Live",
      theme: theme(),
      togglePause,
      toggleTheme,
      signOut,
      pickTenant,
    }),
    h("main", { id: "content", tabindex: "-1", key: address }, banner(), content()),
  );
}

function content() {
  if (!view) return null;
  if (!isLoaded) return failure ? problem() : h("p", { class: "muted", "aria-busy": "true" }, "Loading…");
  return [failure && !connection.isDown ? problem() : null, view.view()];
}

function problem() {
  return h(
    "div",
    { class: "alert is-bad", role: "alert" },
    icon("warning"),
    h("div", null, h("strong", null, "This cannot be shown"), h("p", null, told(failure))),
  );
}

function banner() {
  if (connection.isDown) {
    return h(
      "div",
      { class: "banner", role: "alert" },
      icon("warning"),
      h("strong", null, connection.reason),
      "The page tries again until it answers.",
      nodes.map((node) => h("a", { href: node.url }, `Open ${node.name}`)),
    );
  }
  if (health?.state && health.state !== "ready") {
    return h(
      "div",
      { class: "banner", role: "alert" },
      icon("warning"),
      h("strong", null, `This node is ${health.state}.`),
      health.reason ?? "",
    );
  }
  return null;
}

/** @param {string} name */
function pickTenant(name) {
  if (!name) {
    draw();
    askTenant(pickTenant);
    return;
  }
  context.chooseTenant(name);
  const { name: page } = here();
  if (location.hash === link(page)) open();
  else location.hash = link(page === "event" ? "events" : page);
}

function signOut() {
  keepAccessKey(null);
  sessionStorage.removeItem(TENANT);
  location.reload();
}

function togglePause() {
  isPaused = !isPaused;
  draw();
  if (!isPaused) refresh();
}

addEventListener("hashchange", open);
document.addEventListener("visibilitychange", () => {
  if (document.hidden) return;
  watchHealth();
  if (!isHeld()) refresh();
});
addEventListener("keydown", (event) => {
  const target = /** @type {HTMLElement} */ (event.target);
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(target.tagName)) return;
  if (document.querySelector("dialog[open]")) return;
  if (event.key === "/") {
    event.preventDefault();
    /** @type {HTMLElement | null} */ (document.querySelector(".jump input"))?.focus();
  } else if (event.key === "p") togglePause();
  else if (event.key === "n" && caller && context.can("schedule")) context.go("schedule");
  else view?.key?.(event);
});
connection.onchange = () => {
  if (connection.needsKey && caller) {
    caller = null;
    clearTimeout(timer);
  }
  draw();
};
let width = 0;
new ResizeObserver(() => {
  if (root.clientWidth !== width && view && isLoaded) {
    draw();
    showPlace();
  }
  width = root.clientWidth;
}).observe(root);

signIn().then(watchHealth);
