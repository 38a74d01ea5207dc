// The playground: sends the form to the completions API and shows the text as it arrives.
// It uses only the public API. URLs are relative, so that it also works behind a path prefix.

const byId = (id) => document.getElementById(id);
const form = byId("request");

/** The served model's name; undefined, and not sent, until the server has reported it. */
let model;
/** Aborts the running request; null if there is none. */
let running = null;

/** The session storage entry with the API key; the browser keeps it until the tab is closed. */
const KEY = "hearth-api-key";

/** Yields the data of each server-sent event. Chunks may end anywhere: within a character, a line end or an event. */
async function* eventData(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let data = [];
  for (;;) {
    // A "\r" at the end of a chunk may be half of "\r\n", so it waits for the next chunk; the last one for this "\n".
    const { value = "\n", done } = await reader.read();
    const lines = (rest + value).split(/\r\n|\n|\r(?!$)/);
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data:")) {
        data.push(line.slice(line[5] === " " ? 6 : 5));
      } else if (line === "" && data.length > 0) {
        yield data.join("\n");
        data = [];
      }
    }
    if (done) return;
  }
}

/** The error message of a response: from the API's JSON envelope, or the plain text of a proxy's response. */
function errorMessage(status, text) {
  let message;
  try {
    message = JSON.parse(text).error.message;
  } catch {
    // Not the API's envelope.
  }
  return message ?? `HTTP status ${status}: ${text.trim() || "no message"}`;
}

async function fetchOk(url, options = {}) {
  const key = sessionStorage.getItem(KEY);
  const headers = key === null ? options.headers : { ...options.headers, Authorization: `Bearer ${key}` };
  const response = await fetch(url, { ...options, headers });
  if (response.status === 401) askForKey();
  if (!response.ok) throw new Error(errorMessage(response.status, await response.text()));
  return response;
}

function askForKey() {
  byId("key").hidden = false;
  byId("key-input").select();
}

async function* completionChunks(body, signal) {
  const headers = { "Content-Type": "application/json" };
  const response = await fetchOk("v1/completions", { method: "POST", headers, body: JSON.stringify(body), signal });
  let complete = false;
  for await (const data of eventData(response.body)) {
    if (data === "[DONE]") {
      complete = true;
      continue;
    }
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Error(chunk.error.message);
    yield chunk;
  }
  if (!complete) throw new Error("the connection was closed before the completion was finished");
}

function stopStrings(text) {
  const escapes = { n: "\n", t: "\t", "\\": "\\" };
  const unescape = (line) => line.replace(/\\([nt\\])/g, (_, letter) => escapes[letter]);
  return text.split("\n").filter((line) => line !== "").map(unescape);
}

function requestBody() {
  const body = { model, prompt: form.elements.prompt.value, stream: true, stream_options: { include_usage: true } };
  for (const input of form.querySelectorAll("input[type=number]")) {
    if (input.value !== "") body[input.name] = input.valueAsNumber;
  }
  const stop = stopStrings(form.elements.stop.value);
  if (stop.length > 0) body.stop = stop;
  return body;
}

function showError(error) {
  // fetch() reports network failures as a TypeError whose message does not mention the server.
  byId("error").textContent = error instanceof TypeError ? `cannot reach the server: ${error.message}` : error.message;
  byId("error").hidden = false;
}

function showRunning(isRunning) {
  // The pressed button is about to be disabled: move the keyboard focus to the other one.
  const [enabled, disabled] = isRunning ? [byId("stop-button"), byId("start-button")] : [byId("start-button"), byId("stop-button")];
  const hadFocus = document.activeElement === disabled;
  enabled.disabled = false;
  disabled.disabled = true;
  if (hadFocus) enabled.focus();
  // Screen readers then read the text once it is complete, not word by word.
  byId("completion").setAttribute("aria-busy", isRunning);
}

const seconds = (ms) => `${(ms / 1000).toFixed(2)} s`;

/** The line below a finished completion. Times are in ms since the request was sent. */
function summary({ usage, finishReason, first, last, end }) {
  const parts = [`finish reason: ${finishReason ?? "unknown"}`];
  if (usage) {
    parts.push(`${usage.prompt_tokens} prompt tokens`, `${usage.completion_tokens} new tokens in ${seconds(end)}`);
    // The first token includes the prompt's time, so the rate counts only the tokens after it.
    if (usage.completion_tokens > 1 && last > first) {
      parts.push(`first token after ${seconds(first)}`, `then ${((usage.completion_tokens - 1) / (last - first) * 1000).toFixed(1)} tok/s`);
    }
  }
  return parts.join(" · ");
}

async function complete() {
  const body = requestBody();
  const completion = document.createTextNode("");
  byId("given").textContent = body.prompt;
  byId("completion").replaceChildren(completion);
  byId("result").hidden = false;
  byId("error").hidden = true;
  byId("status").textContent = "Generating…";
  const { signal } = (running = new AbortController());
  showRunning(true);

  const start = performance.now();
  const elapsed = () => performance.now() - start;
  const run = {};
  try {
    for await (const chunk of completionChunks(body, signal)) {
      run.usage = chunk.usage ?? run.usage;
      const choice = chunk.choices?.[0];
      run.finishReason = choice?.finish_reason ?? run.finishReason;
      if (choice?.text) {
        completion.appendData(choice.text);
        run.last = elapsed();
        run.first ??= run.last;
      }
    }
    byId("status").textContent = summary({ ...run, end: elapsed() });
  } catch (error) {
    byId("status").textContent = signal.aborted ? `Stopped after ${seconds(elapsed())}.` : "";
    if (!signal.aborted) showError(error);
  } finally {
    running = null;
    showRunning(false);
  }
}

async function showModel() {
  try {
    model = (await (await fetchOk("v1/models")).json()).data[0].id;
    byId("model").textContent = model;
  } catch (error) {
    byId("model").textContent = "unknown";
    showError(error);
  }
}

byId("key").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, byId("key-input").value);
  byId("key").hidden = true;
  byId("error").hidden = true;
  showModel();
});
form.addEventListener("submit", (event) => {
  event.preventDefault();
  if (!running) complete();
});
byId("stop-button").addEventListener("click", () => running?.abort());
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    form.requestSubmit();
  } else if (event.key === "Escape") {
    running?.abort();
  }
});
showModel();
