// Times and counts of an answer while it arrives, and how they are written.

/** Measures one streamed answer. Times are in milliseconds since the request was sent. */
export class Stopwatch {
  #start = performance.now();
  #first;
  #last;
  #end;
  #usage;

  #elapsed() {
    return performance.now() - this.#start;
  }

  /** Takes note of a chunk. `hasText`: whether it had a part of the answer. */
  note(chunk, hasText) {
    this.#usage = chunk.usage ?? this.#usage;
    if (!hasText) return;
    this.#last = this.#elapsed();
    this.#first ??= this.#last;
  }

  stop() {
    this.#end = this.#elapsed();
    return this.stats();
  }

  stats() {
    const elapsed = this.#end ?? this.#elapsed();
    const { prompt_tokens: prompt, completion_tokens: tokens, prompt_tokens_details: details } = this.#usage ?? {};
    return { elapsed, first: this.#first, prompt, tokens, cached: details?.cached_tokens, rate: this.#rate(tokens, elapsed) };
  }

  /**
   * Tokens per second. The first token includes the prompt's time, so only the tokens after it count, unless they came too close
   * together to tell: several may arrive at once.
   */
  #rate(tokens, elapsed) {
    if (!tokens || this.#first === undefined) return undefined;
    const decoding = this.#last - this.#first;
    if (tokens > 1 && (decoding > 100 || decoding > 0.3 * elapsed)) return ((tokens - 1) / decoding) * 1000;
    return (tokens / elapsed) * 1000;
  }
}

export const tokenRate = (rate) => `${rate.toFixed(rate < 100 ? 1 : 0)} tok/s`;
export const seconds = (ms) => `${(ms / 1000).toFixed(2)} s`;
export const count = (number) => number.toLocaleString("en-US");
export const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

/** The statistics as short phrases. */
export function phrases({ elapsed, first, prompt, tokens, rate }) {
  const parts = [];
  if (rate !== undefined) parts.push(tokenRate(rate));
  if (first !== undefined) parts.push(`first token after ${seconds(first)}`);
  if (prompt !== undefined) parts.push(plural(prompt, "prompt token"), `${plural(tokens, "new token")} in ${seconds(elapsed)}`);
  return parts;
}
