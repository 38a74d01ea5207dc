// What agents speak, with the packages `openai`, `@anthropic-ai/sdk` and Vercel's `ai` for Node.js, unmodified, against a running server.
// Usage: HEARTH_URL=http://127.0.0.1:8000 node check_agents.mjs        The packages are looked for from where `NODE_PATH_OF` says, else from here.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const require = createRequire(process.env.NODE_PATH_OF ? pathToFileURL(process.env.NODE_PATH_OF) : import.meta.url);
const { default: OpenAI, BadRequestError } = require("openai");
const { default: Anthropic } = require("@anthropic-ai/sdk");
const { generateText, streamText, tool, jsonSchema } = require("ai");
const { createOpenAI } = require("@ai-sdk/openai");
const { createAnthropic } = require("@ai-sdk/anthropic");

const url = process.env.HEARTH_URL;
const apiKey = process.env.HEARTH_KEY ?? "none";
const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey, maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: url, apiKey, maxRetries: 0 });
const [{ id: model }] = (await openai.models.list()).data;
const question = "What is the weather in Paris?";
const schema = {
  type: "object",
  properties: { city: { type: "string", maxLength: 20 }, unit: { enum: ["c", "f"] } },
  required: ["city", "unit"],
  additionalProperties: false,
};

function checkInput({ city, unit, ...rest }) {
  assert.ok(typeof city === "string" && city.length <= 20 && ["c", "f"].includes(unit));
  assert.deepEqual(rest, {});
}

const checks = {
  async responses() {
    const body = { model, input: question, max_output_tokens: 12, temperature: 0 };
    const whole = await openai.responses.create(body);
    assert.ok(whole.output_text);
    const stream = openai.responses.stream(body);
    let text = "";
    stream.on("response.output_text.delta", ({ delta }) => (text += delta));
    const final = await stream.finalResponse();
    assert.equal(final.output_text, whole.output_text);
    assert.equal(text, whole.output_text);
    const refused = await openai.responses.create({ ...body, conversation: "conv_1" }).catch((error) => error);
    assert.ok(refused instanceof BadRequestError);
    assert.equal(refused.param, "conversation");
  },

  async responsesTools() {
    const tools = [{ type: "function", name: "get_weather", parameters: schema, strict: true }, { type: "web_search" }];
    const body = { model, input: question, tools, tool_choice: "required", max_output_tokens: 200, temperature: 0 };
    const { output, status } = await openai.responses.create(body);
    const calls = output.filter(({ type }) => type === "function_call");
    assert.ok(calls.length > 0 || status === "incomplete");
    calls.filter(({ status }) => status === "completed").forEach((call) => checkInput(JSON.parse(call.arguments)));
  },

  async messages() {
    const body = { model, max_tokens: 12, temperature: 0, messages: [{ role: "user", content: question }] };
    const whole = await anthropic.messages.create(body);
    const stream = anthropic.messages.stream(body);
    assert.equal(await stream.finalText(), whole.content[0].text);
    assert.equal((await stream.finalMessage()).stop_reason, whole.stop_reason);
    const { input_tokens } = await anthropic.messages.countTokens({ model, messages: body.messages });
    assert.equal(input_tokens, whole.usage.input_tokens + whole.usage.cache_read_input_tokens);
    const refused = await anthropic.messages.create({ ...body, temperature: 9 }).catch((error) => error);
    assert.ok(refused instanceof Anthropic.BadRequestError);
    assert.equal(refused.error.error.type, "invalid_request_error");
  },

  async messagesTools() {
    const tools = [{ name: "get_weather", input_schema: schema }];
    const body = { model, max_tokens: 200, temperature: 0, messages: [{ role: "user", content: question }], tools };
    const stream = anthropic.messages.stream({ ...body, tool_choice: { type: "any" } });
    const { content, stop_reason } = await stream.finalMessage();
    const calls = content.filter(({ type }) => type === "tool_use");
    assert.ok(calls.length > 0 || stop_reason === "max_tokens");
    if (stop_reason === "tool_use") calls.forEach(({ input }) => checkInput(input));
  },

  async ai() {
    const providers = {
      responses: createOpenAI({ baseURL: `${url}/v1`, apiKey }).responses(model),
      chat: createOpenAI({ baseURL: `${url}/v1`, apiKey }).chat(model),
      messages: createAnthropic({ baseURL: `${url}/v1`, apiKey })(model),
    };
    const texts = new Set();
    for (const [name, provider] of Object.entries(providers)) {
      const body = { model: provider, prompt: question, maxOutputTokens: 12, temperature: 0, maxRetries: 0 };
      const { text } = await generateText(body);
      texts.add(text);
      let streamed = "";
      for await (const piece of streamText(body).textStream) streamed += piece;
      assert.equal(streamed, text, name);
      const tools = { get_weather: tool({ description: "The weather in a city.", inputSchema: jsonSchema(schema) }) };
      const called = await generateText({ ...body, tools, toolChoice: "required", maxOutputTokens: 200 });
      assert.ok(called.toolCalls.length > 0 || called.finishReason === "length", name);
      if (called.finishReason === "tool-calls") called.toolCalls.forEach(({ input }) => checkInput(input));
    }
    assert.equal(texts.size, 1, "the same answer through each API");
  },
};

for (const [name, check] of Object.entries(checks)) {
  await check();
  console.log("ok", name);
}
