// The tabs Complete, Compare, Inspect and Server against a stand-in server. Usage: node --test .ci/page/
import assert from "node:assert/strict";
import { ask, FAILED_REQUEST, pageTest } from "./harness.mjs";

const textOf = (page, selector) => page.locator(selector).textContent();
const completed = (page) => page.waitForFunction(() => document.querySelector("#completion").getAttribute("aria-busy") === "false");
const complete = async (page) => {
  await page.getByRole("button", { name: "Complete" }).click();
  await completed(page);
};

pageTest("Complete: sends the fields and shows the request as code in three languages", { at: "#complete" }, async ({ page, server, shoot }) => {
  await page.locator("#model", { hasText: "stand-in" }).waitFor();
  await page.getByLabel("Prompt", { exact: true }).fill("It's");
  await page.getByLabel("Top k").fill("20");
  await page.getByLabel("Stop strings", { exact: true }).fill("\\n\\n\nQ\\\\n");
  await complete(page);
  assert.equal(await textOf(page, "#given"), "It's");
  assert.equal(await textOf(page, "#completion"), " there was 4");
  assert.match(await textOf(page, "#status"), /^finish reason: stop · [\d.]+ tok\/s · first token after \d+\.\d\d s · 12 prompt tokens · 3 new tokens in \d+\.\d\d s$/);
  const body = { model: "stand-in", prompt: "It's", max_tokens: 128, temperature: 0.8, top_k: 20, stop: ["\n\n", "Q\\n"] };
  const { stream, stream_options, ...sent } = server.sent("/v1/completions")[0];
  assert.deepEqual(sent, body);

  const copied = async (name) => {
    await page.getByRole("tab", { name }).click();
    await page.getByRole("button", { name: `Copy ${name}` }).click();
    return page.evaluate(() => navigator.clipboard.readText());
  };
  assert.equal(await copied("curl"), `curl '${server.origin}/v1/completions' \\\n  -H 'content-type: application/json' \\\n  -d '${JSON.stringify(body, null, 2).replace("'", "'\\''")}'`);
  assert.equal(await copied("Python"), ["from openai import OpenAI", "", `client = OpenAI(base_url="${server.origin}/v1", api_key="none")`, "stream = client.completions.create(",
    '    model="stand-in",', '    prompt="It\'s",', "    max_tokens=128,", "    temperature=0.8,", '    stop=["\\n\\n", "Q\\\\n"],', '    extra_body={\n        "top_k": 20,\n    },',
    "    stream=True,", ")", "for chunk in stream:", '    print(chunk.choices[0].text, end="", flush=True)'].join("\n"));
  const javascript = await copied("JavaScript");
  // The copied code runs unchanged.
  const said = await page.evaluate(`(async () => { const said = []; const console = { log: (text) => said.push(text) };\n${javascript}\nreturn said; })()`);
  assert.deepEqual(said, [" there was 4"]);
  await shoot("complete");
  await page.getByRole("button", { name: "Continue from here" }).click();
  await completed(page);
  assert.equal(await textOf(page, "#given"), "It's there was 4");
});

pageTest("Complete: an invalid field is reported without sending a request", { at: "#complete" }, async ({ page, server }) => {
  await page.getByLabel("Seed").fill("9007199254740993");
  await page.getByRole("button", { name: "Complete" }).click();
  assert.equal(await textOf(page, "#complete-error"), "Seed must be at most 9007199254740991.");
  assert.deepEqual(server.requests, []);
});

/** Replaces the server's answer by `text`, one byte a chunk. */
const answerInBytes = (page, text) => page.evaluate((text) => {
  window.fetch = async () => {
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
const chunk = (value) => `data: ${JSON.stringify(value)}`;
const piece = (text) => chunk({ choices: [{ index: 0, text, finish_reason: null }] });

pageTest("Complete: parses server-sent events that arrive byte by byte", { at: "#complete" }, async ({ page }) => {
  await page.locator("#model", { hasText: "stand-in" }).waitFor();
  await answerInBytes(page, [
    ": a comment", "", "event: message", piece("naïve "), "", piece("café\n").replace("data: ", "data:"), "",
  ].join("\r\n") + ["", piece("🔥 "), "", 'data: {"choices":', 'data: [{"text":"end","finish_reason":"stop"}]}', ""].join("\n")
    + ["", piece("."), "", chunk({ choices: [], usage: { prompt_tokens: 3, completion_tokens: 5 } }), "", "data: [DONE]", "", ""].join("\r"));
  await complete(page);
  assert.equal(await textOf(page, "#complete-error"), "");
  assert.equal(await textOf(page, "#completion"), "naïve café\n🔥 end.");
  assert.match(await textOf(page, "#status"), /^finish reason: stop · .* · 3 prompt tokens · 5 new tokens/);
});

for (const [name, end, message] of [
  ["an error event in the stream is shown", [chunk({ error: { message: "the engine failed", type: "server_error" } }), "", ""], "the engine failed"],
  ["a stream that ends early is reported", [""], "the connection was closed before the answer was finished"],
]) {
  pageTest(`Complete: ${name}, and the text before it is kept`, { at: "#complete" }, async ({ page }) => {
    await page.locator("#model", { hasText: "stand-in" }).waitFor();
    await answerInBytes(page, [piece("so far"), "", ...end].join("\n"));
    await complete(page);
    assert.equal(await textOf(page, "#completion"), "so far");
    assert.equal(await textOf(page, "#complete-error"), message);
  });
}

pageTest("Compare: shows four strategies with statistics, errors and saved edits", { at: "#compare" }, async ({ page, server, seen, shoot }) => {
  seen.expectErrors(FAILED_REQUEST);
  server.reply = ({ temperature, use_beam_search }) => {
    if (use_beam_search) return { status: 400, message: "`use_beam_search` cannot be combined with `seed`" };
    return { text: temperature === 0 ? "one two one two one two one two" : "one two three four five six" };
  };
  await page.locator("#model", { hasText: "stand-in" }).waitFor();
  await page.getByLabel("Send as a chat message").uncheck();
  await page.locator("#compare-prompt").fill("Count");
  await page.getByRole("button", { name: "Compare", exact: true }).click();
  await page.getByText("All strategies are finished.").waitFor();
  const cards = page.locator(".strategy");
  assert.equal(await cards.count(), 4);
  const measures = (at) => cards.nth(at).locator(".measures").evaluate((list) => Object.fromEntries([...list.querySelectorAll("dt")].map((term) => [term.textContent, term.nextElementSibling.textContent])));
  const greedy = await measures(0);
  assert.equal(await cards.nth(0).locator(".compare-text").innerText(), "one two one two one two one two");
  // "one", " two", " one" are its tokens, and the stand-in's log-probability follows from their length.
  assert.deepEqual([greedy["Mean log-probability"], greedy["Distinct-1"], greedy["Distinct-2"], greedy.Repetition, greedy.Tokens], ["−0.969", "0.375", "0.429", "0.400", "8"]);
  const nucleus = await measures(1);
  assert.deepEqual([nucleus["Distinct-1"], nucleus.Repetition], ["1.000 (best)", "0.000 (best)"]);
  assert.equal(await cards.nth(3).locator(".error").innerText(), "`use_beam_search` cannot be combined with `seed`");
  const bodies = server.sent("/v1/completions").map(({ prompt, seed, max_tokens, logprobs, temperature, top_p, min_p, use_beam_search, best_of }) => ({ prompt, seed, max_tokens, logprobs, temperature, top_p, min_p, use_beam_search, best_of }));
  const shared = { prompt: "Count", seed: 1, max_tokens: 60, logprobs: 0, temperature: undefined, top_p: undefined, min_p: undefined, use_beam_search: undefined, best_of: undefined };
  const expected = [{ ...shared, temperature: 0 }, { ...shared, temperature: 1, top_p: 0.9 }, { ...shared, temperature: 1.2, min_p: 0.1 }, { ...shared, use_beam_search: true, best_of: 4 }];
  // The four requests are sent at once, so they arrive in any order.
  const sorted = (all) => all.toSorted((a, b) => JSON.stringify(a) < JSON.stringify(b) ? -1 : 1);
  assert.deepEqual(sorted(bodies), sorted(expected));
  await shoot("compare");

  await cards.nth(3).getByRole("button", { name: "Remove strategy" }).click();
  await page.getByRole("button", { name: "Add strategy" }).click();
  await cards.nth(3).getByLabel("Name of the strategy").fill("Hot");
  await cards.nth(3).getByText("Settings").click();
  await cards.nth(3).getByLabel("Temperature", { exact: true }).fill("1.8");
  await page.reload();
  await cards.nth(3).waitFor();
  assert.deepEqual(await cards.locator(".strategy-name").evaluateAll((inputs) => inputs.map((input) => input.value)), ["Greedy", "Nucleus", "Min p", "Hot"]);
  assert.equal(await cards.nth(3).locator(".strategy-summary").innerText(), "temperature 1.8");
});

const TEXT = "The fox lost her lamp and the fox looked for her lamp";
const inspectText = async (page, text = TEXT) => {
  await page.getByLabel("Text", { exact: true }).fill(text);
  await page.getByRole("button", { name: "Inspect", exact: true }).click();
  await page.locator(".token").first().waitFor();
};

pageTest("Inspect: shows a token's alternatives and continues from a chosen one", { at: "#inspect" }, async ({ page, server, shoot }) => {
  await page.locator("#model", { hasText: "stand-in" }).waitFor();
  await inspectText(page);
  const tokens = page.locator(".token:not(.next-token)");
  assert.equal(await tokens.count(), 12);
  assert.equal(await tokens.nth(2).getAttribute("aria-label"), "·lost, probability 33 %, rank 3");
  const strength = (at) => tokens.nth(at).evaluate((token) => token.style.getPropertyValue("--strength"));
  assert.deepEqual([await strength(1), await strength(4)], ["7%", "1%"]);
  await tokens.nth(4).hover();
  assert.match(await page.locator(".token-details").innerText(), /·lamp[\s\S]*Probability\s*90 %[\s\S]*Rank\s*1\s*Entropy\s*1\.50 nats/);
  await tokens.nth(11).focus();
  await page.keyboard.press("ArrowLeft");
  assert.equal(await page.locator(".token[aria-pressed=true]").innerText(), " her");
  await page.keyboard.press("Home");
  assert.match(await page.locator(".token-details").innerText(), /the model expected nothing/);
  await tokens.nth(4).click();
  await shoot("inspect-tokens");
  await page.locator(".alternative", { hasText: "·lantern" }).click();
  await page.getByText("Continued from \" lantern\" at token 5").waitFor();
  const ids = server.sent("/v1/inspect").at(-1).input ?? server.sent("/v1/inspect").findLast(({ input }) => Array.isArray(input)).input;
  const asked = server.sent("/v1/completions")[0];
  assert.deepEqual([asked.prompt.length, asked.max_tokens, asked.temperature, asked.return_token_ids], [5, 24, 0, true]);
  assert.deepEqual(ids.slice(0, 5), asked.prompt);
  assert.equal(await tokens.nth(4).innerText(), " lantern");
  await page.getByRole("button", { name: "Back to the text before" }).click();
  await page.waitForFunction(() => document.querySelectorAll(".token")[4].textContent === " lamp");
  await page.getByLabel("Color").selectOption("Entropy: how open the choice was");
  assert.equal(await strength(1), "25%");
});

pageTest("Inspect: shows attention as heat map and arcs, and the logit lens", { at: "#inspect" }, async ({ page, server, shoot }) => {
  await page.locator("#model", { hasText: "stand-in" }).waitFor();
  await inspectText(page);
  await page.getByRole("button", { name: "head 1" }).click();
  await page.locator(".token").nth(3).click();
  assert.equal(await page.locator(".attention .attention-text").innerText(), "·her attends to The 50 %, ·her 50 %");
  const map = page.locator("canvas.heat-map");
  /** The color in the middle of a cell: its size and the margin follow from the drawing's. */
  const pixel = (query, key) => map.evaluate((canvas, [query, key, size]) => {
    const cell = 22;
    const margin = canvas.width / devicePixelRatio - cell * size;
    const place = (at) => Math.round((margin + (at + 0.5) * cell) * devicePixelRatio);
    return [...canvas.getContext("2d").getImageData(place(key), place(query), 1, 1).data].slice(0, 3);
  }, [query, key, 12]);
  const strong = await pixel(5, 0);
  assert.deepEqual(await pixel(5, 5), strong);
  assert.notDeepEqual(await pixel(5, 2), strong);
  assert.deepEqual(await pixel(2, 7), await pixel(5, 2));
  await map.hover({ position: { x: 84 + 11, y: 84 + 5 * 22 + 11 } });
  assert.equal(await page.locator(".readout").first().innerText(), "·and looks at The: 50.0 %");
  assert.equal(await page.locator(".arc-lines path").count(), 11);
  assert.equal(await page.locator(".arc-lines path.is-selected").count(), 1);
  await page.getByLabel("Leave out the first token").check();
  assert.equal(await page.locator(".arc-lines path").count(), 0);
  await page.getByLabel("Layer", { exact: true }).selectOption("2");
  await page.waitForFunction(() => document.querySelector("canvas.heat-map").getAttribute("aria-label").includes("layer 2, head 1"));
  assert.deepEqual(server.sent("/v1/inspect").filter(({ attention }) => attention).map(({ attention }) => attention.layers), [[0], [2]]);
  await page.getByLabel("Leave out the first token").uncheck();
  await shoot("inspect-attention");

  await page.getByRole("tab", { name: "Logit lens" }).click();
  await page.locator(".lens tbody tr").first().waitFor();
  assert.deepEqual(await page.locator(".lens tbody th").allInnerTexts(), ["layer 2", "layer 1", "layer 0", "embedding"]);
  assert.equal(await page.locator(".lens td[data-row='3'][data-at='3']").getAttribute("class"), "is-right");
  await page.locator(".lens td[data-row='1'][data-at='2']").hover();
  assert.match(await page.locator(".logit-lens .attention-text").innerText(), /^After ·lost, layer 0 predicts ·lamp 5 %, ·lantern 2 %/);
  await shoot("logit-lens");
});

const asPair = (server) => { server.models[0].meta.kind = "encoder-decoder"; };

pageTest("Inspect: shows what target and source of an encoder-decoder attend to", { at: "#inspect", prepare: asPair }, async ({ page, server, shoot }) => {
  await page.locator("#model", { hasText: "stand-in" }).waitFor();
  await page.getByLabel("Source", { exact: true }).fill("the small house has a roof");
  await page.getByLabel("Target", { exact: true }).fill("das kleine Haus hat");
  await page.getByRole("button", { name: "Inspect", exact: true }).click();
  await page.locator(".head").first().waitFor();
  assert.deepEqual(server.sent("/v1/inspect").map(({ input, target, attention }) => [input, target, attention]), [
    ["the small house has a roof", "das kleine Haus hat", undefined], ["the small house has a roof", "das kleine Haus hat", { layers: [0], encoder_layers: [] }]]);
  const text = page.locator(".attention .attention-text");
  await page.locator(".token").nth(3).click();
  assert.equal(await text.innerText(), "·Haus attends to ·has 100 %");
  assert.equal(await page.locator(".arc-lines path").count(), 5);
  assert.equal(await page.locator(".arc-lines path.is-selected").getAttribute("data-key"), "3");
  assert.deepEqual(await page.locator(".arc-labels .looked-at").allTextContents(), ["the", "·small", "·house", "·has", "·a", "·roof"]);
  // Five rows and six columns.
  const sizes = () => page.locator("canvas.heat-map").evaluate((canvas) => [canvas.width - 86, canvas.height - 86]);
  assert.deepEqual(await sizes(), [6 * 22, 5 * 22]);
  await page.locator("canvas.heat-map").hover({ position: { x: 84 + 5 * 22 + 11, y: 84 + 11 } });
  assert.equal(await page.locator(".readout").first().innerText(), "<start> looks at ·roof: 0.0 %");
  await shoot("inspect-cross");

  await page.getByLabel("From what to what").selectOption("Source to source (encoder)");
  await page.waitForFunction(() => document.querySelector("canvas.heat-map").getAttribute("aria-label").includes("encoder"));
  assert.deepEqual(server.sent("/v1/inspect").at(-1).attention, { layers: [], encoder_layers: [0] });
  assert.deepEqual(await sizes(), [6 * 22, 6 * 22]);
  await page.locator(".arc-labels text").nth(1).click();
  assert.equal(await text.innerText(), "·small attends to ·roof 75 %, ·small 25 %", "the encoder looks both ways");
  assert.equal(await page.locator(".token[aria-pressed=true]").innerText(), " Haus", "the chosen token of the target stays");
  await page.getByLabel("Layer", { exact: true }).selectOption("3");
  await page.waitForFunction(() => document.querySelector("canvas.heat-map").getAttribute("aria-label").includes("layer 3"));
  await shoot("inspect-encoder");

  await page.getByLabel("From what to what").selectOption("Target to target (decoder)");
  await page.waitForFunction(() => document.querySelector("canvas.heat-map").getAttribute("aria-label").includes("layer 2"));
  assert.equal(await text.innerText(), "·Haus attends to <start> 50 %, ·Haus 50 %");

  // Without a target, the model writes it.
  await page.getByLabel("Target", { exact: true }).fill("");
  await page.getByRole("button", { name: "Inspect", exact: true }).click();
  await page.getByText("The target is what the model wrote").waitFor();
  assert.deepEqual(server.sent("/v1/completions").map(({ prompt, max_tokens: most }) => [prompt, most]), [["the small house has a roof", 24]]);
  assert.deepEqual(server.sent("/v1/inspect").filter(({ attention }) => !attention).at(-1).target, [100, 101, 102]);
  await page.locator(".token").nth(2).click();
  await page.locator(".alternative").last().click();
  await page.getByText(/^Continued from/).waitFor();
  const { prompt, decoder_prompt: begun } = server.sent("/v1/completions").at(-1);
  assert.deepEqual([prompt, begun.length], ["the small house has a roof", 3]);
});

pageTest("Inspect: opens a completion of an encoder-decoder as source and target", { prepare: asPair }, async ({ page, server }) => {
  await page.getByRole("tab", { name: "Complete" }).click();
  await complete(page);
  await page.getByRole("button", { name: "Inspect tokens" }).click();
  await page.locator(".token").first().waitFor();
  assert.deepEqual(server.sent("/v1/inspect")[0].target, " there was 16");
});

pageTest("Inspect: opens from a chat answer and from a completion", {}, async ({ page, server }) => {
  await ask(page, "Hello");
  await page.locator(".message.assistant").getByRole("button", { name: "Inspect tokens" }).click();
  await page.getByText("A conversation of 2 messages").waitFor();
  assert.deepEqual(server.sent("/v1/inspect")[0], {
    model: "stand-in", messages: [{ role: "user", content: "Hello" }, { role: "assistant", content: "You said: Hello" }], add_generation_prompt: false, top_logprobs: 10 });
  await page.getByRole("tab", { name: "Complete" }).click();
  await complete(page);
  await page.getByRole("button", { name: "Inspect tokens" }).click();
  await page.waitForFunction(() => document.querySelectorAll(".token").length === 8);
});

pageTest("Inspect: a later inspection replaces one that is still running", { at: "#inspect" }, async ({ page, server }) => {
  await page.locator("#model", { hasText: "stand-in" }).waitFor();
  const ofTokens = (request) => request.url().endsWith("/v1/inspect") && !request.postDataJSON().attention;
  const held = [];
  await page.route("**/v1/inspect", (route) => (ofTokens(route.request()) ? held.push(route) : route.continue()));
  const text = page.getByLabel("Text", { exact: true });
  const start = page.getByRole("button", { name: "Inspect", exact: true });
  const error = page.locator("#inspect .inspect-form .error");
  const asks = async (act, isMeant = ofTokens) => (await Promise.all([page.waitForRequest(isMeant), act()]))[0].postDataJSON();
  const inspect = (words) => asks(async () => {
    await text.fill(words);
    await text.press("Control+Enter");
  });
  const shows = async (tokens) => {
    await page.waitForFunction((tokens) => document.querySelectorAll(".token:not(.next-token)").length === tokens, tokens);
    assert.ok(await start.isEnabled());
    assert.equal(await error.isVisible(), false, await error.textContent());
  };
  await inspect("one");
  await inspect("one two");
  // Wait until the page has handled the end of the first request.
  await page.evaluate(() => new Promise((resolve) => { setTimeout(resolve); }));
  assert.equal(await page.locator("#inspect [role=status]").first().innerText(), "Inspecting…");
  assert.ok(await start.isDisabled());
  await held[1].continue();
  await shows(2);

  // While a continuation is inspected.
  await page.locator(".token").nth(1).click();
  await asks(() => page.locator(".alternative").nth(1).click());
  await inspect("one two three");
  await held[3].continue();
  await shows(3);
  assert.equal(await page.getByRole("button", { name: "Back to the text before" }).isVisible(), false);

  // The views of layers belong to the text that is shown.
  await inspect("one two three four");
  const views = await asks(() => page.getByLabel("Layer", { exact: true }).selectOption("2"), (request) => request.postDataJSON()?.attention?.layers[0] === 2);
  assert.equal(views.input, "one two three");
  await held[4].continue();
  await shows(4);

  // While a continuation is generated, which is then stopped.
  const ofText = (request) => request.url().endsWith("/v1/completions");
  await page.route("**/v1/completions", () => {});
  await page.locator(".token").nth(1).click();
  await asks(() => page.locator(".alternative").nth(1).click(), ofText);
  await Promise.all([page.waitForEvent("requestfailed", ofText), inspect("five")]);
  await held[5].continue();
  await shows(1);
  assert.equal(server.sent("/v1/inspect").filter(({ attention }) => !attention).length, 4);
});

pageTest("Inspect: reports a server without inspection and shows server errors", { at: "#inspect", prepare: (server) => { server.hasInspect = false; } }, async ({ page, server, seen, shoot }) => {
  seen.expectErrors(FAILED_REQUEST);
  const error = page.locator("#inspect .inspect-form .error");
  await page.getByRole("button", { name: "Inspect", exact: true }).click();
  await error.waitFor();
  assert.match(await error.innerText(), /^This server does not offer inspection\./);
  await shoot("no-inspect");
  server.hasInspect = true;
  await page.getByLabel("Text", { exact: true }).fill("word ".repeat(70));
  await page.getByRole("button", { name: "Inspect", exact: true }).click();
  await page.waitForFunction(() => document.querySelector("#inspect .error").textContent.includes("at most 64"));
});

pageTest("Server: shows metrics and facts, and polls only while the tab is open", { at: "#server" }, async ({ page, seen, shoot }) => {
  const chart = (title) => page.getByRole("region", { name: title, exact: true }).getByRole("img");
  await page.waitForFunction(() => /generated: \d/.test(document.querySelectorAll(".chart")[1]?.getAttribute("aria-label")));
  assert.equal(await chart("Requests").getAttribute("aria-label"), "Requests, last 5 minutes. running: 2, waiting: 1.");
  assert.equal(await chart("KV cache in use").getAttribute("aria-label"), "KV cache in use, last 5 minutes. share of pages: 25 %.");
  assert.equal(await chart("Time to first token").getAttribute("aria-label"), "Time to first token, last 5 minutes. mean: 50 ms, p95: 95 ms.");
  const facts = await page.locator(".fact-cards").innerText();
  for (const fact of [/Hearth\s*0\.0\.0/, /Device\s*CPU/, /Parameters\s*1,000,000/, /Context\s*2,048 tokens/, /Pages\s*2,048/, /Format\s*f16/]) assert.match(facts, fact);
  await shoot("server");
  await page.getByRole("tab", { name: "Chat" }).click();
  const asked = () => seen.requests.filter((url) => url.endsWith("/metrics")).length;
  const before = asked();
  await page.waitForTimeout(2500);
  assert.equal(asked(), before, "it asks although nobody looks");
});
