// Statistics of a generated text, over its tokens. No page.

/** Number of different n-grams by the number of all; null if there are none. */
export function distinct(tokens, n) {
  const all = tokens.length - n + 1;
  if (all < 1) return null;
  const seen = new Set();
  for (let at = 0; at < all; at += 1) seen.add(JSON.stringify(tokens.slice(at, at + n)));
  return seen.size / all;
}

/** Share of 4-grams that occurred before: 0 for a text that never repeats itself. */
export function repetition(tokens) {
  const share = distinct(tokens, 4);
  return share === null ? null : 1 - share;
}

/** Mean of the tokens' log-probabilities, in nats; null without tokens. */
export function meanLogprob(logprobs) {
  return logprobs.length === 0 ? null : logprobs.reduce((sum, each) => sum + each, 0) / logprobs.length;
}
