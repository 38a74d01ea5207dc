// Small settings that the browser keeps, for this server alone: those of other servers on the same host are apart.
import { SCOPE } from "./api.js";

const prefix = `hearth ${SCOPE} `;

/** The value of a setting, or `otherwise` if it was never set, is unreadable, or the browser keeps nothing. */
export function setting(name, otherwise, storage = () => localStorage) {
  try {
    const text = storage().getItem(prefix + name);
    return text === null ? otherwise : JSON.parse(text);
  } catch {
    return otherwise;
  }
}

/** Keeps a setting; `undefined` forgets it. */
export function keep(name, value, storage = () => localStorage) {
  try {
    if (value === undefined) storage().removeItem(prefix + name);
    else storage().setItem(prefix + name, JSON.stringify(value));
  } catch {
    // Storage is off or full: the setting lasts as long as the page.
  }
}

/** A short random name, also where `crypto.randomUUID` does not exist: over plain HTTP from another machine. */
export function randomId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
