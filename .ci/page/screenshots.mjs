// Takes the README's screenshots from a running server, and checks nothing.
// Usage: node .ci/page/screenshots.mjs URL OUT_DIR [MESSAGE]...        The model should have a chat template.
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { launch } from "../browser.mjs";

const [url, out, ...given] = process.argv.slice(2);
if (!out) {
  console.error("usage: node .ci/page/screenshots.mjs URL OUT_DIR [MESSAGE]...");
  process.exit(2);
}
const TIMEOUT_MS = 120_000;
const messages = given.length > 0 ? given : ["Tell me a story about a brave fox who lost her lamp.", "What did the fox lose?"];
const SETTINGS = { parameters: { temperature: 0, repetition_penalty: 1.1, max_tokens: 300 } };

mkdirSync(out, { recursive: true });
const browser = await launch();

async function shoot(name, { tab, colorScheme = "light", height = 800 }, act) {
  const page = await browser.newPage({ colorScheme, viewport: { width: 1280, height } });
  page.setDefaultTimeout(TIMEOUT_MS);
  await page.addInitScript((settings) => localStorage.setItem(`hearth ${location.pathname} chat`, JSON.stringify(settings)), SETTINGS);
  await page.goto(`${new URL(url).origin}/#${tab}`);
  await page.locator("#model:not(:text('loading'))").waitFor();
  await act(page);
  // The pointer and the focus are not part of the picture.
  await page.mouse.move(640, height - 4);
  await page.evaluate(() => document.activeElement.blur());
  await page.screenshot({ path: join(out, `${name}.png`) });
  await page.close();
}

await shoot("page-chat", { tab: "chat" }, async (page) => {
  for (const [turn, text] of messages.entries()) {
    await page.getByLabel("Message", { exact: true }).fill(text);
    await page.getByRole("button", { name: "Send", exact: true }).click();
    await page.locator(`.message.assistant[aria-busy=false] >> nth=${turn}`).waitFor();
    await page.locator("#send[aria-label=Send]").waitFor();
  }
});

await shoot("page-compare", { tab: "compare", colorScheme: "dark", height: 920 }, async (page) => {
  await page.getByRole("button", { name: "Compare", exact: true }).click();
  await page.getByText("All strategies are finished.").waitFor();
});

const answer = await fetch(`${new URL(url).origin}/v1/inspect`, { method: "POST", headers: { "content-type": "application/json" }, body: '{"input": "x"}' });
if (answer.ok) {
  await shoot("page-inspect", { tab: "inspect", height: 1000 }, async (page) => {
    await page.getByRole("button", { name: "Inspect", exact: true }).click();
    await page.locator(".head").nth(1).click();
    await page.locator(".token:not(.next-token)").last().click();
  });
} else {
  console.log("no `page-inspect.png`: the server does not offer inspection");
  await shoot("page-server", { tab: "server", height: 780 }, async (page) => {
    for (let request = 0; request < 24; request += 1) {
      const body = JSON.stringify({ prompt: "Once upon a time", max_tokens: 40 + 40 * (request % 6), temperature: 1, ignore_eos: true });
      fetch(`${new URL(url).origin}/v1/completions`, { method: "POST", headers: { "content-type": "application/json" }, body });
      await page.waitForTimeout(3000);
    }
  });
}
await browser.close();
