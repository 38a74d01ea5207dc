// Formulas in Markdown: TeX between $…$, $$…$$, \(…\) or \[…\], or in environments such as `align`. This module finds them; `mathml.js` shows them, with KaTeX, which is
// loaded when a text first has a formula.
import { element } from "./dom.js";

/** The class of the elements that marked writes for a formula. HTML in a text has no classes, so no text can make one itself. */
export const FORMULA_CLASS = "formula-source";
/** Longer sources stay text, and ends are looked for no farther away. */
const MAX_CHARS = 10_000;

const DISPLAY = [
  /^ {0,3}\$\$(?!\$)((?:[^$`\\]|\\[\s\S]|\$(?!\$)){1,10000}?)\$\$(?!\$)[ \t]*(?:\n|$)/,
  /^ {0,3}\\\[((?:[^`\\]|\\(?!\])[\s\S]){1,10000}?)\\\][ \t]*(?:\n|$)/,
  /^ {0,3}(\\begin\{(equation|align|alignat|gather|multline)(\*?)\}(?:(?!\n[ \t]*\n)[^`]){1,10000}?\\end\{\2\3\})[ \t]*(?:\n|$)/,
];
/** The beginning of a formula that is still being written: up to the next empty line. */
const UNFINISHED = /^ {0,3}(?:\$\$(?!\$)|\\\[|(?=\\begin\{(?:equation|align|gather|multline)))((?:(?!\$\$|\\\]|\n[ \t]*\n)[^`])*)$/;
const INLINE = [
  { pattern: /^\$\$(?!\$)((?:[^$`\\\n]|\\.|\n(?![ \t]*\n)){1,10000}?)\$\$(?!\$)/, isDisplay: true },
  { pattern: /^\\\[((?:[^`\\\n]|\\(?!\]).|\n(?![ \t]*\n)){1,10000}?)\\\](?![([])/, isDisplay: true },
  { pattern: /^\\\(((?:[^`\\\n]|\\(?!\)).|\n(?![ \t]*\n)){1,10000}?)\\\)/ },
  // A single dollar is also money or a variable of the shell: no space within the dollars, and no word after them ("the $n$th" is fine).
  { pattern: /^\$(?![\s$])((?:[^$`\\\n]|\\.)*?(?:[^\s$`\\]|\\.))\$(?!\$)(?=(?:th|st|nd|rd|s)\b|\W|_|$)/ },
];

/** Whether what stands between dollars or brackets is rather prose: words and no mathematics, or an amount of money with words after it. */
function isProse(tex) {
  const bare = tex.replace(/\\(?:text|mathrm|operatorname|mbox|textbf|textit)\s*\{[^{}]*\}|\\[a-zA-Z]+/g, "\\");
  const hasWords = /(?:^|[\s,;.(])[a-zA-Z]{2,}(?=$|[\s,;.)])/.test(bare);
  if (!hasWords) return false;
  return /^\s*[\d.,]+(?:\s|[kKmM]?\b)/.test(bare) || !/[\\^_=+*/<>{}|]/.test(bare);
}

function formula(type, raw, tex, isDisplay, isFinished = true) {
  return tex.trim() === "" || isProse(tex) ? undefined : { type, raw, tex: tex.trim(), isDisplay, isFinished };
}

/** The formula at the beginning of a text, if there is one. */
function inlineFormula(source) {
  for (const { pattern, isDisplay = false } of INLINE) {
    const found = pattern.exec(source);
    if (found) return formula("formula", found[0], found[1], isDisplay);
  }
  return undefined;
}

/** The text with its formulas blanked, at the same length. */
function masked(source) {
  let kept = source;
  for (const { index } of source.matchAll(/(?<![\w$\\])\$|\\[[(]/g)) {
    const length = kept[index] === source[index] ? inlineFormula(source.slice(index))?.raw.length : undefined;
    if (length) kept = kept.slice(0, index) + "a".repeat(length) + kept.slice(index + length);
  }
  return kept;
}

const ESCAPES = { "&": "&amp;", "<": "&lt;", ">": "&gt;" };
const written = ({ raw, isDisplay, isFinished }) => {
  const classes = [FORMULA_CLASS, isDisplay && "is-display", !isFinished && "is-unfinished"].filter(Boolean).join(" ");
  return `<code class="${classes}">${raw.trim().replace(/[&<>]/g, (character) => ESCAPES[character])}</code>`;
};

/** The extension of marked. */
export const formulas = {
  extensions: [{
    name: "formulaBlock", level: "block",
    start: (source) => /^ {0,3}(?:\$\$|\\\[|\\begin\{)/m.exec(source)?.index,
    tokenizer(source) {
      for (const pattern of DISPLAY) {
        const found = pattern.exec(source);
        if (found) return formula("formulaBlock", found[0], found[1], true);
      }
      const begun = UNFINISHED.exec(source);
      return begun ? formula("formulaBlock", begun[0], begun[1], true, false) : undefined;
    },
    renderer: written,
  }, {
    name: "formula", level: "inline",
    start: (source) => /(?<![\w$\\])\$|\\[[(]/.exec(source)?.index,
    tokenizer(source, tokens) {
      // A dollar that follows a word belongs to it: "US$5".
      if (source[0] === "$" && /[\w$\\]$/.test(tokens.at(-1)?.raw ?? "")) return undefined;
      return inlineFormula(source);
    },
    renderer: written,
  }],
  // What is within a formula does not begin or end emphasis.
  hooks: { emStrongMask: masked },
};

/** The TeX of a source with its delimiters. */
const inner = (source) => source.replace(/^(?:\$\$?|\\[[(])/, "").replace(/(?:\$\$?|\\[\])])$/, "").trim();

let loading;
let loaded;

/** The module that shows formulas, at once if it is there. */
function mathml() {
  loading ??= import("./mathml.js").then((module) => { loaded = module; });
  return loading;
}

/** An element that shows the formula of a `code` element, once KaTeX is loaded. A source that cannot be read stays as it is. */
export function typeset(code) {
  const source = code.textContent;
  const isDisplay = code.classList.contains("is-display");
  const isFinished = !code.classList.contains("is-unfinished") && source.length <= MAX_CHARS;
  const shown = element("span", { class: `formula is-source${isDisplay ? " is-display" : ""}` }, source);
  const show = () => isFinished && loaded.showFormula(shown, inner(source), isDisplay);
  if (loaded) show();
  else mathml().then(show, () => { loading = undefined; });
  return shown;
}
