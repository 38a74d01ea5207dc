// The tab Compare: one prompt under several decoding strategies, or models, side by side.
import { streamChat, streamCompletion } from "./api.js";
import { byId, element, fitHeight, iconButton, switchButtons } from "./dom.js";
import { Stopwatch } from "./measure.js";
import { canChat, modelId, modelList, models } from "./models.js";
import { ParameterForm } from "./parameter-form.js";
import { PARAMETERS } from "./parameters.js";
import { keep, setting } from "./settings.js";
import { distinct, meanLogprob, repetition } from "./text-statistics.js";

const START = [
  { name: "Greedy", values: { temperature: 0 } },
  { name: "Nucleus", values: { temperature: 1, top_p: 0.9 } },
  { name: "Min p", values: { temperature: 1.2, min_p: 0.1 } },
  { name: "Beam search", values: { use_beam_search: true, best_of: 4 } },
];
const MAX = 8;
/** The first prompt: of a chat message (true), and of a text to continue (false). */
const PROMPTS = { true: "Tell me a story about a brave fox who lost her lamp.", false: "Once upon a time" };
/** The parameters that all strategies share: one form for all of them. */
const SHARED = ["max_tokens", "seed"];

/** What is measured of each text. `better` is the direction of a better value, if there is one. */
const MEASURES = [
  { label: "Mean log-probability", help: "How likely the model itself finds the text, per token, in nats. Closer to 0 is more likely.", of: (run) => meanLogprob(run.logprobs), digits: 3, better: Math.max },
  { label: "Distinct-1", help: "Share of tokens that are different.", of: (run) => distinct(run.tokens, 1), digits: 3, better: Math.max },
  { label: "Distinct-2", help: "Share of pairs of tokens that are different.", of: (run) => distinct(run.tokens, 2), digits: 3, better: Math.max },
  { label: "Repetition", help: "Share of sequences of four tokens that occurred before.", of: (run) => repetition(run.tokens), digits: 3, better: Math.min },
  { label: "Tokens", help: "Length of the text.", of: (run) => run.stats?.tokens ?? null, digits: 0 },
  { label: "Tokens per second", help: "Speed of this answer, while the others ran beside it.", of: (run) => run.stats?.rate ?? null, digits: 1 },
];

const cards = [];
let controller = null;
let ui;

/** The values of a strategy in short. */
const summary = (values) => Object.entries(values).map(([name, value]) => `${name} ${JSON.stringify(value)}`).join(" · ") || "the model's defaults";

/** One strategy: its name, model and values, and what it made. */
class Card {
  run = null;
  #wanted;
  #name;
  #model = element("select", { "aria-label": "Model" });
  #form;
  #summary = element("p", { class: "quiet strategy-summary" });
  #text = element("div", { class: "compare-text", tabindex: "0", role: "group", "aria-live": "off" });
  #error = element("p", { class: "error", role: "alert", hidden: true });
  #measures = element("dl", { class: "measures" });

  constructor({ name, values, model }) {
    this.#name = element("input", { type: "text", class: "strategy-name", "aria-label": "Name of the strategy", value: name, spellcheck: "false", oninput: changed });
    this.#form = new ParameterForm({ names: PARAMETERS.map((each) => each.name).filter((each) => !SHARED.includes(each)), changed: () => this.#changed() });
    this.#form.show(values);
    this.#model.addEventListener("input", changed);
    this.root = element("article", { class: "strategy", "aria-label": name },
      element("header", {}, this.#name, iconButton("trash", "Remove strategy", () => this.#remove())),
      this.#model, this.#summary,
      element("details", { class: "strategy-settings" }, element("summary", {}, "Settings"), ...this.#form.elements()),
      this.#text, this.#error, this.#measures);
    this.#wanted = model;
    this.showModels();
    this.#showSummary();
  }

  get values() {
    return this.#form.values();
  }

  get stored() {
    return { name: this.#name.value, values: this.values, model: this.#model.value || undefined };
  }

  showModels() {
    const list = modelList();
    const shown = this.#model.value || this.#wanted;
    this.#model.replaceChildren(...list.map(({ id }) => element("option", { value: id }, id)));
    if (list.length > 0) this.#model.value = list.some(({ id }) => id === shown) ? shown : modelId();
    this.#model.hidden = list.length < 2;
  }

  #showSummary() {
    try {
      this.#summary.textContent = summary(this.values);
    } catch (error) {
      this.#summary.textContent = error.message;
    }
  }

  #changed() {
    this.#showSummary();
    changed();
  }

  #remove() {
    cards.splice(cards.indexOf(this), 1);
    this.root.remove();
    changed();
    ui.add.disabled = false;
    ui.add.focus();
  }

  /** Generates under this strategy. */
  async generate({ text, isChat, shared }, signal) {
    this.root.setAttribute("aria-label", this.#name.value);
    this.#text.setAttribute("aria-label", `Text of ${this.#name.value}`);
    this.#error.hidden = true;
    this.#measures.replaceChildren();
    const node = document.createTextNode("");
    this.#text.replaceChildren(node);
    this.root.setAttribute("aria-busy", "true");
    const run = (this.run = { tokens: [], logprobs: [] });
    const watch = new Stopwatch();
    try {
      const body = { model: this.#model.value || modelId(), ...shared, ...this.values };
      const chunks = isChat
        ? streamChat({ ...body, messages: [{ role: "user", content: text }], logprobs: true }, signal)
        : streamCompletion({ ...body, prompt: text, logprobs: 0 }, signal);
      for await (const chunk of chunks) {
        const choice = chunk.choices?.[0];
        const part = isChat ? choice?.delta?.content : choice?.text;
        if (part) node.appendData(part);
        watch.note(chunk, Boolean(part));
        addLogprobs(run, choice?.logprobs);
      }
    } catch (error) {
      if (!signal.aborted) this.#error.textContent = error.message;
      this.#error.hidden = signal.aborted;
    }
    run.stats = watch.stop();
    this.root.setAttribute("aria-busy", "false");
    showMeasures();
  }

  /** Shows the measures; `best` has the best value of each among all strategies. */
  showMeasures(values, best) {
    this.#measures.replaceChildren(...MEASURES.flatMap(({ label, digits }, at) => {
      const value = values[at];
      const isBest = value !== null && value === best[at];
      const written = value === null ? "–" : value.toFixed(digits).replace("-", "−");
      return [element("dt", {}, label), element("dd", { class: isBest && "is-best" }, written, isBest && element("span", { class: "visually-hidden" }, " (best)"))];
    }));
  }
}

/** Adds the tokens of a chunk: the two endpoints report them differently. */
function addLogprobs(run, logprobs) {
  for (const { token, logprob } of logprobs?.content ?? []) {
    run.tokens.push(token);
    run.logprobs.push(logprob);
  }
  run.tokens.push(...(logprobs?.tokens ?? []));
  run.logprobs.push(...(logprobs?.token_logprobs ?? []).filter((each) => each !== null));
}

/** Shows the measures of all finished strategies. A best value is marked unless all are the same. */
function showMeasures() {
  const finished = cards.filter((card) => card.run?.stats);
  const values = finished.map((card) => MEASURES.map(({ of }) => of(card.run)));
  const best = MEASURES.map(({ better }, at) => {
    const given = values.map((each) => each[at]).filter((each) => each !== null);
    return better && new Set(given).size > 1 ? better(...given) : undefined;
  });
  finished.forEach((card, at) => card.showMeasures(values[at], best));
}

function changed() {
  try {
    keep("compare", { strategies: cards.map((card) => card.stored), shared: ui.shared.values(), isChat: ui.isChat.checked, isChatChosen: ui.isChatChosen });
  } catch {
    // A field cannot be read: the error is shown when the request is sent.
  }
}

function add(strategy) {
  const card = new Card(strategy);
  cards.push(card);
  ui.cards.append(card.root);
  ui.add.disabled = cards.length >= MAX;
  return card;
}

async function compare() {
  ui.error.hidden = true;
  let request;
  try {
    request = { text: ui.prompt.value, isChat: ui.isChat.checked, shared: ui.shared.values() };
    cards.forEach((card) => card.values);
  } catch (error) {
    ui.error.textContent = error.message;
    ui.error.hidden = false;
    return;
  }
  const { signal } = (controller = new AbortController());
  switchButtons(ui.start, ui.stop);
  ui.status.textContent = "Generating…";
  await Promise.all(cards.map((card) => card.generate(request, signal)));
  controller = null;
  ui.status.textContent = signal.aborted ? "Stopped." : "All strategies are finished.";
  switchButtons(ui.stop, ui.start);
}

function build() {
  const stored = setting("compare", {});
  const shared = new ParameterForm({ names: SHARED, changed });
  shared.show(stored.shared ?? { max_tokens: 60, seed: 1 });
  ui = {
    shared,
    isChatChosen: stored.isChatChosen ?? false,
    prompt: element("textarea", { id: "compare-prompt", rows: 3, spellcheck: "false" }),
    isChat: element("input", { type: "checkbox", id: "compare-chat" }),
    start: element("button", { type: "submit", class: "button primary" }, "Compare"),
    stop: element("button", { type: "button", class: "button", disabled: true, onclick: () => controller?.abort() }, "Stop"),
    add: element("button", { type: "button", class: "button", onclick: () => { add({ name: "New strategy", values: {} }); changed(); } }, "Add strategy"),
    cards: element("div", { class: "strategies" }),
    error: element("p", { class: "error", role: "alert", hidden: true }),
    status: element("p", { class: "quiet", role: "status" }),
  };
  ui.isChat.checked = stored.isChat ?? false;
  ui.prompt.value = PROMPTS[ui.isChat.checked];
  ui.isChat.addEventListener("input", () => {
    ui.isChatChosen = true;
    showPrompt();
    changed();
  });
  ui.prompt.addEventListener("input", () => fitHeight(ui.prompt));
  const form = element("form", { class: "compare-form", onsubmit: (event) => {
    event.preventDefault();
    if (controller === null) compare();
  } },
  element("p", { class: "intro" }, "One prompt under several decoding strategies, side by side."),
  element("label", { for: "compare-prompt" }, "Prompt"), ui.prompt,
  element("div", { class: "compare-options" }, ...shared.elements(), element("label", { class: "check" }, ui.isChat, " Send as a chat message")),
  element("p", { class: "actions" }, ui.start, ui.stop, ui.add), ui.error, ui.status);
  const meanings = element("details", { class: "meanings" }, element("summary", {}, "What the measures mean"),
    element("dl", {}, MEASURES.flatMap(({ label, help }) => [element("dt", {}, label), element("dd", {}, help)])));
  byId("compare").append(form, ui.cards, meanings);
  for (const strategy of stored.strategies?.length ? stored.strategies : START) add(strategy);
}

/** Shows the first prompt of the other kind, unless a person has entered one. */
function showPrompt() {
  if (ui.prompt.value === PROMPTS[!ui.isChat.checked]) ui.prompt.value = PROMPTS[ui.isChat.checked];
}

function showModels() {
  cards.forEach((card) => card.showModels());
  ui.isChat.disabled = !canChat();
  if (!canChat()) ui.isChat.checked = false;
  else if (!ui.isChatChosen && modelId() !== undefined) ui.isChat.checked = true;
  showPrompt();
}

export function start() {
  build();
  showModels();
  models.addEventListener("change", showModels);
  byId("compare").addEventListener("keydown", (event) => {
    if (event.key === "Escape") controller?.abort();
    else if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && controller === null) compare();
  });
}
