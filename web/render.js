// Markdown to elements. HTML in a text is shown as text, except a few tags without attributes; what remains is sanitized
// once more, so that nothing in an answer can run, load, submit or style anything.
import { marked } from "./vendor/marked.esm.js";
import DOMPurify from "./vendor/purify.es.mjs";
import { copyFrom, element, iconButton } from "./dom.js";
import { highlight } from "./highlight.js";

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

marked.use({
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

/** A code block with its language and a button that copies it. */
export function codeBlock(text, language) {
  const code = element("code", {}, text);
  highlight(code, text, language);
  const copy = iconButton("copy", "Copy code", () => copyFrom(copy, text));
  const pre = element("pre", { tabindex: "0", role: "group", "aria-label": language ? `Code in ${language}` : "Code" }, code);
  return element("div", { class: "code-block" }, element("div", { class: "code-bar" }, element("span", {}, language || "text"), copy), pre);
}

function finish(fragment) {
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
