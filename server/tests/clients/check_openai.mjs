// The `openai` package for Node.js, unmodified, against a running server.
// Usage: HEARTH_URL=http://127.0.0.1:8000 node check_openai.mjs        The package is looked for from where `NODE_PATH_OF` says, else from here.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const require = createRequire(process.env.NODE_PATH_OF ? pathToFileURL(process.env.NODE_PATH_OF) : import.meta.url);
const { default: OpenAI, AuthenticationError, BadRequestError, NotFoundError } = require("openai");

const baseURL = `${process.env.HEARTH_URL}/v1`;
const apiKey = process.env.HEARTH_KEY ?? "none";
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const [{ id: model }] = (await client.models.list()).data;
const messages = [{ role: "user", content: "Name three colours." }];

const checks = {
  async models() {
    assert.equal((await client.models.retrieve(model)).object, "model");
    await assert.rejects(client.models.retrieve("gpt-9"), NotFoundError);
  },

  async completions() {
    const body = { model, prompt: "Once upon a time", max_tokens: 16, seed: 3, logprobs: 2 };
    const whole = await client.completions.create(body);
    assert.equal(whole.object, "text_completion");
    assert.equal(whole.choices[0].logprobs.tokens.length, whole.usage.completion_tokens);
    let text = "";
    let usage;
    for await (const chunk of await client.completions.create({ ...body, stream: true, stream_options: { include_usage: true } })) {
      text += chunk.choices[0]?.text ?? "";
      usage = chunk.usage ?? usage;
    }
    assert.equal(text, whole.choices[0].text);
    assert.deepEqual(usage, whole.usage);
  },

  async chat() {
    const body = { model, messages, max_completion_tokens: 16, seed: 5, logprobs: true, top_logprobs: 1 };
    const whole = await client.chat.completions.create(body);
    assert.equal(whole.choices[0].message.role, "assistant");
    // The package's own accumulator of a stream.
    const stream = client.chat.completions.stream(body);
    assert.equal(await stream.finalContent(), whole.choices[0].message.content);
    const { choices: [choice] } = await stream.finalChatCompletion();
    assert.equal(choice.finish_reason, whole.choices[0].finish_reason);
    assert.deepEqual(choice.logprobs.content, whole.choices[0].logprobs.content);
  },

  async errors() {
    const refused = await client.completions.create({ model, prompt: "x", temperature: 9 }).catch((error) => error);
    assert.ok(refused instanceof BadRequestError);
    assert.equal(refused.param, "temperature");
    assert.ok(refused.requestID);
    if (process.env.HEARTH_KEY) {
      const stranger = new OpenAI({ baseURL, apiKey: "wrong", maxRetries: 0 });
      const error = await stranger.models.list().catch((error) => error);
      assert.ok(error instanceof AuthenticationError);
      assert.equal(error.code, "invalid_api_key");
    }
  },

  async leaving() {
    const stream = await client.chat.completions.create({ model, messages, max_tokens: 200, stream: true });
    for await (const _ of stream) break;
    const { data, response } = await client.models.list().withResponse();
    assert.equal(data.data[0].id, model);
    assert.ok(response.headers.get("x-request-id"));
  },
};

for (const [name, check] of Object.entries(checks)) {
  await check();
  console.log(`ok ${name}`);
}
