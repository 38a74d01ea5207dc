// TeX to MathML. KaTeX writes MathML with attributes that MathML Core, which browsers implement, does not have; they become classes and
// styles here. What KaTeX writes is sanitized once more, so a mistake in it cannot become HTML.
import "./vendor/katex.min.js";
import DOMPurify from "./vendor/purify.es.mjs";

const { katex } = globalThis;

const ALLOWED = {
  ALLOWED_TAGS: ["span", "math", "semantics", "annotation", "mrow", "mi", "mn", "mo", "ms", "mtext", "mspace", "mfrac", "msqrt", "mroot", "mstyle", "mpadded", "mphantom",
    "menclose", "msub", "msup", "msubsup", "munder", "mover", "munderover", "mmultiscripts", "mprescripts", "mtable", "mtr", "mtd", "mlabeledtr"],
  ALLOWED_ATTR: ["xmlns", "display", "encoding", "mathvariant", "mathcolor", "mathbackground", "mathsize", "displaystyle", "scriptlevel", "stretchy", "fence", "separator",
    "symmetric", "largeop", "movablelimits", "accent", "accentunder", "lspace", "rspace", "minsize", "maxsize", "linethickness", "width", "height", "depth", "voffset",
    "notation", "columnalign", "columnspacing", "rowspacing", "columnlines", "rowlines"],
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

/** Letters of an alphabet that is a set of characters in Unicode: the code of its A, and those that stand elsewhere. */
const ALPHABETS = {
  "double-struck": { upper: 0x1d538, lower: 0x1d552, digit: 0x1d7d8, C: "ℂ", H: "ℍ", N: "ℕ", P: "ℙ", Q: "ℚ", R: "ℝ", Z: "ℤ" },
  script: { upper: 0x1d49c, lower: 0x1d4b6, B: "ℬ", E: "ℰ", F: "ℱ", H: "ℋ", I: "ℐ", L: "ℒ", M: "ℳ", R: "ℛ", e: "ℯ", g: "ℊ", o: "ℴ" },
  fraktur: { upper: 0x1d504, lower: 0x1d51e, C: "ℭ", H: "ℌ", I: "ℑ", R: "ℜ", Z: "ℨ" },
};

function inAlphabet(text, alphabet) {
  return text.replace(/[A-Za-z0-9]/g, (letter) => {
    if (alphabet[letter]) return alphabet[letter];
    const [first, base] = letter <= "9" ? ["0", alphabet.digit] : letter <= "Z" ? ["A", alphabet.upper] : ["a", alphabet.lower];
    return base === undefined ? letter : String.fromCodePoint(base + letter.charCodeAt(0) - first.charCodeAt(0));
  });
}

/** `mathvariant`: browsers know the value `normal` only. */
function applyVariant(each) {
  const variant = each.getAttribute("mathvariant");
  if (variant === "normal") return;
  const alphabet = ALPHABETS[variant.replace("bold-", "")];
  if (alphabet) each.textContent = inAlphabet(each.textContent, alphabet);
  const isSlanted = variant.includes("italic");
  if (variant.includes("bold")) each.classList.add("is-bold");
  if (variant.startsWith("sans-serif")) each.classList.add("is-sans");
  if (variant === "monospace") each.classList.add("is-mono");
  // A single letter is italic by itself.
  if (isSlanted && [...each.textContent].length > 1) each.classList.add("is-italic");
  if (isSlanted && each.localName === "mi") each.removeAttribute("mathvariant");
  else each.setAttribute("mathvariant", "normal");
}

/** The value for the place `at` of a list such as `left right`; the last value is repeated. */
function listed(element, name, at) {
  const values = element.getAttribute(name)?.split(" ") ?? [];
  return values[Math.min(at, values.length - 1)];
}

const half = (length) => `calc(${length} / 2)`;
/** KaTeX counts the space between rows beside lines of a certain height; in MathML there are only the letters themselves. */
const LINE = "0.3em";

/** Alignment, spacing and lines of a table. */
function applyTable(table) {
  // The cells around a formula with `\tag`, which shall push the tag to the edge: a plain distance does.
  for (const spacer of table.querySelectorAll("mtd[width]")) spacer.remove();
  if (table.hasAttribute("width")) table.classList.add("has-tag");
  const rows = [...table.children];
  rows.forEach((row, down) => [...row.children].forEach((cell, across) => {
    const align = listed(table, "columnalign", across);
    if (align) cell.style.textAlign = align;
    const [columns, lines] = [listed(table, "columnspacing", 0), listed(table, "rowspacing", 0)];
    const isLast = across === row.children.length - 1;
    if (columns) cell.style.paddingInline = `${across > 0 ? half(columns) : "0"} ${isLast ? "0" : half(columns)}`;
    if (lines) cell.style.paddingBlock = `${down > 0 ? half(`(${lines} + ${LINE})`) : "0"} ${down === rows.length - 1 ? "0" : half(`(${lines} + ${LINE})`)}`;
    const line = { solid: "1px solid", dashed: "1px dashed" };
    if (!isLast && line[listed(table, "columnlines", across)]) cell.style.borderRight = line[listed(table, "columnlines", across)];
    if (down < rows.length - 1 && line[listed(table, "rowlines", down)]) cell.style.borderBottom = line[listed(table, "rowlines", down)];
  }));
}

/** A line over or under something: fonts have none that stretches, so it becomes a border. */
function applyLine(each) {
  const [base, mark] = each.children;
  if (mark?.textContent !== "\u203e") return;
  const row = document.createElementNS(each.namespaceURI, "mrow");
  row.classList.add(each.localName === "mover" ? "has-overline" : "has-underline");
  row.append(base);
  each.replaceWith(row);
}

/** Puts what MathML Core lacks into styles. */
function adapt(root) {
  for (const each of root.querySelectorAll("[mathvariant]")) applyVariant(each);
  for (const each of root.querySelectorAll("mtable")) applyTable(each);
  for (const each of root.querySelectorAll("mover, munder")) applyLine(each);
  for (const each of root.querySelectorAll("menclose")) each.classList.add(...each.getAttribute("notation").split(" ").map((notation) => `encloses-${notation}`));
}

/** A formula that is wider than the page scrolls within its line; then the keyboard must reach it. */
const widths = new ResizeObserver((entries) => entries.forEach(({ target }) => {
  if (target.scrollWidth > target.clientWidth) Object.assign(target, { tabIndex: 0, role: "group", ariaLabel: "Formula" });
  else ["tabindex", "role", "aria-label"].forEach((name) => target.removeAttribute(name));
}));

/** A formula within a line that is wider than the line becomes a line of its own that scrolls. Tables scroll themselves. */
function fit(target) {
  const room = target.closest("p, li, blockquote, td, th, h1, h2, h3, h4, h5, h6");
  if (room === null || room.matches("td, th") || target.getBoundingClientRect().width <= room.clientWidth) return;
  target.classList.add("is-display");
  widths.observe(target);
}

/** Shows the formula in `target`. If KaTeX cannot read it, `target` keeps its text, with the reason as a tooltip. */
export function showFormula(target, tex, isDisplay) {
  let html;
  try {
    html = katex.renderToString(tex, { output: "mathml", displayMode: isDisplay, trust: false, strict: "ignore", maxSize: 20, maxExpand: 500, throwOnError: true });
  } catch (error) {
    target.title = error.message;
    return;
  }
  const fragment = DOMPurify.sanitize(html, ALLOWED);
  adapt(fragment);
  target.replaceChildren(fragment);
  target.classList.remove("is-source");
  if (isDisplay) widths.observe(target);
  else requestAnimationFrame(() => fit(target));
}
