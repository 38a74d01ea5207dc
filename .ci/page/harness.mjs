// Shared by the page tests: a browser, the stand-in server, and checks that run at the end of every test.
import assert from "node:assert/strict";
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { launch } from "../browser.mjs";
import { StandIn } from "./stand-in.mjs";

const TIMEOUT_MS = 60_000;
const WAIT_MS = 10_000;
/** A folder for screenshots, if wanted. */
const shots = process.env.PAGE_SCREENSHOTS;

let browser;
before(async () => {
  if (shots) mkdirSync(shots, { recursive: true });
  browser = await launch();
});
after(() => browser?.close());

/**
 * A test of the page against a stand-in server of its own: `run({ page, server, seen, shoot })`. `at` is the part of the address
 * after the server's, `prepare(server)` runs before the page is opened. Afterwards the console must have no errors, except those that
 * `seen.expectErrors(pattern)` names, and every request must have gone to the server.
 */
export function pageTest(name, options, run) {
  const { at = "", colorScheme = "light", width = 1280, height = 860, isPhone = false, prepare } = options;
  test(name, { timeout: TIMEOUT_MS }, async () => {
    const server = await new StandIn().start();
    prepare?.(server);
    const context = await browser.newContext({
      colorScheme, viewport: { width, height }, isMobile: isPhone, hasTouch: isPhone, reducedMotion: "reduce",
      permissions: ["clipboard-read", "clipboard-write"], acceptDownloads: true,
    });
    try {
      const page = await context.newPage();
      page.setDefaultTimeout(WAIT_MS);
      const seen = watch(page);
      await page.goto(`${server.origin}/${at}`);
      const shoot = async (title) => shots && page.screenshot({ path: join(shots, `${title}.png`) });
      await run({ page, server, seen, shoot, context });
      assert.deepEqual(seen.errors.filter((text) => !seen.expected.some((pattern) => pattern.test(text))), [], "the console has errors");
      const elsewhere = seen.requests.filter((url) => !url.startsWith(`${server.origin}/`) && !url.startsWith("blob:"));
      assert.deepEqual(elsewhere, [], "the page asked another host");
    } finally {
      await context.close();
      server.stop();
    }
  });
}

function watch(page) {
  const seen = { errors: [], requests: [], expected: [], expectErrors: (pattern) => seen.expected.push(pattern) };
  page.on("console", (message) => { if (message.type() === "error") seen.errors.push(message.text()); });
  page.on("pageerror", (error) => seen.errors.push(error.stack ?? String(error)));
  page.on("request", (request) => seen.requests.push(request.url()));
  return seen;
}

/** Chromium itself reports every failed request; the page has nothing to add. */
export const FAILED_REQUEST = /^Failed to load resource/;

/** Sends a chat message. */
export async function say(page, text) {
  await page.getByLabel("Message", { exact: true }).fill(text);
  await page.getByRole("button", { name: "Send", exact: true }).click();
}

/** Waits until no answer is being generated. */
export const finished = (page) => page.waitForFunction(() => document.querySelector("#send").getAttribute("aria-label") === "Send"
  && !document.querySelector("#thread [aria-busy=true]"));

/** Says something and waits for the whole answer. */
export async function ask(page, text) {
  await say(page, text);
  await page.locator(".message.assistant").last().waitFor();
  await finished(page);
}

/** The texts of the messages that are shown. */
export const messages = (page) => page.locator(".message .content").allInnerTexts().then((texts) => texts.map((text) => text.trim()));
