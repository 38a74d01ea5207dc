// The tab Complete: sends the prompt to the completions API and shows the text as it arrives.
import { address, streamCompletion } from "./api.js";
import { byId, switchButtons } from "./dom.js";
import { hasKey } from "./key.js";
import { phrases, seconds, Stopwatch } from "./measure.js";
import { isEncoderDecoder, modelId, models } from "./models.js";
import { ParameterForm } from "./parameter-form.js";
import { keep, setting } from "./settings.js";
import { snippets } from "./snippets.js";

/** Aborts the running request; null if there is none. */
let running = null;
let form;
let showCode;

const prompt = byId("prompt");

function showError(message) {
  byId("complete-error").textContent = message;
  byId("complete-error").hidden = message === "";
}

function showRunning(isRunning) {
  const buttons = [byId("complete-start"), byId("complete-stop")];
  switchButtons(...(isRunning ? buttons : buttons.reverse()));
  for (const id of ["continue", "inspect-completion"]) byId(id).hidden = isRunning;
  // Screen readers then read the text once it is complete, not word by word.
  byId("completion").setAttribute("aria-busy", isRunning);
}

const requestBody = () => ({ model: modelId(), prompt: prompt.value, ...form.values() });

/** Shows the request as code, if the form can be read. */
function changed() {
  try {
    const body = requestBody();
    showCode({ url: address("completions"), body, hasKey: hasKey() });
    const { model, prompt: _, ...values } = body;
    keep("complete", values);
  } catch {
    // A field cannot be read: the error is shown when the request is sent.
  }
}

async function complete() {
  let body;
  try {
    body = requestBody();
  } catch (error) {
    showError(error.message);
    return;
  }
  const completion = document.createTextNode("");
  byId("given").textContent = body.prompt;
  byId("completion").replaceChildren(completion);
  byId("result").hidden = false;
  showError("");
  byId("status").textContent = "Generating…";
  const { signal } = (running = new AbortController());
  showRunning(true);

  const watch = new Stopwatch();
  let finishReason;
  try {
    for await (const chunk of streamCompletion(body, signal)) {
      const choice = chunk.choices?.[0];
      finishReason = choice?.finish_reason ?? finishReason;
      watch.note(chunk, Boolean(choice?.text));
      if (choice?.text) completion.appendData(choice.text);
    }
    byId("status").textContent = [`finish reason: ${finishReason ?? "unknown"}`, ...phrases(watch.stop())].join(" · ");
  } catch (error) {
    byId("status").textContent = signal.aborted ? `Stopped after ${seconds(watch.stop().elapsed)}.` : "";
    if (!signal.aborted) showError(error.message);
  } finally {
    running = null;
    showRunning(false);
  }
}

const wholeText = () => byId("given").textContent + byId("completion").textContent;

export function start(frame) {
  form = new ParameterForm({ changed });
  byId("complete-parameters").append(...form.elements());
  form.show(setting("complete", { max_tokens: 128, temperature: 0.8 }));
  showCode = snippets(byId("snippets"));
  prompt.addEventListener("input", changed);
  models.addEventListener("change", () => {
    changed();
    form.showDefaults();
  });
  if (modelId() !== undefined) form.showDefaults();
  changed();

  byId("complete-form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (!running) complete();
  });
  byId("complete-stop").addEventListener("click", () => running?.abort());
  byId("complete-start").disabled = false;
  byId("continue").addEventListener("click", () => {
    prompt.value = wholeText();
    changed();
    complete();
  });
  byId("inspect-completion").addEventListener("click", () => frame.open("inspect", isEncoderDecoder() ? { text: byId("given").textContent, target: byId("completion").textContent } : { text: wholeText() }));
  byId("complete").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      byId("complete-form").requestSubmit();
    } else if (event.key === "Escape") {
      running?.abort();
    }
  });
}
