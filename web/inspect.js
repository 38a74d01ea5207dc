// The tab Inspect: what the model expected at each token of a text, and what its layers attend to.
import { completion, inspection } from "./api.js";
import { AttentionView } from "./attention.js";
import { byId, element, fitHeight } from "./dom.js";
import { TokenView } from "./inspect-tokens.js";
import { LogitLens } from "./logit-lens.js";
import { count, plural } from "./measure.js";
import { isEncoderDecoder, modelId, models } from "./models.js";
import { tabs } from "./tabs.js";
import { meanLogprob } from "./text-statistics.js";

const TOP = 10;

let ui;
/** What is inspected: `{ input }`, `{ input, target }` or `{ messages, add_generation_prompt }`, and what a person calls it. */
let source = null;
/** The inspected sources before this one: continuing from an alternative adds one. */
const before = [];
let result = null;
let controller = null;

const request = (more, { fields } = source) => ({ model: modelId(), ...fields, ...more });

/** The message of an error; explains why if the server does not have the endpoint. */
function explained(error) {
  if (error.status === 405 || (error.status === 404 && !/model/i.test(error.message))) {
    return "This server does not offer inspection. It needs a version of Hearth with `POST /v1/inspect`, started without `--no-inspect`.\n"
      + `The server said: ${error.message}`;
  }
  return error.message;
}

function showError(text) {
  ui.error.textContent = text;
  ui.error.hidden = text === "";
}

/** Aborts the request before, and returns the signal of the next one. An aborted request leaves the page to its successor. */
function newSignal() {
  controller?.abort();
  controller = new AbortController();
  return controller.signal;
}

/** Inspects `source`, and shows it with the token at `selected` chosen. Returns false if that failed. */
async function inspect(selected) {
  const signal = newSignal();
  showError("");
  ui.status.textContent = "Inspecting…";
  ui.start.disabled = true;
  try {
    if (isEncoderDecoder() && source.fields.input !== undefined && source.fields.target === undefined) {
      const target = await written({ prompt: source.fields.input }, signal);
      if (signal.aborted) return true;
      source = { fields: { ...source.fields, target: target.length > 0 ? target : "" }, name: "The target is what the model wrote" };
    }
    const found = await inspection(request({ top_logprobs: TOP }), signal);
    if (signal.aborted) return true;
    result = found;
    showResult(selected ?? result.tokens.length - 1);
    return true;
  } catch (error) {
    if (signal.aborted) return true;
    ui.status.textContent = "";
    showError(explained(error));
    return false;
  } finally {
    if (!signal.aborted) ui.start.disabled = false;
  }
}

/** The tokens with which the model continues. */
async function written(fields, signal) {
  const answer = await completion({
    model: modelId(), return_token_ids: true, max_tokens: ui.length.valueAsNumber || 24, temperature: Number(ui.temperature.value) || 0, ...fields,
  }, signal);
  return answer.choices[0].token_ids ?? [];
}

function showResult(selected) {
  const logprobs = result.tokens.map(({ logprob }) => logprob).filter((each) => each !== null);
  const mean = meanLogprob(logprobs);
  const parts = [plural(result.tokens.length, "token"), plural(result.layer_count, "layer"), `${plural(result.head_count, "head")} each`];
  if (mean !== null) parts.push(`mean log-probability ${mean.toFixed(2).replace("-", "−")}`, `perplexity ${count(Number(Math.exp(-mean).toPrecision(3)))}`);
  if (result.source) parts.push(`source: ${plural(result.source.tokens.length, "token")}, ${plural(result.source.layer_count, "layer")}`);
  ui.status.textContent = parts.join(" · ");
  ui.result.hidden = false;
  ui.back.hidden = before.length === 0;
  ui.source.textContent = source.name;
  // While another text is inspected, the views still belong to this one.
  const shown = source;
  ui.attention.reset(result, (attention) => inspection(request({ top_logprobs: 0, attention }, shown)));
  ui.lens.reset(result, () => inspection(request({ top_logprobs: 0, logit_lens: { top: 3 } }, shown)));
  ui.tokens.show(result, selected);
}

/** Continues from another token in the place of the one at `at`. */
async function branch(at, token) {
  const ids = [...result.tokens.slice(0, at).map(({ id }) => id), token.id];
  const signal = newSignal();
  ui.status.textContent = "Continuing…";
  try {
    const { input, target } = source.fields;
    const more = await written(target === undefined ? { prompt: ids } : { prompt: input, decoder_prompt: ids }, signal);
    if (signal.aborted) return;
    const text = JSON.stringify(token.token);
    before.push({ source, selected: at });
    const continued = [...ids, ...more];
    source = { fields: target === undefined ? { input: continued } : { input, target: continued }, name: `Continued from ${text} at token ${at + 1}` };
    if (!(await inspect(at))) source = before.pop().source;
  } catch (error) {
    if (signal.aborted) return;
    showResult(at);
    showError(error.message);
    ui.start.disabled = false;
  }
}

function back() {
  const last = before.pop();
  source = last.source;
  inspect(last.selected);
}

/** The fields' text, with the target if there is one. */
function useText() {
  before.length = 0;
  const target = isEncoderDecoder() && ui.target.value !== "" ? { target: ui.target.value } : {};
  source = { fields: { input: ui.text.value, ...target }, name: "" };
}

/** Shows the fields that the model has. */
function showFields() {
  const isPair = isEncoderDecoder();
  ui.targetField.hidden = !isPair;
  ui.textLabel.textContent = isPair ? "Source" : "Text";
}

function build() {
  const number = (attributes) => element("input", { type: "number", step: "any", ...attributes });
  ui = {
    text: element("textarea", { id: "inspect-text", rows: 3, spellcheck: "false" }),
    textLabel: element("label", { for: "inspect-text" }, "Text"),
    target: element("textarea", { id: "inspect-target", rows: 2, spellcheck: "false", "aria-describedby": "inspect-target-help" }),
    start: element("button", { type: "submit", class: "button primary" }, "Inspect"),
    back: element("button", { type: "button", class: "quiet-button", onclick: back, hidden: true }, "Back to the text before"),
    source: element("span", { class: "quiet" }),
    error: element("p", { class: "error", role: "alert", hidden: true }),
    status: element("p", { class: "quiet", role: "status" }),
    length: number({ id: "inspect-length", value: 24, min: 1, max: 256 }),
    temperature: number({ id: "inspect-temperature", value: 0, min: 0, max: 2 }),
    result: element("div", { hidden: true }),
  };
  ui.attention = new AttentionView((at) => ui.tokens.select(at));
  ui.lens = new LogitLens((at) => ui.tokens.select(at));
  ui.tokens = new TokenView({ branch, selected(at) {
    ui.attention.select(at);
    ui.lens.select(at);
  } });
  ui.text.value = "The fox lost her lamp in the forest. The fox looked for her lamp";
  ui.targetField = element("div", { hidden: true }, element("label", { for: "inspect-target" }, "Target"), ui.target,
    element("p", { class: "help", id: "inspect-target-help" }, "What the model may have written about the source. If it is empty, the model writes it."));
  for (const area of [ui.text, ui.target]) area.addEventListener("input", () => fitHeight(area));
  const form = element("form", { class: "inspect-form", onsubmit: (event) => {
    event.preventDefault();
    useText();
    inspect();
  } },
  element("p", { class: "intro" }, "See how likely the model found each token, what else it considered, and where its layers look."),
  ui.textLabel, ui.text, ui.targetField,
  element("p", { class: "actions" }, ui.start, ui.back, ui.source), ui.error, ui.status);

  const list = element("div", { class: "small-tabs", role: "tablist", "aria-label": "Views of the layers" });
  const views = [["inspect-attention", "Attention", ui.attention.root], ["inspect-lens", "Logit lens", ui.lens.root]];
  const panels = views.map(([id, name, root]) => {
    list.append(element("button", { type: "button", role: "tab", id: `tab-${id}`, "aria-controls": id }, name));
    return element("div", { id, role: "tabpanel", "aria-labelledby": `tab-${id}` }, root);
  });
  const continuing = element("div", { class: "continuing" },
    element("label", { for: "inspect-length" }, "New tokens"), ui.length, element("label", { for: "inspect-temperature" }, "Temperature"), ui.temperature);
  ui.tokens.details.append(continuing);
  ui.tokens.root.append(element("div", { class: "layer-views" }, list, ...panels));
  ui.result.append(ui.tokens.root);
  byId("inspect").append(form, ui.result);
  tabs(list, (name) => {
    ui.attention.setShown(name === "inspect-attention");
    ui.lens.setShown(name === "inspect-lens");
  })("inspect-attention");
}

export function start() {
  build();
  showFields();
  models.addEventListener("change", showFields);
  byId("inspect").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      useText();
      inspect();
    }
  });
  return {
    /** A text or a conversation from another tab. */
    receive({ text, target = "", messages }) {
      if (text !== undefined) {
        ui.text.value = text;
        ui.target.value = target;
        useText();
      } else {
        before.length = 0;
        source = { fields: { messages, add_generation_prompt: false }, name: `A conversation of ${plural(messages.length, "message")}` };
      }
      inspect();
    },
  };
}
