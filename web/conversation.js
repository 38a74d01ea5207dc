// A conversation: a tree of messages, of which one path is shown. Editing and regenerating add branches. No page, no storage.
import { split } from "./reasoning.js";
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

/** The first words of a text, for a list. The text of attached files and other code is left out. */
export function titleOf(text) {
  const line = text.replace(/^(`{3,})[^\n]*\n[\s\S]*?^\1`*$/gm, " ").trim().replace(/\s+/g, " ");
  return line.length > 60 ? `${line.slice(0, 59).trimEnd()}…` : line;
}

/** Whether the title or a message contains the text, which is in lower case. */
export function contains(conversation, text) {
  return [conversation.title, ...conversation.messages.map((message) => message.content)].some((each) => each.toLowerCase().includes(text));
}

const isAnswer = ({ role, content, toolCalls }) => role === "assistant" && (content !== "" || toolCalls?.length > 0);

/** The messages in turns: each begins with a message of the person. */
function turnsOf(messages) {
  const turns = [];
  for (const message of messages) {
    if (message.role === "user" || turns.length === 0) turns.push([]);
    turns.at(-1).push(message);
  }
  return turns;
}

/** Whether a turn ended without an answer: with an error, or stopped before it began. What it asked must not block later turns. */
const hasFailed = (turn) => turn[0].role === "user" && !(isAnswer(turn.at(-1)) || (turn.at(-1).role === "tool" && turn.some(isAnswer)));

/**
 * The messages of a path that requests leave out, with the reason: `failed` (a turn without an answer, unless it is the last one) or
 * `left out` (by the person, to make room).
 */
export function unsent(messages) {
  const reasons = new Map();
  turnsOf(messages).forEach((turn, at, turns) => {
    const isFailed = at < turns.length - 1 && hasFailed(turn);
    for (const message of turn) {
      if (message.leftOut) reasons.set(message, "left out");
      else if (isFailed) reasons.set(message, "failed");
    }
  });
  return reasons;
}

/** The turns of a path that are sent, without the last one: the oldest first. */
export function earlierTurns(messages) {
  const reasons = unsent(messages);
  return turnsOf(messages).slice(0, -1).map((turn) => turn.filter((message) => !reasons.has(message))).filter((turn) => turn.length > 0);
}

/** The messages as the API takes them, without those that requests leave out. Reasoning is not sent back. */
export function apiMessages(system, messages) {
  const reasons = unsent(messages);
  const sent = messages.filter((message) => !reasons.has(message)).map(({ role, content, toolCalls, toolCallId }) => {
    if (role === "tool") return { role, content, tool_call_id: toolCallId };
    if (role === "assistant" && toolCalls?.length) return { role, content: content || null, tool_calls: toolCalls };
    return { role, content };
  });
  return system.trim() === "" ? sent : [{ role: "system", content: system }, ...sent];
}

const FORMAT = "hearth-conversations";

/** Conversations as the text of a file. */
export const exported = (conversations) => `${JSON.stringify({ format: FORMAT, version: 1, conversations }, null, 1)}\n`;

/**
 * Reads the text of a file: one that this page or `/save` of `hearth chat` has written, or messages as the API has them (a list, or an
 * object with `messages`). Throws an error for people if it is none of these. Unknown members are left out.
 */
export function imported(text) {
  let file;
  try {
    file = JSON.parse(text);
  } catch {
    throw new Error("This file is not JSON.");
  }
  if (file?.format === FORMAT && Array.isArray(file.conversations)) return file.conversations.map(cleaned);
  const messages = Array.isArray(file) ? file : file?.messages;
  if (!Array.isArray(messages) || !messages.some(({ role } = {}) => ROLES.includes(role))) throw new Error("This file has no conversations exported from Hearth.");
  return [cleaned({ messages, settings: { parameters: object(file.settings) } })];
}

const isId = (value) => typeof value === "string" && /^\w{1,64}$/.test(value);
const string = (value) => (typeof value === "string" ? value : "");
const time = (value) => (Number.isFinite(value) ? value : Date.now());
const object = (value) => (value !== null && typeof value === "object" && !Array.isArray(value) ? value : {});
/** The text of a message: a string, or the API's list of parts. */
const textOf = (content) => (Array.isArray(content) ? content.map((part) => string(part?.text)).join("") : string(content));

function cleaned(given) {
  const messages = [];
  const known = new Set([null]);
  const listed = Array.isArray(given?.messages) ? given.messages : [];
  let { settings } = object(given);
  settings = object(settings);
  for (const message of listed) {
    if (message?.role === "system" && messages.length === 0) settings = { ...settings, system: textOf(message.content) };
    // Messages without ids follow one another.
    const isLinked = message?.id !== undefined || message?.parent !== undefined;
    const id = isLinked ? message.id : randomId();
    const parent = isLinked ? message.parent ?? null : messages.at(-1)?.id ?? null;
    // A message whose parent is missing cannot be shown.
    if (!ROLES.includes(message?.role) || !isId(id) || known.has(id) || !known.has(parent)) continue;
    known.add(id);
    messages.push(cleanedMessage(message, id, parent));
  }
  const chosen = Object.fromEntries(Object.entries(object(given?.chosen)).filter(([, child]) => known.has(child)));
  const { id, title, isNamed, created, updated } = object(given);
  const asked = messages.find(({ role }) => role === "user")?.content ?? "";
  return { id: isId(id) ? id : randomId(), title: string(title) || titleOf(asked), isNamed: isNamed === true, created: time(created), updated: time(updated), settings, messages, chosen };
}

function cleanedMessage(message, id, parent) {
  const made = { id, parent, role: message.role, created: time(message.created), content: textOf(message.content) };
  for (const name of ["reasoning", "toolCallId", "model", "finishReason", "error", "errorCode"]) {
    if (typeof message[name] === "string") made[name] = message[name];
  }
  if (typeof message.tool_call_id === "string") made.toolCallId = message.tool_call_id;
  if (message.leftOut === true) made.leftOut = true;
  const calls = message.toolCalls ?? message.tool_calls;
  if (Array.isArray(calls)) {
    made.toolCalls = calls.map((call) => {
      const { name, arguments: given } = object(call?.function);
      return { id: string(call?.id), type: "function", function: { name: string(name), arguments: string(given) } };
    });
  }
  const stats = Object.entries(object(message.stats)).filter(([, value]) => Number.isFinite(value));
  if (stats.length > 0) made.stats = Object.fromEntries(stats);
  return made;
}

/** A fence of backticks that is longer than any in the text. */
const fence = (text) => "`".repeat(Math.max(3, ...(text.match(/`+/g) ?? []).map((run) => run.length + 1)));

/** A text as a code block of Markdown. */
export const fenced = (text, language = "") => `${fence(text)}${language}\n${text.replace(/\n$/, "")}\n${fence(text)}`;

/** The messages that are shown, as a Markdown document. */
export function markdown(conversation) {
  const parts = [`# ${conversation.title || "Conversation"}`];
  const { system } = conversation.settings;
  if (system?.trim()) parts.push("## System prompt", system.trim());
  for (const message of path(conversation)) {
    const { reasoning, answer } = split(message);
    parts.push(`## ${{ user: "You", tool: "Tool result" }[message.role] ?? message.model ?? "Answer"}`);
    if (reasoning !== "") parts.push("<details><summary>Reasoning</summary>", reasoning, "</details>");
    if (answer !== "") parts.push(message.role === "tool" ? fenced(answer) : answer.trim());
    for (const { function: { name, arguments: given } } of message.toolCalls ?? []) parts.push(`Calls \`${name}\`:`, fenced(given, "json"));
    if (message.error) parts.push(`*Error: ${message.error}*`);
  }
  return `${parts.join("\n\n")}\n`;
}
