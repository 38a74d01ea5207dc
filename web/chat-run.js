// Generating one answer: the request, and what arrives written into the message. No page, no storage.
import { streamChat } from "./api.js";
import { requestFields } from "./chat-settings.js";
import { apiMessages, pathTo } from "./conversation.js";
import { Stopwatch } from "./measure.js";

/** Adds the parts of tool calls to those that are there. */
function addCalls(calls, parts) {
  for (const { index = calls.length, id, function: part } of parts) {
    const call = (calls[index] ??= { id: "", type: "function", function: { name: "", arguments: "" } });
    if (id) call.id = id;
    call.function.name += part?.name ?? "";
    call.function.arguments += part?.arguments ?? "";
  }
}

/** Writes a delta into the message. Returns whether it had a part of the answer. */
function addDelta(message, delta) {
  const reasoning = delta.reasoning_content ?? delta.reasoning;
  if (reasoning) message.reasoning = (message.reasoning ?? "") + reasoning;
  if (delta.content) message.content += delta.content;
  if (delta.tool_calls) addCalls((message.toolCalls ??= []), delta.tool_calls);
  return Boolean(reasoning || delta.content || delta.tool_calls);
}

/**
 * Streams an answer into `message`, which is in `conversation`; calls `changed()` after each chunk. If the message has
 * text, the answer continues it. Errors and how it ended are written into the message too.
 */
export async function generate({ conversation, message, model, signal, changed }) {
  const { settings } = conversation;
  const shown = pathTo(conversation, message.id);
  const isContinued = message.content !== "" || Boolean(message.reasoning);
  const watch = new Stopwatch();
  message.model = model;
  message.error = undefined;
  message.errorCode = undefined;
  message.finishReason = undefined;
  try {
    const messages = apiMessages(settings.system ?? "", isContinued ? shown : shown.slice(0, -1));
    const body = { model, ...requestFields(settings), messages };
    if (isContinued && message.reasoning) messages.at(-1).reasoning_content = message.reasoning;
    if (isContinued) Object.assign(body, { continue_final_message: true, add_generation_prompt: false });
    for await (const chunk of streamChat(body, signal)) {
      const choice = chunk.choices?.[0];
      watch.note(chunk, choice?.delta ? addDelta(message, choice.delta) : false);
      message.finishReason = choice?.finish_reason ?? message.finishReason;
      message.stats = watch.stats();
      changed();
    }
  } catch (error) {
    message.finishReason = signal.aborted ? "stopped" : "error";
    if (!signal.aborted) Object.assign(message, { error: error.message, errorCode: error.code });
  } finally {
    message.stats = watch.stop();
  }
}
