// Accessibility and layout of the page: axe-core on every tab, light and dark, at a phone's width, and by keyboard.
// Usage: node --test .ci/page/        PAGE_SCREENSHOTS=DIR keeps screenshots.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { ask, FAILED_REQUEST, pageTest } from "./harness.mjs";

const AXE = await readFile(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const TABS = ["Chat", "Complete", "Compare", "Inspect", "Server"];
const ANSWER = "A **list**:\n\n1. `one`\n2. two\n\n```python\ndef f(x):\n    return x + 1  # a comment\n```\n\n| a | b |\n| - | - |\n| 1 | 2 |\n";

/** Fails with what axe-core finds that is serious or critical. */
async function assertAccessible(page, where) {
  await page.evaluate(AXE);
  const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
  const serious = violations.filter(({ impact }) => ["serious", "critical"].includes(impact));
  assert.deepEqual(serious.map(({ id, nodes }) => `${where}: ${id}: ${nodes.map(({ html, failureSummary }) => `${html} ${failureSummary}`).join("; ")}`), []);
}

/** Nothing may be wider than the page, except in frames that scroll. */
const assertFits = async (page, where) => assert.equal(await page.evaluate(() => document.documentElement.scrollWidth - innerWidth), 0, `${where} is too wide`);

/** Brings a tab into a state with something to see. */
async function fill(page, tab) {
  if (tab === "Chat") {
    await ask(page, "Show me a list, code and a table.");
    await page.locator(".hljs-keyword").first().waitFor();
  } else if (tab === "Complete") {
    await page.getByRole("button", { name: "Complete" }).click();
    await page.waitForFunction(() => document.querySelector("#completion").getAttribute("aria-busy") === "false");
  } else if (tab === "Compare") {
    await page.getByRole("button", { name: "Compare", exact: true }).click();
    await page.getByText("All strategies are finished.").waitFor();
  } else if (tab === "Inspect") {
    await page.getByRole("button", { name: "Inspect", exact: true }).click();
    await page.locator(".head").first().waitFor();
    await page.locator(".token").nth(4).click();
  } else {
    await page.waitForFunction(() => /generated: \d/.test(document.querySelectorAll(".chart")[1]?.getAttribute("aria-label")));
  }
}

const prepare = (server) => { server.reply = ({ messages }) => ({ text: messages ? ANSWER : " there was a fox who lost her lamp" }); };

for (const [look, options] of [
  ["light", {}], ["dark", { colorScheme: "dark" }],
  ["phone-light", { width: 390, height: 844, isPhone: true }], ["phone-dark", { width: 390, height: 844, isPhone: true, colorScheme: "dark" }],
]) {
  pageTest(`every tab is accessible and fits the width (${look})`, { ...options, prepare }, async ({ page, shoot }) => {
    await page.locator("#model", { hasText: "stand-in" }).waitFor();
    const background = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    assert.equal(background, look.endsWith("dark") ? "rgb(25, 23, 21)" : "rgb(251, 249, 246)");
    for (const tab of TABS) {
      await page.getByRole("tab", { name: tab }).click();
      await fill(page, tab);
      await assertAccessible(page, `${tab} (${look})`);
      await assertFits(page, `${tab} (${look})`);
      await shoot(`${look}-${tab.toLowerCase()}`);
    }
  });
}

pageTest("the drawers for conversations and settings on a phone are accessible and close", { width: 390, height: 844, isPhone: true, prepare }, async ({ page, shoot }) => {
  await ask(page, "Hello");
  assert.equal(await page.locator("#conversations").isVisible(), false);
  await page.getByRole("button", { name: "Conversations" }).click();
  await page.getByRole("button", { name: "Hello", exact: true }).waitFor();
  await assertAccessible(page, "conversations");
  await shoot("phone-conversations");
  await page.keyboard.press("Escape");
  assert.equal(await page.locator("#conversations").isVisible(), false);
  assert.equal(await page.evaluate(() => document.activeElement.id), "open-conversations");
  await page.getByRole("button", { name: "Settings" }).click();
  await page.getByText("Single tokens and words").click();
  await assertAccessible(page, "settings");
  await assertFits(page, "settings");
  await shoot("phone-settings");
  await page.touchscreen.tap(8, 400);
  assert.equal(await page.locator("#chat-settings").isVisible(), false);
});

pageTest("a failed turn, attached files, notices and the list of shortcuts are accessible", { prepare }, async ({ page, server, seen }) => {
  seen.expectErrors(FAILED_REQUEST);
  await ask(page, "Hello");
  server.contextLength = 5;
  await ask(page, "Too long");
  await page.locator("#attach-file").setInputFiles([{ name: "a.md", mimeType: "text/markdown", buffer: Buffer.from("# a") }, { name: "b.png", mimeType: "image/png", buffer: Buffer.from([0xff]) }]);
  await page.locator(".notice").waitFor();
  await assertAccessible(page, "failed turn");
  server.contextLength = Infinity;
  await ask(page, "Next");
  await assertAccessible(page, "a turn that is not sent");
  await page.keyboard.press("Control+/");
  await assertAccessible(page, "shortcuts");
});

/** The left and right edges of the content of each tab, in pixels. */
const edges = (page, tabs) => page.evaluate((names) => names.map((name) => {
  const { left, right } = document.querySelector(`#${name} > *`).getBoundingClientRect();
  return [left, right];
}), tabs);

for (const [look, options] of [["desktop", {}], ["phone", { width: 390, height: 844, isPhone: true }]]) {
  pageTest(`the content of all tabs has the same edges (${look})`, { ...options, prepare }, async ({ page, server }) => {
    const found = [];
    for (const tab of TABS.slice(1)) {
      await page.getByRole("tab", { name: tab }).click();
      await page.locator(`#${tab.toLowerCase()} > *`).first().waitFor();
      found.push(...(await edges(page, [tab.toLowerCase()])));
    }
    await page.goto(`${server.origin}/docs`);
    await page.locator("h1").last().waitFor();
    found.push(await page.evaluate(() => {
      const { left, right } = document.querySelector(".docs h1").getBoundingClientRect();
      return [left, right];
    }));
    assert.equal(new Set(found.map(String)).size, 1, JSON.stringify(found));
    if (options.isPhone) assert.deepEqual(found[0], [16, 374]);
  });
}

pageTest("the cards of Compare and Server are aligned, and the legends have lines", { at: "#compare", prepare }, async ({ page }) => {
  await fill(page, "Compare");
  const starts = await page.locator(".strategy").first().evaluate((card) => [...card.querySelectorAll(".strategy-summary, .strategy-settings, .compare-text, .measures")].map((each) => each.getBoundingClientRect().left));
  assert.equal(new Set(starts).size, 1, String(starts));
  await page.getByRole("tab", { name: "Server" }).click();
  await fill(page, "Server");
  const lefts = (selector) => page.locator(selector).evaluateAll((cards) => [...new Set(cards.map((card) => card.getBoundingClientRect().left))]);
  assert.deepEqual(await lefts(".facts"), await lefts(".chart-card"));
  assert.deepEqual(await page.locator(".chart-key path").evaluateAll((lines) => lines.map((line) => line.getBoundingClientRect().width > 12)), Array(11).fill(true));
  // 95 ms below an axis that ends at 100 ms, not at 1 ms.
  assert.equal(await page.locator(".chart-top").nth(3).innerText(), "100 ms");
});

pageTest("the fields of a row are equally high", { at: "#complete" }, async ({ page }) => {
  await page.locator("#complete-parameters textarea").first().waitFor();
  const heights = await page.locator("#complete-parameters > .parameters:first-child :is(input, textarea)").evaluateAll((fields) => fields.map((field) => field.getBoundingClientRect().height));
  assert.equal(new Set(heights).size, 1, String(heights));
});

pageTest("the theme button overrides the system's theme, also after a reload", { colorScheme: "dark" }, async ({ page }) => {
  const background = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const dark = await background();
  await page.getByRole("button", { name: "Light theme" }).click();
  const light = await background();
  assert.notEqual(light, dark);
  await page.reload();
  assert.equal(await background(), light);
  await page.getByRole("button", { name: "Dark theme" }).click();
  assert.equal(await background(), dark);
  assert.equal(await page.evaluate(() => localStorage.getItem("hearth theme")), null);
});

pageTest("the keyboard reaches the tabs, the message box and the message buttons", { prepare }, async ({ page }) => {
  const focused = () => page.evaluate(() => document.activeElement.getAttribute("aria-label") ?? document.activeElement.id ?? document.activeElement.textContent);
  await page.waitForFunction(() => document.activeElement.id === "message");
  await page.keyboard.type("Hello");
  await page.keyboard.press("Shift+Enter");
  await page.keyboard.type("there");
  await page.keyboard.press("Enter");
  await page.locator(".message.assistant[aria-busy=false]").waitFor();
  assert.equal(await page.locator(".typed").innerText(), "Hello\nthere");
  // Back from the message box: the last answer's buttons.
  await page.keyboard.press("Shift+Tab");
  assert.equal(await focused(), "Delete from here on");
  for (let step = 0; step < 3; step += 1) await page.keyboard.press("Shift+Tab");
  assert.equal(await focused(), "Regenerate");

  await page.getByRole("tab", { name: "Chat" }).focus();
  await page.keyboard.press("ArrowRight");
  assert.equal(await focused(), "tab-complete");
  assert.equal(await page.locator("#complete").isVisible(), true);
  await page.keyboard.press("End");
  assert.equal(await focused(), "tab-server");
  await page.keyboard.press("ArrowRight");
  assert.equal(await focused(), "tab-chat");
  assert.deepEqual(await page.getByRole("tab").evaluateAll((tabs) => tabs.filter((tab) => tab.tabIndex === 0).map((tab) => tab.id)), ["tab-chat"]);
});

pageTest("the API reference is accessible", { at: "docs", prepare }, async ({ page, shoot }) => {
  await page.locator("details.operation").first().waitFor();
  await assertAccessible(page, "docs");
  await shoot("docs");
});

pageTest("the API reference is accessible and fits the width (phone-dark)", { at: "docs", width: 390, height: 844, isPhone: true, colorScheme: "dark" }, async ({ page, shoot }) => {
  await page.locator("details.operation").first().waitFor();
  await assertAccessible(page, "docs");
  await assertFits(page, "docs");
  await shoot("phone-dark-docs");
});
