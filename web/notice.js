// Short messages at the lower edge of the page, with an action such as "Undo".
import { byId, element, iconButton } from "./dom.js";

const SHOWN_MS = 10_000;

/** The message box must stay usable: messages are shown above it. */
new ResizeObserver(([{ target }]) => byId("notices").style.setProperty("--below", `${target.offsetHeight}px`)).observe(document.querySelector(".composer-frame"));

/** Shows a message for some seconds; longer while the pointer or the focus is on it. */
export function notice(text, action) {
  const shown = element("div", { class: "notice" }, element("span", {}, text));
  const close = () => shown.remove();
  if (action) {
    shown.append(element("button", { type: "button", class: "quiet-button", onclick: () => { close(); action.run(); } }, action.label));
  }
  shown.append(iconButton("close", "Dismiss", close));
  let timer;
  const wait = () => {
    clearTimeout(timer);
    timer = setTimeout(() => (shown.matches(":hover, :focus-within") ? wait() : close()), SHOWN_MS);
  };
  wait();
  byId("notices").replaceChildren(shown);
}
