/**
 * Calls of the HTTP API of the node that served this page.
 *
 * The access key lives in `sessionStorage`: it is gone when the tab is closed, and other tabs do not have it. A call
 * that gets no answer marks the node as down until another call succeeds.
 */

const KEY = "everbell.key";
const GONE_MS = 30_000;

/** How old an answer may be that this tab shares with other viewers. The server shares most for a second only. */
const SHARED_S = 10;
/** After a change from this tab, every answer is made for it, so that the user sees the change. */
const FRESH_MS = 10_000;
let changedAt = -Infinity;

/** @typedef {{id: string, tenant: string, scopes: string[], note: string, keys_required: boolean}} Caller */

/** An answer that is no success. Status 0: there was no answer. */
export class ApiError extends Error {
  /** @param {number} status @param {string} title @param {string} detail @param {string} [field] */
  constructor(status, title, detail, field) {
    super(detail || title);
    this.status = status;
    this.title = title;
    this.field = field;
  }

  /** Whether this node does not know the path: it is of an older version. */
  get isUnknownPath() {
    return (this.status === 404 && this.message.startsWith("there is nothing at")) || this.status === 405;
  }
}

/**
 * JSON, with numbers of more than 15 digits kept as they were written, where the browser can do that: a payload must
 * neither be shown nor copied with another number in it.
 * @param {string} text
 */
function parse(text) {
  const { rawJSON } = /** @type {any} */ (JSON);
  if (!rawJSON || !/\d{16}/.test(text)) return JSON.parse(text);
  /** @type {(key: string, value: any, context?: any) => any} */
  const keep = (_, value, context) =>
    typeof value === "number" && context?.source.length > 15 ? rawJSON(context.source) : value;
  return JSON.parse(text, keep);
}

/** The state of the connection, for the shell. */
export const connection = {
  isDown: false,
  /** @type {string} */
  reason: "",
  needsKey: false,
  /** @type {() => void} */
  onchange: () => {},
};

/** @returns {string | null} */
export function accessKey() {
  return sessionStorage.getItem(KEY);
}

/** @param {string | null} key */
export function keepAccessKey(key) {
  if (key === null) sessionStorage.removeItem(KEY);
  else sessionStorage.setItem(KEY, key);
}

/** @param {boolean} isDown @param {string} reason */
function noteConnection(isDown, reason) {
  if (connection.isDown === isDown && connection.reason === reason) return;
  connection.isDown = isDown;
  connection.reason = reason;
  connection.onchange();
}

/**
 * @typedef {{body?: any, version?: number, signal?: AbortSignal | undefined, sharedS?: number}} Options
 * @param {string} method @param {string} path @param {Options} [options] @returns {Promise<any>}
 */
export async function call(method, path, { body, version, signal, sharedS } = {}) {
  /** @type {Record<string, string>} */
  const headers = {};
  const key = accessKey();
  if (key !== null) headers["authorization"] = `Bearer ${key}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  if (version !== undefined) headers["if-match"] = `"${version}"`;
  if (method !== "GET") changedAt = performance.now();
  else if (sharedS && performance.now() - changedAt > FRESH_MS) headers["cache-control"] = `max-age=${sharedS}`;
  let response;
  try {
    response = await fetch(path, {
      method,
      headers,
      body: body === undefined ? null : JSON.stringify(body),
      signal: signal ?? null,
      cache: "no-store",
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    noteConnection(true, "This node does not answer.");
    throw new ApiError(0, "No answer", "This node does not answer. It may be stopped, or the network may be cut.");
  }
  const text = await response.text();
  /** @type {any} */
  let content = null;
  try {
    content = text ? parse(text) : null;
  } catch {
    content = null;
  }
  // A probe answers 503 with a health document, which is no problem of the connection.
  const isProblem = !response.ok && !(content && "state" in content);
  noteConnection(
    response.status === 503 && isProblem,
    response.status === 503 && isProblem ? (content?.detail ?? "This node takes no requests now.") : "",
  );
  if (!isProblem) return content;
  if (response.status === 401) {
    connection.needsKey = true;
    connection.onchange();
  }
  throw new ApiError(response.status, content?.title ?? response.statusText, content?.detail ?? text, content?.field);
}

/** @param {string} path @param {AbortSignal} [signal] @param {number} [sharedS] the age in seconds that is acceptable */
export function get(path, signal, sharedS = SHARED_S) {
  return call("GET", path, { signal, sharedS });
}

/** When a path was found to be unknown here, by path without its query. @type {Map<string, number>} */
const unknown = new Map();

/**
 * What an optional path answers; null where this node does not have it or the key does not allow it.
 * @param {string} path @param {AbortSignal} [signal]
 */
export async function getIfPossible(path, signal) {
  const name = path.split("?")[0] ?? path;
  if (Date.now() - (unknown.get(name) ?? 0) < GONE_MS) return null;
  try {
    return await get(path, signal);
  } catch (error) {
    if (!(error instanceof ApiError) || !(error.isUnknownPath || error.status === 403)) throw error;
    unknown.set(name, Date.now());
    return null;
  }
}

/** The path of something in a tenant. @param {string} tenant @param {...string} segments */
export function inTenant(tenant, ...segments) {
  return ["/v1/tenants", tenant, ...segments].map((part, index) => (index ? encodeURIComponent(part) : part)).join("/");
}

/** A query without its empty fields. @param {Record<string, any>} fields */
export function query(fields) {
  const given = Object.entries(fields).filter(
    ([, value]) => value !== undefined && value !== null && value !== "" && value !== false,
  );
  return given.length ? `?${new URLSearchParams(given.map(([name, value]) => [name, String(value)]))}` : "";
}

/** Whether the caller has a scope in a tenant. @param {Caller | null} caller @param {string} scope @param {string} tenant */
export function allows(caller, scope, tenant) {
  if (!caller || (caller.tenant !== "*" && caller.tenant !== tenant)) return false;
  return caller.scopes.includes(scope) || caller.scopes.includes("admin");
}
