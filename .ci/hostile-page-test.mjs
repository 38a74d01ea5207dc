// Opens hostile pages of other origins in headless Chromium beside a running server without API keys: none may use it.
// Usage: node .ci/hostile-page-test.mjs http://127.0.0.1:PORT        Needs `npm ci --prefix .ci`, Chromium, and 127.0.0.2 (Linux has it).
import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:http";
import { connect, createServer as createTcpServer } from "node:net";
import { after, before, test } from "node:test";
import { launch } from "./browser.mjs";

const url = process.argv[2] && new URL(process.argv[2]).origin;
if (!url) {
  console.error("usage: node .ci/hostile-page-test.mjs http://127.0.0.1:PORT");
  process.exit(2);
}
const { hostname: address, port } = new URL(url);
const timeout = 60_000;
const completions = `${url}/v1/completions`;
const models = `${url}/v1/models`;
const BODY = JSON.stringify({ prompt: "Once upon a time", max_tokens: 1 });

/** A server of pages that do nothing by themselves, only what a test runs on them. It redirects `/elsewhere` to the server. */
const hostile = createServer((request, response) => {
  if (request.url === "/elsewhere") return response.writeHead(307, { location: completions }).end();
  return response.setHeader("content-type", "text/html").end("<!doctype html><title>hostile</title>");
});
const listen = (server, at) => once(server.listen(...at), "listening");
let browser;
let elsewhere;
before(async () => {
  await listen(hostile, [0, "127.0.0.1"]);
  elsewhere = hostile.address().port;
  // As an attacker's name server does, map his host names to this machine; `rebound.example` moves here during its test.
  browser = await launch("--host-resolver-rules=MAP rebound.example 127.0.0.2, MAP *.example 127.0.0.1");
});
after(async () => {
  await browser?.close();
  hostile.close();
});

/** Tokens that the server has generated for anybody. */
async function generated() {
  const metrics = await (await fetch(`${url}/metrics`)).text();
  return Number(/^vllm:generation_tokens_total(?:\{.*\})? (\S+)$/m.exec(metrics)[1]);
}

/** Runs `act(page)` on the page at `from`; what it got out of the server: text that it read, tokens that it had generated. */
async function loot(from, act) {
  const context = await browser.newContext();
  try {
    const page = await context.newPage();
    if (from) await page.goto(from);
    const start = await generated();
    const read = await act(page);
    return { read: read ?? null, generated: await generated() - start };
  } finally {
    await context.close();
  }
}

const NOTHING = { read: null, generated: 0 };
const attacker = () => `http://attacker.example:${elsewhere}/`;

/** A test that `act`, run on a hostile page at `from()`, reads nothing from the server and makes it generate nothing. */
const attack = (name, from, act) => test(`blocked: ${name}`, { timeout }, async () => {
  const { read, generated } = await loot(from?.(), act);
  assert.deepEqual({ read: read && read.slice(0, 60), generated }, NOTHING);
});

/** What a script on the page can read of the answer. Without a `type` it sends none. */
const ask = (to, { method = "GET", mode = "cors", type, body } = {}) => (page) => page.evaluate(async (asked) => {
  const body = asked.body === undefined || asked.type ? asked.body : new Blob([asked.body]);
  const headers = asked.type ? { "content-type": asked.type } : {};
  try {
    const answer = await fetch(asked.to, { method: asked.method, mode: asked.mode, headers, body });
    return answer.ok ? await answer.text() : null;
  } catch {
    return null;
  }
}, { to, method, mode, type, body });

/** Sends a form into a frame; its one field's name and value are the JSON, with the `=` between them in a string of it. */
const submitForm = (enctype) => (page) => page.evaluate(async ({ to, enctype, name, value }) => {
  const frame = Object.assign(document.createElement("iframe"), { name: "answer" });
  const form = Object.assign(document.createElement("form"), { method: "POST", action: to, enctype, target: "answer" });
  form.append(Object.assign(document.createElement("input"), { name, value }));
  document.body.append(frame, form);
  const answered = new Promise((resolve) => frame.addEventListener("load", resolve));
  form.submit();
  await answered;
}, { to: completions, enctype, name: `${BODY.slice(0, -1)},"user":"`, value: '"}' });

attack("cross-origin POST without a content type", attacker, ask(completions, { method: "POST", mode: "no-cors", body: BODY }));
attack("cross-origin POST of text/plain", attacker, ask(completions, { method: "POST", mode: "no-cors", type: "text/plain", body: BODY }));
attack("form post as text/plain", attacker, submitForm("text/plain"));
attack("URL-encoded form post", attacker, submitForm("application/x-www-form-urlencoded"));
attack("cross-origin POST of JSON with a preflight", attacker, ask(completions, { method: "POST", type: "application/json", body: BODY }));
attack("POST of JSON that the page's own server redirects to the API", attacker, ask("/elsewhere", { method: "POST", type: "application/json", body: BODY }));
attack("cross-origin GET that reads the answer", attacker, ask(models));
attack("cross-origin GET that reads the metrics", attacker, ask(`${url}/metrics`));
attack("POST without a content type from another port of the same host", () => `http://localhost:${elsewhere}/`,
  ask(completions.replace(address, "localhost"), { method: "POST", body: BODY }));

for (const [what, to, options] of [["GET", models, {}], ["POST", completions, { method: "POST", body: BODY }]]) {
  attack(`${what} from a sandboxed frame with the origin null`, attacker, async (page) => {
    await page.evaluate(async () => {
      const frame = Object.assign(document.createElement("iframe"), { srcdoc: "<!doctype html>" });
      frame.setAttribute("sandbox", "allow-scripts");
      const loaded = new Promise((resolve) => frame.addEventListener("load", resolve));
      document.body.append(frame);
      await loaded;
    });
    return ask(to, options)(page.frames()[1]);
  });
}

attack("the server's page in a frame of another origin", attacker, async (page) => {
  await page.evaluate(async (to) => {
    const frame = Object.assign(document.createElement("iframe"), { src: to });
    const loaded = new Promise((resolve) => frame.addEventListener("load", resolve));
    document.body.append(frame);
    await loaded;
  }, `${url}/`);
  // The browser's own page says why nothing is shown.
  const shown = await page.frames()[1].locator("body").innerText();
  return shown.includes("Hearth") ? shown : null;
});

attack("DNS rebinding: the server's page under a foreign host name", null, async (page) => {
  const answer = await page.goto(`http://evil.example:${port}/`);
  return answer.ok() ? page.title() : null;
});
attack("DNS rebinding: POST from a page at another port", () => `http://evil.example:${elsewhere}/`,
  ask(`http://evil.example:${port}/v1/completions`, { method: "POST", body: BODY }));

for (const [what, path, options] of [["GET", "/v1/models", {}], ["POST", "/v1/completions", { method: "POST", type: "application/json", body: BODY }]]) {
  attack(`DNS rebinding: ${what} by a page of the same origin`, null, async (page) => {
    // The attacker's own machine, which has the page at the server's port ...
    const own = createServer(hostile.listeners("request")[0]);
    await listen(own, [port, "127.0.0.2"]);
    await page.goto(`http://rebound.example:${port}/`);
    own.closeAllConnections();
    await new Promise((resolve) => own.close(resolve));
    // ... and then has moved to where the server is.
    const rebound = createTcpServer((from) => {
      const to = connect(port, address);
      from.pipe(to).pipe(from);
      for (const end of [from, to]) end.on("error", () => [from, to].forEach((each) => each.destroy()));
    });
    await listen(rebound, [port, "127.0.0.2"]);
    try {
      return await ask(path, options)(page);
    } finally {
      rebound.close();
    }
  });
}

// Control: the checks above would notice a successful attack.
for (const name of [address, "localhost"]) {
  test(`the server's own page at ${name} may use the API`, { timeout }, async () => {
    const own = `http://${name}:${port}/`;
    const posted = await loot(own, ask("/v1/completions", { method: "POST", type: "application/json", body: BODY }));
    assert.equal(posted.generated, 1);
    assert.ok(JSON.parse(posted.read).choices, posted.read);
    assert.match((await loot(own, ask("/v1/models"))).read, /"data"/);
  });
}
