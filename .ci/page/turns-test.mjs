// The tab Chat: messages that are too long or fail, attached files, files of conversations, shortcuts. Usage: node --test .ci/page/
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { ask, FAILED_REQUEST, finished, messages, pageTest } from "./harness.mjs";

const chats = (server) => server.sent("/v1/chat/completions").map(({ messages }) => messages.map(({ content }) => content));
const counter = (page, text) => page.locator("#context", { hasText: text }).waitFor();
const box = (page) => page.getByLabel("Message", { exact: true });
const LONG = "word ".repeat(60).trim();
const short = (server) => {
  server.contextLength = 50;
  server.models[0].max_model_len = 50;
};

pageTest("Chat: a message that is too long does not lock its conversation", { prepare: short }, async ({ page, server, seen, shoot }) => {
  seen.expectErrors(FAILED_REQUEST);
  await ask(page, "Hello");
  await counter(page, "15 of 50 tokens");
  await box(page).fill(LONG);
  await counter(page, "76 of 50 tokens: too long");
  await page.getByRole("button", { name: "Send", exact: true }).click();
  await finished(page);
  assert.match(await page.locator(".error:visible").innerText(), /^This model's maximum context length is 50 tokens/);
  // What failed does not count for the next message, and is not sent with it.
  await counter(page, "12 of 50 tokens");
  await shoot("too-long");
  await ask(page, "And now?");
  assert.deepEqual(await messages(page), ["Hello", "You said: Hello", LONG, "", "And now?", "You said: And now?"]);
  assert.deepEqual(chats(server).at(-1), ["Hello", "You said: Hello", "And now?"]);
  assert.deepEqual(await page.locator(".note:visible").allInnerTexts(), Array(2).fill("not sent with later messages: it has no answer"));
  // Also after a reload, and when an answer is generated again.
  await page.reload();
  await page.locator(".message").nth(5).waitFor();
  await page.locator(".message").nth(5).getByRole("button", { name: "Regenerate" }).click();
  await finished(page);
  assert.deepEqual(chats(server).at(-1), ["Hello", "You said: Hello", "And now?"]);
});

pageTest("Chat: a message that is too long can be edited or deleted", { prepare: short }, async ({ page, server, seen }) => {
  seen.expectErrors(FAILED_REQUEST);
  await ask(page, LONG);
  await counter(page, "0 of 50 tokens");
  assert.deepEqual(await page.locator(".message .actions button:visible").allInnerTexts(), ["Edit the message", "Delete it"]);
  await page.getByRole("button", { name: "Edit the message" }).click();
  const field = page.getByRole("textbox", { name: "Edit message" });
  assert.equal(await field.inputValue(), LONG);
  await field.fill("Shorter");
  await field.press("Control+Enter");
  await finished(page);
  assert.deepEqual(await messages(page), ["Shorter", "You said: Shorter"]);
  assert.deepEqual(chats(server).at(-1), ["Shorter"]);
  await ask(page, LONG);
  await page.getByRole("button", { name: "Delete it" }).click();
  await page.locator(".message").nth(2).waitFor({ state: "detached" });
  assert.deepEqual(await messages(page), ["Shorter", "You said: Shorter"]);
});

pageTest("Chat: the oldest messages can be left out, as many as needed, and sent again", { prepare: short }, async ({ page, server, seen, shoot }) => {
  seen.expectErrors(FAILED_REQUEST);
  for (const text of ["One", "Two", "Three"]) await ask(page, text);
  const fourth = `${"four ".repeat(15)}end`;
  await ask(page, fourth);
  await page.getByRole("button", { name: "Leave out the oldest messages" }).click();
  await page.getByText(`You said: ${fourth}`).waitFor();
  await finished(page);
  // 50 tokens, of which an eighth stays free for the answer.
  assert.deepEqual(chats(server).at(-1), ["Three", "You said: Three", fourth]);
  assert.equal((await messages(page)).length, 8);
  assert.deepEqual(await page.locator(".note:visible").allInnerTexts(), Array(4).fill("not sent: left out to make room Send again"));
  await shoot("left-out");
  await page.reload();
  await page.locator(".message").nth(7).waitFor();
  await page.getByRole("button", { name: "Send again" }).first().click();
  await page.locator(".note:visible").first().waitFor({ state: "hidden" });
  server.contextLength = Infinity;
  await ask(page, "Five");
  assert.equal(chats(server).at(-1).length, 9);
});

pageTest("Chat: a question that was stopped before its answer is not sent with the next one", {}, async ({ page, server }) => {
  server.reply = () => ({ deltas: [{ content: "never" }] });
  server.hold();
  await box(page).fill("Wrong question");
  await box(page).press("Enter");
  await page.getByRole("button", { name: "Stop" }).click();
  await finished(page);
  server.letGo();
  server.reply = () => ({ text: "Yes." });
  await ask(page, "Right question");
  assert.deepEqual(chats(server), [["Wrong question"], ["Right question"]]);
});

pageTest("Chat: after another error the message is tried again in its place", {}, async ({ page, server, seen }) => {
  seen.expectErrors(FAILED_REQUEST);
  server.reply = () => ({ status: 503, message: "the server is overloaded" });
  await ask(page, "Hello");
  server.reply = () => ({ text: "Hi." });
  await page.getByRole("button", { name: "Try again" }).click();
  await finished(page);
  assert.deepEqual(await messages(page), ["Hello", "Hi."]);
  assert.equal(await page.locator(".branches:visible").count(), 0);
});

pageTest("Chat: the counter estimates where the server cannot count", { prepare: (server) => { server.hasTokenize = false; } }, async ({ page, seen }) => {
  seen.expectErrors(FAILED_REQUEST);
  await ask(page, "Hello");
  await box(page).fill("x".repeat(400));
  await counter(page, "about 115 of 2,048 tokens");
});

const file = (name, content, mimeType = "text/plain") => ({ name, mimeType, buffer: Buffer.from(content) });
const SENT = "Look:\n\nFile `a.py`:\n\n```py\nprint(1)\n```\n\nFile `b 'c.md`:\n\n````md\n```sh\nls\n```\n````";
pageTest("Chat: text files are attached by the button, by dropping and by pasting; others are refused", {}, async ({ page, server, shoot }) => {
  await page.locator("#attach-file").setInputFiles([file("a.py", "print(1)\n"), file("p.png", Buffer.from([0x89, 0x50, 0x4e, 0x47, 0, 0xff]), "image/png"), file("big.txt", "x".repeat((1 << 20) + 1))]);
  await page.getByText("“p.png” is not a text file. Only text can be attached.").waitFor();
  await page.getByText("“big.txt” is too large: at most 1 MiB can be attached, and it has 1.0 MiB.").waitFor();
  const give = (type, target, name, text) => page.evaluate(({ type, target, name, text }) => {
    const data = new DataTransfer();
    data.items.add(new File([text], name, { type: "text/plain" }));
    const event = type === "paste" ? new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true }) : new DragEvent(type, { dataTransfer: data, bubbles: true, cancelable: true });
    document.querySelector(target).dispatchEvent(event);
    return event.defaultPrevented;
  }, { type, target, name, text });
  assert.equal(await give("dragover", "#thread", "b.md", ""), true);
  // Beside the conversation nothing is attached, and the file does not replace the page.
  assert.equal(await give("drop", "#conversations", "c.md", "elsewhere"), true);
  await give("drop", "#thread", "b.md", "dropped");
  await give("paste", "#message", "b `c.md", "```sh\nls\n```\n");
  await page.locator(".attachment").nth(2).waitFor();
  assert.deepEqual(await page.locator(".attachment").allInnerTexts(), ["a.py", "b.md", "b 'c.md"]);
  await page.getByRole("button", { name: "Remove “b.md”" }).click();
  await box(page).fill("Look:");
  await shoot("attached");
  await box(page).press("Enter");
  await finished(page);
  assert.equal(chats(server)[0][0], SENT);
  assert.equal(await page.locator(".attachment").count(), 0);
  assert.deepEqual(await page.locator(".message.user .code-block code").allInnerTexts(), ["print(1)", "```sh\nls\n```"]);
  assert.equal(await page.locator("#chat-title").innerText(), "Look: File `a.py`: File `b 'c.md`:");
});

pageTest("Chat: a conversation is exported as Markdown", { prepare: (server) => { server.reply = () => ({ deltas: [{ reasoning_content: "Hm." }, { content: "An *answer*." }] }); } }, async ({ page }) => {
  await ask(page, "A question?");
  const [saved] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "Export as Markdown" }).click()]);
  assert.equal(saved.suggestedFilename(), "a-question.md");
  assert.equal(await readFile(await saved.path(), "utf8"),
    "# A question?\n\n## You\n\nA question?\n\n## stand-in\n\n<details><summary>Reasoning</summary>\n\nHm.\n\n</details>\n\nAn *answer*.\n");
});

/** What `/save` of `hearth chat` writes (server/src/cli/chat/file.rs has the same text in a test). */
const OF_TERMINAL = `{"format": "hearth-conversations", "version": 1, "conversations": [{"settings": {"system": "Be brief.", "parameters": {"temperature": 0.5}},
  "messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi.", "model": "org/name"}]}]}`;
pageTest("Chat: files of the terminal and messages as the API has them are imported", {}, async ({ page, server }) => {
  const read = async (text) => {
    await page.locator("#chat-import-file").setInputFiles({ name: "a.json", mimeType: "application/json", buffer: Buffer.from(text) });
    await page.getByText("Imported 1 conversation.").waitFor();
    await page.getByRole("button", { name: "Dismiss" }).click();
  };
  await read(OF_TERMINAL);
  await page.getByRole("button", { name: "Hello", exact: true }).click();
  await page.locator(".message").nth(1).waitFor();
  assert.deepEqual(await messages(page), ["Hello", "Hi."]);
  await ask(page, "Again");
  const [sent] = server.sent("/v1/chat/completions");
  assert.deepEqual([sent.temperature, sent.messages], [0.5, [{ role: "system", content: "Be brief." }, { role: "user", content: "Hello" }, { role: "assistant", content: "Hi." }, { role: "user", content: "Again" }]]);
  await read('[{"role": "system", "content": "S"}, {"role": "user", "content": [{"type": "text", "text": "From"}, {"type": "text", "text": " parts"}]}, {"role": "assistant", "content": null, "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]}, {"role": "tool", "tool_call_id": "c", "content": "1"}, {"role": "assistant", "content": "One."}]');
  await page.getByRole("button", { name: "From parts", exact: true }).click();
  await page.locator(".message").nth(3).waitFor();
  await ask(page, "So?");
  assert.deepEqual(server.sent("/v1/chat/completions")[1].messages.slice(0, 4), [{ role: "system", content: "S" }, { role: "user", content: "From parts" },
    { role: "assistant", content: null, tool_calls: [{ id: "c", type: "function", function: { name: "f", arguments: "{}" } }] }, { role: "tool", content: "1", tool_call_id: "c" }]);
});

const first = (page) => page.locator(".suggestion").first().innerText();
pageTest("Chat: the suggestions suit the model", {}, async ({ page, server }) => {
  await page.locator("#model", { hasText: "stand-in" }).waitFor();
  assert.doesNotMatch(await first(page), /story|tale/);
  server.models[0].id = "hearth-bundled";
  await page.reload();
  await page.locator("#model", { hasText: "hearth-bundled" }).waitFor();
  assert.match(await first(page), /^Tell me a story/);
});

pageTest("a tab that could not be loaded says so and can be tried again", {}, async ({ page, seen }) => {
  seen.expectErrors(FAILED_REQUEST);
  await page.route("**/compare.js*", (route) => route.abort("connectionrefused"));
  await page.getByRole("tab", { name: "Compare" }).click();
  const alert = page.getByRole("alert").filter({ hasText: "This tab could not be loaded" });
  await alert.waitFor();
  assert.match(await alert.innerText(), /compare\.js/);
  await page.unroute("**/compare.js*");
  await alert.getByRole("button", { name: "Try again" }).click();
  await page.locator(".strategy").first().waitFor();
  assert.equal(await alert.count(), 0);
});

pageTest("keyboard shortcuts: a list, tabs, a new chat, the message box and the last message", {}, async ({ page }) => {
  await ask(page, "Hello");
  const dialog = page.getByRole("dialog", { name: "Keyboard shortcuts" });
  await page.keyboard.press("Control+/");
  await dialog.waitFor();
  assert.match(await dialog.innerText(), /Begin a new chat/);
  await page.keyboard.press("Escape");
  assert.equal(await dialog.isVisible(), false);
  await page.getByRole("button", { name: "Keyboard shortcuts" }).click();
  await dialog.getByRole("button", { name: "Close" }).click();
  await page.keyboard.press("Alt+4");
  await page.locator("#inspect-text").waitFor();
  await page.keyboard.press("Shift+Escape");
  await page.waitForFunction(() => document.activeElement.id === "message");
  await page.keyboard.press("ArrowUp");
  await page.waitForFunction(() => document.activeElement.getAttribute("aria-label") === "Edit message");
  await page.keyboard.press("Escape");
  await page.keyboard.press("Control+Shift+O");
  await page.locator(".welcome").waitFor();
  assert.equal(await page.evaluate(() => document.activeElement.id), "message");
});

for (const [look, options] of [["desktop", {}], ["phone", { width: 390, height: 844, isPhone: true }]]) {
  pageTest(`a notice leaves the message box free (${look})`, options, async ({ page }) => {
    await box(page).fill("one\ntwo\nthree\nfour\nfive");
    await page.locator("#attach-file").setInputFiles([file("p.png", Buffer.from([0xff]))]);
    await page.locator(".notice").waitFor();
    const [notice, composer] = [await page.locator(".notice").boundingBox(), await page.locator(".composer").boundingBox()];
    assert.ok(notice.y + notice.height <= composer.y, `${JSON.stringify(notice)} is over ${JSON.stringify(composer)}`);
  });
}
