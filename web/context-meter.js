// How much of the context a conversation takes, with what is in the message box, and which turns to leave out so that it fits.
import { countTokens } from "./api.js";
import { apiMessages, earlierTurns, path, unsent } from "./conversation.js";
import { requestFields } from "./chat-settings.js";
import { byId } from "./dom.js";
import { count } from "./measure.js";
import { contextLength, modelId } from "./models.js";

/** The box is counted when a person pauses. */
const PAUSE_MS = 300;
/** Share of the context that is kept free for an answer when turns are left out. */
const ROOM = 1 / 8;
/** Characters of a token, for servers that do not count. */
const TOKEN_CHARS = 4;

const shown = byId("context");
let timer;
let controller;

/** The tokens of a request for these messages. Throws if the server cannot count. */
function measured(conversation, messages, signal) {
  const { tools, tool_choice: _ } = requestFields(conversation.settings);
  return countTokens({ model: modelId(), messages: apiMessages(conversation.settings.system ?? "", messages), tools }, signal);
}

/** The tokens that the server reported for the last answer, if all that is shown was part of that request. */
function reported(messages) {
  const last = messages.at(-1);
  return last?.stats?.tokens && unsent(messages).size === 0 ? last.stats.prompt + last.stats.tokens : undefined;
}

function write(tokens, isExact = true) {
  const limit = contextLength();
  const isOver = isExact && tokens >= limit;
  shown.textContent = limit ? `${isExact ? "" : "about "}${count(tokens)} of ${count(limit)} tokens${isOver ? ": too long" : ""}` : "";
  shown.classList.toggle("is-over", isOver);
}

/** Shows what a request with `text` as the next message takes; without a text, what the conversation takes. */
export function showContext(conversation, text) {
  clearTimeout(timer);
  controller?.abort();
  const messages = path(conversation);
  const next = [...messages, { role: "user", content: text }];
  // As before the next message: a failed turn is left out.
  const earlier = earlierTurns(next).flat();
  const isEmpty = text.trim() === "";
  const known = isEmpty && earlier.length === 0 ? 0 : reported(messages);
  if (!contextLength() || (isEmpty && known !== undefined)) return write(known ?? 0);
  controller = new AbortController();
  const { signal } = controller;
  timer = setTimeout(async () => {
    try {
      write(await measured(conversation, isEmpty ? earlier : next, signal));
    } catch {
      if (!signal.aborted) write((known ?? 0) + Math.ceil(text.length / TOKEN_CHARS), false);
    }
  }, PAUSE_MS);
  return undefined;
}

/**
 * Marks the oldest turns of a path as left out until what remains fits, with room for an answer. Returns false if the last turn alone is
 * too long; then nothing is marked.
 */
export async function leaveOutOldest(conversation, messages) {
  const turns = earlierTurns(messages);
  const context = contextLength() ?? Infinity;
  const mark = (number) => turns.forEach((turn, at) => turn.forEach((message) => { message.leftOut = at < number || undefined; }));
  const without = (number) => {
    mark(number);
    return measured(conversation, messages);
  };
  try {
    const least = turns.length > 0 ? await without(turns.length) : Infinity;
    if (least >= context) {
      mark(0);
      return false;
    }
    // The more are left out, the shorter it is: the smallest number that fits is found by halving.
    const limit = Math.max(context * (1 - ROOM), least);
    let [low, high] = [1, turns.length];
    while (low < high) {
      const middle = Math.floor((low + high) / 2);
      if ((await without(middle)) <= limit) high = middle;
      else low = middle + 1;
    }
    mark(low);
  } catch {
    // The server cannot count: one turn at a time.
    mark(1);
  }
  return true;
}
