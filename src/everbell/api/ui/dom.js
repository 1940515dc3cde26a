/**
 * Elements without a framework: `h` makes them, `patch` changes the ones on the page into the ones that a view made.
 *
 * Rules. Text becomes a text node and never markup. A view makes its whole tree afresh; `patch` keeps the elements that
 * stay, so focus, scroll position, open details and half-typed text survive an update. Listeners are kept beside the
 * element and replaced with it, so an old closure is never called.
 */

/** @typedef {string | number | Node | null | undefined | false | ChildList} Child */
/** @typedef {Child[]} ChildList */
/** @typedef {Record<string, any>} Props */

const SVG = "http://www.w3.org/2000/svg";
/** Set as properties, because their attributes are only the initial values. */
const LIVE = new Set(["checked", "value", "indeterminate", "selected"]);

/** @type {WeakMap<Element, Record<string, (event: any) => void>>} */
const listeners = new WeakMap();
/** @type {WeakMap<Node, string>} */
const keys = new WeakMap();
/** @type {WeakMap<Element, Props>} */
const live = new WeakMap();

/** @param {Event} event */
function dispatch(event) {
  const element = /** @type {Element} */ (event.currentTarget);
  listeners.get(element)?.[event.type]?.(event);
}

/** @param {Element} element @param {Record<string, (event: any) => void>} wanted */
function listen(element, wanted) {
  const known = listeners.get(element) ?? {};
  for (const type of Object.keys(wanted)) if (!(type in known)) element.addEventListener(type, dispatch);
  for (const type of Object.keys(known)) if (!(type in wanted)) element.removeEventListener(type, dispatch);
  listeners.set(element, wanted);
}

/** @param {Element} element @param {Props} props */
function dress(element, props) {
  /** @type {Record<string, (event: any) => void>} */
  const wanted = {};
  /** @type {Props} */
  const now = {};
  for (const [name, value] of Object.entries(props)) {
    if (name === "key") keys.set(element, String(value));
    else if (name === "style")
      for (const [part, text] of Object.entries(value))
        /** @type {any} */ (element).style.setProperty(part, String(text));
    else if (name.startsWith("on")) {
      if (value) wanted[name.slice(2)] = value;
    } else if (LIVE.has(name)) {
      now[name] = value;
      /** @type {any} */ (element)[name] = value;
    } else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, String(value));
  }
  if (Object.keys(wanted).length) listen(element, wanted);
  if (Object.keys(now).length) live.set(element, now);
}

/** @param {Node} parent @param {ChildList} children */
function fill(parent, children) {
  for (const child of children) {
    if (Array.isArray(child)) fill(parent, child);
    else if (child instanceof Node) parent.appendChild(child);
    else if (child !== null && child !== undefined && child !== false)
      parent.appendChild(document.createTextNode(String(child)));
  }
}

/**
 * An HTML element. `onclick` and the like are listeners, `key` names a child among its siblings.
 * @param {string} tag @param {Props | null} [props] @param {...Child} children @returns {HTMLElement}
 */
export function h(tag, props, ...children) {
  const element = document.createElement(tag);
  fill(element, children);
  if (props) dress(element, props);
  return element;
}

/** An SVG element. @param {string} tag @param {Props | null} [props] @param {...Child} children @returns {SVGElement} */
export function svg(tag, props, ...children) {
  const element = /** @type {SVGElement} */ (document.createElementNS(SVG, tag));
  fill(element, children);
  if (props) dress(element, props);
  return element;
}

/** Show the children in the parent, with as few changes as possible. @param {Element} parent @param {...Child} children */
export function show(parent, ...children) {
  const next = document.createElement("div");
  fill(next, children);
  patchChildren(parent, next);
}

/** The first class of an element says what it is, the others say how it is. @param {Node} node */
function kindOf(node) {
  return node instanceof Element ? (node.getAttribute("class") ?? "").split(" ", 1)[0] : "";
}

/** @param {Node} old @param {Node} next @returns {boolean} */
function isSame(old, next) {
  const key = keys.get(old);
  if (old.nodeName !== next.nodeName || key !== keys.get(next)) return false;
  return key !== undefined || kindOf(old) === kindOf(next);
}

/** The node that a wanted one replaces: the one with its key, or the next one like it. @param {Node | null} at @param {Node} wanted @param {Map<string, Node>} named */
function counterpart(at, wanted, named) {
  const key = keys.get(wanted);
  if (key !== undefined) return named.get(key) ?? null;
  for (let old = at; old; old = old.nextSibling) if (isSame(old, wanted)) return old;
  return null;
}

/** @param {Node} old @param {Node} next */
function patch(old, next) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.nodeValue !== next.nodeValue) old.nodeValue = next.nodeValue;
    return;
  }
  const from = /** @type {Element} */ (old),
    to = /** @type {Element} */ (next);
  patchAttributes(from, to);
  listen(from, listeners.get(to) ?? {});
  // An element that manages its own content, such as an open dialog or a form that the user fills in.
  if (!to.hasAttribute("data-own")) patchChildren(from, to);
  const wanted = live.get(to);
  if (wanted) {
    live.set(from, wanted);
    for (const [name, value] of Object.entries(wanted)) {
      const isTyping = name === "value" && document.activeElement === from;
      if (!isTyping && /** @type {any} */ (from)[name] !== value) /** @type {any} */ (from)[name] = value;
    }
  }
}

/** @param {Element} from @param {Element} to */
function patchAttributes(from, to) {
  for (const { name } of [...from.attributes]) {
    if (!to.hasAttribute(name) && !(name === "open" && from.tagName === "DETAILS")) from.removeAttribute(name);
  }
  for (const { name, value } of [...to.attributes]) {
    if (name === "style") {
      const text = /** @type {HTMLElement} */ (to).style.cssText;
      if (/** @type {HTMLElement} */ (from).style.cssText !== text)
        /** @type {HTMLElement} */ (from).style.cssText = text;
    } else if (from.getAttribute(name) !== value) from.setAttribute(name, value);
  }
}

/** @param {Element} parent @param {Element} next */
function patchChildren(parent, next) {
  /** @type {Map<string, Node>} */
  const named = new Map();
  for (const child of parent.childNodes) {
    const key = keys.get(child);
    if (key !== undefined) named.set(key, child);
  }
  let at = parent.firstChild;
  for (const wanted of [...next.childNodes]) {
    const found = counterpart(at, wanted, named);
    if (found && isSame(found, wanted)) {
      // Moving an element takes the focus away from it, so those before it are removed instead, where none has a key.
      while (at && at !== found && !named.size) at = removed(at);
      if (found === at) at = found.nextSibling;
      else parent.insertBefore(found, at);
      patch(found, wanted);
    } else parent.insertBefore(wanted, at);
  }
  while (at) at = removed(at);
}

/** Remove a node, and return the one after it. @param {ChildNode} node */
function removed(node) {
  const following = node.nextSibling;
  node.remove();
  return following;
}
