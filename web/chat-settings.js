// The settings of a conversation: system prompt, presets and sampling parameters, the answer's format, tools.
import { element, fitHeight } from "./dom.js";
import { ParameterForm } from "./parameter-form.js";
import { PRESETS, THINKING } from "./parameters.js";
import { keep, setting } from "./settings.js";

/** The formats of an answer, with an example of the definition for those that have one. */
const FORMATS = {
  text: { label: "Text" },
  json_object: { label: "JSON object" },
  json_schema: { label: "JSON Schema", example: '{\n  "type": "object",\n  "required": ["city"],\n  "properties": {"city": {"type": "string"}}\n}' },
  regex: { label: "Regular expression", example: "(yes|no), because [a-z ]+\\." },
  choice: { label: "One of these lines", example: "yes\nno\nperhaps" },
  grammar: { label: "Lark grammar", example: 'start: "yes" | "no"' },
};

const TOOLS_EXAMPLE = '[{"type": "function", "function": {\n  "name": "weather",\n  "description": "The weather in a city",\n  "parameters": {"type": "object", "required": ["city"],\n    "properties": {"city": {"type": "string"}}}}}]';

/** Parameters that a preset does not change. */
const KEPT = ["max_tokens", "stop", "seed", ...THINKING.parameters.map(({ name }) => name)];

/** The settings of a new conversation: those that were last in use. */
export const initialSettings = () => setting("chat", {});

function parsed(text, what) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${what} must be JSON: ${error.message}`);
  }
}

/** The part of a request's body that asks for the format. */
function formatFields({ kind = "text", text = "" } = {}) {
  switch (kind) {
    case "json_object": return { response_format: { type: "json_object" } };
    case "json_schema": return { response_format: { type: "json_schema", json_schema: { name: "answer", schema: parsed(text, "The schema") } } };
    case "regex": return { structured_outputs: { regex: text } };
    case "choice": return { structured_outputs: { choice: text.split("\n").filter((line) => line !== "") } };
    case "grammar": return { structured_outputs: { grammar: text } };
    default: return {};
  }
}

/** What these settings add to a request's body. Throws an error for people if JSON in them cannot be read. */
export function requestFields({ parameters = {}, format, tools = "", toolChoice = "auto" }) {
  const fields = { ...parameters, ...formatFields(format) };
  if (tools.trim() !== "") Object.assign(fields, { tools: parsed(tools, "Tools"), tool_choice: toolChoice });
  return fields;
}

/** Whether answers are JSON. */
export const isJson = ({ format } = {}) => ["json_object", "json_schema"].includes(format?.kind);

/** The form. `changed(settings)` is called when a person changes something that can be read. */
export class SettingsForm {
  #parameters = new ParameterForm({ changed: () => this.#changed() });
  #thinking = new ParameterForm({ groups: [THINKING], changed: () => this.#changed() });
  #changedTo;
  #system = element("textarea", { id: "system", rows: 3, placeholder: "None: the chat template decides" });
  #preset = element("select", { id: "preset" });
  #presetHelp = element("p", { class: "help", id: "preset-help" });
  #format = element("select", { id: "format" }, Object.entries(FORMATS).map(([kind, { label }]) => element("option", { value: kind }, label)));
  #formatText = element("textarea", { id: "format-text", rows: 4, class: "code-input", spellcheck: "false", "aria-label": "Definition of the format" });
  #tools = element("textarea", { id: "tools", rows: 3, class: "code-input", spellcheck: "false", placeholder: TOOLS_EXAMPLE, "aria-describedby": "tools-help" });
  #toolChoice = element("select", { id: "tool-choice" },
    [["auto", "The model decides"], ["required", "At least one call"], ["none", "No calls"]].map(([value, label]) => element("option", { value }, label)));
  #error = element("p", { class: "error", role: "alert", hidden: true });

  constructor(root, changed) {
    this.#changedTo = changed;
    const help = (id, text) => element("p", { class: "help", id }, text);
    this.#preset.append(element("option", { value: "" }, "Own values"), ...PRESETS.map(({ name }) => element("option", { value: name }, name)));
    this.#preset.setAttribute("aria-describedby", "preset-help");
    root.append(
      element("label", { for: "system" }, "System prompt"), this.#system,
      element("label", { for: "preset" }, "Preset"), this.#preset, this.#presetHelp,
      this.#error,
      element("h3", {}, "Sampling"), ...this.#parameters.elements(),
      element("details", { class: "parameter-group" }, element("summary", {}, THINKING.title), ...this.#thinking.elements()),
      element("details", { class: "parameter-group" }, element("summary", {}, "Format of the answer"),
        element("label", { for: "format" }, "Format"), this.#format, this.#formatText,
        help("format-help", "Decoding is constrained, so that the answer always follows the format.")),
      element("details", { class: "parameter-group" }, element("summary", {}, "Tools"),
        element("label", { for: "tools" }, "Functions that the model may call, as JSON"), this.#tools,
        element("label", { for: "tool-choice" }, "Tool choice"), this.#toolChoice,
        help("tools-help", "Calls are shown in the conversation, and you enter their results.")),
    );
    for (const field of [this.#system, this.#format, this.#formatText, this.#tools, this.#toolChoice]) {
      field.addEventListener("input", () => this.#changed());
    }
    this.#preset.addEventListener("input", () => this.#usePreset());
  }

  #usePreset() {
    const preset = PRESETS.find(({ name }) => name === this.#preset.value);
    if (preset === undefined) return;
    const kept = Object.entries(this.#parameters.values()).filter(([name]) => KEPT.includes(name));
    this.#parameters.show({ ...Object.fromEntries(kept), ...preset.values });
    this.#changed();
  }

  #changed() {
    try {
      const settings = this.#settings();
      requestFields(settings);
      this.#error.hidden = true;
      this.#show(settings);
      keep("chat", settings);
      this.#changedTo(settings);
    } catch (error) {
      this.#error.textContent = error.message;
      this.#error.hidden = false;
    }
  }

  #settings() {
    return {
      system: this.#system.value,
      parameters: { ...this.#parameters.values(), ...this.#thinking.values() },
      format: { kind: this.#format.value, text: this.#formatText.value },
      tools: this.#tools.value,
      toolChoice: this.#toolChoice.value,
    };
  }

  /** Shows what follows from the settings: the preset that they match, and the fields that apply to the format. */
  #show({ parameters = {} }) {
    const own = Object.fromEntries(Object.entries(parameters).filter(([name]) => !KEPT.includes(name)));
    const same = (values) => JSON.stringify(Object.entries(values).sort()) === JSON.stringify(Object.entries(own).sort());
    const preset = PRESETS.find(({ values }) => same(values));
    this.#preset.value = preset?.name ?? "";
    this.#presetHelp.textContent = preset?.help ?? "The values below.";
    const { example } = FORMATS[this.#format.value] ?? {};
    this.#formatText.hidden = example === undefined;
    this.#formatText.placeholder = example ?? "";
    for (const area of [this.#system, this.#formatText, this.#tools]) fitHeight(area);
  }

  /** Shows the settings of a conversation. */
  show(settings) {
    this.#system.value = settings.system ?? "";
    this.#parameters.show(settings.parameters ?? {});
    this.#thinking.show(settings.parameters ?? {});
    this.#format.value = settings.format?.kind in FORMATS ? settings.format.kind : "text";
    this.#formatText.value = settings.format?.text ?? "";
    this.#tools.value = settings.tools ?? "";
    this.#toolChoice.value = ["auto", "required", "none"].includes(settings.toolChoice) ? settings.toolChoice : "auto";
    this.#error.hidden = true;
    this.#show(settings);
  }

  showDefaults() {
    return this.#parameters.showDefaults();
  }
}
