/** The fields of the form as text, and the request that they mean. The form itself is in `schedule.js`. */

import { ApiError } from "./api.js";
import { instant } from "./time.js";

/** @typedef {Record<string, string>} Values */

/** An empty form. @returns {Values} */
export function emptyForm() {
  const tz = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
  return { when: "in", in: "10m", payload: "{}", to: "", tz };
}

/** The form of an event. @param {any} event @returns {Values} */
export function formOf(event) {
  const { repeat, retry } = event;
  return {
    ...emptyForm(),
    to: event.to,
    key: event.key ?? "",
    tags: (event.tags ?? []).join(", "),
    payload: JSON.stringify(event.payload ?? null, null, 2),
    expires: event.expires ?? "",
    headers: event.headers ? JSON.stringify(event.headers, null, 2) : "",
    max_attempts: retry ? String(retry.max_attempts) : "",
    backoff: retry?.backoff ?? "",
    at: event.at,
    when: repeat ? (repeat.cron ? "cron" : "every") : "at",
    cron: repeat?.cron ?? "",
    every: repeat?.every ?? "",
    tz: repeat?.tz ?? "UTC",
    count: repeat?.count ? String(repeat.count) : "",
    misfire: repeat?.misfire ?? "",
    overlap: repeat?.overlap ?? "",
  };
}

/**
 * The request of a form. `source` is the event that the form began with: parts of its recurrence and its retries that
 * the form does not show are kept. Throws an `ApiError` for a field that is not JSON.
 * @param {Values} values @param {any} [source] @returns {Record<string, any>}
 */
export function specOf(values, source) {
  const text = (/** @type {string} */ name) => values[name]?.trim() || undefined;
  const number = (/** @type {string} */ name) => (text(name) ? Number(text(name)) : undefined);
  const when = values["when"] ?? "in";
  const tags = (text("tags") ?? "").split(",").map((tag) => tag.trim());
  const made = {
    id: text("id"),
    to: text("to"),
    in: when === "in" ? text("in") : undefined,
    at: when === "at" ? instant(text("at")) : undefined,
    key: text("key"),
    tags: tags[0] ? tags.filter(Boolean) : undefined,
    payload: parsed(values, "payload"),
    headers: text("headers") ? parsed(values, "headers") : undefined,
    retry:
      text("max_attempts") || text("backoff")
        ? { ...source?.retry, max_attempts: number("max_attempts"), backoff: text("backoff") }
        : undefined,
    repeat:
      when === "cron" || when === "every"
        ? {
            ...(source?.repeat?.[when] === undefined ? {} : source.repeat),
            [when]: text(when) ?? "",
            tz: when === "cron" ? text("tz") : undefined,
            count: number("count"),
            misfire: text("misfire"),
            overlap: text("overlap"),
          }
        : undefined,
    expires: text("expires"),
  };
  return JSON.parse(JSON.stringify(made));
}

/** The fields of a request that differ from another one; null for those that it does not have. @param {Record<string, any>} before @param {Record<string, any>} after */
export function changesOf(before, after) {
  const names = new Set([...Object.keys(before), ...Object.keys(after)]);
  const changed = [...names].filter((name) => JSON.stringify(before[name]) !== JSON.stringify(after[name]));
  return Object.fromEntries(changed.map((name) => [name, after[name] ?? null]));
}

/** @param {Values} values @param {string} name */
function parsed(values, name) {
  try {
    return JSON.parse(values[name] || "null");
  } catch (error) {
    const reason = /** @type {Error} */ (error).message;
    throw new ApiError(422, "The form is not complete", `${name} is not JSON: ${reason}`, name);
  }
}
