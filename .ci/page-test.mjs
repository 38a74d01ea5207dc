// Opens the page of a running server in headless Chromium and uses it as a person would. `.ci/page/` tests the page itself.
// Usage: node .ci/page-test.mjs URL [SCREENSHOT_DIR]        Needs `npm ci --prefix .ci` and Chromium (CHROMIUM=path, else /usr/bin/chromium).
// With a model that has a chat template it also chats.
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
const timeout = 120_000;

/** A proxy that speaks TLS and has the server below a path. It passes the header `Host` on. */
const tlsFile = (name) => readFileSync(new URL(`../server/tests/server/tls/${name}`, import.meta.url));
const proxy = createServer({ cert: tlsFile("cert.pem"), key: tlsFile("key.pem") }, (from, to) => {
  const { method, headers } = from;
  from.pipe(request(new URL(from.url.slice("/hearth".length), url), { method, headers }, (answer) => {
    to.writeHead(answer.statusCode, answer.headers);
    answer.pipe(to);
  }));
});

const json = async (path) => (await fetch(`${origin}${path}`)).json();
const model = (await json("/v1/models")).data[0].id;
const isBundled = model === "hearth-bundled";
const canChat = (await json("/v1/tokenizer_info")).chat_template !== null;
const post = (path, body) => fetch(`${origin}${path}`, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
const canInspect = (await post("/v1/inspect", { input: "x" })).ok;

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

/** A page test: `run(page, seen)`, where `seen` collects the page's requests and console errors. `at()` is the page's address. */
function pageTest(name, { at = () => `${origin}/`, tab = "complete", colorScheme = "light", skip = false }, run) {
  test(name, { timeout, skip }, async () => {
    // The proxy has a self-signed test certificate.
    const context = await browser.newContext({ colorScheme, ignoreHTTPSErrors: true, viewport: { width: 1280, height: 900 } });
    try {
      const page = await context.newPage();
      page.setDefaultTimeout(timeout / 2);
      const seen = { errors: [], requests: [] };
      page.on("console", (message) => { if (message.type() === "error") seen.errors.push(message.text()); });
      page.on("pageerror", (error) => seen.errors.push(String(error)));
      page.on("request", (request) => seen.requests.push(request));
      await page.goto(`${at()}#${tab}`);
      await page.locator("#model", { hasText: model }).waitFor();
      await run(page, seen);
      const elsewhere = seen.requests.map((request) => request.url()).filter((to) => !to.startsWith(at()));
      assert.deepEqual(elsewhere, [], "the page asked another host");
      // Chromium itself reports every failed request; the page has nothing to add.
      assert.deepEqual(seen.errors.filter((text) => !text.startsWith("Failed to load resource")), [], "the console has errors");
    } finally {
      await context.close();
    }
  });
}

const textOf = (page, selector) => page.locator(selector).textContent();
const shoot = (page, name) => screenshots && page.screenshot({ path: join(screenshots, `${name}.png`) });
const completed = (page) => page.waitForFunction(() => document.querySelector("#completion").getAttribute("aria-busy") === "false");
const bodies = (seen, path) => seen.requests.filter((request) => request.url().endsWith(path)).map((request) => request.postDataJSON());
const complete = async (page) => {
  await page.getByRole("button", { name: "Complete" }).click();
  await completed(page);
};

for (const colorScheme of ["light", "dark"]) {
  pageTest(`Complete: streams a completion that the same seed repeats (${colorScheme})`, { colorScheme }, async (page, seen) => {
    // Every text that the completion held on its way: more than one means that it came as a stream.
    await page.evaluate(() => {
      window.states = new Set();
      const completion = document.querySelector("#completion");
      new MutationObserver((records) => records.forEach((record) => record.oldValue && window.states.add(record.oldValue)))
        .observe(completion, { subtree: true, characterData: true, characterDataOldValue: true });
    });
    const fields = { "Max tokens": 24, Temperature: 0.9, "Top k": 20, "Top p": 0.95, "Min p": 0.01, "Repetition penalty": 1.1, Seed: 7 };
    for (const [label, value] of Object.entries(fields)) await page.getByLabel(label, { exact: true }).fill(String(value));
    await page.getByLabel("Stop strings", { exact: true }).fill("\\n\\n\\n\nQQQ");
    const prompt = page.getByLabel("Prompt", { exact: true });
    await prompt.fill("Once upon a time");
    await prompt.press("Control+Enter");
    await completed(page);

    assert.deepEqual(bodies(seen, "/v1/completions"), [{
      model, prompt: "Once upon a time", stream: true, stream_options: { include_usage: true, continuous_usage_stats: true },
      max_tokens: 24, temperature: 0.9, top_k: 20, top_p: 0.95, min_p: 0.01, repetition_penalty: 1.1, seed: 7, stop: ["\n\n\n", "QQQ"],
    }]);
    assert.equal(await textOf(page, "#complete-error"), "");
    assert.equal(await textOf(page, "#given"), "Once upon a time");
    const first = await textOf(page, "#completion");
    assert.ok(first.length > 0, "no text came");
    assert.ok((await page.evaluate(() => window.states.size)) > 1, "the text came at once, not as a stream");
    assert.match(await textOf(page, "#status"), /finish reason: (stop|length) · .* · \d+ prompt tokens · \d+ new tokens in \d+\.\d\d s/);
    await shoot(page, `complete-${colorScheme}`);

    await complete(page);
    assert.equal(await textOf(page, "#completion"), first, "the same seed gave another text");
  });
}

for (const [where, at] of [
  ["localhost", () => `${origin.replace(new URL(url).hostname, "localhost")}/`],
  ["a proxy that speaks TLS, below a path", () => `https://localhost:${proxy.address().port}/hearth/`],
]) {
  pageTest(`every tab loads at ${where}`, { at }, async (page) => {
    await page.getByLabel("Max tokens").fill("4");
    await complete(page);
    assert.equal(await textOf(page, "#complete-error"), "");
    assert.match(await textOf(page, "#status"), /^finish reason/);
    for (const [tab, something] of [["Chat", "#thread .welcome"], ["Compare", ".strategy"], ["Inspect", "#inspect-text"], ["Server", ".chart"]]) {
      await page.getByRole("tab", { name: tab }).click();
      await page.locator(something).first().waitFor();
    }
    await page.getByRole("link", { name: "API" }).click();
    await page.locator("details.operation").first().waitFor();
  });
}

pageTest("Complete: the Stop button and Escape stop a completion", {}, async (page) => {
  // A slow line, so that there is something to stop however fast the model is.
  const network = await page.context().newCDPSession(page);
  await network.send("Network.emulateNetworkConditions", { offline: false, latency: 0, downloadThroughput: 2000, uploadThroughput: -1 });
  for (const stop of [() => page.getByRole("button", { name: "Stop" }).click(), () => page.keyboard.press("Escape")]) {
    await page.getByLabel("Max tokens").fill("100");
    await page.getByRole("button", { name: "Complete" }).click();
    await page.waitForFunction(() => document.querySelector("#completion").textContent !== "");
    await stop();
    await completed(page);
    assert.match(await textOf(page, "#status"), /^Stopped after/);
    assert.notEqual(await textOf(page, "#completion"), "", "what had come is gone");
    assert.equal(await textOf(page, "#complete-error"), "");
    assert.equal(await page.evaluate(() => document.activeElement.id), "complete-start");
  }
  await network.send("Network.emulateNetworkConditions", { offline: false, latency: 0, downloadThroughput: -1, uploadThroughput: -1 });
  await page.getByLabel("Max tokens").fill("4");
  await complete(page);
  assert.match(await textOf(page, "#status"), /^finish reason/);
});

pageTest("Complete: shows the server's error message and connection errors", {}, async (page, seen) => {
  await page.getByLabel("Temperature", { exact: true }).fill("9");
  await complete(page);
  const answer = await post("/v1/completions", bodies(seen, "/v1/completions")[0]);
  assert.equal(answer.status, 400);
  assert.equal(await textOf(page, "#complete-error"), (await answer.json()).error.message);
  await page.route("**/v1/completions", (route) => route.abort("connectionrefused"));
  await complete(page);
  assert.match(await textOf(page, "#complete-error"), /^cannot reach the server: /);
});

pageTest("Compare: four strategies give texts and statistics", { tab: "compare" }, async (page) => {
  if (canChat) await page.getByLabel("Send as a chat message").uncheck();
  await page.locator("#compare-prompt").fill("Once upon a time");
  await page.getByLabel("Max tokens", { exact: true }).fill("24");
  await page.getByRole("button", { name: "Compare", exact: true }).click();
  await page.getByText("All strategies are finished.").waitFor();
  const cards = page.locator(".strategy");
  assert.equal(await cards.count(), 4);
  for (const card of await cards.all()) {
    assert.equal(await card.locator(".error").textContent(), "");
    assert.notEqual(await card.locator(".compare-text").innerText(), "");
    const [mean, distinct] = await card.locator("dd").allInnerTexts();
    assert.match(mean, /^−\d+\.\d{3}/);
    assert.match(distinct, /^[01]\.\d{3}/);
  }
  await shoot(page, "compare");
});

pageTest(canInspect ? "Inspect: shows alternatives, attention and the logit lens" : "Inspect: reports that the server does not offer inspection", { tab: "inspect" }, async (page) => {
  await page.getByRole("button", { name: "Inspect", exact: true }).click();
  if (!canInspect) {
    await page.getByText("This server does not offer inspection.").waitFor();
    return;
  }
  await page.locator(".token").nth(2).click();
  assert.ok((await page.locator(".alternative").count()) >= 10);
  await page.getByRole("button", { name: "head 0" }).click();
  // The attention of a token sums to one; the sentence names its largest parts.
  const shares = [...(await textOf(page, ".attention .attention-text")).matchAll(/(\d+) %/g)].map(([, share]) => Number(share));
  assert.ok(shares.length > 0 && shares.reduce((sum, share) => sum + share, 0) <= 103, String(shares));
  await shoot(page, "inspect");
  await page.getByRole("tab", { name: "Logit lens" }).click();
  await page.locator(".lens tbody tr").first().waitFor();
  await page.locator(".alternative").nth(1).click();
  await page.getByText(/^Continued from/).waitFor();
});

pageTest("Server: shows metrics and facts of the server", { tab: "server" }, async (page) => {
  await page.waitForFunction(() => /generated: \d/.test(document.querySelectorAll(".chart")[1]?.getAttribute("aria-label")));
  const facts = await page.locator(".fact-cards").innerText();
  const { version } = (await json("/openapi.json")).info;
  for (const fact of [`Hearth\n${version}`, "Device", "Weights", "Parameters", "Pages"]) assert.ok(facts.includes(fact), `${fact} is not in ${facts}`);
  await shoot(page, "server");
});

/** Runs in the page: whether the database has stored that this message is shown. Storing takes some milliseconds. */
async function isStored(id) {
  const done = (request) => new Promise((resolve, reject) => Object.assign(request, { onsuccess: () => resolve(request.result), onerror: reject }));
  const { name } = (await indexedDB.databases()).find(({ name }) => name.startsWith("hearth"));
  const database = await done(indexedDB.open(name));
  const [conversation] = await done(database.transaction("conversations").objectStore("conversations").getAll());
  database.close();
  return Object.values(conversation.chosen).includes(id);
}

pageTest("Chat: two turns, regenerate, continue, and the branch restored after a reload", { tab: "chat", skip: canChat ? false : "the model has no chat template" }, async (page, seen) => {
  await page.getByRole("button", { name: "Settings" }).click();
  // The bundled model finishes its story, and the second question is about it.
  await page.getByLabel("Max tokens", { exact: true }).fill(isBundled ? "250" : "24");
  await page.getByLabel("Temperature", { exact: true }).fill("0");
  const say = async (text, messages) => {
    await page.getByLabel("Message", { exact: true }).fill(text);
    await page.keyboard.press("Enter");
    await page.locator(`.message.assistant[aria-busy=false] >> nth=${messages / 2 - 1}`).waitFor();
    await page.locator("#send[aria-label=Send]").waitFor();
  };
  await say("Tell me a story about a brave fox who lost her lamp.", 2);
  await say("What did she lose?", 4);
  const texts = () => page.locator(".message .content").allInnerTexts();
  const before = await texts();
  assert.equal(before.length, 4);
  assert.ok(before.every((text) => text.trim() !== ""), String(before));
  if (isBundled) assert.match(before[3], /\blamp\b/);
  assert.equal(bodies(seen, "/v1/chat/completions")[1].messages.length, 3);
  assert.match(await page.locator(".stats").last().innerText(), /tok\/s · first token .* tokens · context \d+ of /);
  await page.locator(".message.assistant").first().getByRole("button", { name: "Regenerate" }).click();
  await page.locator("#send[aria-label=Send]").waitFor();
  await page.locator(".message.assistant").first().getByRole("button", { name: "Continue" }).click();
  await page.locator("#send[aria-label=Send]").waitFor();
  assert.equal(bodies(seen, "/v1/chat/completions")[3].continue_final_message, true);
  await page.getByRole("button", { name: "Previous branch" }).first().click();
  await page.waitForFunction(isStored, await page.locator(".message.assistant").first().getAttribute("data-id"));
  await page.reload();
  await page.locator(".message >> nth=3").waitFor();
  assert.deepEqual(await texts(), before);
  await shoot(page, "chat");
});

pageTest("Chat: a message that is too long is counted and refused, and does not lock the conversation", { tab: "chat", skip: isBundled ? false : "needs a model with a short context" }, async (page, seen) => {
  await page.getByRole("button", { name: "Settings" }).click();
  await page.getByLabel("Max tokens", { exact: true }).fill("8");
  const say = async (text) => {
    await page.getByLabel("Message", { exact: true }).fill(text);
    await page.keyboard.press("Enter");
    await page.locator(".message.assistant[aria-busy=false] .error:visible, .message.assistant:last-child[aria-busy=false] .stats:visible").last().waitFor();
    await page.locator("#send[aria-label=Send]").waitFor();
  };
  await page.getByLabel("Message", { exact: true }).fill("fox ".repeat(600));
  await page.locator("#context", { hasText: /^\d{3,} of 512 tokens: too long$/ }).waitFor();
  await say("fox ".repeat(600));
  assert.match(await page.locator(".error:visible").innerText(), /^This model's maximum context length is 512 tokens/);
  await page.getByRole("button", { name: "Edit the message" }).waitFor();
  await say("Tell me a story about a brave fox.");
  await page.locator(".message").nth(3).waitFor();
  await page.locator("#send[aria-label=Send]").waitFor();
  assert.notEqual((await page.locator(".message .content").last().innerText()).trim(), "");
  assert.equal(bodies(seen, "/v1/chat/completions")[1].messages.length, 1);
});

pageTest("formulas are shown under the server's own content security policy", { tab: "chat" }, async (page) => {
  await page.evaluate(async () => {
    const { renderMarkdown } = await import("./render.js");
    renderMarkdown(document.querySelector("#chat-title"), "$$\\begin{aligned} a &= \\frac{1}{2} \\end{aligned}$$ for $5 and $6");
  });
  await page.locator("#chat-title mfrac").waitFor();
  assert.match(await page.locator("#chat-title").innerText(), /for \$5 and \$6/);
});

test("without a chat template the page opens on the tab Complete", { timeout, skip: canChat ? "the model has one" : false }, async () => {
  const page = await browser.newPage();
  await page.goto(`${origin}/`);
  await page.getByRole("tab", { name: "Complete", selected: true }).waitFor({ timeout: timeout / 2 });
  await page.close();
});
