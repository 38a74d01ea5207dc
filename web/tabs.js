// The tabs, by the ARIA pattern: arrow keys move between them, and the address has the shown one (`#compare`).
import { byId } from "./dom.js";

/** Makes tabs of the buttons in a `tablist`. `shown(name)` is called when one is shown. Returns a function that shows one. */
export function tabs(list, shown) {
  const buttons = [...list.querySelectorAll("[role=tab]")];
  const panel = (button) => byId(button.getAttribute("aria-controls"));

  function show(name) {
    const wanted = buttons.find((button) => panel(button).id === name) ?? buttons[0];
    for (const button of buttons) {
      const isShown = button === wanted;
      button.setAttribute("aria-selected", isShown);
      button.tabIndex = isShown ? 0 : -1;
      panel(button).hidden = !isShown;
    }
    shown(panel(wanted).id);
  }

  list.addEventListener("click", (event) => {
    const button = event.target.closest("[role=tab]");
    if (button) show(panel(button).id);
  });
  list.addEventListener("keydown", (event) => {
    const at = buttons.indexOf(document.activeElement);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: -1 }[event.key];
    if (at < 0 || to === undefined) return;
    event.preventDefault();
    const next = buttons.at(to % buttons.length);
    next.focus();
    show(panel(next).id);
  });
  return show;
}
