// Syntax highlighting. The highlighter and each language are loaded when a code block first needs them.
import DOMPurify from "./vendor/purify.es.mjs";

/** The files in `vendor/highlight/`, by the names that people give the languages. */
const FILES = {
  bash: "bash", sh: "bash", shell: "bash", zsh: "bash", console: "bash",
  c: "c", h: "c", cpp: "cpp", "c++": "cpp", cc: "cpp", css: "css", diff: "diff", patch: "diff", go: "go", golang: "go", java: "java",
  javascript: "javascript", js: "javascript", jsx: "javascript", mjs: "javascript", json: "json", jsonc: "json",
  markdown: "markdown", md: "markdown", python: "python", py: "python", rust: "rust", rs: "rust", sql: "sql",
  typescript: "typescript", ts: "typescript", tsx: "typescript", xml: "xml", html: "xml", svg: "xml", yaml: "yaml", yml: "yaml",
};
/** The name of the language of a file, by the end of its name; empty if unknown. */
export const languageOfFile = (name) => {
  const end = name.includes(".") ? name.split(".").at(-1).toLowerCase() : "";
  return end in FILES ? end : "";
};
/** Longer code stays plain: highlighting it would hold up the page. */
const MAX_CHARS = 50_000;

let core;
const languages = new Map();

function load(file) {
  core ??= import("./vendor/highlight/core.min.js").then((module) => module.default);
  if (!languages.has(file)) {
    languages.set(file, Promise.all([core, import(`./vendor/highlight/${file}.min.js`)]).then(([hljs, language]) => {
      hljs.registerLanguage(file, language.default);
      return hljs;
    }));
  }
  return languages.get(file);
}

/** Colors the text of a `code` element, once the language is loaded. Unknown languages stay plain. */
export async function highlight(code, text, language) {
  const file = FILES[language.toLowerCase()];
  if (file === undefined || text.length > MAX_CHARS) return;
  const hljs = await load(file);
  const result = hljs.highlight(text, { language: file, ignoreIllegals: true });
  code.replaceChildren(DOMPurify.sanitize(result.value, { ALLOWED_TAGS: ["span"], ALLOWED_ATTR: ["class"], RETURN_DOM_FRAGMENT: true }));
}
