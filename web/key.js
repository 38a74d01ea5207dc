// The API key: asked for when the server demands one, and kept for this tab or for this browser, as the person chooses.
import { setKeys } from "./api.js";
import { byId } from "./dom.js";
import { keep, setting } from "./settings.js";

const tab = () => sessionStorage;
const browser = () => localStorage;

let current = setting("key", null, tab) ?? setting("key", null, browser);
let entered = () => {};
/** The pending question, so that several failing requests ask once. */
let asked = null;

export const hasKey = () => current !== null;

function keepKey(key, storage) {
  current = key;
  for (const each of [tab, browser]) keep("key", each === storage && key !== null ? key : undefined, each);
  byId("key-button").hidden = key === null;
}

/** Opens the dialog and resolves to the key that was entered, or to null. */
function ask(reason) {
  asked ??= new Promise((resolve) => {
    const dialog = byId("key-dialog");
    byId("key-reason").textContent = reason;
    byId("key-forget").hidden = current === null;
    byId("key-input").value = "";
    const isKept = setting("key", null, browser) !== null;
    byId("key-form").elements.where.value = isKept ? "browser" : "tab";
    dialog.returnValue = "";
    dialog.addEventListener("close", () => {
      asked = null;
      const key = dialog.returnValue === "use" ? byId("key-input").value : null;
      if (key !== null) keepKey(key, byId("key-form").elements.where.value === "browser" ? browser : tab);
      resolve(key);
      if (key !== null) entered();
    }, { once: true });
    dialog.showModal();
  });
  return asked;
}

/** Connects the key to the API, and the button in the header to the dialog. `changed()` is called after a key was entered. */
export function start(changed) {
  entered = changed;
  setKeys({ current: () => current, ask });
  byId("key-button").hidden = current === null;
  byId("key-button").addEventListener("click", () => ask("The page sends a key with each request."));
  byId("key-forget").addEventListener("click", () => {
    keepKey(null, tab);
    byId("key-dialog").close();
  });
  byId("key-cancel").addEventListener("click", () => byId("key-dialog").close());
}
