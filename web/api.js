// The HTTP API: the only module that knows URLs. They are relative, so that the page also works behind a path prefix.
import { eventData } from "./event-stream.js";

const PATHS = {
  models: "v1/models",
  chat: "v1/chat/completions",
  completions: "v1/completions",
  inspect: "v1/inspect",
  tokenize: "v1/tokenize",
  tokenizerInfo: "v1/tokenizer_info",
  openapi: "openapi.json",
  metrics: "metrics",
};

/** The page's own folder on the server, such as `/` or `/hearth/`. Settings and conversations are kept for it alone. */
export const SCOPE = new URL(".", document.baseURI).pathname;

/** The address of an endpoint, for people to copy. */
export const address = (endpoint) => new URL(PATHS[endpoint], document.baseURI).href;

/** An error that the server reported, or a failure of the connection to it. */
class ApiError extends Error {
  /** `status` is the HTTP status; 0 if there was no response. `code` is the API's name of the error, if it has one. */
  constructor(message, status = 0, code = undefined) {
    super(message);
    Object.assign(this, { status, code });
  }
}

/** Where keys come from: `current()` is the key or null, and `ask(reason)` resolves to a new one, or to null for none. */
let keys = { current: () => null, ask: async () => null };
export const setKeys = (source) => { keys = source; };

/** The error of a response: from the API's JSON envelope, or the plain text of a proxy's response. */
function errorOf(status, text) {
  let error = {};
  try {
    error = JSON.parse(text).error ?? {};
  } catch {
    // Not the API's envelope.
  }
  return new ApiError(error.message ?? `HTTP status ${status}: ${text.trim() || "no message"}`, status, error.code ?? undefined);
}

/** Returns what `read` returns. Replaces the TypeError of a network failure by an error that mentions the server. */
async function reaching(read) {
  try {
    return await read();
  } catch (error) {
    throw error instanceof TypeError ? new ApiError(`cannot reach the server: ${error.message}`) : error;
  }
}

/** A response of the status 200. On a 401 it asks for a key and tries again. */
async function fetchOk(endpoint, { body, signal } = {}) {
  for (;;) {
    const key = keys.current();
    const headers = {};
    if (key !== null) headers.authorization = `Bearer ${key}`;
    if (body !== undefined) headers["content-type"] = "application/json";
    const request = { method: body === undefined ? "GET" : "POST", headers, body: body && JSON.stringify(body), signal };
    const response = await reaching(() => fetch(PATHS[endpoint], request));
    if (response.ok) return response;
    const error = errorOf(response.status, await reaching(() => response.text()));
    const isNewKey = response.status === 401 && (keys.current() !== key || (await keys.ask(key === null ? "This server requires an API key." : "The server does not accept this API key.")) !== null);
    if (!isNewKey) throw error;
  }
}

/** Yields the chunks of a streamed answer. Throws if the server reports an error or the stream ends too early. */
async function* chunks(endpoint, body, signal) {
  const response = await fetchOk(endpoint, { body: { ...body, stream: true, stream_options: { include_usage: true, continuous_usage_stats: true } }, signal });
  const events = eventData(response.body);
  let complete = false;
  for (;;) {
    const { value, done } = await reaching(() => events.next());
    if (done) break;
    if (value === "[DONE]") {
      complete = true;
      continue;
    }
    const chunk = JSON.parse(value);
    if (chunk.error) throw new ApiError(chunk.error.message, 0, chunk.error.code ?? undefined);
    yield chunk;
  }
  if (!complete) throw new ApiError("the connection was closed before the answer was finished");
}

export const streamChat = (body, signal) => chunks("chat", body, signal);
export const streamCompletion = (body, signal) => chunks("completions", body, signal);

const json = async (endpoint, options) => {
  const response = await fetchOk(endpoint, options);
  return reaching(() => response.json());
};

export const completion = (body, signal) => json("completions", { body, signal });
export const inspection = (body, signal) => json("inspect", { body, signal });
/** The number of tokens of a conversation as the chat template writes it. */
export const countTokens = async (body, signal) => (await json("tokenize", { body, signal })).count;
export const listModels = async () => (await json("models")).data;
export const tokenizerInfo = () => json("tokenizerInfo");
export const description = () => json("openapi");
export const metricsText = async (signal) => {
  const response = await fetchOk("metrics", { signal });
  return reaching(() => response.text());
};
