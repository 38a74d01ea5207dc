// The frame of the page: tabs, theme, key and models. Each tab's module is loaded when the tab is first shown.
import { byId, element, icon, setIconButton } from "./dom.js";
import * as key from "./key.js";
import { canChat, loadModels, modelId, start as startModels } from "./models.js";
import { notice } from "./notice.js";
import * as shortcuts from "./shortcuts.js";
import { tabs } from "./tabs.js";
import { shownTheme, toggleTheme } from "./theme.js";

/** The modules of the tabs. Each has `start()`, which may return `{ shown, hidden }`. */
const LOAD = {
  chat: () => import("./chat.js"),
  complete: () => import("./complete.js"),
  compare: () => import("./compare.js"),
  inspect: () => import("./inspect.js"),
  server: () => import("./server.js"),
};
const started = new Map();
/** Tabs whose module could not be loaded. Browsers cache the failure by URL, so the next attempt uses another URL. */
const failed = new Set();
let current;

function load(name) {
  return failed.has(name) ? import(`./${name}.js?again=${Date.now()}`) : LOAD[name]();
}

/** Says in the place of a tab that it could not be loaded. */
function showFailure(name, error) {
  const again = element("button", { type: "button", class: "button primary", onclick: () => show(name) }, "Try again");
  const reload = element("button", { type: "button", class: "button", onclick: () => location.reload() }, "Reload the page");
  byId(name).classList.add("is-failed");
  byId(name).prepend(element("div", { class: "tab-failure", role: "alert" }, element("h2", {}, "This tab could not be loaded"),
    element("p", { class: "error" }, error.message), element("p", { class: "quiet" }, "Is the server still running, and can this browser reach it?"),
    element("p", { class: "actions" }, again, reload)));
}

function clearFailure(name) {
  byId(name).classList.remove("is-failed");
  byId(name).querySelector(".tab-failure")?.remove();
}

async function shown(name) {
  const before = current;
  current = name;
  document.title = `${byId(`tab-${name}`).textContent} · Hearth`;
  if (location.hash.slice(1).split("/")[0] !== name) history.replaceState(null, "", `#${name}`);
  clearFailure(name);
  if (!started.has(name)) started.set(name, load(name).then((module) => module.start({ open })));
  if (before !== name) (await started.get(before)?.catch(() => undefined))?.hidden?.();
  try {
    const tab = await started.get(name);
    if (current === name) tab?.shown?.();
  } catch (error) {
    started.delete(name);
    failed.add(name);
    clearFailure(name);
    showFailure(name, error);
  }
}

const show = tabs(document.querySelector(".tabs"), shown);

/** Shows a tab and gives it something to work on: `open("inspect", { text })`. */
async function open(name, what) {
  show(name);
  const tab = await started.get(name)?.catch(() => undefined);
  tab?.receive?.(what);
}

function showTheme() {
  const isDark = shownTheme() === "dark";
  setIconButton(byId("theme-button"), isDark ? "sun" : "moon", isDark ? "Light theme" : "Dark theme");
}

async function showModels() {
  try {
    await loadModels();
  } catch (error) {
    notice(error.message);
  }
}

const tabOfAddress = () => location.hash.slice(1).split("/")[0];

document.addEventListener("hearth-theme", showTheme);
byId("theme-button").addEventListener("click", toggleTheme);
showTheme();
byId("key-button").append(icon("key"));
byId("key-button").setAttribute("aria-label", "API key");
byId("key-button").title = "API key";
// A key that was entered for another request also opens the list of models.
key.start(() => modelId() === undefined && showModels());
startModels();
shortcuts.start({
  tab: (at) => {
    const name = Object.keys(LOAD)[at];
    show(name);
    byId(`tab-${name}`).focus();
  },
  newChat: () => open("chat", { isNew: true }),
  focusMessage: () => open("chat", {}),
});
window.addEventListener("hashchange", () => {
  if (tabOfAddress() in LOAD && tabOfAddress() !== current) show(tabOfAddress());
});

const asked = tabOfAddress();
show(asked);
await showModels();
// A model without a chat template continues text.
if (!(asked in LOAD) && current === "chat" && !canChat()) show("complete");
