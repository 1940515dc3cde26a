/**
 * Charts as inline SVG: bars of the future, lines of the past, and a heat map of a week.
 *
 * A chart is drawn for the width that its place had when it was last shown (`widthOf`), so its text keeps its size.
 * Each has a sentence for screen readers, one tab stop, and arrow keys that move from one value to the next.
 */

import { h, svg } from "./dom.js";
import { clock, weekday } from "./time.js";
import { short } from "./parts.js";

/** @typedef {{at: number, value: number, isUnknown?: boolean}} Bar */
/** @typedef {{name: string, kind: "a" | "b" | "c", values: (number | null)[]}} Line */

/** @param {string} id @param {number} fallback */
function widthOf(id, fallback) {
  return Math.max(240, Math.round(document.getElementById(id)?.clientWidth || fallback));
}

/** The next round number for the top of an axis. @param {number} value */
export function ceiling(value) {
  if (value <= 4) return 4;
  const size = 10 ** Math.floor(Math.log10(value));
  return /** @type {number} */ ([1, 2, 2.5, 5, 10].find((step) => step * size >= value)) * size;
}

/** @param {number} top @param {(value: number) => number} y @param {number} left @param {number} right @param {(value: number) => string} format */
function scaleLines(top, y, left, right, format) {
  return [0, 0.5, 1].map((part) => [
    svg("line", { class: part ? "grid-line" : "axis", x1: left, x2: right, y1: y(top * part), y2: y(top * part) }),
    svg("text", { x: left - 8, y: y(top * part) + 4, "text-anchor": "end" }, format(top * part)),
  ]);
}

/** Show a tooltip above a place of a chart. @param {Element} chart @param {number | null} left @param {string} text */
function tip(chart, left, text) {
  const box = /** @type {HTMLElement | null} */ (chart.querySelector(".tip"));
  if (!box) return;
  box.hidden = left === null;
  if (left === null) return;
  box.textContent = text;
  const half = box.offsetWidth / 2;
  box.style.left = `${Math.min(Math.max(left, half), chart.clientWidth - half)}px`;
}

/** Move with the arrow keys over places 0 to count - 1. @param {number} count @param {(index: number) => void} show @param {(index: number) => void} pick */
function walker(count, show, pick) {
  let at = -1;
  return (/** @type {KeyboardEvent} */ event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 24, ArrowUp: -24, Home: -count, End: count }[event.key];
    if (step !== undefined) {
      event.preventDefault();
      at = Math.min(Math.max(at + step, 0), count - 1);
      show(at);
    } else if (event.key === "Enter" && at >= 0) pick(at);
  };
}

/** The longest run of the smallest bars: a free slot. @param {Bar[]} bars @param {number} limit @returns {[number, number] | null} */
export function freeSlot(bars, limit) {
  /** @type {[number, number] | null} */
  let best = null;
  for (let start = 0; start < bars.length; start++) {
    let end = start;
    while (end < bars.length && !bars[end]?.isUnknown && (bars[end]?.value ?? 0) <= limit) end++;
    if (end - start >= 3 && (!best || end - start > best[1] - best[0])) best = [start, end];
    start = Math.max(start, end - 1);
  }
  return best;
}

/**
 * Bars of the future. The tallest are herds, the longest quiet stretch is a free slot; both are named.
 * @param {{id: string, bars: Bar[], stepMs: number, label: string, height?: number, pick: (bar: Bar) => void}} options
 */
export function futureBars({ id, bars, stepMs, label, height = 250, pick }) {
  const width = widthOf(id, 900),
    left = 44,
    right = width - 6,
    foot = 24,
    head = 24;
  const top = ceiling(Math.max(...bars.map((bar) => bar.value), 0));
  const step = (right - left) / Math.max(bars.length, 1),
    inner = height - foot - head;
  const y = (/** @type {number} */ value) => head + inner * (1 - value / top);
  const x = (/** @type {number} */ index) => left + index * step;
  const mean = bars.reduce((sum, bar) => sum + bar.value, 0) / Math.max(bars.length, 1);
  const isHerd = (/** @type {Bar} */ bar) => bar.value >= 3 && bar.value > 4 * mean;
  const highest = bars.reduce((best, bar, index) => (bar.value > (bars[best]?.value ?? 0) ? index : best), 0);
  const slot = mean > 0 ? freeSlot(bars, mean * 0.1) : null;
  const every = Math.ceil(bars.length / Math.max(Math.floor(width / 90), 2));
  const name = (/** @type {Bar} */ bar) =>
    stepMs >= 3_600_000 ? `${weekday(bar.at)} ${clock(bar.at)}` : clock(bar.at);
  const words = (/** @type {Bar} */ bar) =>
    `${name(bar)} – ${clock(bar.at + stepMs)}: ${bar.value.toLocaleString("en-GB")} due${bar.isUnknown ? " or more" : ""}`;
  const reveal = (/** @type {Element} */ chart, /** @type {number} */ index) => {
    for (const [n, hit] of [...chart.querySelectorAll(".hit")].entries())
      hit.classList.toggle("is-picked", n === index);
    const bar = bars[index];
    if (bar) tip(chart, x(index) + step / 2, words(bar));
  };
  const choose = (/** @type {number} */ index) => {
    const bar = bars[index];
    if (bar) pick(bar);
  };
  /** @type {(event: KeyboardEvent) => void} */
  const walk = walker(
    bars.length,
    (index) => {
      const chart = document.getElementById(id);
      if (chart) reveal(chart, index);
    },
    choose,
  );
  return h(
    "div",
    {
      class: "chart",
      id,
      tabindex: "0",
      role: "group",
      "aria-roledescription": "chart",
      "aria-label": `${label}. Arrow keys move along it, Enter opens the events.`,
      onkeydown: walk,
      onmouseleave: (/** @type {any} */ event) => tip(event.currentTarget, null, ""),
      onblur: (/** @type {any} */ event) => tip(event.currentTarget, null, ""),
    },
    svg(
      "svg",
      { viewBox: `0 0 ${width} ${height}`, height, "aria-hidden": "true" },
      scaleLines(top, y, left, right, short),
      slot && [
        svg("rect", { class: "free", x: x(slot[0]), y: head, width: (slot[1] - slot[0]) * step, height: inner }),
        (slot[1] - slot[0]) * step > 70 &&
          svg("text", { x: x((slot[0] + slot[1]) / 2), y: head + 14, "text-anchor": "middle" }, "free slot"),
      ],
      bars.map((bar, index) => [
        bar.value > 0 &&
          svg("rect", {
            class: `bar${isHerd(bar) ? " herd" : ""}${bar.isUnknown ? " unknown" : ""}`,
            x: x(index) + Math.min(step * 0.12, 1.5),
            width: Math.max(step - Math.min(step * 0.24, 3), 1),
            y: Math.min(y(bar.value), y(0) - 2),
            height: Math.max(y(0) - y(bar.value), 2),
            rx: Math.min(step / 4, 2.5),
          }),
        index % every === 0 &&
          svg(
            "text",
            { x: x(index) + (index ? step / 2 : 0), y: height - 6, "text-anchor": index ? "middle" : "start" },
            stepMs >= 3_600_000 && bars.length > 48 ? weekday(bar.at) : clock(bar.at),
          ),
      ]),
      (bars[highest]?.value ?? 0) > 0 &&
        svg(
          "text",
          {
            class: "mark",
            x: Math.min(Math.max(x(highest) + step / 2, left + 40), right - 40),
            y: y(bars[highest]?.value ?? 0) - 7,
            "text-anchor": "middle",
          },
          `${bars[highest] && isHerd(bars[highest]) ? "herd of " : ""}${short(bars[highest]?.value ?? 0)}`,
        ),
      bars.map((_, index) =>
        svg("rect", {
          class: "hit",
          x: x(index),
          y: head,
          width: step,
          height: inner,
          onclick: () => choose(index),
          onmouseenter: (/** @type {any} */ event) => reveal(event.currentTarget.closest(".chart"), index),
        }),
      ),
    ),
    h("div", { class: "tip", hidden: true, role: "status" }),
  );
}

/**
 * Lines of the past.
 * @param {{id: string, at: number[], lines: Line[], label: string, format: (value: number) => string, height?: number, stepMs: number}} options
 */
export function pastLines({ id, at, lines, label, format, height = 150, stepMs }) {
  const width = widthOf(id, 420),
    left = 48,
    right = width - 6,
    foot = 22,
    head = 10;
  const values = lines.flatMap((line) => line.values.filter((value) => value !== null));
  const top = ceiling(Math.max(...values, 0));
  const inner = height - foot - head;
  const y = (/** @type {number} */ value) => head + inner * (1 - value / top);
  const x = (/** @type {number} */ index) => left + ((right - left) * index) / Math.max(at.length - 1, 1);
  const reveal = (/** @type {Element} */ chart, /** @type {number} */ index) => {
    const told = lines.map(
      (line) =>
        `${line.name} ${line.values[index] === null || line.values[index] === undefined ? "–" : format(/** @type {number} */ (line.values[index]))}`,
    );
    tip(chart, x(index), `${clock(at[index] ?? 0)}  ${told.join(" · ")}`);
  };
  const walk = walker(
    at.length,
    (index) => {
      const chart = document.getElementById(id);
      if (chart) reveal(chart, index);
    },
    () => {},
  );
  const every = Math.ceil(at.length / Math.max(Math.floor(width / 80), 2));
  return h(
    "div",
    {
      class: "chart",
      id,
      tabindex: "0",
      role: "group",
      "aria-roledescription": "chart",
      "aria-label": `${label}. Arrow keys move along it.`,
      onkeydown: walk,
      onblur: (/** @type {any} */ event) => tip(event.currentTarget, null, ""),
      onmouseleave: (/** @type {any} */ event) => tip(event.currentTarget, null, ""),
      onmousemove: (/** @type {any} */ event) => {
        const box = event.currentTarget.getBoundingClientRect();
        const index = Math.round(((event.clientX - box.left - left) / (right - left)) * (at.length - 1));
        if (index >= 0 && index < at.length) reveal(event.currentTarget, index);
      },
    },
    svg(
      "svg",
      { viewBox: `0 0 ${width} ${height}`, height, "aria-hidden": "true" },
      scaleLines(top, y, left, right, format),
      at.map(
        (moment, index) =>
          index % every === 0 &&
          index < at.length - every / 3 &&
          svg(
            "text",
            { x: x(index), y: height - 5, "text-anchor": index ? "middle" : "start" },
            stepMs >= 60_000 ? clock(moment) : clock(moment),
          ),
      ),
      lines.map((line) => path(line, x, y)),
    ),
    h("div", { class: "tip", hidden: true, role: "status" }),
  );
}

/** @param {Line} line @param {(index: number) => number} x @param {(value: number) => number} y */
function path(line, x, y) {
  let drawn = "",
    isOpen = false;
  const parts = /** @type {[number, number][]} */ ([]);
  for (const [index, value] of line.values.entries()) {
    if (value === null) {
      isOpen = false;
      continue;
    }
    drawn += `${isOpen ? "L" : "M"}${x(index).toFixed(1)} ${y(value).toFixed(1)}`;
    parts.push([x(index), y(value)]);
    isOpen = true;
  }
  const first = parts[0],
    last = parts.at(-1);
  const isWhole = parts.length === line.values.length && first && last;
  return [
    isWhole &&
      line.kind === "a" &&
      svg("path", { class: `area ${line.kind}`, d: `${drawn}L${last[0]} ${y(0)}L${first[0]} ${y(0)}Z` }),
    parts.length === 1 && first
      ? svg("circle", { class: line.kind, cx: first[0], cy: first[1], r: 2 })
      : svg("path", { class: `line ${line.kind}`, d: drawn }),
  ];
}

/** @param {{name: string, kind: string, value: string}[]} entries */
export function legend(entries) {
  return h(
    "div",
    { class: "legend" },
    entries.map(({ name, kind, value }) =>
      h(
        "span",
        null,
        svg(
          "svg",
          { viewBox: "0 0 20 8", "aria-hidden": "true" },
          svg("line", { class: kind, x1: 0, x2: 20, y1: 4, y2: 4 }),
        ),
        name,
        h("b", null, value),
      ),
    ),
  );
}

/**
 * A week as days by hours.
 * @param {{id: string, bars: Bar[], label: string, pick: (bar: Bar) => void}} options
 */
export function heatMap({ id, bars, label, pick }) {
  const width = widthOf(id, 900),
    left = 62,
    cell = (width - left - 2) / 24,
    row = Math.min(Math.max(cell, 20), 30);
  const start = new Date(bars[0]?.at ?? 0);
  start.setHours(0, 0, 0, 0);
  const top = Math.max(...bars.map((bar) => bar.value), 1);
  const place = (/** @type {Bar} */ bar) => {
    const date = new Date(bar.at);
    const hour = date.getHours();
    date.setHours(0, 0, 0, 0);
    return [Math.round((date.getTime() - start.getTime()) / 86_400_000), hour];
  };
  const words = (/** @type {Bar} */ bar) =>
    `${weekday(bar.at)} ${clock(bar.at)}: ${bar.value.toLocaleString("en-GB")} due${bar.isUnknown ? " or more" : ""}`;
  const reveal = (/** @type {Element} */ chart, /** @type {number} */ index) => {
    const bar = bars[index];
    if (bar) tip(chart, left + (place(bar)[1] ?? 0) * cell + cell / 2, words(bar));
  };
  const walk = walker(
    bars.length,
    (index) => {
      const chart = document.getElementById(id);
      if (chart) reveal(chart, index);
    },
    (index) => {
      const bar = bars[index];
      if (bar) pick(bar);
    },
  );
  const days = [...new Set(bars.map((bar) => place(bar)[0] ?? 0))];
  const height = days.length * row + 20;
  return h(
    "div",
    {
      class: "chart heat",
      id,
      tabindex: "0",
      role: "group",
      "aria-roledescription": "chart",
      "aria-label": `${label}. Arrow keys move over it, Enter opens the events.`,
      onkeydown: walk,
      onblur: (/** @type {any} */ event) => tip(event.currentTarget, null, ""),
      onmouseleave: (/** @type {any} */ event) => tip(event.currentTarget, null, ""),
    },
    svg(
      "svg",
      { viewBox: `0 0 ${width} ${height}`, height, "aria-hidden": "true" },
      days.map((day) =>
        svg(
          "text",
          { x: left - 10, y: day * row + row / 2 + 4, "text-anchor": "end" },
          weekday(start.getTime() + day * 86_400_000 + 43_200_000),
        ),
      ),
      bars.map((bar, index) => {
        const [day, hour] = place(bar);
        return svg("rect", {
          class: bar.value ? "some" : "zero",
          x: left + (hour ?? 0) * cell,
          y: (day ?? 0) * row,
          width: cell,
          height: row,
          rx: 4,
          "fill-opacity": bar.value ? (0.18 + 0.82 * Math.sqrt(bar.value / top)).toFixed(2) : 1,
          onclick: () => pick(bar),
          onmouseenter: (/** @type {any} */ event) => reveal(event.currentTarget.closest(".chart"), index),
        });
      }),
      [0, 3, 6, 9, 12, 15, 18, 21].map((hour) =>
        svg("text", { x: left + hour * cell + 2, y: height - 4 }, `${String(hour).padStart(2, "0")}:00`),
      ),
    ),
    h("div", { class: "tip", hidden: true, role: "status" }),
  );
}
