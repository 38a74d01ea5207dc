// Markdown to elements. HTML in a text is shown as text, except a few tags without attributes; what remains is sanitized
// once more, so that nothing in an answer can run, load, submit or style anything.
import { marked } from "./vendor/marked.esm.js";
import DOMPurify from "./vendor/purify.es.mjs";
import { copyFrom, element, iconButton } from "./dom.js";
import { highlight } from "./highlight.js";
import { FORMULA_CLASS, formulas, typeset } from "./math.js";
import { keep, setting } from "./settings.js";

const ESCAPES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
const escaped = (text) => text.replace(/[&<>"]/g, (character) => ESCAPES[character]);
const PLAIN_TAG = /<\/?(?:br|b|i|u|s|em|strong|small|sub|sup|kbd|mark|details|summary) ?\/?>/gi;

/** Keeps tags like `<sub>` and shows all other HTML as the text that it is. */
function harmless(html) {
  let kept = "";
  let end = 0;
  for (const tag of html.matchAll(PLAIN_TAG)) {
    kept += escaped(html.slice(end, tag.index)) + tag[0];
    end = tag.index + tag[0].length;
  }
  return kept + escaped(html.slice(end));
}

marked.use(formulas, {
  gfm: true,
  breaks: true,
  renderer: {
    html: ({ text }) => harmless(text),
    // An image would be a request to wherever the answer says, so it is a link.
    image: ({ href, text }) => `<a href="${escaped(href)}">${escaped(text || href)}</a>`,
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
  },
});

const ALLOWED = {
  ALLOWED_TAGS: ["a", "p", "br", "hr", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "li", "blockquote", "pre", "code", "em", "strong", "del",
    "b", "i", "u", "s", "small", "sub", "sup", "kbd", "mark", "details", "summary", "table", "thead", "tbody", "tr", "th", "td"],
  ALLOWED_ATTR: ["href", "title", "start", "align", "class"],
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  RETURN_DOM_FRAGMENT: true,
};

/** The language that the text names for a code block: marked writes it as a class. */
const languageOf = (code) => /^language-([\w+#.-]{1,30})$/.exec(code.className)?.[1] ?? "";

/** Whether long lines of code are wrapped: one choice for all code blocks. */
let isWrapped = setting("wrap code", false);

function wrapCode(wrapped) {
  isWrapped = wrapped;
  keep("wrap code", wrapped);
  for (const button of document.querySelectorAll(".code-wrap")) {
    button.setAttribute("aria-pressed", wrapped);
    button.closest(".code-block").classList.toggle("is-wrapped", wrapped);
  }
}

/** A code block with its language, a button that wraps long lines, and one that copies it. */
export function codeBlock(text, language) {
  const code = element("code", {}, text);
  highlight(code, text, language);
  const copy = iconButton("copy", "Copy code", () => copyFrom(copy, text));
  const wrap = iconButton("wrap", "Wrap long lines", () => wrapCode(!isWrapped), { "aria-pressed": String(isWrapped) });
  wrap.classList.add("code-wrap");
  const pre = element("pre", { tabindex: "0", role: "group", "aria-label": language ? `Code in ${language}` : "Code" }, code);
  return element("div", { class: isWrapped ? "code-block is-wrapped" : "code-block" },
    element("div", { class: "code-bar" }, element("span", {}, language || "text"), wrap, copy), pre);
}

const CODE_OF_TYPED = /^(?<fence>`{3,})[ \t]*(?<language>[\w+#.-]*)[^\n`]*\n(?<block>[\s\S]*?)^\k<fence>`*[ \t]*$\n?|(?<ticks>`+)(?<inline>[^`\n]+)\k<ticks>(?!`)/gm;

/** What a person has written: as typed, except that code between backticks is shown as code. */
export function typedText(text) {
  const parts = [];
  let line = [];
  const endLine = () => {
    const isBlank = line.every((part) => typeof part === "string" && part.trim() === "");
    if (!isBlank) parts.push(element("p", { class: "typed" }, line));
    line = [];
  };
  let end = 0;
  for (const found of text.matchAll(CODE_OF_TYPED)) {
    const { fence, language, block, inline } = found.groups;
    line.push(text.slice(end, found.index).replace(fence ? /\n+$/ : /$^/, ""));
    end = found.index + found[0].length;
    if (fence) {
      endLine();
      parts.push(codeBlock(block.replace(/\n$/, ""), language));
    } else {
      line.push(element("code", {}, inline));
    }
  }
  line.push(end > 0 ? text.slice(end).replace(/^\n+/, line.length > 0 ? "$&" : "") : text);
  endLine();
  return parts.length > 0 ? parts : [element("p", { class: "typed" })];
}

function finish(fragment) {
  for (const source of fragment.querySelectorAll(`code.${FORMULA_CLASS}`)) source.replaceWith(typeset(source));
  for (const link of fragment.querySelectorAll("a")) {
    if (!link.hasAttribute("href")) continue;
    link.target = "_blank";
    link.rel = "noopener noreferrer nofollow";
  }
  for (const pre of fragment.querySelectorAll("pre")) {
    const code = pre.querySelector("code") ?? pre;
    pre.replaceWith(codeBlock(code.textContent.replace(/\n$/, ""), languageOf(code)));
  }
  for (const table of fragment.querySelectorAll("table")) {
    const frame = element("div", { class: "table-frame", tabindex: "0", role: "group", "aria-label": "Table" });
    table.replaceWith(frame);
    frame.append(table);
  }
  for (const styled of fragment.querySelectorAll("[class^=language-]")) styled.removeAttribute("class");
  return fragment;
}

/** The blocks that an element shows, so that a growing text renders only what has changed. */
const shown = new WeakMap();

/** Shows a text as Markdown in `target`. Blocks that are as they were keep their elements. */
export function renderMarkdown(target, text) {
  const before = shown.get(target) ?? [];
  const tokens = marked.lexer(text);
  let kept = 0;
  while (kept < before.length && kept < tokens.length && before[kept].raw === tokens[kept].raw) kept += 1;
  for (const { nodes } of before.splice(kept)) nodes.forEach((node) => node.remove());
  for (const token of tokens.slice(kept)) {
    const alone = Object.assign([token], { links: tokens.links });
    const fragment = finish(DOMPurify.sanitize(marked.parser(alone), ALLOWED));
    const nodes = [...fragment.childNodes];
    target.append(fragment);
    before.push({ raw: token.raw, nodes });
  }
  shown.set(target, before);
}
