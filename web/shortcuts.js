// Keyboard shortcuts of the page, and the dialog that lists them. All have a modifier, so that none gets in the way of typing.
import { byId, element, icon } from "./dom.js";

const isApple = /Mac|iPhone|iPad/.test(navigator.platform);
const CTRL = isApple ? "⌘" : "Ctrl";
const ALT = isApple ? "⌥" : "Alt";

/** The list: keys and what they do, by place. */
const LIST = [
  ["Everywhere", [
    [[ALT, "1"], "to", [ALT, "5"], "Show a tab"],
    [[CTRL, "/"], "Show this list"],
  ]],
  ["Chat", [
    [[CTRL, "Shift", "O"], "Begin a new chat"],
    [["Shift", "Esc"], "Go to the message box"],
    [["Enter"], "Send the message"],
    [["Shift", "Enter"], "Start a line"],
    [["↑"], "In an empty message box: edit the last message"],
    [["Esc"], "Stop the answer, or cancel editing"],
  ]],
  ["Complete, Compare and Inspect", [
    [[CTRL, "Enter"], "Start"],
    [["Esc"], "Stop"],
  ]],
];

const keys = (names) => names.flatMap((name, at) => [at > 0 ? "+" : "", element("kbd", {}, name)]);

function build(dialog) {
  for (const [title, rows] of LIST) {
    dialog.append(element("h3", {}, title), element("dl", { class: "shortcuts" }, rows.flatMap((row) => {
      const shown = row.slice(0, -1).flatMap((part) => (Array.isArray(part) ? keys(part) : ` ${part} `));
      return [element("dt", {}, shown), element("dd", {}, row.at(-1))];
    })));
  }
  dialog.append(element("form", { method: "dialog", class: "actions" }, element("button", { type: "submit", class: "button" }, "Close")));
}

/** Connects the keys. `actions`: `tab(index)`, `newChat()`, `focusMessage()`. */
export function start(actions) {
  const dialog = byId("shortcuts");
  const button = byId("shortcuts-button");
  button.append(icon("keyboard"));
  build(dialog);
  const toggle = () => (dialog.open ? dialog.close() : dialog.showModal());
  button.addEventListener("click", toggle);
  document.addEventListener("keydown", (event) => {
    const hasCtrl = event.ctrlKey || event.metaKey;
    let act;
    if (hasCtrl && !event.altKey && event.key === "/") act = toggle;
    else if (document.querySelector("dialog[open]")) return;
    else if (hasCtrl && event.shiftKey && event.code === "KeyO") act = actions.newChat;
    else if (event.shiftKey && event.key === "Escape") act = actions.focusMessage;
    else if (event.altKey && !hasCtrl && !event.shiftKey && /^Digit[1-5]$/.test(event.code)) act = () => actions.tab(Number(event.code.at(-1)) - 1);
    if (act === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    act();
  }, { capture: true });
}
