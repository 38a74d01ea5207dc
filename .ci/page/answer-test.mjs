// What messages look like: formulas, code, and how they grow. Usage: node --test .ci/page/
import assert from "node:assert/strict";
import { ask, pageTest } from "./harness.mjs";

/** Renders each text as Markdown, once KaTeX is loaded: its formulas as TeX, how many are displays, its HTML, and what in it could act. */
const rendered = (page, texts) => page.evaluate(async (given) => {
  const { renderMarkdown } = await import("./render.js");
  const load = document.createElement("div");
  renderMarkdown(load, "$x$");
  await import("./mathml.js");
  await new Promise((resolve) => setTimeout(resolve));
  const ACTIVE = "a, img, script, style, iframe, svg, form, [href], [src], [id], [onerror], [onclick], [class*=icon], [style*=position]";
  return given.map((text) => {
    const root = document.createElement("div");
    renderMarkdown(root, text);
    const formulas = [...root.querySelectorAll("math")];
    return { tex: formulas.map((each) => each.querySelector("annotation").textContent), displays: formulas.filter((each) => each.getAttribute("display") === "block").length, active: [...root.querySelectorAll(ACTIVE)].map((each) => each.outerHTML), html: root.innerHTML };
  });
}, texts);

const TWO_LINES = "\\begin{aligned} a &= b \\\\ &= c \\end{aligned}";
/** A text, and the formulas in it. */
const FORMULAS = [
  ["$x^2$", ["x^2"]], ["\\(a+b\\) and \\[c\\]", ["a+b", "c"]], ["$$\nx = 1\n$$", ["x = 1"]], [`text\n\\[\n${TWO_LINES}\n\\]\nmore`, [TWO_LINES]],
  ["$x$, $y$; ($z$) and the $n$th", ["x", "y", "z", "n"]], ["- item $$a+b$$\n- $c$", ["a+b", "c"]], ["1. First:\n   $$\n   a = b\n   $$\n2. Second", ["a = b"]],
  ["| $a$ | b |\n|-|-|\n| $c$ | $d$ |", ["a", "c", "d"]], ["**bold $a*b$ text** and $a_1$ with $b_2$", ["a*b", "a_1", "b_2"]], ["# Title $E=mc^2$", ["E=mc^2"]],
  ["> $$q$$", ["q"]], ["$$\na\n\nb\n$$", ["a\n\nb"]], ["$5$ and $-5$ and $10,000$ and $2x + 3 = 7$", ["5", "-5", "10,000", "2x + 3 = 7"]], ["$5 < x < 10$", ["5 < x < 10"]],
  ["$3 \\text{ apples}$", ["3 \\text{ apples}"]], ["between $5 and $6/month, $x$ is", ["x"]], ["Price: $5\n\nVar: $x$", ["x"]],
  ["As follows:\n\\begin{align}\na &= b \\\\\n &= c\n\\end{align}\nEnd", ["\\begin{align}\na &= b \\\\\n &= c\n\\end{align}"]],
  ["$\\{1, 2\\}$ and $100\\%$", ["\\{1, 2\\}", "100\\%"]], ["set `A=$B` and $c$", ["c"]],
];
/** Texts without a formula. */
const PROSE = [
  "a tea for $5 and $6", "costs $5, or $10-$20 each", "it is $5 (or 5$).", "I have $20, you have 30$.", "US$5 and US$6", "$5 for a and 6$", "$1.5k and then $2k",
  "$HOME and $PATH", "$HOME/bin:$PATH", "`$x$` and `\\(y\\)`", "```\n$$x$$\n\\[y\\]\n```", "    $x$", "rated $$ or $$$", "$$ and $$ are prices", "($), ($$), ($$$)", "x$y$z", "$ x $",
  "\\$5 and \\$6", "in LaTeX, `\\begin{align}` begins it", "\\begin{itemize}\n\\item a\n\\end{itemize}", "\\[not a link\\](https://example.org)", "\\\\(not\\\\)", "$x\n\ny$",
];

pageTest("formulas between $, $$, \\( and \\[ become MathML; money, shell variables and code stay text", {}, async ({ page }) => {
  const found = await rendered(page, [...FORMULAS, ...PROSE.map((text) => [text])].map(([text]) => text));
  assert.deepEqual(found.map(({ tex }, at) => [FORMULAS[at]?.[0] ?? PROSE[at - FORMULAS.length], tex]), [...FORMULAS, ...PROSE.map((text) => [text, []])]);
  const [money, code] = [found[FORMULAS.length], found[FORMULAS.length + PROSE.indexOf("`$x$` and `\\(y\\)`")]];
  assert.equal(money.html, "<p>a tea for $5 and $6</p>\n");
  const [mixed] = await rendered(page, ["A **tea** for $5, a **cake** for $6 and **$x*y$** or *a $b*c$ d*"]);
  assert.match(mixed.html, /A <strong>tea<\/strong> for \$5, a <strong>cake<\/strong> for \$6 and <strong><span.*<\/strong> or <em>a <span.* d<\/em>/);
  assert.equal(code.html, "<p><code>$x$</code> and <code>\\(y\\)</code></p>\n");
  assert.deepEqual([found[0].displays, found[1].displays, found[2].displays], [0, 1, 1]);
});

pageTest("what browsers do not know of MathML becomes styles and characters", {}, async ({ page }) => {
  const [letters, table, box, tag] = await rendered(page, ["$\\mathbb{R} \\mathcal{L} \\mathbf{x}$", `$$${TWO_LINES}$$`, "$\\boxed{x}$", "$$x \\tag{1}$$"]);
  assert.match(letters.html, /<mi mathvariant="normal">ℝ<\/mi><mi mathvariant="normal">ℒ<\/mi><mi mathvariant="normal" class="is-bold">x<\/mi>/);
  assert.match(table.html, /<mtd style="text-align: right;[^"]*">.*<mtd style="text-align: left;/);
  assert.match(box.html, /class="encloses-box"/);
  assert.match(tag.html, /class="has-tag"/);
});

const HOSTILE_TEX = [
  "\\href{javascript:window.hit=1}{x}", "\\url{javascript:window.hit=2}", "\\includegraphics{https://evil.example/track.png}", "\\htmlClass{icon}{x}", "\\htmlId{send}{x}",
  "\\htmlStyle{position: fixed}{x}", "\\htmlData{a=b}{x}", "\\text{<img src=x onerror='window.hit = 3'>}", "\\text{</annotation></semantics></math><img src=x onerror='window.hit = 4'>}",
  "\\text{<style>body { display: none }</style>}", "<script>window.hit = 5</script>", "\\def\\a{\\a\\a}\\a", "\\rule{9999em}{9999em}", "{".repeat(500) + "}".repeat(500), "\\frac{".repeat(300),
];
pageTest("hostile TeX makes no links, images, styles or scripts, and ends", {}, async ({ page }) => {
  const found = await rendered(page, HOSTILE_TEX.flatMap((tex) => [`$$${tex}$$`, `\\(${tex}\\)`]));
  assert.deepEqual(found.flatMap(({ active }) => active), []);
  assert.equal(await page.evaluate(() => window.hit), undefined);
});

pageTest("a formula that grows shows its source until it is whole, and one that cannot be read keeps it", {}, async ({ page }) => {
  await rendered(page, []);
  const text = "So $a_1 + b$ is\n\n$$\nx = \\frac{1}{2}\n$$\n\nand \\(y\\), then\n\n\\[\n\\begin{aligned} a &= b \\\\ &= c \\end{aligned}\n\\]\n\nCosts $5 or $6. End.";
  const { grown, whole, unfinished, broken } = await page.evaluate(async (text) => {
    const { renderMarkdown } = await import("./render.js");
    const [a, b, c, d] = Array.from({ length: 4 }, () => document.createElement("div"));
    for (let end = 1; end <= text.length; end += 1) renderMarkdown(a, text.slice(0, end));
    renderMarkdown(b, text);
    renderMarkdown(c, "Then\n\n$$\n\\frac{1}{");
    renderMarkdown(d, "$\\frac{1}{$ and $\\unknown{x}$");
    return { grown: a.innerHTML, whole: b.innerHTML, unfinished: [...c.querySelectorAll(".formula.is-source")].map((each) => each.textContent), broken: [...d.querySelectorAll(".formula")].map((each) => [each.textContent, /KaTeX parse error/.test(each.title)]) };
  }, text);
  assert.equal(grown, whole);
  assert.equal((whole.match(/<math/g) ?? []).length, 4);
  assert.deepEqual(unfinished, ["$$\n\\frac{1}{"]);
  assert.deepEqual(broken, [["$\\frac{1}{$", true], ["$\\unknown{x}$", true]]);
});

const SUM = "a_{1} + ".repeat(60);
pageTest("Chat: KaTeX is loaded with the first formula only, and a wide formula does not widen the page", {
  width: 390, height: 844, isPhone: true, prepare: (server) => { server.reply = ({ messages }) => ({ text: messages.length > 1 ? `As $x$:\n\n$$${SUM} b$$\n\nor $${SUM} c$ within a line` : "No formula: $5 and $6." }); },
}, async ({ page, seen, shoot }) => {
  const loaded = () => seen.requests.filter((url) => url.includes("katex")).length;
  await ask(page, "Hello");
  assert.equal(loaded(), 0);
  await ask(page, "And a formula?");
  await page.locator(".message.assistant .is-display math").nth(1).waitFor();
  assert.equal(loaded(), 1);
  assert.equal(await page.evaluate(() => document.documentElement.scrollWidth - innerWidth), 0);
  assert.equal(await page.locator("#thread").evaluate((thread) => thread.scrollWidth - thread.clientWidth), 0);
  assert.deepEqual(await page.locator(".formula.is-display").evaluateAll((all) => all.map((each) => [each.scrollWidth > each.clientWidth, each.tabIndex])), [[true, 0], [true, 0]]);
  // The end stays in view although the formula came later than its text.
  assert.ok(await page.evaluate(() => { const { scrollHeight, clientHeight, scrollTop } = document.querySelector("#thread"); return scrollHeight - clientHeight - scrollTop < 2; }));
  await shoot("phone-formula");
});

pageTest("Chat: code in what the person wrote is shown as code", {}, async ({ page, server }) => {
  const text = "Why does `f(x)` fail?\n\n```python\ndef f(x):\n    return <b>x</b>\n```\nIt says *no*.";
  await ask(page, text);
  const content = page.locator(".message.user .content");
  assert.deepEqual(await content.locator(".typed").allInnerTexts(), ["Why does f(x) fail?", "It says *no*."]);
  assert.equal(await content.locator("p code").innerText(), "f(x)");
  assert.equal(await content.locator(".code-block code").innerText(), "def f(x):\n    return <b>x</b>");
  assert.equal(server.sent("/v1/chat/completions")[0].messages[0].content, text);
  for (const plain of ["a ` b", "```\nnever closed", "  indented\n\n\nand *stars*"]) {
    await page.getByRole("button", { name: "New chat" }).click();
    await ask(page, plain);
    assert.equal(await content.locator(".typed").evaluate((each) => each.textContent), plain);
  }
});

pageTest("Chat: long lines of code are wrapped if wanted, also after a reload", {
  prepare: (server) => { server.reply = () => ({ text: `\`\`\`text\n${"word ".repeat(100)}\n\`\`\`\n\n\`\`\`sh\n${"x".repeat(300)}\n\`\`\`` }); },
}, async ({ page }) => {
  await ask(page, "Hello");
  const tooWide = () => page.locator(".message.assistant pre").evaluateAll((all) => all.map((pre) => pre.scrollWidth > pre.clientWidth));
  assert.deepEqual(await tooWide(), [true, true]);
  await page.getByRole("button", { name: "Wrap long lines" }).first().click();
  assert.deepEqual(await tooWide(), [false, false]);
  await page.reload();
  await page.locator(".message.assistant pre").nth(1).waitFor();
  assert.deepEqual(await tooWide(), [false, false]);
  await page.getByRole("button", { name: "Wrap long lines", pressed: true }).first().click();
  assert.deepEqual(await tooWide(), [true, true]);
});
