// How one message of a conversation looks.
import { copyFrom, element, fitHeight, iconButton } from "./dom.js";
import { count, seconds, tokenRate } from "./measure.js";
import { modelList } from "./models.js";
import { split } from "./reasoning.js";
import { codeBlock, renderMarkdown, typedText } from "./render.js";

/** The API's code of the error that a request does not fit into the context. */
const TOO_LONG = "context_length_exceeded";
const NOTES = { failed: "not sent with later messages: it has no answer", "left out": "not sent: left out to make room" };
const NAMES = { user: "You", tool: "Tool result" };

/** The text as indented JSON, or null if it is not a JSON object or array. */
function prettyJson(text) {
  try {
    const value = JSON.parse(text);
    return value !== null && typeof value === "object" ? JSON.stringify(value, null, 2) : null;
  } catch {
    return null;
  }
}

/** The statistics of an answer as one line. */
function statsLine({ model, stats, finishReason }, context) {
  const parts = model && modelList().length > 1 ? [model] : [];
  if (stats?.rate) parts.push(tokenRate(stats.rate));
  if (stats?.first) parts.push(`first token ${seconds(stats.first)}`);
  if (stats?.tokens) parts.push(`${count(stats.tokens)} tokens`);
  if (stats?.tokens && stats.prompt) parts.push(`context ${count(stats.prompt + stats.tokens)}${context ? ` of ${count(context)}` : ""}`);
  const ends = { length: "cut at the token limit", stopped: "stopped", interrupted: "interrupted", edited: "edited" };
  if (finishReason in ends) parts.push(ends[finishReason]);
  return parts.join(" · ");
}

/**
 * The view of a message. `handlers`: `edit(message, text)`, `regenerate(message)`, `continue(message)`, `inspect(message)`,
 * `remove(message)`, `turn(message, step)`, `answerCall(message, call, text)`, `takeBack()` (sends what was left out again);
 * and of the message that an answer follows: `editQuestion(answer)`, `removeQuestion(answer)`, `leaveOutOldest(answer)`.
 */
export class MessageView {
  #handlers;
  #message;
  #settings;
  #thought = element("div", { class: "markdown" });
  #thoughtTitle = element("summary", {});
  #reasoning = element("details", { class: "reasoning", hidden: true }, this.#thoughtTitle, this.#thought);
  #content = element("div", { class: "content" });
  #calls = element("div", { class: "calls" });
  #error = element("p", { class: "error", hidden: true });
  #remedies = element("p", { class: "actions", hidden: true });
  #note = element("span", { class: "note", hidden: true });
  #stats = element("span", { class: "stats" });
  #branches = element("span", { class: "branches", hidden: true });
  #actions = element("span", { class: "message-actions" });
  #body = element("div", { class: "message-body" }, this.#reasoning, this.#content, this.#calls, this.#error, this.#remedies);
  #line = element("div", { class: "message-line" }, this.#branches, this.#actions, this.#note, this.#stats);
  root = element("article", { class: "message" }, this.#body, this.#line);

  constructor(message, handlers) {
    this.#handlers = handlers;
    this.#message = message;
    this.root.dataset.id = message.id;
    this.root.classList.add(message.role);
    this.#content.classList.toggle("markdown", message.role === "assistant");
    this.root.setAttribute("aria-label", NAMES[message.role] ?? message.model ?? "Answer");
    this.#actions.append(...this.#buttons());
  }

  #buttons() {
    const { role } = this.#message;
    const button = (name, label, act) => iconButton(name, label, () => act(this.#message));
    const { regenerate, continue: goOn, inspect, remove } = this.#handlers;
    const copy = iconButton("copy", "Copy message", () => copyFrom(copy, split(this.#message).answer));
    const edit = iconButton("edit", "Edit message", () => this.edit());
    const answer = [button("again", "Regenerate", regenerate), button("go", "Continue", goOn), button("inspect", "Inspect tokens", inspect)];
    return [copy, edit, ...(role === "assistant" ? answer : []), button("trash", "Delete from here on", remove)];
  }

  /**
   * Shows the message as it is now. `isRunning`: it is being generated. `siblings`: `[its place, number of branches]`. `unsent`: why
   * requests leave it out. `isLast`: nothing follows it. `hasEarlier`: turns before it could be left out.
   */
  show(message, { isRunning, siblings: [place, branches], isJson, context, unsent, isLast, hasEarlier }) {
    this.#message = message;
    this.#settings = { isRunning, isJson };
    this.root.setAttribute("aria-busy", isRunning);
    const { reasoning, answer, isThinking } = split(message);
    this.#showReasoning(reasoning, isThinking && isRunning);
    this.#showContent(answer, isRunning);
    this.#showCalls(message.toolCalls ?? [], isRunning);
    this.#error.hidden = !message.error;
    // The server's hint is for programs; for people there are the buttons below.
    this.#error.textContent = message.errorCode === TOO_LONG ? message.error.split("\nhint: ")[0] : message.error ?? "";
    this.#showRemedies(isLast && !isRunning, hasEarlier);
    this.#showNote(unsent);
    this.#stats.textContent = message.role === "assistant" ? statsLine(message, context) : "";
    this.#actions.hidden = isRunning;
    this.#showBranches(place, branches, isRunning);
  }

  /** What can be done about an error without an answer. */
  #showRemedies(isOffered, hasEarlier) {
    const { error, errorCode, content } = this.#message;
    this.#remedies.hidden = !isOffered || !error || content !== "";
    if (this.#remedies.hidden) return;
    const { regenerate, editQuestion, removeQuestion, leaveOutOldest } = this.#handlers;
    const button = (label, act) => element("button", { type: "button", class: "button", onclick: () => act(this.#message) }, label);
    this.#remedies.replaceChildren(...[
      errorCode === TOO_LONG ? hasEarlier && button("Leave out the oldest messages", leaveOutOldest) : button("Try again", regenerate),
      button("Edit the message", editQuestion), button("Delete it", removeQuestion)].filter(Boolean));
  }

  #showNote(unsent) {
    this.root.classList.toggle("is-unsent", unsent !== undefined);
    this.#note.hidden = unsent === undefined;
    if (this.#note.hidden || this.#note.dataset.shown === unsent) return;
    this.#note.dataset.shown = unsent;
    this.#note.replaceChildren(NOTES[unsent]);
    if (unsent === "left out") this.#note.append(" ", element("button", { type: "button", class: "quiet-button", onclick: () => this.#handlers.takeBack() }, "Send again"));
  }

  #showReasoning(reasoning, isThinking) {
    this.#reasoning.hidden = reasoning === "";
    if (reasoning === "") return;
    this.#thoughtTitle.textContent = isThinking ? "Reasoning…" : "Reasoning";
    renderMarkdown(this.#thought, reasoning);
  }

  #showContent(answer, isRunning) {
    const pretty = this.#settings.isJson && !isRunning ? prettyJson(answer) : null;
    this.#content.classList.toggle("is-empty", answer === "");
    if (pretty !== null) this.#content.replaceChildren(codeBlock(pretty, "json"));
    else if (this.#message.role === "assistant") renderMarkdown(this.#content, answer);
    else if (this.#content.dataset.shown !== answer) {
      this.#content.dataset.shown = answer;
      this.#content.replaceChildren(...(this.#message.role === "user" ? typedText(answer) : [element("p", { class: "typed" }, answer)]));
    }
  }

  #showCalls(calls, isRunning) {
    // Unchanged calls keep their elements: a person may be entering a result in one of the fields.
    const shown = JSON.stringify(calls);
    if (this.#calls.dataset.shown === shown && this.#calls.dataset.running === String(isRunning)) return;
    Object.assign(this.#calls.dataset, { shown, running: isRunning });
    this.#calls.replaceChildren(...calls.map((call) => this.#call(call, isRunning)));
  }

  #call(call, isRunning) {
    const { name, arguments: given } = call.function;
    const card = element("section", { class: "call", "aria-label": `Call of ${name}` },
      element("p", { class: "call-name" }, "Calls ", element("code", {}, name)), codeBlock(prettyJson(given) ?? given, "json"));
    if (isRunning || this.#handlers.isAnswered(this.#message, call)) return card;
    const result = element("textarea", { rows: 2, class: "code-input", "aria-label": `Result of ${name}`, placeholder: "What the function returns" });
    const send = element("button", { type: "button", class: "button", onclick: () => this.#handlers.answerCall(this.#message, call, result.value) }, "Send result");
    card.append(result, send);
    return card;
  }

  #showBranches(place, branches, isRunning) {
    this.#branches.hidden = branches < 2;
    if (branches < 2) return;
    if (this.#branches.childElementCount === 0) {
      this.#branches.append(iconButton("left", "Previous branch", () => this.#handlers.turn(this.#message, -1)), element("span", {}),
        iconButton("right", "Next branch", () => this.#handlers.turn(this.#message, 1)));
    }
    const [previous, label, next] = this.#branches.children;
    label.textContent = `${place} / ${branches}`;
    label.setAttribute("aria-label", `Branch ${place} of ${branches}`);
    label.setAttribute("role", "img");
    previous.disabled = next.disabled = isRunning;
  }

  /** Replaces the message by a field to edit it. */
  edit() {
    if (!this.#body.isConnected) return;
    const { role, content } = this.#message;
    const area = element("textarea", { "aria-label": "Edit message", rows: 3 });
    area.value = content;
    const close = () => {
      form.replaceWith(this.#body);
      this.#line.hidden = false;
      this.#actions.querySelector("[aria-label='Edit message']")?.focus();
    };
    const form = element("form", { class: "edit", onsubmit: (event) => {
      event.preventDefault();
      close();
      if (area.value !== content) this.#handlers.edit(this.#message, area.value);
    } }, area, element("p", { class: "actions" },
      element("button", { type: "submit", class: "button primary" }, role === "user" ? "Send" : "Save as branch"),
      element("button", { type: "button", class: "button", onclick: close }, "Cancel")));
    area.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        close();
      } else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
        event.preventDefault();
        form.requestSubmit();
      }
    });
    area.addEventListener("input", () => fitHeight(area));
    this.#body.replaceWith(form);
    this.#line.hidden = true;
    fitHeight(area);
    area.focus();
  }
}
