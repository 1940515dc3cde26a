/** A form for a new event, or for another version of one, with its next times and the same request as text. */

import { ApiError, call, get, inTenant } from "./api.js";
import { scheduleInWords } from "./cron_words.js";
import { h } from "./dom.js";
import { icon } from "./icons.js";
import { card, copy, field, heading, segments, toast, told } from "./parts.js";
import { changesOf, emptyForm, formOf, specOf } from "./schedule_form.js";
import { scheduleSnippets } from "./snippets.js";
import { parseDuration, relative, utc, wall } from "./time.js";

const PREVIEWED = 5;

/** @param {import("./pages.js").Context} context @returns {import("./pages.js").View} */
export function schedule(context) {
  const edited = context.params.get("edit"),
    like = context.params.get("like");
  let values = emptyForm();
  /** The event that the form began with. @type {any} */ let source = null;
  /** @type {"curl" | "cli" | "python"} */ let language = "curl";
  /** @type {any} */ let preview = null;
  /** @type {string} */ let previewWrong = "";
  /** @type {{field?: string, text: string} | null} */ let wrong = null;
  let isBusy = false,
    asked = "";

  /** @param {AbortSignal} signal */
  async function load(signal) {
    const id = edited ?? like;
    if (id && !source) {
      source = await get(inTenant(context.tenant, "events", id), signal);
      values = formOf(source);
    }
    return showPreview();
  }

  /** @returns {Record<string, any>} */
  function specSoFar() {
    try {
      return specOf(values, source);
    } catch {
      return { ...values, payload: "…" };
    }
  }

  async function showPreview() {
    const { repeat, at, in: delay } = specSoFar();
    const wanted = JSON.stringify([repeat, at, delay]);
    if (wanted === asked) return;
    asked = wanted;
    preview = null;
    previewWrong = "";
    if (repeat && (repeat.cron || repeat.every)) {
      try {
        const found = await call("POST", "/v1/preview", { body: { repeat, count: PREVIEWED, ...(at ? { at } : {}) } });
        if (asked === wanted) preview = found;
      } catch (error) {
        if (asked === wanted) previewWrong = told(error);
      }
    }
    context.update();
  }

  /** @param {string} name @param {string} value */
  function set(name, value) {
    values[name] = value;
    wrong = null;
    context.update();
    void showPreview();
  }

  async function send() {
    isBusy = true;
    wrong = null;
    context.update();
    try {
      const body = specOf(values, source);
      const made = edited
        ? await call("PATCH", inTenant(context.tenant, "events", edited), {
            body: changesOf(specOf(formOf(source), source), body),
            version: source.version,
          })
        : await call("POST", inTenant(context.tenant, "events"), { body });
      toast(edited ? `Changed ${made.id}` : `Scheduled ${made.id}`);
      context.go("event", [made.id]);
    } catch (error) {
      const name = error instanceof ApiError ? error.field : undefined;
      wrong = { text: told(error), ...(name ? { field: name } : {}) };
    }
    isBusy = false;
    context.update();
  }

  /** @param {string} name @param {string} label @param {string} [placeholder] @param {string} [hint] */
  function input(name, label, placeholder = "", hint) {
    const isWrong = wrong?.field === name || wrong?.field?.endsWith(`.${name}`);
    return field(
      label,
      h("input", {
        name,
        value: values[name] ?? "",
        placeholder,
        spellcheck: "false",
        autocomplete: "off",
        "aria-invalid": isWrong ? "true" : null,
        oninput: (/** @type {any} */ event) => set(name, event.target.value),
      }),
      hint,
    );
  }

  /** @param {string} name @param {string} label @param {[string, string][]} options */
  function select(name, label, options) {
    return field(
      label,
      h(
        "select",
        { name, value: values[name] ?? "", onchange: (/** @type {any} */ event) => set(name, event.target.value) },
        options.map(([value, text]) => h("option", { value }, text)),
      ),
    );
  }

  function timing() {
    const when = values["when"];
    const choose = segments(
      "When",
      [
        ["in", "After a delay"],
        ["at", "At a time"],
        ["every", "Every"],
        ["cron", "Cron"],
      ],
      /** @type {any} */ (when),
      (value) => set("when", value),
    );
    return card(
      "When",
      choose,
      h(
        "div",
        { class: "fields" },
        when === "in" && input("in", "Delay", "20m", "250ms, 90s, 1h30m"),
        when === "at" && input("at", "Time", "2026-11-20T10:00:00Z", "RFC 3339 with an offset"),
        when === "every" && input("every", "Interval", "1h"),
        when === "cron" && [input("cron", "Expression", "0 9 * * MON-FRI"), input("tz", "Time zone", "Europe/Berlin")],
        (when === "cron" || when === "every") && [
          input("count", "Occurrences", "without an end"),
          select("misfire", "When late", [
            ["", "deliver all"],
            ["latest", "only the latest"],
            ["skip", "skip"],
          ]),
          select("overlap", "When one is under way", [
            ["", "wait for it"],
            ["skip", "skip"],
            ["allow", "deliver beside it"],
          ]),
        ],
      ),
    );
  }

  function times() {
    const when = values["when"];
    if (when === "in") {
      const ms = parseDuration(values["in"] ?? "");
      return Number.isNaN(ms)
        ? h("p", { class: "muted" }, "Give a delay such as 20m.")
        : h(
            "p",
            null,
            "Due at ",
            h("strong", null, utc(new Date(Date.now() + ms).toISOString())),
            ", counted from now.",
          );
    }
    if (when === "at") {
      const at = Date.parse(values["at"] ?? "");
      return Number.isNaN(at)
        ? h("p", { class: "muted" }, "Give a time such as 2026-11-20T10:00:00Z.")
        : h(
            "p",
            null,
            "Due ",
            h("strong", null, relative(new Date(at).toISOString())),
            at < Date.now() ? ": in the past, so at once" : "",
          );
    }
    if (previewWrong) return h("p", { class: "bad-text", role: "status" }, previewWrong);
    if (!preview) return h("p", { class: "muted" }, "Give an interval or an expression.");
    return [
      h("p", null, scheduleInWords(specSoFar()["repeat"] ?? {})),
      h(
        "ul",
        { class: "list" },
        preview.occurrences.map((/** @type {any} */ each) =>
          h(
            "li",
            { key: each.number },
            h("span", { class: "grow", title: each.local ?? each.at }, wall(each.local ?? each.at)),
            h("span", { class: "muted" }, relative(each.at)),
          ),
        ),
      ),
    ];
  }

  function view() {
    if (!context.can("schedule"))
      return heading("Schedule an event", "This access key may not schedule events in this tenant.");
    const texts = scheduleSnippets(context.tenant, specSoFar(), context.caller.keys_required);
    const isWrongElsewhere = wrong !== null;
    return [
      heading(edited ? `Edit ${edited}` : "Schedule an event", `In tenant ${context.tenant}`),
      h(
        "form",
        {
          class: "grid wide",
          novalidate: true,
          onsubmit: (/** @type {Event} */ event) => {
            event.preventDefault();
            void send();
          },
        },
        h(
          "div",
          { class: "stack" },
          timing(),
          card(
            "What",
            null,
            h(
              "div",
              { class: "stack" },
              input(
                "to",
                "Target",
                "https://shop.example/hook",
                "https://…, queue:name, kafka://topic; empty: the tenant's default",
              ),
              field(
                "Payload",
                h("textarea", {
                  name: "payload",
                  rows: "8",
                  spellcheck: "false",
                  value: values["payload"] ?? "",
                  oninput: (/** @type {any} */ event) => set("payload", event.target.value),
                }),
                "JSON",
              ),
              h(
                "div",
                { class: "fields" },
                !edited && input("id", "Id", "made by the server", "makes repeating safe"),
                !edited && input("key", "Key", "none", "events of a key go in order"),
                input("tags", "Tags", "none", "separated by commas"),
              ),
            ),
          ),
          h(
            "details",
            { class: "card" },
            h("summary", null, "Retries, expiry and headers"),
            h(
              "div",
              { class: "stack" },
              h(
                "div",
                { class: "fields" },
                input("max_attempts", "Attempts", "10"),
                input("backoff", "First pause", "2s"),
                input("expires", "Expires", "never", "after its due time"),
              ),
              field(
                "Headers",
                h("textarea", {
                  name: "headers",
                  rows: "3",
                  spellcheck: "false",
                  value: values["headers"] ?? "",
                  placeholder: '{"x-trace": "1"}',
                  oninput: (/** @type {any} */ event) => set("headers", event.target.value),
                }),
                "a JSON object",
              ),
            ),
          ),
        ),
        h(
          "div",
          { class: "stack" },
          card("Next times", null, times()),
          card(
            "The same request",
            segments(
              "Language",
              [
                ["curl", "curl"],
                ["cli", "CLI"],
                ["python", "Python"],
              ],
              language,
              (value) => {
                language = value;
                context.update();
              },
            ),
            h("pre", { class: "code text", tabindex: "0" }, texts[language]),
            h(
              "p",
              null,
              h("button", { type: "button", onclick: () => copy(texts[language], language) }, icon("copy"), "Copy"),
            ),
          ),
          isWrongElsewhere &&
            h(
              "div",
              { class: "alert is-bad", role: "alert" },
              icon("warning"),
              h("div", null, h("strong", null, "Not scheduled"), h("p", null, wrong?.text ?? "")),
            ),
          h(
            "button",
            { type: "submit", class: "primary broad", disabled: isBusy },
            icon("bell"),
            edited ? "Save the changes" : "Schedule it",
          ),
        ),
      ),
    ];
  }

  return { title: "Schedule an event", load, view, every: 600_000, isHeld: () => true };
}
