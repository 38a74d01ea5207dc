// A panel beside the main part. On a wide page it takes a column; on a narrow one it lies above the page, as a dialog would.
import { icon } from "./dom.js";

const narrow = matchMedia("(max-width: 60rem)");

/** Connects a drawer with the button that opens it. `changed(isOpen)` is called on wide pages. */
export function drawer(panel, button, { isOpen, changed = () => {} }) {
  const closer = panel.querySelector(".drawer-close");
  closer.append(icon("close"));
  /** Whether it is open on a wide page. */
  let wanted = isOpen;
  let opened = isOpen && !narrow.matches;

  function show() {
    panel.hidden = !opened;
    for (const beside of panel.parentElement.children) beside.inert = opened && narrow.matches && beside !== panel;
    button.setAttribute("aria-expanded", opened);
    panel.parentElement.classList.toggle(`has-${panel.id}`, opened);
  }
  function set(value, focus) {
    opened = value;
    show();
    if (!narrow.matches) {
      wanted = opened;
      changed(opened);
    }
    // On a wide page the panel is beside the rest: the focus stays where it is.
    if (opened && (focus || narrow.matches)) (panel.querySelector("input, textarea, select") ?? closer).focus();
    if (!opened && panel.contains(document.activeElement)) button.focus();
    if (!opened && focus) button.focus();
  }

  button.addEventListener("click", () => set(!opened, true));
  closer.addEventListener("click", () => set(false, true));
  panel.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !narrow.matches) return;
    event.stopPropagation();
    set(false, true);
  });
  // A click beside a panel that lies above the page closes it.
  panel.parentElement.addEventListener("pointerdown", (event) => {
    if (opened && narrow.matches && !panel.contains(event.target) && !button.contains(event.target)) set(false, false);
  });
  narrow.addEventListener("change", () => {
    opened = wanted && !narrow.matches;
    show();
  });
  show();
  return { closeIfOver: () => { if (opened && narrow.matches) set(false, false); } };
}
