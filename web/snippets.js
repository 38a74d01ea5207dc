// A request as code that people can copy: curl, Python and JavaScript.
import { copyFrom, element, iconButton } from "./dom.js";
import { highlight } from "./highlight.js";
import { tabs } from "./tabs.js";

const KEY = "YOUR_KEY";

/** JSON as a Python literal. */
function python(value, indent = "    ") {
  if (value === null || value === undefined) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (Array.isArray(value)) return `[${value.map((each) => python(each, indent)).join(", ")}]`;
  if (typeof value === "object") {
    const inner = Object.entries(value).map(([name, each]) => `${indent}    ${JSON.stringify(name)}: ${python(each, `${indent}    `)},\n`);
    return `{\n${inner.join("")}${indent}}`;
  }
  return JSON.stringify(value);
}

const shellQuoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/** Each kind of code, with the language that highlights it. `body` has no `stream`. */
const WRITERS = {
  curl: { language: "bash", write: ({ url, body, hasKey }) => [
    `curl ${shellQuoted(url)} \\`,
    ...(hasKey ? [`  -H 'authorization: Bearer ${KEY}' \\`] : []),
    "  -H 'content-type: application/json' \\",
    `  -d ${shellQuoted(JSON.stringify(body, null, 2))}`].join("\n") },
  Python: { language: "python", write: ({ url, body, hasKey }) => {
    // The `openai` package knows its own parameters; the others go into `extra_body`.
    const known = ["model", "prompt", "max_tokens", "temperature", "top_p", "seed", "stop", "presence_penalty", "frequency_penalty", "best_of", "logit_bias"];
    const lines = [];
    const extra = {};
    for (const [name, value] of Object.entries(body)) {
      if (known.includes(name)) lines.push(`    ${name}=${python(value)},`);
      else extra[name] = value;
    }
    if (Object.keys(extra).length > 0) lines.push(`    extra_body=${python(extra)},`);
    const base = url.replace(/\/completions$/, "");
    return ["from openai import OpenAI", "", `client = OpenAI(base_url=${JSON.stringify(base)}, api_key="${hasKey ? KEY : "none"}")`,
      "stream = client.completions.create(", ...lines, "    stream=True,", ")", "for chunk in stream:", '    print(chunk.choices[0].text, end="", flush=True)'].join("\n");
  } },
  JavaScript: { language: "javascript", write: ({ url, body, hasKey }) => [
    `const response = await fetch(${JSON.stringify(url)}, {`,
    '  method: "POST",',
    `  headers: { "content-type": "application/json"${hasKey ? `, authorization: "Bearer ${KEY}"` : ""} },`,
    `  body: JSON.stringify(${JSON.stringify(body, null, 2).replaceAll("\n", "\n  ")}),`,
    "});",
    "const { choices } = await response.json();",
    "console.log(choices[0].text);"].join("\n") },
};

/** The code for a request in one of the languages: `curl`, `Python` or `JavaScript`. */
export const snippet = (language, request) => WRITERS[language].write(request);

/** Tabs with the code of a request. Returns a function that shows another request. */
export function snippets(root) {
  const list = element("div", { class: "small-tabs", role: "tablist", "aria-label": "Language" });
  const shown = [];
  for (const [name, { language, write }] of Object.entries(WRITERS)) {
    const id = `code-${name.toLowerCase()}`;
    const code = element("code");
    const copy = iconButton("copy", `Copy ${name}`, () => copyFrom(copy, code.textContent));
    const pre = element("pre", { tabindex: "0", role: "group", "aria-label": `Code in ${name}` }, code);
    const panel = element("div", { id, role: "tabpanel", "aria-labelledby": `tab-${id}`, class: "code-block" }, element("div", { class: "code-bar" }, element("span", {}, name), copy), pre);
    list.append(element("button", { type: "button", role: "tab", id: `tab-${id}`, "aria-controls": id }, name));
    shown.push({ panel, show(request) {
      const text = write(request);
      if (code.textContent === text) return;
      code.textContent = text;
      highlight(code, text, language);
    } });
  }
  root.append(list, ...shown.map(({ panel }) => panel));
  tabs(list, () => {})(shown[0].panel.id);
  return (request) => shown.forEach(({ show }) => show(request));
}
