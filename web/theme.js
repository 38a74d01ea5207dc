// Light or dark: as the system has it, unless the button chose the other one. Loaded before the first paint.

const KEY = "hearth theme";
const system = matchMedia("(prefers-color-scheme: dark)");
const systemTheme = () => (system.matches ? "dark" : "light");
const stored = () => {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null;
  }
};

let chosen = stored();
const shown = () => chosen ?? systemTheme();

function apply() {
  if (chosen === null) delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = chosen;
  document.dispatchEvent(new Event("hearth-theme"));
}
apply();
system.addEventListener("change", apply);

/** Shows the other theme from now on. */
export function toggleTheme() {
  const wanted = shown() === "dark" ? "light" : "dark";
  chosen = wanted === systemTheme() ? null : wanted;
  try {
    if (chosen === null) localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, chosen);
  } catch {
    // The choice cannot be stored: it lasts as long as the page.
  }
  apply();
}

export { shown as shownTheme };
