// Conversations in IndexedDB. If the browser keeps nothing (some private windows), they last as long as the page.
import { SCOPE } from "./api.js";

const STORE = "conversations";
const memory = new Map();
const channel = new BroadcastChannel(`hearth ${SCOPE}`);

/** Fires `change` when another tab has changed a conversation; `detail` is its id. */
export const changes = new EventTarget();
channel.addEventListener("message", ({ data }) => changes.dispatchEvent(new CustomEvent("change", { detail: data })));

const result = (request) => new Promise((resolve, reject) => {
  request.addEventListener("success", () => resolve(request.result));
  request.addEventListener("error", () => reject(request.error));
});

/** The database, or null without one. */
const opened = (async () => {
  try {
    const request = indexedDB.open(`hearth ${SCOPE}`, 1);
    request.addEventListener("upgradeneeded", () => request.result.createObjectStore(STORE, { keyPath: "id" }));
    return await result(request);
  } catch {
    return null;
  }
})();

/** Whether conversations are kept after the page is closed. */
export const isLasting = async () => (await opened) !== null;

const store = (database, mode) => database.transaction(STORE, mode).objectStore(STORE);

/** All conversations, the latest first. */
export async function all() {
  const database = await opened;
  const found = database === null ? [...memory.values()].map((each) => structuredClone(each)) : await result(store(database, "readonly").getAll());
  return found.sort((a, b) => b.updated - a.updated);
}

/** The conversation, or undefined. */
export async function get(id) {
  const database = await opened;
  return database === null ? structuredClone(memory.get(id)) : result(store(database, "readonly").get(id));
}

export async function put(conversation) {
  const database = await opened;
  if (database === null) memory.set(conversation.id, structuredClone(conversation));
  else {
    const conversations = store(database, "readwrite");
    const stored = result(conversations.put(conversation));
    // Commits at once instead of when no more requests are pending, because the page may be closed next.
    conversations.transaction.commit();
    await stored;
  }
  channel.postMessage(conversation.id);
}

export async function remove(id) {
  const database = await opened;
  if (database === null) memory.delete(id);
  else await result(store(database, "readwrite").delete(id));
  channel.postMessage(id);
}
