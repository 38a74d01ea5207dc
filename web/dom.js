// Building elements. Text is always inserted as text, never as HTML.

export const byId = (id) => document.getElementById(id);

/**
 * Creates an element. Attributes that are `false`, `null` or `undefined` are left out, `true` is an empty value, and
 * functions are event listeners (`onclick`). Children that are not nodes become text; `null` and `false` are skipped.
 */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(key.slice(2), value);
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

const SVG = "http://www.w3.org/2000/svg";

export function svg(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children.flat());
  return made;
}

/** Outlines on a grid of 24 by 24, drawn with a pen of width 2. */
const ICONS = {
  close: "M6 6l12 12M18 6L6 18",
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M7 7h10v10H7z",
  copy: "M9 9h11v11H9zM15 9V4H4v11h5",
  done: "M5 12l5 5L19 7",
  edit: "M4 20l1-4L16 5l3 3L8 19zM14 7l3 3",
  trash: "M4 7h16M9 7V4h6v3M6 7l1 13h10l1-13M10 11v5M14 11v5",
  again: "M19 12a7 7 0 1 1-2-5M17 3v4h-4",
  go: "M5 6l7 6-7 6zM13 6l7 6-7 6z",
  inspect: "M11 4a7 7 0 1 0 0 14 7 7 0 0 0 0-14zM16 16l5 5",
  left: "M14 6l-6 6 6 6",
  right: "M10 6l6 6-6 6",
  list: "M4 6h16M4 12h16M4 18h10",
  sliders: "M4 7h9M17 7h3M15 5v4M4 17h3M11 17h9M9 15v4",
  export: "M12 15V4M8 8l4-4 4 4M5 14v6h14v-6",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2v2M12 20v2M2 12h2M20 12h2M5 5l1 1M18 18l1 1M5 19l1-1M18 6l1-1",
  moon: "M20 14A8 8 0 1 1 10 4a6.5 6.5 0 0 0 10 10z",
  wrap: "M4 6h16M4 12h13a3 3 0 0 1 0 6h-4M15 15l-3 3 3 3M4 18h4",
  attach: "M20 11l-8.5 8.5a5 5 0 0 1-7-7L13 4a3.3 3.3 0 0 1 4.7 4.7L9.5 17a1.7 1.7 0 0 1-2.4-2.4L14.5 7",
  keyboard: "M3 7h18v10H3zM7 10.5h.01M10.5 10.5h.01M14 10.5h.01M17.5 10.5h.01M8 14h8",
  key: "M8 11a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM11 12l9-9M17 6l3 3",
};

export function icon(name) {
  const outline = svg("path", { d: ICONS[name], fill: "none", stroke: "currentColor", "stroke-width": 2, "stroke-linecap": "round", "stroke-linejoin": "round" });
  return svg("svg", { class: "icon", viewBox: "0 0 24 24", "aria-hidden": "true", focusable: "false" }, outline);
}

/** A button that shows only an icon. Its label is read out and shown as a tooltip. */
export function iconButton(name, label, onclick, attributes = {}) {
  return element("button", { type: "button", class: "icon-button", "aria-label": label, title: label, onclick, ...attributes }, icon(name));
}

/** Changes the icon and the label of such a button. */
export function setIconButton(button, name, label) {
  button.setAttribute("aria-label", label);
  button.title = label;
  button.replaceChildren(icon(name));
}

/** Disables one of two buttons and enables the other, which takes over the keyboard focus. */
export function switchButtons(disabled, enabled) {
  const hadFocus = document.activeElement === disabled;
  enabled.disabled = false;
  disabled.disabled = true;
  if (hadFocus) enabled.focus();
}

/** Copies text and shows for a moment that it was copied. */
export async function copyFrom(button, text, name = "copy") {
  const label = button.getAttribute("aria-label");
  let said = "Copied";
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Not over plain HTTP from another machine, where browsers do not offer the clipboard.
    said = copyBySelection(text) ? said : "Cannot copy";
  }
  setIconButton(button, said === "Copied" ? "done" : name, said);
  setTimeout(() => setIconButton(button, name, label), 1500);
}

function copyBySelection(text) {
  const area = element("textarea", { class: "visually-hidden", "aria-hidden": "true", tabindex: "-1" });
  area.value = text;
  const focused = document.activeElement;
  document.body.append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  focused?.focus();
  return copied;
}

/** Saves text as a file. */
export function download(name, text, type = "application/json") {
  const url = URL.createObjectURL(new Blob([text], { type }));
  element("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

/** Makes a text area as high as its text. */
export function fitHeight(area) {
  if (CSS.supports("field-sizing", "content")) return;
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight + 2}px`;
}
