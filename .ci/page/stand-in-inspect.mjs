// The stand-in's `POST /v1/inspect`: every word is a token, and the numbers follow from the places of the words.

const LAYERS = 3;
const HEADS = 2;
/** A token for an id that is in no text. */
const INVENTED = [" lamp", " lantern", " light", " cat"];

const split = (text) => text.match(/\s*\S+/g) ?? [text];
const known = new Map();

/** The id of a word; the same word has the same id. */
function idOf(word) {
  if (!known.has(word)) known.set(word, 1000 + known.size);
  return known.get(word);
}

const wordOf = (id) => [...known].find(([, each]) => each === id)?.[0] ?? INVENTED[id % INVENTED.length];

/** The bits of a half-precision number between 0 and 1. */
function half(value) {
  if (value === 0) return 0;
  const exponent = Math.max(-14, Math.floor(Math.log2(value)));
  return ((exponent + 15) << 10) + Math.round((value / 2 ** exponent - 1) * 1024);
}

const entry = (token, logprob) => ({ id: idOf(token), token, bytes: [...Buffer.from(token)], logprob });

/** The maps of layers and heads in which a row's weights are those of `rowOf(query)`: pairs of a column and its weight. */
function maps([layers = [...Array(LAYERS).keys()], heads = [...Array(HEADS).keys()]], rows, columns, rowOf) {
  const bits = new Uint16Array(layers.length * heads.length * rows * columns);
  for (let map = 0; map < layers.length * heads.length; map += 1) {
    for (let query = 0; query < rows; query += 1) {
      for (const [key, weight] of rowOf(query)) bits[(map * rows + query) * columns + key] = half(weight);
    }
  }
  return { layers, heads, shape: [layers.length, heads.length, rows, columns], dtype: "float16", data: Buffer.from(bits.buffer).toString("base64") };
}

/** Half of each token's attention is on the first one, the rest on itself. */
const attention = ({ layers, heads }, size) => maps([layers, heads], size, size, (query) => (query === 0 ? [[0, 1]] : [[0, 0.5], [query, 0.5]]));

/** Each token of the target attends to the source's token in its place; the encoder's tokens to themselves and to the last one. */
function ofSource({ layers, heads, encoder_layers, encoder_heads }, target, source) {
  return {
    attention: encoder_layers?.length === 0 ? null : maps([encoder_layers, encoder_heads], source, source, (query) => (query === source - 1 ? [[query, 1]] : [[query, 0.25], [source - 1, 0.75]])),
    cross_attention: layers?.length === 0 ? null : maps([layers, heads], target, source, (query) => [[Math.min(query, source - 1), 1]]),
  };
}

/** Status and body of the response. */
export function inspection({ input, target, messages, top_logprobs: top = 5, attention: wanted, logit_lens: lens }) {
  const wordsOf = (given) => (Array.isArray(given) ? given.map(wordOf) : split(given));
  const source = target === undefined ? null : wordsOf(input);
  const texts = messages ? messages.flatMap(({ role, content }) => [`<${role}>`, ...split(content)]) : source ? ["<start>", ...wordsOf(target)] : wordsOf(input);
  if (texts.length > 64) {
    return [400, { error: { message: `\`input\` has ${texts.length} tokens, but at most 64 are inspected`, type: "invalid_request_error", param: "input", code: null } }];
  }
  const tokens = texts.map((token, at) => ({ id: idOf(token), token, bytes: [...Buffer.from(token)], logprob: at === 0 ? null : -0.5 * (at % 4) - 0.1, rank: at === 0 ? null : 1 + (at % 4) }));
  const predictions = texts.map((_, at) => {
    const next = tokens[at + 1];
    const options = [...(next ? [entry(next.token, next.logprob)] : []), ...INVENTED.filter((word) => word !== next?.token).map((word, place) => entry(word, -2 - place))];
    return { entropy: 1.5, top_logprobs: options.slice(0, top) };
  });
  return [200, {
    object: "inspection", model: "stand-in", layer_count: LAYERS, head_count: HEADS, tokens, predictions,
    attention: wanted && wanted.layers?.length !== 0 ? attention(wanted, texts.length) : null,
    source: source && {
      layer_count: LAYERS + 1, head_count: HEADS, tokens: source.map((token) => ({ id: idOf(token), token, bytes: [...Buffer.from(token)] })),
      ...(wanted && ofSource(wanted, texts.length, source.length)),
    },
    logit_lens: lens ? {
      layers: [...Array(LAYERS + 1).keys()],
      predictions: Array.from({ length: LAYERS + 1 }, (_, layer) => texts.map((_, at) => INVENTED.slice(0, lens.top ?? 5).map((word, place) => entry(word, -1 - place - (LAYERS - layer) - (at % 2))))),
    } : null,
  }];
}
