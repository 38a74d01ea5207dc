// Headless Chromium, as the tests of pages use it (CHROMIUM=path, else /usr/bin/chromium).
import { chromium } from "playwright-core";

/** Starts it with more arguments. */
export const launch = (...more) => chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  // Chromium's own calls home would be refused where CI runs, many at a time.
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", ...more],
});
