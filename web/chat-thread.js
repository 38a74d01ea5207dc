// The messages of a conversation on the page, and scrolling: while the end is in view, it stays in view.
import { branches, earlierTurns, path, unsent } from "./conversation.js";
import { byId, element } from "./dom.js";
import { MessageView } from "./chat-message.js";
import { isJson } from "./chat-settings.js";
import { contextLength } from "./models.js";

/** How far from the end, in pixels, still counts as the end. */
const NEAR = 80;

export class Thread {
  #root = byId("thread");
  #toEnd = byId("to-end");
  #list = element("div", { class: "messages" });
  #handlers;
  #views = new Map();
  #conversation;
  #isFollowing = true;
  #drawn = 0;
  #cost = 0;
  #planned = null;
  /** Of the shown messages: why some are not sent, the last one, and whether turns before it are sent. */
  #reasons = new Map();
  #last;
  #hasEarlier = false;

  constructor(handlers) {
    this.#handlers = handlers;
    this.#root.append(this.#list);
    this.#root.addEventListener("scroll", () => {
      const rest = this.#root.scrollHeight - this.#root.clientHeight - this.#root.scrollTop;
      this.#isFollowing = rest < NEAR;
      this.#toEnd.hidden = this.#isFollowing;
    });
    this.#toEnd.addEventListener("click", () => this.follow());
    // Formulas change their height after they are shown, and the message box takes room when it grows.
    const sizes = new ResizeObserver(() => { if (this.#isFollowing) this.#root.scrollTop = this.#root.scrollHeight; });
    for (const each of [this.#list, this.#root]) sizes.observe(each);
  }

  /** Shows the end from now on. */
  follow() {
    this.#isFollowing = true;
    this.#toEnd.hidden = true;
    this.#root.scrollTop = this.#root.scrollHeight;
  }

  /** Shows a conversation as it is now; `running` is the message that is being generated; `empty` is shown if there is none. */
  show(conversation, running, empty) {
    cancelAnimationFrame(this.#planned);
    this.#planned = null;
    if (conversation !== this.#conversation) this.#views.clear();
    this.#conversation = conversation;
    const messages = path(conversation);
    this.#reasons = unsent(messages);
    this.#last = messages.at(-1);
    this.#hasEarlier = earlierTurns(messages).length > 0;
    const wanted = messages.map((message) => {
      const view = this.#views.get(message.id) ?? new MessageView(message, this.#handlers);
      this.#views.set(message.id, view);
      this.#showMessage(view, message, message === running);
      return view.root;
    });
    if (wanted.length === 0) wanted.push(empty());
    this.#place(wanted);
    this.#keepEnd();
  }

  /** Puts these elements into the list. Those that are in their place are not touched, so that focus and selection stay. */
  #place(wanted) {
    let next = this.#list.firstChild;
    for (const root of wanted) {
      if (root === next) next = next.nextSibling;
      else this.#list.insertBefore(root, next);
    }
    while (next) {
      const rest = next.nextSibling;
      next.remove();
      next = rest;
    }
  }

  #showMessage(view, message, isRunning) {
    const siblings = branches(this.#conversation, message.parent);
    view.show(message, {
      isRunning,
      siblings: [siblings.indexOf(message) + 1, siblings.length],
      isJson: isJson(this.#conversation.settings),
      context: contextLength(message.model),
      unsent: this.#reasons.get(message),
      isLast: message === this.#last,
      hasEarlier: this.#hasEarlier,
    });
  }

  #keepEnd() {
    if (this.#isFollowing) this.#root.scrollTop = this.#root.scrollHeight;
    else this.#toEnd.hidden = false;
  }

  /** Opens the field to edit a message. */
  edit(id) {
    this.#views.get(id)?.edit();
  }

  /** Shows a message that has grown: at the next frame, and no more often than the page can draw it. */
  grow(message) {
    this.#planned ??= requestAnimationFrame((now) => {
      this.#planned = null;
      if (now - this.#drawn < 3 * this.#cost) return this.grow(message);
      const view = this.#views.get(message.id);
      if (view === undefined || !view.root.isConnected) return undefined;
      const start = performance.now();
      this.#showMessage(view, message, true);
      this.#keepEnd();
      this.#cost = performance.now() - start;
      this.#drawn = now;
      return undefined;
    });
  }
}
