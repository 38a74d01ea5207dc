// The tab Chat against a stand-in server. Usage: node --test .ci/page/        Needs `npm ci --prefix .ci` and Chromium.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { ask, FAILED_REQUEST, finished, messages, pageTest, say } from "./harness.mjs";

const titles = (page) => page.locator(".chat-open").allInnerTexts();
const last = (page) => page.locator(".message").last();
const act = (page, index, label) => page.locator(".message").nth(index).getByRole("button", { name: label }).click();

pageTest("Chat: two turns are sent with their history and restored after a reload", {}, async ({ page, server, shoot }) => {
  await ask(page, "Hello there");
  await ask(page, "And again");
  assert.deepEqual(await messages(page), ["Hello there", "You said: Hello there", "And again", "You said: And again"]);
  assert.deepEqual(server.sent("/v1/chat/completions")[1], {
    model: "stand-in", stream: true, stream_options: { include_usage: true, continuous_usage_stats: true },
    messages: [{ role: "user", content: "Hello there" }, { role: "assistant", content: "You said: Hello there" }, { role: "user", content: "And again" }],
  });
  assert.match(await last(page).locator(".stats").innerText(), /^[\d.]+ tok\/s · first token \d+\.\d\d s · 4 tokens · context 16 of 2,048$/);
  assert.equal(await page.locator("#context").innerText(), "16 of 2,048 tokens");
  await shoot("two-turns");

  await page.reload();
  await page.locator(".message").nth(3).waitFor();
  assert.deepEqual(await messages(page), ["Hello there", "You said: Hello there", "And again", "You said: And again"]);
  await page.goto(`${server.origin}/`);
  await page.getByRole("button", { name: "Hello there", exact: true }).click();
  assert.equal((await messages(page)).length, 4);
});

pageTest("Chat: editing and regenerating create branches to switch between", {}, async ({ page, server, shoot }) => {
  await ask(page, "First");
  await ask(page, "Second");
  await act(page, 0, "Edit message");
  await page.getByRole("textbox", { name: "Edit message" }).fill("Other");
  await page.getByRole("button", { name: "Send", exact: true }).first().click();
  await finished(page);
  assert.deepEqual(await messages(page), ["Other", "You said: Other"]);
  assert.equal(await page.locator(".branches span").first().innerText(), "2 / 2");
  await act(page, 0, "Previous branch");
  assert.deepEqual(await messages(page), ["First", "You said: First", "Second", "You said: Second"]);
  await shoot("branches");

  server.reply = () => ({ text: "Another answer" });
  await act(page, 1, "Regenerate");
  await finished(page);
  assert.deepEqual(await messages(page), ["First", "Another answer"]);
  await act(page, 1, "Previous branch");
  assert.equal((await messages(page)).length, 4);
  await page.reload();
  await page.locator(".message").nth(3).waitFor();
  assert.deepEqual(await page.locator(".branches:visible span").allInnerTexts(), ["1 / 2", "1 / 2"]);
});

pageTest("Chat: a stopped answer keeps its text and can be continued", {}, async ({ page, server, seen }) => {
  server.hold();
  await say(page, "Tell me");
  await page.getByText("You said: Tell").waitFor();
  await page.getByRole("button", { name: "Stop" }).click();
  await finished(page);
  server.letGo();
  assert.deepEqual(await messages(page), ["Tell me", "You said: Tell"]);
  assert.match(await last(page).locator(".stats").innerText(), /stopped$/);

  server.reply = () => ({ text: " the rest." });
  await act(page, 1, "Continue");
  await finished(page);
  assert.deepEqual(await messages(page), ["Tell me", "You said: Tell the rest."]);
  const sent = server.sent("/v1/chat/completions")[1];
  assert.deepEqual([sent.continue_final_message, sent.add_generation_prompt, sent.messages.at(-1)], [true, false, { role: "assistant", content: "You said: Tell" }]);
  assert.deepEqual(seen.errors, []);
});

pageTest("Chat: other chats open while an answer runs, and Escape stops it", {}, async ({ page, server }) => {
  server.hold();
  await say(page, "One two");
  await page.getByText("You said: One").waitFor();
  await page.getByRole("button", { name: "New chat" }).click();
  assert.equal(await page.getByRole("button", { name: "Send", exact: true }).isDisabled(), true);
  await page.getByRole("button", { name: "One two", exact: true }).click();
  await page.getByText("You said: One").waitFor();
  await page.getByLabel("Message", { exact: true }).press("Escape");
  await finished(page);
  server.letGo();
});

const HOSTILE = [
  "Hello <script>window.hit = 1</script> <img src=x onerror='window.hit = 2'> <svg onload=\"window.hit = 3\"></svg>",
  "<iframe src='https://evil.example/'></iframe><style>body { display: none }</style>",
  "<form action='https://evil.example/'><button>Log in</button></form>",
  "[a link](javascript:window.hit=4) [data](data:text/html,<script>window.hit=5</script>) [good](https://example.org/)",
  "![picture](https://evil.example/track.png) <a href=\"https://evil.example\" onclick=\"window.hit=6\">raw</a>",
  "H<sub>2</sub>O", "```html\n<script>window.hit = 7</script>\n```",
  "| a | b |\n| --- | --- |\n| <b onclick=window.hit=8>x</b> | `y` |",
].join("\n\n");

pageTest("Chat: Markdown is rendered and hostile HTML is neutralized", { prepare: (server) => { server.reply = () => ({ text: HOSTILE }); } }, async ({ page, shoot }) => {
  await ask(page, "Try");
  const content = last(page).locator(".content");
  await content.locator(".hljs-tag").first().waitFor();
  assert.equal(await page.evaluate(() => window.hit), undefined);
  assert.deepEqual(await content.evaluate((root) => [...new Set([...root.querySelectorAll("script, img, iframe, style, form, svg:not(.icon), [onclick], [onerror], [style]")].map((each) => each.outerHTML))]), []);
  assert.deepEqual(await content.locator("a").evaluateAll((links) => links.map((link) => [link.textContent, link.getAttribute("href")])),
    [["a link", null], ["data", null], ["good", "https://example.org/"], ["picture", "https://evil.example/track.png"]]);
  assert.equal(await content.locator("a[href]").first().getAttribute("rel"), "noopener noreferrer nofollow");
  assert.match(await content.innerText(), /<script>window\.hit = 1<\/script>/);
  assert.equal(await content.locator("sub").innerText(), "2");
  assert.equal(await content.locator("td").count(), 2);
  await content.getByRole("button", { name: "Copy code" }).click();
  assert.equal(await page.evaluate(() => navigator.clipboard.readText()), "<script>window.hit = 7</script>");
  await shoot("hostile");
});

pageTest("Markdown rendered incrementally equals the whole text rendered at once", {}, async ({ page }) => {
  const text = "# A title\n\nSome *text* with [a link][1].\n\n- one\n- two\n\n  more\n\n```python\ndef f():\n    return 1\n```\n\n1. a\n2. b\n\n> quoted\n\n[1]: https://example.org/\n";
  const [grown, whole] = await page.evaluate(async (text) => {
    const { renderMarkdown } = await import("./render.js");
    const [a, b] = [document.createElement("div"), document.createElement("div")];
    for (let end = 1; end <= text.length; end += 1) renderMarkdown(a, text.slice(0, end));
    renderMarkdown(b, text);
    await new Promise((resolve) => setTimeout(resolve, 500));
    return [a.innerHTML, b.innerHTML];
  }, text);
  // A link whose address comes after it is one when the text is read again.
  assert.equal(grown.replace(/\[a link\]\[1\]/, "LINK"), whole.replace(/<a [^>]*>a link<\/a>/, "LINK"));
});

pageTest("Chat: reasoning (reasoning_content or <think>) is kept out of the answer", {
  prepare: (server) => { server.reply = () => ({ deltas: [{ reasoning_content: "Let me " }, { reasoning_content: "think." }, { content: "Yes." }] }); },
}, async ({ page, server }) => {
  await ask(page, "Is it?");
  assert.deepEqual(await messages(page), ["Is it?", "Yes."]);
  const reasoning = last(page).locator("details.reasoning");
  assert.equal(await reasoning.getAttribute("open"), null);
  await reasoning.locator("summary").click();
  assert.equal(await reasoning.locator(".markdown").innerText(), "Let me think.");
  server.reply = () => ({ text: "<think>Hm, a fox.</think> No." });
  await ask(page, "Sure?");
  assert.equal((await messages(page)).at(-1), "No.");
  assert.deepEqual(server.sent("/v1/chat/completions")[1].messages[1], { role: "assistant", content: "Yes." });
});

const CALL = { index: 0, id: "call_1", type: "function", function: { name: "weather", arguments: "" } };
pageTest("Chat: tool calls are shown and their results are sent", {
  prepare: (server) => {
    server.reply = ({ messages }) => (messages.at(-1).role === "tool" ? { text: `It is ${messages.at(-1).content}.` }
      : { deltas: [{ tool_calls: [CALL] }, { tool_calls: [{ index: 0, function: { arguments: '{"city": ' } }] }, { tool_calls: [{ index: 0, function: { arguments: '"Oslo"}' } }] }] });
  },
}, async ({ page, server, shoot }) => {
  await page.getByRole("button", { name: "Settings" }).click();
  await page.getByText("Tools", { exact: true }).click();
  const tools = [{ type: "function", function: { name: "weather", parameters: { type: "object" } } }];
  await page.getByLabel("Functions that the model may call").fill(JSON.stringify(tools));
  await ask(page, "Weather in Oslo?");
  assert.match(await last(page).locator(".call").innerText(), /Calls weather/);
  assert.match(await last(page).locator(".call code").last().innerText(), /"city": "Oslo"/);
  await page.getByLabel("Result of weather").fill("sunny");
  await shoot("tool-call");
  await page.getByRole("button", { name: "Send result" }).click();
  await finished(page);
  assert.equal((await messages(page)).at(-1), "It is sunny.");
  const [first, second] = server.sent("/v1/chat/completions");
  assert.deepEqual([first.tools, first.tool_choice], [tools, "auto"]);
  assert.deepEqual(second.messages.slice(1), [
    { role: "assistant", content: null, tool_calls: [{ id: "call_1", type: "function", function: { name: "weather", arguments: '{"city": "Oslo"}' } }] },
    { role: "tool", content: "sunny", tool_call_id: "call_1" }]);
});

pageTest("Chat: settings are sent as parameters and a JSON answer is formatted", { prepare: (server) => { server.reply = () => ({ text: '{"city":"Oslo","country":"Norway"}' }); } }, async ({ page, server, shoot }) => {
  await page.getByRole("button", { name: "Settings" }).click();
  assert.equal(await page.getByLabel("Temperature", { exact: true }).getAttribute("placeholder"), "default: 0.6");
  await page.getByLabel("System prompt").fill("Answer in JSON.");
  await page.getByLabel("Preset").selectOption("Creative");
  assert.equal(await page.getByLabel("Temperature", { exact: true }).inputValue(), "1.2");
  await page.getByLabel("Temperature", { exact: true }).press("ArrowUp");
  assert.equal(await page.getByLabel("Preset").inputValue(), "");
  await page.getByLabel("Stop strings", { exact: true }).fill("\\n\\n\nEND");
  await page.getByText("Single tokens and words").click();
  await page.getByLabel("Logit bias").fill("{");
  assert.equal(await page.locator("#chat-settings .error").innerText(), "Logit bias must be JSON.");
  await page.getByLabel("Logit bias").fill('{"5": -100}');
  await page.getByText("Format of the answer").click();
  await page.getByLabel("Format", { exact: true }).selectOption("JSON object");
  await ask(page, "A city?");
  assert.equal(await last(page).locator(".code-block code").innerText(), '{\n  "city": "Oslo",\n  "country": "Norway"\n}');
  const { messages: sent, model, stream, stream_options, ...values } = server.sent("/v1/chat/completions")[0];
  assert.deepEqual(values, { temperature: 1.3, min_p: 0.08, repetition_penalty: 1.05, stop: ["\n\n", "END"], logit_bias: { 5: -100 }, response_format: { type: "json_object" } });
  assert.deepEqual(sent, [{ role: "system", content: "Answer in JSON." }, { role: "user", content: "A city?" }]);
  await shoot("settings");
  // A new conversation begins with the settings that were last in use.
  await page.getByRole("button", { name: "New chat" }).click();
  assert.equal(await page.getByLabel("System prompt").inputValue(), "Answer in JSON.");
});

pageTest("Chat: effort and budget of thinking are sent, a preset keeps them, and the budget is no parameter of completions", {
  prepare: (server) => { server.reply = () => ({ deltas: [{ reasoning_content: "A fox has **four** legs." }, { content: "Four." }] }); },
}, async ({ page, server, shoot }) => {
  await page.getByRole("button", { name: "Settings" }).click();
  await page.getByText("Thinking", { exact: true }).click();
  await page.getByLabel("Thinking effort").selectOption("low");
  await page.getByLabel("Thinking budget").fill("40");
  assert.equal(await page.getByLabel("Preset").inputValue(), "Model defaults");
  await page.getByLabel("Preset").selectOption("Exact");
  await ask(page, "How many legs?");
  const { reasoning_effort, thinking_token_budget, temperature } = server.sent("/v1/chat/completions")[0];
  assert.deepEqual({ reasoning_effort, thinking_token_budget, temperature }, { reasoning_effort: "low", thinking_token_budget: 40, temperature: 0 });
  await shoot("thinking");
  await page.reload();
  await page.locator(".message").nth(1).waitFor();
  assert.equal(await page.getByLabel("Thinking budget").inputValue(), "40");
  assert.equal(await page.getByLabel("Thinking effort").inputValue(), '"low"');
  await page.getByRole("tab", { name: "Complete" }).click();
  assert.equal(await page.locator("#complete-parameters").getByLabel("Thinking budget").count(), 0);
});

pageTest("Chat: conversations are searched, renamed, deleted, exported and imported", {}, async ({ page, shoot }) => {
  for (const text of ["About foxes", "About lamps"]) {
    await page.getByRole("button", { name: "New chat" }).click();
    await ask(page, text);
  }
  assert.deepEqual(await titles(page), ["About lamps", "About foxes"]);
  await page.getByLabel("Search conversations").fill("said: about FOX");
  await page.waitForFunction(() => document.querySelectorAll(".chat-open").length === 1);
  assert.deepEqual(await titles(page), ["About foxes"]);
  await page.getByRole("button", { name: "About foxes", exact: true }).focus();
  await page.getByRole("button", { name: "Rename “About foxes”" }).click();
  await page.getByLabel("New name").fill("Red animals");
  await page.getByLabel("New name").press("Enter");
  await page.getByRole("button", { name: "Red animals", exact: true }).waitFor();
  await page.getByLabel("Search conversations").fill("");
  await page.getByRole("button", { name: "About lamps", exact: true }).waitFor();
  await shoot("conversations");

  const [file] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "Export all" }).click()]);
  const text = await readFile(await file.path(), "utf8");
  assert.equal(JSON.parse(text).conversations.length, 2);
  for (const name of ["Red animals", "About lamps"]) {
    await page.getByRole("button", { name, exact: true }).hover();
    await page.getByRole("button", { name: `Delete “${name}”` }).click();
    await page.getByText(`Deleted “${name}”.`).waitFor();
  }
  await page.getByRole("button", { name: "Undo" }).click();
  await page.getByRole("button", { name: "About lamps", exact: true }).waitFor();
  assert.deepEqual(await titles(page), ["About lamps"]);

  const choose = (buffer) => page.locator("#chat-import-file").setInputFiles({ name: "a.json", mimeType: "application/json", buffer: Buffer.from(buffer) });
  await choose(text);
  await page.getByText("Imported 1 conversation; 1 were here already.").waitFor();
  await page.getByRole("button", { name: "Red animals", exact: true }).click();
  await page.locator(".message").nth(1).waitFor();
  assert.deepEqual(await messages(page), ["About foxes", "You said: About foxes"]);
  await choose('{"format": "other"}');
  await page.getByText("This file has no conversations exported from Hearth.").waitFor();
  const bad = { format: "hearth-conversations", version: 1, conversations: [{ id: "x", title: "<img src=x onerror=alert(1)>", messages: [{ id: "a", parent: "nowhere", role: "user", content: "lost" }, { id: "b", parent: null, role: "user", content: 7 }] }] };
  await choose(JSON.stringify(bad));
  await page.getByRole("button", { name: "<img src=x onerror=alert(1)>", exact: true }).click();
  await page.locator("#chat-title", { hasText: "<img" }).waitFor();
  assert.deepEqual(await messages(page), [""]);
});

pageTest("Chat: errors are shown, and the text received before them is kept", {
  prepare: (server) => { server.reply = () => ({ status: 400, message: "`temperature` must be from 0 to 2, got 9" }); },
}, async ({ page, server, seen, shoot }) => {
  seen.expectErrors(FAILED_REQUEST);
  await ask(page, "Hello");
  assert.equal(await last(page).locator(".error").innerText(), "`temperature` must be from 0 to 2, got 9");
  await shoot("chat-error");
  server.reply = () => ({ text: "so far and", cut: true });
  await act(page, 1, "Regenerate");
  await finished(page);
  assert.equal(await last(page).locator(".error").innerText(), "the connection was closed before the answer was finished");
  assert.equal((await messages(page)).at(-1), "so far and");
  server.stop();
  await act(page, 1, "Regenerate");
  await finished(page);
  assert.match(await last(page).locator(".error").innerText(), /^cannot reach the server: /);
});

pageTest("API key dialog: rejects a wrong key and stores the key as chosen", { prepare: (server) => { server.key = "sk-right"; } }, async ({ page, seen, shoot, context, server }) => {
  seen.expectErrors(FAILED_REQUEST);
  const dialog = page.getByRole("dialog", { name: "API key" });
  await dialog.waitFor();
  assert.equal(await page.locator("#key-reason").innerText(), "This server requires an API key.");
  await shoot("key");
  await dialog.getByLabel("API key").fill("sk-wrong");
  await dialog.getByLabel("API key").press("Enter");
  await page.getByText("The server does not accept this API key.").waitFor();
  await dialog.getByLabel("API key").fill("sk-right");
  await dialog.getByRole("button", { name: "Use key" }).click();
  await page.locator("#model", { hasText: "stand-in" }).waitFor();
  await ask(page, "Hello");
  assert.deepEqual(await messages(page), ["Hello", "You said: Hello"]);
  // Kept as long as the tab is, and nowhere else.
  await page.reload();
  await page.locator("#model", { hasText: "stand-in" }).waitFor();
  assert.equal(await dialog.isVisible(), false);
  const kept = () => page.evaluate(() => Object.entries(localStorage).filter(([name]) => name.endsWith(" key")).map(([, value]) => value));
  assert.deepEqual(await kept(), []);
  // In this browser: another tab has it too, until it is forgotten.
  await page.getByRole("button", { name: "API key" }).click();
  await dialog.getByLabel("API key").fill("sk-right");
  await dialog.getByLabel("in this browser").check();
  await dialog.getByRole("button", { name: "Use key" }).click();
  await page.waitForFunction(() => Object.keys(localStorage).some((name) => name.endsWith(" key")));
  assert.deepEqual(await kept(), ['"sk-right"']);
  const other = await context.newPage();
  await other.goto(`${server.origin}/`);
  await other.locator("#model", { hasText: "stand-in" }).waitFor();
  await page.getByRole("button", { name: "API key" }).click();
  await dialog.getByRole("button", { name: "Forget key" }).click();
  assert.deepEqual(await kept(), []);
});

pageTest("Chat: the selected adapter is sent as the model", {
  prepare: (server) => { server.models.push({ id: "poet", parent: "stand-in", max_model_len: 1024 }); },
}, async ({ page, server }) => {
  await page.getByLabel("Model", { exact: true }).selectOption("poet (adapter of stand-in)");
  await ask(page, "Rhyme");
  assert.equal(server.sent("/v1/chat/completions")[0].model, "poet");
  assert.match(await last(page).locator(".stats").innerText(), /^poet · .* of 1,024$/);
});

pageTest("Chat: a model without a chat template is reported", { prepare: (server) => { server.chatTemplate = null; } }, async ({ page }) => {
  await page.getByRole("tab", { name: "Complete", selected: true }).waitFor();
  await page.getByRole("tab", { name: "Chat" }).click();
  await page.getByText("This model cannot chat").waitFor();
  await page.getByRole("button", { name: "Complete a text instead" }).click();
  assert.equal(await page.locator("#complete").isVisible(), true);
});

pageTest("Chat: two browser tabs show the same conversation", {}, async ({ page, server, context }) => {
  await ask(page, "From the first tab");
  const other = await context.newPage();
  await other.goto(page.url());
  await other.locator(".message").nth(1).waitFor();
  await ask(other, "From the second tab");
  await page.locator(".message").nth(3).waitFor();
  assert.equal(server.sent("/v1/chat/completions").length, 2);
  assert.deepEqual(await messages(page), await messages(other));
});
