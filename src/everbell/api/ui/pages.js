/** The list of all pages: one entry per page, with its place in the navigation and the access that it needs. */

import { access } from "./access.js";
import { cluster } from "./cluster.js";
import { dead } from "./dead.js";
import { event } from "./event.js";
import { events } from "./events.js";
import { orderingKeys } from "./ordering_keys.js";
import { overview } from "./overview.js";
import { queues } from "./queues.js";
import { recurring } from "./recurring.js";
import { schedule } from "./schedule.js";
import { targets } from "./targets.js";
import { tenant } from "./tenant.js";
import { tenants } from "./tenants.js";
import { empty } from "./parts.js";

/** @typedef {import("./dom.js").Child} Child */
/** @typedef {import("./icons.js").IconName} IconName */

/**
 * What a view gets from the shell.
 * @typedef {object} Context
 * @property {string} tenant
 * @property {import("./api.js").Caller} caller
 * @property {URLSearchParams} params the query of the address
 * @property {string[]} rest the address behind the name of the view
 * @property {string[]} tenants the known tenants
 * @property {any} health the last answer of /readyz
 * @property {(scope: string, tenant?: string) => boolean} can
 * @property {(name: string, rest?: string[], fields?: Record<string, any>) => string} link
 * @property {(name: string, rest?: string[], fields?: Record<string, any>) => void} go
 * @property {() => void} update draw again
 * @property {() => void} reload load again, then draw
 * @property {(name: string) => void} chooseTenant
 */

/**
 * One page as the shell sees it.
 * @typedef {object} View
 * @property {string} title
 * @property {(signal: AbortSignal) => Promise<void>} load
 * @property {() => Child} view
 * @property {number} [every] how often it is loaded, in milliseconds
 * @property {() => boolean} [isHeld] whether it must not change now
 * @property {(event: KeyboardEvent) => void} [key]
 * @property {() => void} [leave]
 */

/** @typedef {{name: string, title: string, make: (context: Context) => View, icon?: IconName, group?: string, needs?: string, global?: boolean, also?: string[]}} Page */

/** @type {Page[]} */
export const PAGES = [
  { name: "overview", title: "Overview", make: overview, icon: "overview" },
  { name: "events", title: "Events", make: events, icon: "events", group: "Tenant", needs: "read", also: ["event"] },
  { name: "recurring", title: "Recurring", make: recurring, icon: "repeat", needs: "read" },
  { name: "dead", title: "Dead events", make: dead, icon: "dead", needs: "read" },
  { name: "keys", title: "Ordering keys", make: orderingKeys, icon: "order", needs: "read" },
  { name: "queues", title: "Queues and workers", make: queues, icon: "queue", needs: "read" },
  { name: "targets", title: "Targets", make: targets, icon: "target", needs: "read" },
  { name: "tenant", title: "Policy and pauses", make: tenant, icon: "tenant", needs: "read" },
  { name: "cluster", title: "Cluster", make: cluster, icon: "cluster", group: "Server", needs: "read", global: true },
  { name: "tenants", title: "Tenants", make: tenants, icon: "tenant", needs: "admin", global: true },
  { name: "access", title: "Access keys", make: access, icon: "key", needs: "admin", global: true },
  { name: "event", title: "Event", make: event },
  { name: "schedule", title: "Schedule an event", make: schedule },
];

/** @param {string} name @param {Context} context @returns {View} */
export function viewOf(name, context) {
  const page = PAGES.find((each) => each.name === name);
  if (page) return { ...page.make(context) };
  return {
    title: "Not found",
    load: async () => {},
    view: () => empty("info", "There is no such page"),
    every: 60_000,
  };
}
