// Reasoning: what a model thinks before its answer. Servers send it apart, or the text begins with `<think>`.

const OPEN = "<think>";
const CLOSE = "</think>";

/** Splits a message into its reasoning and its answer. `isThinking`: the answer has not begun. */
export function split({ content, reasoning = "" }) {
  const start = content.trimStart();
  if (!start.startsWith(OPEN)) return { reasoning, answer: content, isThinking: reasoning !== "" && content === "" };
  const end = start.indexOf(CLOSE);
  const thought = start.slice(OPEN.length, end < 0 ? undefined : end).trim();
  const answer = end < 0 ? "" : start.slice(end + CLOSE.length).trimStart();
  return { reasoning: [reasoning, thought].filter(Boolean).join("\n\n"), answer, isThinking: end < 0 };
}
