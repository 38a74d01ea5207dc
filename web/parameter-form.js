// A form of the parameters in `parameters.js`: fields with one line of explanation each, and their values.
import { description } from "./api.js";
import { element, fitHeight } from "./dom.js";
import { GROUPS } from "./parameters.js";

let forms = 0;

const ESCAPES = { n: "\n", t: "\t", "\\": "\\" };
const unescaped = (line) => line.replace(/\\([nt\\])/g, (_, letter) => ESCAPES[letter]);
const escapedLine = (line) => line.replace(/[\\\n\t]/g, (character) => ({ "\n": "\\n", "\t": "\\t", "\\": "\\\\" })[character]);

/** The value that a field holds, or undefined if it is empty. Throws an error for people if it cannot be read. */
const READ = {
  number: (input, { label }) => {
    if (input.validity.badInput) throw new Error(`${label} must be a number.`);
    // Beyond this, JavaScript would send another number than the one that was entered.
    if (Math.abs(input.valueAsNumber) > Number.MAX_SAFE_INTEGER) throw new Error(`${label} must be at most ${Number.MAX_SAFE_INTEGER}.`);
    return input.value === "" ? undefined : input.valueAsNumber;
  },
  boolean: (input) => (input.value === "" ? undefined : input.value === "true"),
  choice: (input) => (input.value === "" ? undefined : JSON.parse(input.value)),
  text: (input) => input.value || undefined,
  lines: (input) => {
    const given = input.value.split("\n").filter((line) => line !== "").map(unescaped);
    return given.length > 0 ? given : undefined;
  },
  ids: (input, { label }) => {
    const given = input.value.split(/[\s,]+/).filter(Boolean).map(Number);
    if (given.some((id) => !Number.isInteger(id))) throw new Error(`${label} must be whole numbers, separated by commas.`);
    return given.length > 0 ? given : undefined;
  },
  json: (input, { label }) => {
    if (input.value.trim() === "") return undefined;
    try {
      return JSON.parse(input.value);
    } catch {
      throw new Error(`${label} must be JSON.`);
    }
  },
};

const WRITE = {
  number: String,
  boolean: String,
  choice: JSON.stringify,
  text: String,
  lines: (value) => value.map(escapedLine).join("\n"),
  ids: (value) => value.join(", "),
  json: JSON.stringify,
};

function input(parameter, attributes) {
  const { kind, step, values, placeholder } = parameter;
  const spelled = { autocomplete: "off", spellcheck: "false", ...attributes };
  if (kind === "number") return element("input", { type: "number", step: "any", "data-step": step, placeholder: "default", inputmode: "decimal", ...spelled });
  if (kind === "lines" || kind === "json") return element("textarea", { rows: 1, placeholder, ...spelled });
  if (kind === "text" || kind === "ids") return element("input", { type: "text", ...spelled });
  const options = kind === "boolean" ? [true, false] : values;
  const written = (value) => (kind === "boolean" ? (value ? "on" : "off") : String(value));
  return element("select", attributes, element("option", { value: "" }, "default"),
    options.map((value) => element("option", { value: JSON.stringify(value) }, written(value))));
}

/** The arrow keys change a number by its step. */
function stepByKeys(field, defaultOf) {
  field.addEventListener("keydown", (event) => {
    const direction = { ArrowUp: 1, ArrowDown: -1 }[event.key];
    if (direction === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    const start = field.value === "" ? defaultOf() ?? 0 : field.valueAsNumber;
    field.value = String(Number((start + direction * field.dataset.step).toFixed(4)));
    field.dispatchEvent(new Event("input", { bubbles: true }));
  });
}

/** Fields for `names` (all parameters of `groups` if not given), in groups. `changed` is called when a person changes a value. */
export class ParameterForm {
  #fields = new Map();
  #groups = [];
  #defaults = {};

  constructor({ groups = GROUPS, names, changed = () => {} } = {}) {
    forms += 1;
    for (const { title, parameters } of groups) {
      const wanted = parameters.filter(({ name }) => names === undefined || names.includes(name));
      if (wanted.length > 0) this.#groups.push({ title, rows: wanted.map((parameter) => this.#row(parameter, changed)) });
    }
  }

  #row(parameter, changed) {
    const id = `parameter-${forms}-${parameter.name}`;
    const field = input(parameter, { id, name: parameter.name, "aria-describedby": `${id}-help` });
    const row = element("div", { class: `parameter parameter-${parameter.kind}` },
      element("label", { for: id }, parameter.label), field, element("p", { id: `${id}-help`, class: "help" }, parameter.help));
    field.addEventListener("input", () => {
      this.#mark(row, field);
      changed();
    });
    if (parameter.kind === "number") stepByKeys(field, () => this.#defaults[parameter.name]);
    this.#fields.set(parameter.name, { parameter, field, row });
    return row;
  }

  #mark(row, field) {
    row.classList.toggle("is-set", field.value !== "");
    if (field.localName === "textarea") fitHeight(field);
  }

  /** The first group's fields, and the others folded, one after another. */
  elements() {
    const [first, ...others] = this.#groups;
    return [element("div", { class: "parameters" }, first.rows),
      ...others.map(({ title, rows }) => element("details", { class: "parameter-group" },
        element("summary", {}, title), element("div", { class: "parameters" }, rows)))];
  }

  /** The values that are set, by their names in the API. Throws an error for people if one cannot be read. */
  values() {
    const given = {};
    for (const [name, { parameter, field }] of this.#fields) {
      const value = READ[parameter.kind](field, parameter);
      if (value !== undefined) given[name] = value;
    }
    return given;
  }

  /** Shows these values; the other fields become empty. */
  show(values) {
    for (const [name, { parameter, field, row }] of this.#fields) {
      let written = "";
      try {
        if (values[name] !== undefined && values[name] !== null) written = WRITE[parameter.kind](values[name]);
      } catch {
        // A value of another type, from an edited file: as if it were not set.
      }
      field.value = written;
      this.#mark(row, field);
    }
  }

  /** Shows the defaults of the served model in empty fields. */
  async showDefaults() {
    this.#defaults = await defaults();
    for (const [name, value] of Object.entries(this.#defaults)) {
      const { field, parameter } = this.#fields.get(name) ?? {};
      if (parameter?.kind === "number") field.placeholder = `default: ${value}`;
    }
  }
}

let known;

/** The served model's defaults, from the description of the API; none on servers without one. */
function defaults() {
  known ??= description().then(({ paths }) => {
    const { properties } = paths["/v1/chat/completions"].post.requestBody.content["application/json"].schema;
    const entries = Object.entries(properties).filter(([, property]) => typeof property.default === "number");
    return Object.fromEntries(entries.map(([name, property]) => [name, property.default]));
  }).catch(() => ({}));
  return known;
}
