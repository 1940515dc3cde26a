/** A recurrence in words. Where a cron expression is too special for words, it is shown as it is. */

const DAYS = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS = [
  "January",
  "February",
  "March",
  "April",
  "May",
  "June",
  "July",
  "August",
  "September",
  "October",
  "November",
  "December",
];
const ALIASES = /** @type {Record<string, string>} */ ({
  "@hourly": "0 * * * *",
  "@daily": "0 0 * * *",
  "@midnight": "0 0 * * *",
  "@weekly": "0 0 * * 0",
  "@monthly": "0 0 1 * *",
  "@yearly": "0 0 1 1 *",
  "@annually": "0 0 1 1 *",
});

/** @param {string[]} words */
function joined(words) {
  return words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} and ${words.at(-1)}`;
}

/** Names or numbers of a field; null if it is neither a list nor a range. @param {string} text @param {string[]} names @param {number} first */
function listed(text, names, first) {
  const name = (/** @type {string} */ part) => {
    if (/^\d+$/.test(part)) return names[(Number(part) - first) % names.length] ?? null;
    return names.find((each) => each.slice(0, 3).toUpperCase() === part.toUpperCase()) ?? null;
  };
  const parts = text.split(",").map((part) => {
    const ends = part.split("-").map(name);
    if (ends.length > 2 || ends.includes(null)) return null;
    return ends.join(" to ");
  });
  return parts.includes(null) ? null : joined(/** @type {string[]} */ (parts));
}

/** @param {string} minute @param {string} hour */
function timeOfDay(minute, hour) {
  const two = (/** @type {string} */ text) => text.padStart(2, "0");
  if (minute === "*" && hour === "*") return "every minute";
  const each = /^\*\/(\d+)$/.exec(minute);
  if (each && hour === "*") return `every ${each[1]} minutes`;
  if (/^\d+$/.test(minute) && hour === "*") return minute === "0" ? "every hour" : `every hour at minute ${minute}`;
  const hours = /^\*\/(\d+)$/.exec(hour);
  if (/^\d+$/.test(minute) && hours) return `every ${hours[1]} hours at minute ${minute}`;
  if (/^\d+$/.test(minute) && /^[\d,]+$/.test(hour))
    return `at ${joined(hour.split(",").map((each) => `${two(each)}:${two(minute)}`))}`;
  const range = /^(\d+)-(\d+)$/.exec(hour);
  if (range && (each || /^\d+$/.test(minute)))
    return `${each ? `every ${each[1]} minutes` : minute === "0" ? "every hour" : `every hour at minute ${minute}`} from ${two(range[1] ?? "")}:00 to ${two(range[2] ?? "")}:59`;
  return null;
}

/** @param {string} expression @returns {string | null} */
export function cronInWords(expression) {
  const fields = (ALIASES[expression.toLowerCase()] ?? expression).trim().split(/\s+/);
  if (fields.length === 6 && fields[0] === "0") fields.shift();
  const [minute, hour, day, month, weekday] = fields;
  if (fields.length !== 5 || !minute || !hour || !day || !month || !weekday) return null;
  const when = timeOfDay(minute, hour);
  const days = weekday === "*" ? "" : listed(weekday, DAYS, 0);
  const months = month === "*" ? "" : listed(month, MONTHS, 1);
  const dates =
    day === "*"
      ? ""
      : /^[\d,]+$/.test(day)
        ? `day ${joined(day.split(","))}`
        : day.toUpperCase() === "L"
          ? "the last day"
          : null;
  if (when === null || days === null || months === null || dates === null) return null;
  const parts = [when];
  if (dates && days) parts.push(`on ${dates} of the month or on ${days}`);
  else if (dates) parts.push(`on ${dates} of the month`);
  else if (days) parts.push(`on ${days}`);
  else if (when.startsWith("at ")) parts.push("every day");
  if (months) parts.push(`in ${months}`);
  return parts.join(" ");
}

/** @param {any} repeat @returns {string} */
export function scheduleInWords(repeat) {
  const base = repeat.every ? `Every ${repeat.every}` : (cronInWords(repeat.cron ?? "") ?? `Cron ${repeat.cron}`);
  const parts = [`${base[0]?.toUpperCase()}${base.slice(1)}`];
  if (repeat.cron) parts.push(`(${repeat.tz ?? "UTC"})`);
  if (repeat.count) parts.push(`${repeat.count} times in all`);
  if (repeat.until) parts.push(`until ${repeat.until}`);
  if (repeat.jitter) parts.push(`with up to ${repeat.jitter} of jitter`);
  return parts.join(" ");
}
