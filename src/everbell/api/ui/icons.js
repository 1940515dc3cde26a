/** Line icons on a grid of 24, drawn with the current colour. They are decoration: a word is always beside them. */

import { svg } from "./dom.js";

const PATHS = {
  bell: "M12 3v1.5M6.500 17.500h11l-1.500-2.500v-4a4.500 4.500 0 0 0-9 0v4zM10.500 20.500h3",
  overview: "M4 19V9M10 19V5M16 19v-7M21 19H3",
  events: "M8 6h12M8 12h12M8 18h12M4 6h.01M4 12h.01M4 18h.01",
  dead: "M9 9l6 6M15 9l-6 6M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18z",
  repeat: "M4 12a8 8 0 0 1 14-5.300L20 9M20 4v5h-5M20 12a8 8 0 0 1-14 5.300L4 15M4 20v-5h5",
  queue: "M4 7l8-4 8 4-8 4zM4 12l8 4 8-4M4 17l8 4 8-4",
  target: "M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18zM12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 12h.01",
  key: "M15 4a5 5 0 0 0-4.800 6.400L4 16.600V20h3.400v-2.200h2.200v-2.200h2.200l.800-.800A5 5 0 1 0 15 4zM16.500 7.500h.01",
  order: "M4 7h10M4 12h10M4 17h10M18 5v14M15 16l3 3 3-3",
  tenant: "M4 20V6l8-3 8 3v14M9 20v-5h6v5M9 9h.01M15 9h.01M9 12h.01M15 12h.01M3 20h18",
  cluster:
    "M12 4a2 2 0 1 0 0 4 2 2 0 0 0 0-4zM6 15a2 2 0 1 0 0 4 2 2 0 0 0 0-4zM18 15a2 2 0 1 0 0 4 2 2 0 0 0 0-4zM11 8l-4 7M13 8l4 7M8 17h8",
  plus: "M12 5v14M5 12h14",
  pause: "M8 5v14M16 5v14",
  play: "M7 4.500v15l12-7.500z",
  check: "M5 12.500l4.500 4.500L19 7.500",
  cross: "M6 6l12 12M18 6L6 18",
  clock: "M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18zM12 7v5l3.500 2",
  warning: "M12 4L2.500 20h19zM12 10v4.500M12 17.300h.01",
  info: "M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18zM12 11v5.500M12 7.500h.01",
  send: "M4 12l16-8-6 16-3-7z",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.500 1.500M17.500 17.500L19 19M19 5l-1.500 1.500M6.500 17.500L5 19",
  moon: "M20 14.500A8.500 8.500 0 0 1 9.500 4a8.500 8.500 0 1 0 10.500 10.500z",
  hourglass: "M7 3h10M7 21h10M8 3c0 5 8 6 8 9s-8 4-8 9M16 3c0 5-8 6-8 9s8 4 8 9",
  out: "M14 4h6v6M20 4l-9 9M18 14v6H4V6h6",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
};

/** @typedef {keyof typeof PATHS} IconName */

/** @param {IconName} name */
export function icon(name) {
  return svg(
    "svg",
    {
      viewBox: "0 0 24 24",
      fill: "none",
      stroke: "currentColor",
      "stroke-width": 2,
      "stroke-linecap": "round",
      "stroke-linejoin": "round",
      "aria-hidden": "true",
    },
    svg("path", { d: PATHS[name] }),
  );
}
