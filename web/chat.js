// The tab Chat: conversations that the browser keeps, as trees of messages.
import { Attachments } from "./attachments.js";
import { ChatList, fileName } from "./chat-list.js";
import { generate } from "./chat-run.js";
import { initialSettings, SettingsForm } from "./chat-settings.js";
import { Thread } from "./chat-thread.js";
import * as conversations from "./conversation.js";
import { leaveOutOldest, showContext } from "./context-meter.js";
import { byId, download, element, fitHeight, icon, setIconButton } from "./dom.js";
import { drawer } from "./drawer.js";
import { canChat, modelId, models } from "./models.js";
import { notice } from "./notice.js";
import { keep, setting } from "./settings.js";
import * as store from "./store.js";
import { suggestions } from "./suggestions.js";

/** How often a growing answer is stored, so that closing the tab loses little. */
const STORE_MS = 1500;

let conversation = conversations.create(initialSettings());
/** The answer in progress: `{ conversation, message, controller, isDeleted }`, or null. */
let running = null;
let tools;
let thread;
let list;
let form;
let drawers;
let attachments;

const input = byId("message");
const currentRun = () => (running?.conversation === conversation ? running : null);

async function save(which = conversation) {
  which.updated = Date.now();
  try {
    await store.put(which);
  } catch (error) {
    notice(`The browser could not keep this conversation: ${error.message}`);
  }
}

/** Shows everything as it is now. */
function show() {
  byId("chat-title").textContent = conversation.title || "New chat";
  byId("export-markdown").hidden = conversation.messages.length === 0;
  thread.show(conversation, currentRun()?.message, welcome);
  showComposer();
}

function showComposer() {
  const isRunning = currentRun() !== null;
  const button = byId("send");
  setIconButton(button, isRunning ? "stop" : "send", isRunning ? "Stop" : "Send");
  button.disabled = !isRunning && running !== null;
  if (!isRunning) showContext(conversation, attachments.with(input.value));
}

/** What an empty conversation shows. */
function welcome() {
  const root = element("div", { class: "welcome" });
  if (!canChat()) {
    root.append(element("h3", {}, "This model cannot chat"),
      element("p", {}, "It has no chat template: it continues text, but does not know what a conversation is."),
      element("button", { type: "button", class: "button primary", onclick: () => tools.open("complete") }, "Complete a text instead"));
    return root;
  }
  root.append(element("h3", {}, "What shall we talk about?"), element("div", { class: "suggestions" },
    suggestions().map((text) => element("button", { type: "button", class: "suggestion", onclick: () => send(text) }, text))));
  return root;
}

async function open(id) {
  const found = id === running?.conversation.id ? running.conversation : await store.get(id);
  if (found === undefined) return startNew();
  conversation = found;
  history.replaceState(null, "", `#chat/${id}`);
  // An answer without a finish reason was being generated when a tab was closed.
  for (const message of conversation.messages) {
    if (message.role === "assistant" && message.finishReason === undefined && message !== running?.message) message.finishReason = "interrupted";
  }
  form.show(conversation.settings);
  thread.follow();
  show();
  list.show(conversation.id);
  return undefined;
}

function startNew() {
  conversation = conversations.create(initialSettings());
  history.replaceState(null, "", "#chat");
  form.show(conversation.settings);
  show();
  list.show(conversation.id);
}

/** Generates into `message` of the open conversation, and stores it as it grows. */
async function run(message) {
  if (running !== null) return;
  const run = { conversation, message, controller: new AbortController(), isDeleted: false };
  running = run;
  thread.follow();
  show();
  byId("chat-status").textContent = "Generating…";
  await save(run.conversation);
  list.show();
  let stored = performance.now();
  await generate({
    conversation: run.conversation, message, model: modelId(), signal: run.controller.signal,
    changed: () => {
      if (run.conversation === conversation) thread.grow(message);
      if (performance.now() - stored > STORE_MS) {
        stored = performance.now();
        if (!run.isDeleted) save(run.conversation);
      }
    },
  });
  running = null;
  const isEmpty = message.content === "" && !message.reasoning && !message.toolCalls && !message.error;
  if (isEmpty && message.finishReason === "stopped") conversations.remove(run.conversation, message.id);
  byId("chat-status").textContent = message.error ? `Error: ${message.error}` : "The answer is finished.";
  if (!run.isDeleted) await save(run.conversation);
  show();
  list.show();
}

/** Adds an empty answer below a message and generates it. */
const answer = (parent) => run(conversations.add(conversation, parent, { role: "assistant" }));

function send(text) {
  if (text.trim() === "" || running !== null) return;
  const last = conversations.path(conversation).at(-1);
  const message = conversations.add(conversation, last?.id ?? null, { role: "user", content: text });
  history.replaceState(null, "", `#chat/${conversation.id}`);
  answer(message.id);
}

/** Whether an answer ended with an error before anything came: then it is generated again in its place. */
const hasNothing = ({ content, reasoning, toolCalls, error }) => Boolean(error) && content === "" && !reasoning && !toolCalls;
const questionOf = (answered) => conversations.pathTo(conversation, answered.id).findLast(({ role }) => role === "user");

const handlers = {
  edit(message, text) {
    if (running !== null) return;
    const { role, parent, toolCallId } = message;
    const edited = conversations.add(conversation, parent, { role, content: text, toolCallId, finishReason: "edited" });
    if (role === "assistant") save().then(show);
    else answer(edited.id);
  },
  regenerate: (message) => running === null && (hasNothing(message) ? run(message) : answer(message.parent)),
  continue: (message) => {
    if (running !== null) return;
    if (message.content === "" && !message.reasoning) answer(message.parent);
    else run(message);
  },
  inspect(message) {
    const messages = conversations.apiMessages(conversation.settings.system ?? "", conversations.pathTo(conversation, message.id));
    tools.open("inspect", { messages });
  },
  async remove(message) {
    if (running !== null) return;
    const before = structuredClone(conversation);
    conversations.remove(conversation, message.id);
    await save();
    show();
    notice("Deleted the message and what followed it.", { label: "Undo", run: async () => {
      await save(before);
      if (conversation.id === before.id) open(before.id);
    } });
  },
  turn(message, step) {
    const next = conversations.turn(conversation, message, step);
    save();
    show();
    byId("thread").querySelector(`[data-id="${next.id}"] .branches button:${step < 0 ? "first" : "last"}-child`)?.focus();
  },
  editQuestion: (message) => thread.edit(questionOf(message).id),
  removeQuestion: (message) => handlers.remove(questionOf(message)),
  async leaveOutOldest(message) {
    if (running !== null) return;
    const which = conversation;
    const hasRoom = await leaveOutOldest(which, conversations.pathTo(which, message.parent));
    if (which !== conversation) save(which);
    else if (hasRoom) run(message);
    else notice("The message alone is longer than the context. Edit it, or delete it.");
  },
  takeBack() {
    for (const message of conversation.messages) delete message.leftOut;
    save().then(show);
  },
  isAnswered: (message, call) => conversations.branches(conversation, message.id).some((each) => each.toolCallId === call.id),
  answerCall(message, call, text) {
    if (running !== null) return;
    // Results follow one another; the model goes on once every call has one.
    let parent = message.id;
    for (let next; (next = conversations.branches(conversation, parent).find(({ role }) => role === "tool")); parent = next.id);
    const result = conversations.add(conversation, parent, { role: "tool", content: text, toolCallId: call.id });
    const given = new Set(conversations.pathTo(conversation, result.id).map(({ toolCallId }) => toolCallId));
    if (message.toolCalls.every(({ id }) => given.has(id))) answer(result.id);
    else save().then(show);
  },
};

function startComposer() {
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    if (currentRun() !== null) return currentRun().controller.abort();
    const text = attachments.with(input.value);
    if (running !== null || text.trim() === "") return undefined;
    input.value = "";
    fitHeight(input);
    attachments.clear();
    return send(text);
  });
  input.addEventListener("input", () => {
    fitHeight(input);
    showComposer();
  });
  input.addEventListener("keydown", (event) => {
    // On a touch screen there is no Shift: Enter starts a line, and the button sends. Input methods end a word with Enter.
    if (event.key === "ArrowUp" && input.value === "" && currentRun() === null) {
      const last = conversations.path(conversation).findLast(({ role }) => role === "user");
      if (last) event.preventDefault();
      thread.edit(last?.id);
      return;
    }
    const isTyped = event.key === "Enter" && !event.shiftKey && !event.isComposing && !matchMedia("(pointer: coarse)").matches;
    if (!isTyped && !(event.key === "Enter" && (event.ctrlKey || event.metaKey))) return;
    event.preventDefault();
    if (currentRun() === null) byId("composer").requestSubmit();
  });
  byId("chat").addEventListener("keydown", (event) => {
    if (event.key === "Escape") currentRun()?.controller.abort();
  });
}

function startSettings() {
  form = new SettingsForm(byId("settings-fields"), (settings) => {
    conversation.settings = settings;
    if (conversation.messages.length > 0) save();
  });
  byId("open-conversations").append(icon("list"));
  byId("open-settings").append(icon("sliders"));
  const label = (id, text) => Object.assign(byId(id), { title: text, ariaLabel: text });
  drawers = {
    list: drawer(byId("conversations"), label("open-conversations", "Conversations"), { isOpen: setting("list open", true), changed: (isOpen) => keep("list open", isOpen) }),
    settings: drawer(byId("chat-settings"), label("open-settings", "Settings"), { isOpen: setting("settings open", false), changed: (isOpen) => keep("settings open", isOpen) }),
  };
}

/** Another tab has changed a conversation: the open one is read again, unless this tab is writing it. */
async function follow({ detail: id }) {
  if (id !== conversation.id || currentRun() !== null) return;
  const stored = await store.get(id);
  if (stored === undefined || conversation.id !== id || currentRun() !== null) return;
  conversation = stored;
  show();
}

export async function start(frame) {
  tools = frame;
  thread = new Thread(handlers);
  list = new ChatList({
    open(id) {
      drawers.list.closeIfOver();
      open(id);
    },
    removing(id) {
      if (running?.conversation.id !== id) return;
      running.isDeleted = true;
      running.controller.abort();
    },
    removed: (id) => id === conversation.id && startNew(),
    renamed: ({ id, title }) => {
      if (id !== conversation.id) return;
      Object.assign(conversation, { title, isNamed: true });
      show();
    },
  });
  attachments = new Attachments(() => showComposer());
  startSettings();
  startComposer();
  store.changes.addEventListener("change", follow);
  const beginNew = () => {
    drawers.list.closeIfOver();
    startNew();
    input.focus();
  };
  byId("new-chat").addEventListener("click", beginNew);
  byId("export-markdown").append(icon("export"));
  byId("export-markdown").addEventListener("click", () => download(fileName(conversation.title, "md"), conversations.markdown(conversation), "text/markdown"));
  models.addEventListener("change", () => {
    show();
    form.showDefaults();
  });
  if (modelId() !== undefined) form.showDefaults();
  window.addEventListener("hashchange", () => {
    const id = /^#chat\/(\w+)$/.exec(location.hash)?.[1];
    if (id && id !== conversation.id) open(id);
  });
  const id = /^#chat\/(\w+)$/.exec(location.hash)?.[1];
  if (id) await open(id);
  else startNew();
  if (!(await store.isLasting())) notice("This browser keeps no conversations: they last until the page is closed.");
  if (document.activeElement === document.body && !matchMedia("(pointer: coarse)").matches) input.focus();
  return {
    /** A shortcut: a new chat, or the message box. */
    receive({ isNew = false }) {
      if (isNew) beginNew();
      else input.focus();
    },
  };
}
