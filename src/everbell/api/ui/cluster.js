/** The cluster: its ring as a picture, its partitions by owner and state, and its latest transitions. */

import { call, get } from "./api.js";
import { h, svg } from "./dom.js";
import { ask, badge, card, count, empty, facts, flushCard, heading, plural, table, tell } from "./parts.js";
import { duration, time } from "./time.js";

const SIZE = 340;
const HUES = ["var(--chart)", "var(--chart-2)", "var(--info)", "var(--warn)", "var(--good)", "var(--calm)"];

/** @param {import("./pages.js").Context} context @returns {import("./pages.js").View} */
export function cluster(context) {
  /** @type {any} */ let found = null;
  const mayAct = () => context.can("admin", "*");

  /** @param {string} verb @param {string} node */
  const order = (verb, node) =>
    call("POST", `/v1/cluster/${verb}`, { body: { node } }).then((seen) => {
      found = seen;
      context.update();
    });

  /** @param {any} member */
  function actions(member) {
    if (!mayAct() || found.members.length < 2 || member.state === "joining") return null;
    if (member.state === "draining")
      return h(
        "button",
        {
          type: "button",
          onclick: () => tell(() => order("undrain", member.name), `${member.name} gets partitions again`),
        },
        "Undrain",
      );
    return h(
      "button",
      {
        type: "button",
        onclick: () =>
          ask({
            title: `Drain ${member.name}?`,
            text: `Its ${plural(member.partitions, "partition moves", "partitions move")} to other nodes. It owns none until it is undrained or restarts.`,
            action: "Drain it",
            submit: () => order("drain", member.name),
          }),
      },
      "Drain…",
    );
  }

  function members() {
    return flushCard(
      "Nodes",
      null,
      table(
        [
          ["Node"],
          ["State"],
          ["Partitions", "number"],
          ["Zone", "wide-only"],
          ["Capacity", "number wide-only"],
          ["Watches", "wide-only"],
          ["Backup", "wide-only"],
          ["", "number"],
        ],
        found.members.map((/** @type {any} */ each) =>
          h(
            "tr",
            { key: each.incarnation ?? each.name },
            h(
              "td",
              null,
              h("strong", { class: "text" }, each.name),
              each.name === found.node && h("span", { class: "faint" }, " (this one)"),
              each.gateway && badge("gateway only"),
            ),
            h(
              "td",
              null,
              badge(
                each.state,
                each.state === "member" ? "good" : "warn",
                each.state === "member" ? "check" : "repeat",
              ),
            ),
            h(
              "td",
              { class: "number" },
              count(each.partitions ?? 0),
              each.moving > 0 && h("span", { class: "warn-text" }, `, ${each.moving} moving`),
            ),
            h("td", { class: "wide-only" }, each.zone || "–"),
            h("td", { class: "number wide-only" }, count(each.capacity ?? 1)),
            h("td", { class: "wide-only" }, each.watches ?? "–"),
            h("td", { class: "wide-only" }, each.backup ?? "–"),
            h("td", { class: "number" }, actions(each)),
          ),
        ),
        "Nodes",
      ),
    );
  }

  function standIns() {
    if (!found.stand_ins.length) return null;
    return flushCard(
      "Stand-ins",
      null,
      table(
        [["Dead node"], ["Stand-in"], ["Partitions", "number"], ["", "number"]],
        found.stand_ins.map((/** @type {any} */ each) =>
          h(
            "tr",
            { key: `${each.dead}\n${each.by}` },
            h("td", null, badge(each.dead, "bad", "dead")),
            h("td", null, each.by),
            h("td", { class: "number" }, count(each.partitions.length)),
            h(
              "td",
              { class: "number" },
              mayAct() &&
                h(
                  "button",
                  {
                    type: "button",
                    class: "danger",
                    onclick: () =>
                      ask({
                        title: `Forget ${each.dead}?`,
                        text: "Say this only if it does not come back. Its stand-ins keep its partitions.",
                        action: "Forget it",
                        danger: true,
                        submit: () => order("forget", each.dead),
                      }),
                  },
                  "Forget…",
                ),
            ),
          ),
        ),
        "Stand-ins",
      ),
    );
  }

  /** The events of replicas that this node holds. A rank is the number of replicas that come before it. */
  function replicas() {
    const held = found.replicas;
    if (!held) return null;
    const ranks = (/** @type {Record<string, number>} */ counts) =>
      Object.entries(counts)
        .map(([rank, n]) => `rank ${rank}: ${count(n)}`)
        .join(", ") || "none";
    const resync =
      held.resync_left || held.resync_ms
        ? `${count(held.resync_left)} left, for ${duration(held.resync_ms)}`
        : held.behind.length
          ? `behind: ${held.behind.join(", ")}`
          : held.settled && held.refilled
            ? "in step with the other nodes"
            : "due";
    return card(
      "Events of replicas on this node",
      null,
      facts([
        ["Held", `${count(held.held)} (${ranks(held.held_by_rank)})`],
        ["Memory", `${count(Math.round(held.held_bytes / 1e6))} of ${count(Math.round(held.cap_bytes / 1e6))} MB`],
        ["Attempts", ranks(held.started_by_rank)],
        ["Duplicates", count(held.duplicates)],
        ["Tombstones", count(held.tombstones)],
        ["Resync", resync],
      ]),
    );
  }

  function partitions() {
    const owners = [...new Set(found.partitions.map((/** @type {any} */ each) => each.owner ?? ""))].sort();
    const states = Object.entries(found.partition_states)
      .map(([state, n]) => `${count(/** @type {number} */ (n))} ${state}`)
      .join(", ");
    return card(
      `${plural(found.partitions.length, "partition")}`,
      h("span", { class: "muted small" }, states),
      owners.map((owner) => {
        const mine = found.partitions.filter((/** @type {any} */ each) => (each.owner ?? "") === owner);
        return h(
          "div",
          { key: String(owner) },
          h("h3", null, owner ? `${owner}: ${mine.length}` : `without an owner: ${mine.length}`),
          h(
            "div",
            {
              class: "cells",
              role: "img",
              "aria-label": `${plural(mine.length, "partition")} of ${owner || "no node"}`,
            },
            mine.map((/** @type {any} */ each) =>
              h("span", {
                class: `cell${each.to ? " moving" : ""}${each.owner ? "" : " unowned"}`,
                title: `partition ${each.partition}, ${each.state}, epoch ${each.epoch ?? 0}${each.to ? `, moving to ${each.to}` : ""}${each.backups?.length ? `, next in line ${each.backups.join(", ")}` : ""}`,
              }),
            ),
          ),
        );
      }),
    );
  }

  function transitions() {
    const latest = [...found.transitions].reverse().slice(0, 40);
    return flushCard(
      "Latest transitions",
      null,
      latest.length
        ? table(
            [["Entry", "number"], ["Kind"], ["About"], ["Reason", "wide-only"], ["When"]],
            latest.map((each) =>
              h(
                "tr",
                { key: String(each.index) },
                h("td", { class: "number" }, each.index),
                h("td", null, badge(each.kind)),
                h("td", null, h("span", { class: "clip", title: each.what }, each.what)),
                h("td", { class: "wide-only text" }, each.reason ?? ""),
                h("td", { class: "nowrap" }, time(each.at)),
              ),
            ),
            "Transitions",
          )
        : empty("clock", "None yet"),
    );
  }

  return {
    title: "Cluster",
    load: async (signal) => {
      found = await get("/v1/cluster", signal);
    },
    view: () => [
      heading("Cluster", `As ${found.node} sees it`),
      h(
        "div",
        { class: "stack" },
        h(
          "div",
          { class: "grid" },
          card("Ring", null, ring(found)),
          card(
            "Log",
            null,
            facts([
              ["Cluster", h("code", null, found.cluster)],
              ["This node", found.node],
              ["Log entry", count(found.log_index)],
              ["Saw its end", `${duration(found.log_lag_ms)} ago`],
              ["Lease left", duration(found.lease_left_ms)],
              ["Strategy", found.strategy.strategy ?? JSON.stringify(found.strategy)],
              ["Nodes", count(found.members.length)],
              ["Pauses", count(found.pauses)],
            ]),
          ),
        ),
        standIns(),
        members(),
        replicas(),
        partitions(),
        transitions(),
      ),
    ],
  };
}

/** The nodes on a circle; an arrow leads from each node to the one that it watches, an arc shows its share. @param {any} found */
function ring(found) {
  const names = /** @type {string[]} */ (found.members.map((/** @type {any} */ each) => each.name)),
    centre = SIZE / 2,
    radius = SIZE / 2 - 62;
  const place = (/** @type {number} */ index, far = radius) => {
    const angle = (2 * Math.PI * index) / names.length - Math.PI / 2;
    return [centre + far * Math.cos(angle), centre + far * Math.sin(angle)];
  };
  const total = Math.max(found.partitions.length, 1);
  let begun = 0;
  const arcs = found.members.map((/** @type {any} */ member, /** @type {number} */ index) => {
    const share = (member.partitions ?? 0) / total,
      length = 2 * Math.PI * (radius - 48),
      shift = begun;
    begun += share;
    return share > 0 && radius > 60
      ? svg(
          "circle",
          {
            class: "share",
            cx: centre,
            cy: centre,
            r: radius - 48,
            stroke: HUES[index % HUES.length],
            "stroke-dasharray": `${Math.max(length * share - 2, 1)} ${length}`,
            "stroke-dashoffset": -length * shift,
            transform: `rotate(-90 ${centre} ${centre})`,
          },
          svg("title", null, `${member.name}: ${member.partitions} partitions`),
        )
      : null;
  });
  const watches = found.members.map((/** @type {any} */ member, /** @type {number} */ index) => {
    const other = member.watches ? names.indexOf(member.watches) : -1;
    if (other < 0 || other === index) return null;
    const [x1 = 0, y1 = 0] = place(index),
      [x2 = 0, y2 = 0] = place(other),
      size = Math.hypot(x2 - x1, y2 - y1) || 1,
      gap = 26 / size;
    return svg("line", {
      class: "watch",
      x1: x1 + (x2 - x1) * gap,
      y1: y1 + (y2 - y1) * gap,
      x2: x2 - (x2 - x1) * gap,
      y2: y2 - (y2 - y1) * gap,
      "marker-end": "url(#arrow)",
    });
  });
  const label = `${plural(names.length, "node")}: ${found.members.map((/** @type {any} */ each) => `${each.name} ${each.state} with ${each.partitions ?? 0} partitions${each.watches ? `, watches ${each.watches}` : ""}`).join("; ")}`;
  const isAlone = names.length === 1,
    edge = isAlone ? 80 : 0;
  return h(
    "div",
    { class: "chart ring" },
    svg(
      "svg",
      { viewBox: `0 ${edge} ${SIZE} ${SIZE - 2 * edge}`, height: SIZE - 2 * edge, role: "img", "aria-label": label },
      svg(
        "defs",
        null,
        svg(
          "marker",
          { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 8, markerHeight: 8, orient: "auto" },
          svg("path", { d: "M0 0.500L7 4L0 7.500", fill: "none", stroke: "currentColor" }),
        ),
      ),
      arcs,
      isAlone ? null : watches,
      isAlone && svg("text", { x: centre, y: centre - 18, "text-anchor": "middle", class: "mark" }, names[0] ?? ""),
      svg("text", { x: centre, y: centre - 2, "text-anchor": "middle", class: "mark" }, count(found.partitions.length)),
      svg("text", { x: centre, y: centre + 14, "text-anchor": "middle" }, "partitions"),
      isAlone
        ? null
        : found.members.map((/** @type {any} */ member, /** @type {number} */ index) => {
            const [x = centre, y = centre] = place(index);
            const below = y > centre + 10;
            return svg(
              "g",
              { class: `node ${member.name === found.node ? "is-me" : ""} is-${member.state}`, key: member.name },
              svg("circle", { cx: x, cy: y, r: 20 }),
              svg("text", { x, y: y + 4 }, count(member.partitions ?? 0)),
              svg(
                "text",
                { class: "name", x, y: below ? y + 36 : y - 28 },
                member.name.length > 18 ? `${member.name.slice(0, 17)}…` : member.name,
              ),
            );
          }),
    ),
  );
}
