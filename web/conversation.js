// A conversation: a tree of messages, of which one path is shown. Editing and regenerating add branches. No page, no storage.
import { randomId } from "./settings.js";

const ROLES = ["user", "assistant", "tool"];
/** The key of the first message's branches. */
const ROOT = "root";

/**
 * A new conversation. `settings` are those of its requests (see `chat-settings.js`).
 * `chosen` has, for each message with several answers, the one that is shown.
 */
export function create(settings) {
  const now = Date.now();
  return { id: randomId(), title: "", isNamed: false, created: now, updated: now, settings, messages: [], chosen: {} };
}

/** Adds a message as the last branch below `parent` (a message's id, or null for the start) and shows it. */
export function add(conversation, parent, message) {
  const made = { id: randomId(), parent, created: Date.now(), content: "", ...message };
  conversation.messages.push(made);
  conversation.chosen[parent ?? ROOT] = made.id;
  conversation.updated = made.created;
  if (!conversation.isNamed && conversation.title === "" && made.role === "user") conversation.title = titleOf(made.content);
  return made;
}

export const find = (conversation, id) => conversation.messages.find((message) => message.id === id);

/** The messages that follow `parent`, oldest first: its branches. */
export const branches = (conversation, parent) => conversation.messages.filter((message) => message.parent === parent);

/** The messages that are shown, from the first one on. */
export function path(conversation) {
  const shown = [];
  for (let parent = null; ;) {
    const options = branches(conversation, parent);
    if (options.length === 0) return shown;
    const chosen = conversation.chosen[parent ?? ROOT];
    const next = options.find((message) => message.id === chosen) ?? options.at(-1);
    shown.push(next);
    parent = next.id;
  }
}

/** The messages from the first one up to this one. */
export function pathTo(conversation, id) {
  const shown = [];
  for (let message = find(conversation, id); message; message = find(conversation, message.parent)) shown.unshift(message);
  return shown;
}

/** Shows the branch `step` places after this message, in a circle. */
export function turn(conversation, message, step) {
  const options = branches(conversation, message.parent);
  const next = options[(options.indexOf(message) + step + options.length) % options.length];
  conversation.chosen[message.parent ?? ROOT] = next.id;
  return next;
}

/** Removes a message and all that follows it. */
export function remove(conversation, id) {
  const gone = new Set([id]);
  // A message comes after its parent in the list.
  for (const message of conversation.messages) if (gone.has(message.parent)) gone.add(message.id);
  conversation.messages = conversation.messages.filter((message) => !gone.has(message.id));
  for (const [parent, child] of Object.entries(conversation.chosen)) {
    if (gone.has(parent) || gone.has(child)) delete conversation.chosen[parent];
  }
  conversation.updated = Date.now();
}

/** The first words of a text, for a list. */
export function titleOf(text) {
  const line = text.trim().replace(/\s+/g, " ");
  return line.length > 60 ? `${line.slice(0, 59).trimEnd()}…` : line;
}

/** Whether the title or a message contains the text, which is in lower case. */
export function contains(conversation, text) {
  return [conversation.title, ...conversation.messages.map((message) => message.content)].some((each) => each.toLowerCase().includes(text));
}

/** The messages as the API takes them. Reasoning is not sent back. */
export function apiMessages(system, messages) {
  const sent = messages.map(({ role, content, toolCalls, toolCallId }) => {
    if (role === "tool") return { role, content, tool_call_id: toolCallId };
    if (role === "assistant" && toolCalls?.length) return { role, content: content || null, tool_calls: toolCalls };
    return { role, content };
  });
  return system.trim() === "" ? sent : [{ role: "system", content: system }, ...sent];
}

const FORMAT = "hearth-conversations";

/** Conversations as the text of a file. */
export const exported = (conversations) => `${JSON.stringify({ format: FORMAT, version: 1, conversations }, null, 1)}\n`;

/** Reads the text of an exported file. Throws an error for people if it is not one. Unknown members are left out. */
export function imported(text) {
  let file;
  try {
    file = JSON.parse(text);
  } catch {
    throw new Error("This file is not JSON.");
  }
  if (file?.format !== FORMAT || !Array.isArray(file.conversations)) throw new Error("This file has no conversations exported from Hearth.");
  return file.conversations.map(cleaned);
}

const isId = (value) => typeof value === "string" && /^\w{1,64}$/.test(value);
const string = (value) => (typeof value === "string" ? value : "");
const time = (value) => (Number.isFinite(value) ? value : Date.now());
const object = (value) => (value !== null && typeof value === "object" && !Array.isArray(value) ? value : {});

function cleaned(given) {
  const messages = [];
  const known = new Set([null]);
  for (const message of Array.isArray(given?.messages) ? given.messages : []) {
    const parent = message?.parent ?? null;
    // A message whose parent is missing cannot be shown.
    if (!ROLES.includes(message?.role) || !isId(message.id) || known.has(message.id) || !known.has(parent)) continue;
    known.add(message.id);
    messages.push(cleanedMessage(message, parent));
  }
  const chosen = Object.fromEntries(Object.entries(object(given?.chosen)).filter(([, child]) => known.has(child)));
  const { id, title, isNamed, created, updated, settings } = object(given);
  return { id: isId(id) ? id : randomId(), title: string(title), isNamed: isNamed === true, created: time(created), updated: time(updated), settings: object(settings), messages, chosen };
}

function cleanedMessage(message, parent) {
  const made = { id: message.id, parent, role: message.role, created: time(message.created), content: string(message.content) };
  for (const name of ["reasoning", "toolCallId", "model", "finishReason", "error"]) {
    if (typeof message[name] === "string") made[name] = message[name];
  }
  if (Array.isArray(message.toolCalls)) {
    made.toolCalls = message.toolCalls.map((call) => {
      const { name, arguments: given } = object(call?.function);
      return { id: string(call?.id), type: "function", function: { name: string(name), arguments: string(given) } };
    });
  }
  const stats = Object.entries(object(message.stats)).filter(([, value]) => Number.isFinite(value));
  if (stats.length > 0) made.stats = Object.fromEntries(stats);
  return made;
}
