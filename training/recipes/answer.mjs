// Has the model of a running server answer conversations, many at a time.
// Usage: node answer.mjs URL PROMPTS ANSWERS [PARAMETERS]
// PROMPTS is jsonl as `hearth-lab tales --prompts` writes it; ANSWERS is the same with the model's message appended to `messages`,
// for `hearth-lab tales --judge`. PARAMETERS is a JSON object of request parameters.
import { readFileSync, writeFileSync } from "node:fs";

const [url, prompts, answers, parameters = "{}"] = process.argv.slice(2);
if (!answers) {
  console.error("usage: node answer.mjs URL PROMPTS ANSWERS [PARAMETERS]");
  process.exit(2);
}
const AT_ONCE = 32;
const lines = readFileSync(prompts, "utf8").trimEnd().split("\n").map((line) => JSON.parse(line));
const settings = JSON.parse(parameters);
const model = (await (await fetch(`${url}/v1/models`)).json()).data[0].id;

async function answer(line) {
  const response = await fetch(`${url}/v1/chat/completions`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ model, messages: line.messages, ...settings }),
  });
  const body = await response.json();
  if (!response.ok) throw new Error(`${response.status}: ${JSON.stringify(body)}`);
  line.messages.push({ role: "assistant", content: body.choices[0].message.content });
  return body.usage.completion_tokens;
}

const start = performance.now();
let next = 0, tokens = 0;
await Promise.all(Array.from({ length: AT_ONCE }, async () => {
  while (next < lines.length) {
    const written = await answer(lines[next++]);
    tokens += written;
  }
}));
writeFileSync(answers, lines.map((line) => `${JSON.stringify(line)}\n`).join(""));
const seconds = (performance.now() - start) / 1000;
console.error(`${lines.length} answers, ${tokens} tokens in ${seconds.toFixed(1)} s, ${(tokens / seconds).toFixed(0)} tok/s`);
