/** What is wrong now, each with the place to look at. */

import { getIfPossible, inTenant } from "./api.js";
import { count, plural } from "./parts.js";
import { duration } from "./time.js";

/** @typedef {{kind: "bad" | "warn", title: string, text: string, href?: string, action?: string}} Alert */

const OVERDUE_MS = 60_000;

/** @param {import("./pages.js").Context} context @param {AbortSignal} signal @returns {Promise<Alert[]>} */
export async function alertsOf(context, signal) {
  const [queues, targets, pauses, cluster] = await Promise.all([
    getIfPossible(inTenant(context.tenant, "queues"), signal),
    getIfPossible(inTenant(context.tenant, "targets"), signal),
    getIfPossible(inTenant(context.tenant, "pauses"), signal),
    context.can("read", "*") ? getIfPossible("/v1/cluster", signal) : null,
  ]);
  return [
    ...ofHealth(context),
    ...ofCluster(context, cluster),
    ...ofQueues(context, queues),
    ...ofTargets(context, targets),
    ...ofPauses(context, pauses),
  ];
}

/** @param {import("./pages.js").Context} context @returns {Alert[]} */
function ofHealth({ health, link }) {
  /** @type {Alert[]} */
  const found = [];
  if (!health) return found;
  if (health.store && health.store.state !== "ok")
    found.push({ kind: "bad", title: `The store is ${health.store.state}`, text: health.store.reason ?? "" });
  if (health.disk && !health.disk.ok)
    found.push({ kind: "bad", title: "The disk is nearly full", text: health.disk.reason ?? "" });
  if (health.cluster && !health.cluster.ok)
    found.push({
      kind: "bad",
      title: "This node is not well in its cluster",
      text: health.cluster.reason ?? "",
      href: link("cluster"),
    });
  if (health.kafka && !health.kafka.ok)
    found.push({ kind: "warn", title: "Kafka is not reachable", text: health.kafka.reason ?? "" });
  if (health.backlog && !health.backlog.ok && health.backlog.overdue_ms > OVERDUE_MS) {
    found.push({
      kind: "warn",
      title: `Events are late by up to ${duration(health.backlog.overdue_ms)}`,
      text: health.backlog.reason ?? "",
      href: link("targets"),
      action: "Look at the targets",
    });
  }
  return found;
}

/** @param {import("./pages.js").Context} context @param {any} cluster @returns {Alert[]} */
function ofCluster({ link }, cluster) {
  if (!cluster) return [];
  /** @type {Alert[]} */
  const found = cluster.stand_ins.map((/** @type {any} */ each) => ({
    kind: "bad",
    title: `Node ${each.dead} is down`,
    text: `${each.by} runs ${plural(each.partitions.length, "of its partitions", "of its partitions")} until it returns.`,
    href: link("cluster"),
    action: "Look at the cluster",
  }));
  const unowned = cluster.partitions.filter((/** @type {any} */ each) => !each.owner).length;
  if (unowned)
    found.push({
      kind: "bad",
      title: `${plural(unowned, "partition has", "partitions have")} no owner`,
      text: "Their events wait until a node takes them over.",
      href: link("cluster"),
    });
  return found;
}

/** @param {import("./pages.js").Context} context @param {any} queues @returns {Alert[]} */
function ofQueues({ link }, queues) {
  return (queues?.queues ?? [])
    .filter((/** @type {any} */ each) => each.stalled)
    .map((/** @type {any} */ each) => ({
      kind: "bad",
      title: `Queue ${each.name} has no worker`,
      text: `${count(each.waiting)}${each.more ? "+" : ""} due events wait, the oldest for ${duration(each.oldest_wait_ms ?? 0)}.`,
      href: link("queues"),
      action: "Look at the queues",
    }));
}

/** @param {import("./pages.js").Context} context @param {any} targets @returns {Alert[]} */
function ofTargets({ link }, targets) {
  return (targets?.targets ?? [])
    .filter((/** @type {any} */ each) => each.breaker?.state === "open")
    .map((/** @type {any} */ each) => ({
      kind: "warn",
      title: `The breaker of ${each.target} is open`,
      text: each.last_error?.reason ?? "Attempts to it failed too often in a row.",
      href: link("targets"),
      action: "Look at the targets",
    }));
}

/** @param {import("./pages.js").Context} context @param {any} pauses @returns {Alert[]} */
function ofPauses({ link, tenant }, pauses) {
  const listed = pauses?.pauses ?? [];
  if (!listed.length) return [];
  const names = listed
    .slice(0, 3)
    .map((/** @type {any} */ each) => (each.name ? `${each.what} ${each.name}` : `the tenant ${tenant}`))
    .join(", ");
  return [
    {
      kind: "warn",
      title: plural(listed.length, "pause is in force", "pauses are in force"),
      text: `${names}${listed.length > 3 ? " and others" : ""}.`,
      href: link("tenant"),
      action: "Look at the pauses",
    },
  ];
}
