// Opens the page of a running server in headless Chromium and uses it as a person would.
// Usage: node .ci/page-test.mjs URL [SCREENSHOT_DIR]        Needs `npm ci --prefix .ci` and Chromium (CHROMIUM=path, else /usr/bin/chromium).
import assert from "node:assert/strict";
import { once } from "node:events";
import { mkdirSync, readFileSync } from "node:fs";
import { request } from "node:http";
import { createServer } from "node:https";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { launch } from "./browser.mjs";

const [url, screenshots] = process.argv.slice(2);
if (!url) {
  console.error("usage: node .ci/page-test.mjs URL [SCREENSHOT_DIR]");
  process.exit(2);
}
const origin = new URL(url).origin;
const timeout = 60_000;

/** A proxy that speaks TLS and has the server below a path. It passes the header `Host` on. */
const tlsFile = (name) => readFileSync(new URL(`../server/tests/server/tls/${name}`, import.meta.url));
const proxy = createServer({ cert: tlsFile("cert.pem"), key: tlsFile("key.pem") }, (from, to) => {
  const { method, headers } = from;
  from.pipe(request(new URL(from.url.slice("/hearth".length), url), { method, headers }, (answer) => {
    to.writeHead(answer.statusCode, answer.headers);
    answer.pipe(to);
  }));
});

let browser;
before(async () => {
  if (screenshots) mkdirSync(screenshots, { recursive: true });
  await once(proxy.listen(0, "127.0.0.1"), "listening");
  browser = await launch();
});
after(async () => {
  await browser?.close();
  proxy.close();
});

/** A page test: `run(page, seen)`, where `seen` fills with what the page asked for and complained about. `at()` is the page's address. */
function pageTest(name, { at = () => `${origin}/`, colorScheme = "light", before: prepare }, run) {
  test(name, { timeout }, async () => {
    // The proxy's certificate is a test's.
    const context = await browser.newContext({ colorScheme, ignoreHTTPSErrors: true, viewport: { width: 1000, height: 900 } });
    try {
      const page = await context.newPage();
      const seen = { errors: [], requests: [] };
      page.on("console", (message) => { if (message.type() === "error") seen.errors.push(message.text()); });
      page.on("pageerror", (error) => seen.errors.push(String(error)));
      page.on("request", (request) => seen.requests.push(request));
      await prepare?.(page);
      await page.goto(at());
      await page.waitForFunction(() => document.querySelector("#model").textContent !== "loading…");
      await run(page, seen);
      const elsewhere = seen.requests.map((request) => request.url()).filter((to) => !to.startsWith(at()) && !to.startsWith("data:"));
      assert.deepEqual(elsewhere, [], "the page asked another host");
    } finally {
      await context.close();
    }
  });
}

const textOf = (page, selector) => page.locator(selector).textContent();
const shoot = (page, name) => screenshots && page.screenshot({ path: join(screenshots, `${name}.png`), fullPage: true });
const finished = (page) => page.waitForFunction(
  () => document.querySelector("#completion").getAttribute("aria-busy") === "false", null, { timeout });
const completionRequests = (seen) => seen.requests.filter((request) => request.url().endsWith("/v1/completions"));

/** Replaces the server's answer by `bytes`, one byte a chunk. */
const answerInBytes = (text) => (page) => page.addInitScript((text) => {
  const fetchOfTheBrowser = window.fetch;
  window.fetch = async (to, options) => {
    if (!String(to).endsWith("v1/completions")) return fetchOfTheBrowser(to, options);
    const bytes = new TextEncoder().encode(text);
    let next = 0;
    return new Response(new ReadableStream({
      pull(controller) {
        if (next < bytes.length) controller.enqueue(bytes.slice(next, ++next));
        else controller.close();
      },
    }));
  };
}, text);

for (const colorScheme of ["light", "dark"]) {
  pageTest(`completes a prompt (${colorScheme})`, { colorScheme }, async (page, seen) => {
    const model = await textOf(page, "#model");
    assert.equal(model, (await (await fetch(`${origin}/v1/models`)).json()).data[0].id);
    // Every text that the completion held on its way: more than one means that it came as a stream.
    await page.evaluate(() => {
      window.states = new Set();
      const completion = document.querySelector("#completion");
      new MutationObserver((records) => records.forEach((record) => record.oldValue && window.states.add(record.oldValue)))
        .observe(completion, { subtree: true, characterData: true, characterDataOldValue: true });
    });
    const fields = { "Max tokens": 24, Temperature: 0.9, "Top k": 20, "Top p": 0.95, "Min p": 0.01, "Repetition penalty": 1.1, Seed: 7 };
    for (const [label, value] of Object.entries(fields)) await page.getByLabel(label).fill(String(value));
    await page.getByLabel("Stop strings").fill("\\n\\n\\n\nQQQ");
    const prompt = page.getByLabel("Prompt");
    await prompt.fill("Once upon a time");
    await prompt.press("Control+Enter");
    await finished(page);

    assert.deepEqual(completionRequests(seen).map((request) => request.postDataJSON()), [{
      model, prompt: "Once upon a time", stream: true, stream_options: { include_usage: true },
      max_tokens: 24, temperature: 0.9, top_k: 20, top_p: 0.95, min_p: 0.01, repetition_penalty: 1.1, seed: 7, stop: ["\n\n\n", "QQQ"],
    }]);
    assert.equal(await textOf(page, "#error"), "");
    assert.equal(await textOf(page, "#given"), "Once upon a time");
    const first = await textOf(page, "#completion");
    assert.ok(first.length > 0, "no text came");
    assert.ok((await page.evaluate(() => window.states.size)) > 1, "the text came at once, not as a stream");
    assert.match(await textOf(page, "#status"), /finish reason: (stop|length) · \d+ prompt tokens · \d+ new tokens in \d+\.\d\d s/);
    await shoot(page, `complete-${colorScheme}`);

    await page.getByRole("button", { name: "Complete" }).click();
    await finished(page);
    assert.equal(await textOf(page, "#completion"), first, "the same seed gave another text");
    assert.deepEqual(seen.errors, [], "the console has errors");
  });
}

for (const [where, at] of [
  ["localhost", () => `${origin.replace(new URL(url).hostname, "localhost")}/`],
  ["a proxy that speaks TLS", () => `https://localhost:${proxy.address().port}/hearth/`],
]) {
  pageTest(`completes a prompt at ${where}`, { at }, async (page, seen) => {
    await page.getByLabel("Max tokens").fill("4");
    await page.getByRole("button", { name: "Complete" }).click();
    await finished(page);
    assert.equal(await textOf(page, "#error"), "");
    assert.match(await textOf(page, "#status"), /^finish reason/);
    assert.deepEqual(seen.errors, [], "the console has errors");
  });
}

pageTest("stops when told to", {}, async (page, seen) => {
  // A slow line, so that there is something to stop however fast the model is.
  const network = await page.context().newCDPSession(page);
  await network.send("Network.emulateNetworkConditions", { offline: false, latency: 0, downloadThroughput: 2000, uploadThroughput: -1 });
  for (const stop of [() => page.getByRole("button", { name: "Stop" }).click(), () => page.keyboard.press("Escape")]) {
    await page.getByLabel("Temperature").fill("1");
    await page.getByLabel("Max tokens").fill("100");
    await page.getByRole("button", { name: "Complete" }).click();
    await page.waitForFunction(() => document.querySelector("#completion").textContent !== "", null, { timeout });
    await stop();
    await finished(page);
    assert.match(await textOf(page, "#status"), /^Stopped after/);
    assert.notEqual(await textOf(page, "#completion"), "", "what had come is gone");
    assert.equal(await textOf(page, "#error"), "");
    assert.equal(await page.evaluate(() => document.activeElement.id), "start-button");
  }
  await shoot(page, "stopped");
  await network.send("Network.emulateNetworkConditions", { offline: false, latency: 0, downloadThroughput: -1, uploadThroughput: -1 });
  await page.getByLabel("Max tokens").fill("4");
  await page.getByRole("button", { name: "Complete" }).click();
  await finished(page);
  assert.match(await textOf(page, "#status"), /^finish reason/);
  assert.deepEqual(seen.errors, [], "the console has errors");
});

pageTest("shows the server's error as it said it", {}, async (page, seen) => {
  await page.getByLabel("Temperature").fill("9");
  await page.getByRole("button", { name: "Complete" }).click();
  await finished(page);
  const [request] = completionRequests(seen);
  const answer = await fetch(`${origin}/v1/completions`, { method: "POST", headers: { "content-type": "application/json" }, body: request.postData() });
  assert.equal(answer.status, 400);
  assert.equal(await textOf(page, "#error"), (await answer.json()).error.message);
  await shoot(page, "server-error");

  await page.route("**/v1/completions", (route) => route.abort("connectionrefused"));
  await page.getByRole("button", { name: "Complete" }).click();
  await finished(page);
  assert.match(await textOf(page, "#error"), /^cannot reach the server: /);
  // Chromium itself reports every failed request; the page has nothing to add.
  assert.deepEqual(seen.errors.filter((text) => !text.startsWith("Failed to load resource")), []);
});

pageTest("asks for a key where the server does", {
  // The server of this test is open; this one in front of it is not.
  before: (page) => page.route("**/v1/**", (route) => {
    if (route.request().headers().authorization === "Bearer sk-right") return route.continue();
    const error = { message: "an API key is required", type: "invalid_request_error", param: null, code: "invalid_api_key" };
    return route.fulfill({ status: 401, contentType: "application/json", body: JSON.stringify({ error }) });
  }),
}, async (page, seen) => {
  assert.equal(await textOf(page, "#error"), "an API key is required");
  await shoot(page, "key");
  for (const [key, model] of [["sk-wrong", "unknown"], ["sk-right", undefined]]) {
    const answer = page.waitForResponse("**/v1/models");
    await page.getByLabel("API key").fill(key);
    await page.getByLabel("API key").press("Enter");
    await answer;
    await page.waitForFunction((hidden) => document.querySelector("#key").hidden === hidden, model === undefined, { timeout });
  }
  assert.equal(await page.locator("#error").isVisible(), false);
  await page.getByLabel("Max tokens").fill("4");
  await page.getByRole("button", { name: "Complete" }).click();
  await finished(page);
  assert.match(await textOf(page, "#status"), /^finish reason/);
  // Kept as long as the tab is, and nowhere else.
  await page.reload();
  await page.waitForFunction(() => !["loading…", "unknown"].includes(document.querySelector("#model").textContent), null, { timeout });
  assert.equal(await page.locator("#key").isVisible(), false);
  assert.equal(await page.evaluate(() => localStorage.length), 0);
  assert.deepEqual(seen.errors.filter((text) => !text.startsWith("Failed to load resource")), []);
});

const chunk = (value) => `data: ${JSON.stringify(value)}`;
const piece = (text) => chunk({ choices: [{ index: 0, text, finish_reason: null }] });

pageTest("reads a stream cut anywhere", {
  before: answerInBytes([
    ": a comment", "", "event: message", piece("naïve "), "", piece("café\n").replace("data: ", "data:"), "",
  ].join("\r\n") + ["", piece("🔥 "), "", 'data: {"choices":', 'data: [{"text":"end","finish_reason":"stop"}]}', ""].join("\n")
    + ["", piece("."), "", chunk({ choices: [], usage: { prompt_tokens: 3, completion_tokens: 5 } }), "", "data: [DONE]", "", ""].join("\r")),
}, async (page, seen) => {
  await page.getByRole("button", { name: "Complete" }).click();
  await finished(page);
  assert.equal(await textOf(page, "#error"), "");
  assert.equal(await textOf(page, "#completion"), "naïve café\n🔥 end.");
  assert.match(await textOf(page, "#status"), /^finish reason: stop · 3 prompt tokens · 5 new tokens/);
  assert.deepEqual(seen.errors, []);
});

pageTest("shows an error that comes in the stream, and keeps the text before it", {
  before: answerInBytes([piece("so far"), "", chunk({ error: { message: "the engine failed", type: "server_error" } }), "", ""].join("\n")),
}, async (page) => {
  await page.getByRole("button", { name: "Complete" }).click();
  await finished(page);
  assert.equal(await textOf(page, "#completion"), "so far");
  assert.equal(await textOf(page, "#error"), "the engine failed");
});

pageTest("says when a stream ends too early", {
  before: answerInBytes([piece("so far"), "", ""].join("\n")),
}, async (page) => {
  await page.getByRole("button", { name: "Complete" }).click();
  await finished(page);
  assert.equal(await textOf(page, "#error"), "the connection was closed before the completion was finished");
});
