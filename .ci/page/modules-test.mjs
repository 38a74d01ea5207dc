// Tests without user interaction: the vendored files, the list of parameters, and single modules.
// Usage: node --test .ci/page/
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { readdir, readFile } from "node:fs/promises";
import { test } from "node:test";
import { pageTest } from "./harness.mjs";

const root = new URL("../../", import.meta.url);
const read = (path) => readFile(new URL(path, root));

test("vendored files have the sizes and hashes of web/vendor/README.md", async () => {
  const readme = (await read("web/vendor/README.md")).toString();
  const named = [...readme.matchAll(/^\| `([^`]+)` \| `[^`]+` \| (\d+) \| `([0-9a-f]{64})` \|$/gm)].map(([, file, bytes, hash]) => [file, Number(bytes), hash]);
  const files = (await readdir(new URL("web/vendor/", root), { recursive: true, withFileTypes: true })).filter((entry) => entry.isFile() && entry.name !== "README.md");
  assert.equal(named.length, files.length);
  for (const [file, bytes, hash] of named) {
    const found = await read(`web/vendor/${file}`);
    assert.deepEqual([found.length, createHash("sha256").update(found).digest("hex")], [bytes, hash], file);
  }
});

/** The modules that a module needs before it runs, with itself. */
async function imports(file, found = new Set()) {
  if (found.has(file)) return found;
  found.add(file);
  const source = file.startsWith("vendor/") ? "" : (await read(`web/${file}`)).toString();
  for (const [, other] of source.matchAll(/^import [^;]*?"\.\/([^"]+)";$/gm)) await imports(other, found);
  return found;
}

test("index.html preloads exactly the modules that Chat needs", async () => {
  const page = (await read("web/index.html")).toString();
  const preloaded = [...page.matchAll(/<link rel="modulepreload" href="([^"]+)">/g)].map(([, file]) => file);
  const needed = await imports("chat.js", await imports("main.js"));
  assert.deepEqual([...preloaded, "main.js", "theme.js"].sort(), [...needed].sort());
});

/** Why a parameter of both endpoints has no field of its own. */
const ELSEWHERE = {
  n: "branches are the page's way to several answers", stream: "always", model: "chosen in the header", return_token_ids: "read by Inspect",
  prompt_logprobs: "Inspect shows more", logprobs_mode: "Compare needs the model's own", repeat_penalty: "another name of repetition_penalty",
  response_format: "the answer's format", structured_outputs: "the answer's format",
};
const isElsewhere = (name) => name in ELSEWHERE || /^(stream_options|guided_)|\./.test(name);

pageTest("every sampling parameter of docs/parameters.md has a field", {}, async ({ page }) => {
  const sections = (await read("docs/parameters.md")).toString().split(/^## /m);
  const section = sections.filter((section) => /^`\/v1\/completions`.*`\/v1\/chat\/completions`/.test(section)).join("\n");
  const rows = [...section.matchAll(/^\| `([\w.]+)` \|.*\| ([^|]+) \|$/gm)].map(([, name, meaning]) => ({ name, meaning }));
  const documented = rows.filter(({ name, meaning }) => !isElsewhere(name) && !meaning.startsWith("No effect")).map(({ name }) => name);
  assert.ok(documented.length > 40, "the table was not read");
  const fields = await page.evaluate(async () => (await import("./parameters.js")).PARAMETERS.map(({ name, help }) => ({ name, isExplained: help.length > 10 })));
  assert.deepEqual(fields.map(({ name }) => name).sort(), [...documented, "max_tokens"].sort());
  assert.ok(fields.every(({ isExplained }) => isExplained));
});

pageTest("text statistics: distinct-n, repetition and mean log-probability", {}, async ({ page }) => {
  const found = await page.evaluate(async () => {
    const { distinct, meanLogprob, repetition } = await import("./text-statistics.js");
    const words = "a b a b a b".split(" ");
    return [distinct(words, 1), distinct(words, 2), repetition(words), distinct(["a"], 2), repetition([]), meanLogprob([-1, -2]), meanLogprob([])];
  });
  assert.deepEqual(found, [2 / 6, 2 / 5, 1 - 2 / 3, null, null, -1.5, null]);
});

pageTest("decodeFloat16 decodes base64 half-precision numbers", {}, async ({ page }) => {
  // One, minus two, the smallest and the largest number, infinity, a third.
  const bits = Uint16Array.of(0x3c00, 0xc000, 0x0001, 0x7bff, 0x7c00, 0x3555);
  const found = await page.evaluate(async (text) => [...(await import("./float16.js")).decodeFloat16(text)], Buffer.from(bits.buffer).toString("base64"));
  assert.deepEqual(found, [1, -2, 2 ** -24, 65504, Infinity, 0.333251953125]);
});

pageTest("Prometheus metrics: labels, sums, and means and quantiles between scrapes", {}, async ({ page }) => {
  const scrape = (low, high, sum) => [
    "# HELP t Time.", "# TYPE t histogram", `t_bucket{m="a,\\"b\\"",le="0.1"} ${low}`, `t_bucket{m="a,\\"b\\"",le="0.2"} ${high}`, `t_bucket{m="a,\\"b\\"",le="+Inf"} ${high}`,
    `t_sum{m="x"} ${sum}`, `t_count{m="x"} ${high}`, "plain 3", ""].join("\n");
  const found = await page.evaluate(async ([first, second]) => {
    const { meanBetween, Metrics, quantileBetween } = await import("./prometheus.js");
    const [before, after] = [new Metrics(first), new Metrics(second)];
    return [after.info("t_bucket"), after.sum("plain"), after.sum("none") ?? null, meanBetween(before, after, "t"), quantileBetween(before, after, "t", 0.5), quantileBetween(before, after, "t", 0.95), meanBetween(after, after, "t"), quantileBetween(after, after, "t", 0.5)];
  }, [scrape(1, 2, 0.25), scrape(6, 12, 1.75)]);
  assert.deepEqual(found.map((each) => (typeof each === "number" ? Number(each.toFixed(6)) : each)), [{ m: 'a,"b"', le: "0.1" }, 3, null, 0.15, 0.1, 0.19, null, null]);
});

pageTest("conversation tree: switches branches, exports, imports and removes them", {}, async ({ page }) => {
  const found = await page.evaluate(async () => {
    const { add, create, exported, imported, path, remove, turn } = await import("./conversation.js");
    const conversation = create({});
    const texts = () => path(conversation).map(({ content }) => content).join(" ");
    const one = add(conversation, null, { role: "user", content: "1" });
    add(conversation, one.id, { role: "assistant", content: "2a" });
    const other = add(conversation, one.id, { role: "assistant", content: "2b" });
    add(conversation, other.id, { role: "user", content: "3" });
    const shown = [texts()];
    turn(conversation, other, 1);
    shown.push(texts());
    const [copy] = imported(exported([conversation]));
    shown.push([copy, structuredClone(conversation)]);
    remove(conversation, other.id);
    shown.push(texts(), conversation.messages.length);
    remove(conversation, one.id);
    shown.push(texts(), conversation.title);
    return shown;
  });
  const [[copy, original]] = found.splice(2, 1);
  assert.deepEqual(copy, original);
  assert.deepEqual(found, ["1 2b 3", "1 2a", "1 2a", 2, "", "1"]);
});

pageTest("curl and Python snippets quote and escape the request body", {}, async ({ page }) => {
  const [curl, python] = await page.evaluate(async () => {
    const { snippet } = await import("./snippets.js");
    const request = { url: "http://h/v1/completions", body: { prompt: "it's \"so\"\n", echo: true, stop: null, logit_bias: { 5: 1 } }, hasKey: true };
    return ["curl", "Python"].map((language) => snippet(language, request));
  });
  assert.match(curl, /-H 'authorization: Bearer YOUR_KEY'/);
  assert.ok(curl.includes(`"prompt": "it'\\''s \\"so\\"\\n"`), curl);
  assert.ok(python.includes(`prompt="it's \\"so\\"\\n",`) && python.includes('"echo": True') && python.includes("stop=None"), python);
});
