// The list of conversations: search, rename, delete (with undo), export and import.
import { contains, exported, imported, titleOf } from "./conversation.js";
import { byId, download, element, iconButton } from "./dom.js";
import { plural } from "./measure.js";
import { notice } from "./notice.js";
import * as store from "./store.js";

const DAY = 86_400_000;

/** The heading under which a conversation is listed. */
function ageOf(time) {
  const today = new Date().setHours(0, 0, 0, 0);
  if (time >= today) return "Today";
  if (time >= today - DAY) return "Yesterday";
  return time >= today - 7 * DAY ? "Last 7 days" : "Older";
}

/** The name of a file with the conversation of this title. */
export const fileName = (title, ending) => `${title.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 40).replace(/^-|-$/g, "") || "conversation"}.${ending}`;
const titleFor = (conversation) => conversation.title || "New chat";

/** `handlers`: `open(id)`, `removing(id)`, `removed(id)`, `renamed(conversation)`. */
export class ChatList {
  #handlers;
  #current;
  #list = byId("chat-list");
  #search = byId("chat-search");

  constructor(handlers) {
    this.#handlers = handlers;
    this.#search.addEventListener("input", () => this.show());
    byId("chat-export").addEventListener("click", () => this.#exportAll());
    byId("chat-import").addEventListener("click", () => byId("chat-import-file").click());
    byId("chat-import-file").addEventListener("change", (event) => this.#import(event.target));
    store.changes.addEventListener("change", () => this.show());
  }

  /** Shows the stored conversations; `current` is the id of the one that is open. */
  async show(current = this.#current) {
    this.#current = current;
    const wanted = this.#search.value.trim().toLowerCase();
    const found = (await store.all()).filter((conversation) => wanted === "" || contains(conversation, wanted));
    const groups = Map.groupBy?.(found, ({ updated }) => ageOf(updated)) ?? new Map([["", found]]);
    // While a name is being edited, the list stays as it is.
    if (this.#list.querySelector("input")) return;
    const had = this.#list.contains(document.activeElement) ? document.activeElement.closest("li")?.dataset.id : undefined;
    this.#list.replaceChildren(...[...groups].flatMap(([age, conversations]) => [
      element("h3", {}, age), element("ul", {}, conversations.map((conversation) => this.#row(conversation)))]));
    if (found.length === 0) this.#list.append(element("p", { class: "quiet" }, wanted ? "Nothing found." : "Conversations are kept in this browser."));
    if (had) this.#list.querySelector(`[data-id="${had}"] .chat-open`)?.focus();
  }

  #row(conversation) {
    const title = titleFor(conversation);
    const open = element("button", {
      type: "button", class: "chat-open", "aria-current": conversation.id === this.#current ? "true" : false,
      onclick: () => this.#handlers.open(conversation.id),
    }, title);
    return element("li", { "data-id": conversation.id }, open, element("span", { class: "chat-actions" },
      iconButton("edit", `Rename “${title}”`, () => this.#rename(conversation, open)),
      iconButton("export", `Export “${title}”`, () => download(fileName(title, "json"), exported([conversation]))),
      iconButton("trash", `Delete “${title}”`, () => this.#remove(conversation.id))));
  }

  #rename(conversation, open) {
    const input = element("input", { type: "text", class: "chat-name", "aria-label": "New name", value: titleFor(conversation) });
    let isDone = false;
    const finish = async (isKept) => {
      if (isDone) return;
      isDone = true;
      const title = titleOf(input.value);
      input.replaceWith(open);
      open.focus();
      if (isKept && title !== "" && title !== conversation.title) {
        const stored = (await store.get(conversation.id)) ?? conversation;
        Object.assign(stored, { title, isNamed: true });
        await store.put(stored);
        this.#handlers.renamed(stored);
      }
      this.show();
    };
    input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== "Escape") return;
      event.preventDefault();
      event.stopPropagation();
      finish(event.key === "Enter");
    });
    input.addEventListener("blur", () => finish(true));
    open.replaceWith(input);
    input.select();
  }

  async #remove(id) {
    this.#handlers.removing(id);
    const conversation = await store.get(id);
    await store.remove(id);
    this.#handlers.removed(id);
    this.show();
    notice(`Deleted “${titleFor(conversation)}”.`, { label: "Undo", run: async () => {
      await store.put(conversation);
      this.show();
    } });
  }

  async #exportAll() {
    const conversations = await store.all();
    if (conversations.length === 0) notice("There are no conversations to export.");
    else download(`hearth-conversations-${new Date().toISOString().slice(0, 10)}.json`, exported(conversations));
  }

  async #import(input) {
    const [file] = input.files;
    if (!file) return;
    try {
      const conversations = imported(await file.text());
      const known = new Map((await store.all()).map((conversation) => [conversation.id, conversation]));
      const isNew = ({ id, updated }) => !known.has(id) || known.get(id).updated < updated;
      const added = conversations.filter(isNew);
      for (const conversation of added) await store.put(conversation);
      const left = conversations.length - added.length;
      notice(`Imported ${plural(added.length, "conversation")}${left > 0 ? `; ${left} were here already` : ""}.`);
      this.show();
    } catch (error) {
      notice(error.message);
    } finally {
      input.value = "";
    }
  }
}
