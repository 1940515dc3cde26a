/** The same request as text to copy: for curl, the command line and Python. */

/** Quoted for a POSIX shell. @param {string} text */
function quoted(text) {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;
}

/** @param {any} value @param {number} [depth] @returns {string} */
function python(value, depth = 0) {
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value === "string") return JSON.stringify(value);
  if (typeof value !== "object") return String(value);
  const pad = "    ".repeat(depth + 1),
    end = "    ".repeat(depth);
  if (Array.isArray(value)) return value.length ? `[${value.map((each) => python(each, depth)).join(", ")}]` : "[]";
  const lines = Object.entries(value).map(
    ([name, each]) => `${pad}${JSON.stringify(name)}: ${python(each, depth + 1)},`,
  );
  return lines.length ? `{\n${lines.join("\n")}\n${end}}` : "{}";
}

const SECRET = '-H "authorization: Bearer $EVERBELL_TOKEN" ';

/** Schedule an event. @param {string} tenant @param {Record<string, any>} spec @param {boolean} needsKey */
export function scheduleSnippets(tenant, spec, needsKey) {
  const { payload, to, at, in: delay, id, key, tags, headers, retry, repeat, expires } = spec;
  const named = Object.entries({ to, at, in_: delay, id, key, tags, headers, retry, repeat, expires }).filter(
    ([, value]) => value !== undefined,
  );
  const flags = [
    to && `--to ${quoted(to)}`,
    at && `--at ${quoted(at)}`,
    delay && `--in ${quoted(delay)}`,
    id && `--id ${quoted(id)}`,
    key && `--key ${quoted(key)}`,
    ...(tags ?? []).map((/** @type {string} */ tag) => `--tag ${quoted(tag)}`),
    repeat?.cron && `--cron ${quoted(repeat.cron)}`,
    repeat?.every && `--every ${quoted(repeat.every)}`,
    repeat?.tz && `--tz ${quoted(repeat.tz)}`,
  ].filter(Boolean);
  return {
    curl: `curl ${needsKey ? SECRET : ""}${location.origin}/v1/tenants/${tenant}/events \\\n  --json ${quoted(JSON.stringify(spec))}`,
    cli: `everbell schedule ${quoted(JSON.stringify(payload ?? null))} ${flags.join(" ")} --tenant ${tenant} --server ${location.origin}`,
    python: `from everbell import Client\n\nwith Client(${JSON.stringify(location.origin)}, tenant=${JSON.stringify(tenant)}) as bell:\n    bell.schedule(\n        ${python(payload ?? null, 2)},\n${named.map(([name, value]) => `        ${name}=${python(value, 2)},`).join("\n")}\n    )`,
  };
}

/** Read an event. @param {string} tenant @param {string} id @param {boolean} needsKey */
export function readSnippets(tenant, id, needsKey) {
  return {
    curl: `curl ${needsKey ? SECRET : ""}${location.origin}/v1/tenants/${tenant}/events/${encodeURIComponent(id)}`,
    cli: `everbell show ${quoted(id)} --tenant ${tenant} --server ${location.origin}`,
    python: `from everbell import Client\n\nwith Client(${JSON.stringify(location.origin)}, tenant=${JSON.stringify(tenant)}) as bell:\n    print(bell.get(${JSON.stringify(id)}))`,
  };
}
