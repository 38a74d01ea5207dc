// A server for tests of the page: it serves web/ with the headers of server/src/api/endpoints/page.rs, and answers as Hearth does, with
// texts that a test chooses. So the page is tested without a build and without a model.
import { once } from "node:events";
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { inspection } from "./stand-in-inspect.mjs";

const root = new URL("../../", import.meta.url);
const TYPES = { html: "text/html", js: "text/javascript", mjs: "text/javascript", css: "text/css", svg: "image/svg+xml", txt: "text/plain" };

/** The policy that the real server sends. */
async function contentSecurityPolicy() {
  const source = await readFile(new URL("server/src/api/endpoints/page.rs", root), "utf8");
  return /CONTENT_SECURITY_POLICY: &str =\s*"([^"]*)"/.exec(source)[1].replace(/\\\n\s*/g, "");
}

const words = (text) => text.match(/\s*\S+\s*$|\s*\S+/g) ?? [];
export const tokensOf = (messages) => messages.reduce((sum, { content }) => sum + 4 + (content ?? "").split(/\s+/).filter(Boolean).length, 0);
const usage = (prompt, tokens) => ({ prompt_tokens: prompt, completion_tokens: tokens, total_tokens: prompt + tokens });
const error = (message, code = null) => ({ error: { message, type: "invalid_request_error", param: null, code } });

export class StandIn {
  /** Bodies of the POST requests, with their paths: `{ path, body }`. */
  requests = [];
  models = [{ id: "stand-in", object: "model", created: 1_790_000_000, owned_by: "hearth", max_model_len: 2048, meta: { n_vocab: 512, n_ctx_train: 2048, n_embd: 64, n_params: 1_000_000 } }];
  chatTemplate = "{{ messages }}";
  /** Requests must have this key; `null`: none. */
  key = null;
  /** The answer to a request: `{ deltas }` or `{ text }`; with `status` and `message` an error; `cut` ends the stream early. */
  reply = ({ messages, prompt }) => ({ text: messages ? `You said: ${messages.at(-1).content}` : ` there was ${String(prompt).length}` });
  hasInspect = true;
  hasTokenize = true;
  /** Longer conversations are an error, as the real server reports it. */
  contextLength = Infinity;
  /** Holds streams before their last part until the test lets them go. */
  held = null;

  #server = createServer((request, response) => this.#answer(request, response).catch((failure) => {
    console.error(failure);
    response.destroy();
  }));

  async start() {
    await once(this.#server.listen(0, "127.0.0.1"), "listening");
    this.origin = `http://127.0.0.1:${this.#server.address().port}`;
    this.policy = await contentSecurityPolicy();
    return this;
  }

  stop() {
    this.#server.closeAllConnections();
    this.#server.close();
  }

  hold() {
    let go;
    this.held = new Promise((resolve) => { go = resolve; });
    this.letGo = () => {
      this.held = null;
      go();
    };
  }

  /** The bodies sent to an endpoint. */
  sent(path) {
    return this.requests.filter((request) => request.path === path).map(({ body }) => body);
  }

  async #answer(request, response) {
    const path = new URL(request.url, this.origin).pathname;
    if (request.method === "GET" && (await this.#file(path, response))) return;
    const json = (status, value) => response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(value));
    if (path.startsWith("/v1/") && this.key !== null && request.headers.authorization !== `Bearer ${this.key}`) {
      json(401, error(request.headers.authorization ? "Incorrect API key provided." : "an API key is required", "invalid_api_key"));
      return;
    }
    if (request.method === "GET") {
      const found = this.#get(path);
      if (typeof found === "string") response.writeHead(200, { "content-type": "text/plain" }).end(found);
      else json(found ? 200 : 404, found ?? error(`\`${path}\` does not exist`, "unknown_url"));
      return;
    }
    let text = "";
    for await (const part of request) text += part;
    const body = JSON.parse(text);
    this.requests.push({ path, body });
    if (path === "/v1/inspect") json(...(this.hasInspect ? inspection(body) : [404, error("`/v1/inspect` does not exist", "unknown_url")]));
    else if (path === "/v1/tokenize") json(...this.#tokenize(body));
    else await this.#generate(path, body, response, json);
  }

  /** Every word is a token; a message has four more. */
  #tokenize({ messages }) {
    if (!this.hasTokenize) return [404, error("`/v1/tokenize` does not exist", "unknown_url")];
    return [200, { count: tokensOf(messages), max_model_len: this.models[0].max_model_len, tokens: [] }];
  }

  async #file(path, response) {
    const name = { "/": "index.html", "/docs": "docs.html" }[path] ?? path.slice(1);
    const type = TYPES[name.split(".").at(-1)];
    if (type === undefined || name.includes("..")) return false;
    const bytes = await readFile(new URL(`web/${name}`, root)).catch(() => null);
    if (bytes === null) return false;
    response.writeHead(200, { "content-type": `${type}; charset=utf-8`, "content-security-policy": this.policy, "x-content-type-options": "nosniff" }).end(bytes);
    return true;
  }

  #get(path) {
    const properties = { temperature: { type: "number", default: 0.6 } };
    const chat = { post: { summary: "Chat", requestBody: { content: { "application/json": { schema: { properties } } } }, responses: {} } };
    return {
      "/v1/models": { object: "list", data: this.models },
      "/v1/tokenizer_info": { chat_template: this.chatTemplate },
      "/openapi.json": { info: { version: "0.0.0", description: "A stand-in." }, paths: { "/v1/chat/completions": chat }, components: { schemas: {} } },
      "/metrics": this.#metrics(),
    }[path];
  }

  #metrics() {
    const tokens = 10 * this.requests.length + Math.floor(performance.now() / 20);
    const histogram = (name) => [`${name}_bucket{engine="0",le="0.1"} ${tokens}`, `${name}_bucket{engine="0",le="+Inf"} ${tokens}`, `${name}_sum{engine="0"} ${tokens * 0.05}`, `${name}_count{engine="0"} ${tokens}`];
    return ['vllm:num_requests_running{engine="0"} 2', 'vllm:num_requests_waiting{engine="0"} 1', 'vllm:kv_cache_usage_perc{engine="0"} 0.25',
      `vllm:generation_tokens_total{engine="0"} ${tokens}`, `vllm:prompt_tokens_total{engine="0"} ${tokens}`,
      'vllm:cache_config_info{block_size="16",cache_dtype="f16",num_gpu_blocks="2048"} 1', 'hearth_build_info{version="0.0.0",device="CPU",dtype="bf16"} 1',
      ...["vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds", "vllm:e2e_request_latency_seconds"].flatMap(histogram), ""].join("\n");
  }

  async #generate(path, body, response, json) {
    const { text, deltas, status, message, code, cut } = this.reply(body);
    if (status !== undefined) {
      json(status, error(message, code));
      return;
    }
    if (body.messages && tokensOf(body.messages) >= this.contextLength) {
      json(400, error(`This model's maximum context length is ${this.contextLength} tokens, but the prompt has ${tokensOf(body.messages)}`, "context_length_exceeded"));
      return;
    }
    const isChat = path === "/v1/chat/completions";
    const parts = deltas ?? words(text).map((content) => ({ content }));
    if (!body.stream) {
      json(200, { choices: [{ index: 0, text, finish_reason: "stop", token_ids: words(text).map((_, at) => 100 + at) }], usage: usage(3, parts.length) });
      return;
    }
    response.writeHead(200, { "content-type": "text/event-stream" });
    const send = (value) => response.write(`data: ${JSON.stringify(value)}\n\n`);
    for (const [at, delta] of parts.entries()) {
      if (at === parts.length - 1 && this.held) await this.held;
      if (response.destroyed) return;
      send({ choices: [isChat ? { index: 0, delta, logprobs: logprobs(body, delta.content), finish_reason: null }
        : { index: 0, text: delta.content, logprobs: logprobs(body, delta.content), finish_reason: null }], usage: usage(12, at + 1) });
    }
    if (cut) {
      response.end();
      return;
    }
    const hasCalls = parts.some((delta) => delta.tool_calls);
    send({ choices: [isChat ? { index: 0, delta: {}, finish_reason: hasCalls ? "tool_calls" : "stop" } : { index: 0, text: "", finish_reason: "stop" }], usage: usage(12, parts.length) });
    send({ choices: [], usage: usage(12, parts.length) });
    response.end("data: [DONE]\n\n");
  }
}

/** The log-probabilities of one token, as the endpoint reports them. */
function logprobs({ messages, logprobs: wanted }, token) {
  if (wanted === undefined || wanted === false || token === undefined) return null;
  const logprob = -0.25 * (token.length % 5);
  return messages ? { content: [{ token, logprob, bytes: [], top_logprobs: [] }] } : { tokens: [token], token_logprobs: [logprob] };
}
