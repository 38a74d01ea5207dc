// The tokens of an inspected text, colored, and the alternatives of the one that is pointed at or focused.
import { element } from "./dom.js";

const percent = (logprob) => {
  const share = Math.exp(logprob) * 100;
  return `${share >= 10 ? share.toFixed(0) : share.toPrecision(2)} %`;
};

/** The text of a token with its spaces and line breaks visible. */
export const visible = (token) => (token === "" ? "(empty)" : token.replaceAll(" ", "·").replaceAll("\n", "⏎").replaceAll("\t", "⇥"));

/** The largest surprise and entropy (in nats) and rank that are told apart by color. */
const MAX_SURPRISE = 9;
const MAX_ENTROPY = 6;
const MAX_RANK = 1000;

/** What the color may show: 0 is plain, 1 is the strongest. `null` where nothing precedes the token. */
const COLORS = {
  probability: { label: "Probability of the token", of: ({ logprob }) => (logprob === null ? null : -logprob / MAX_SURPRISE), ends: ["likely", "unlikely"] },
  rank: { label: "Rank of the token", of: ({ rank }) => (rank === null ? null : Math.log(rank) / Math.log(MAX_RANK)), ends: ["first", `${MAX_RANK}th`] },
  entropy: { label: "Entropy: how open the choice was", of: (_, expected) => expected && expected.entropy / MAX_ENTROPY, ends: ["settled", "open"] },
};

/** The tokens, and beside them the details of one. `handlers`: `branch(at, token)` continues from an alternative; `selected(at)` tells which token is chosen. */
export class TokenView {
  #handlers;
  #result;
  #selected = 0;
  #list = element("div", { class: "tokens", role: "group", "aria-label": "Tokens" });
  #color = element("select", { id: "token-color" }, Object.entries(COLORS).map(([name, { label }]) => element("option", { value: name }, label)));
  #ends = [element("span"), element("span")];
  #token = element("div", { class: "token-details", "aria-live": "polite" });
  details = element("aside", { class: "token-side", "aria-label": "Token" }, this.#token);
  #main = element("div", { class: "token-main" });
  root = element("div", { class: "token-view" }, this.#main, this.details);

  constructor(handlers) {
    this.#handlers = handlers;
    this.#main.append(element("div", { class: "legend" }, element("label", { for: "token-color" }, "Color"), this.#color,
      element("span", { class: "scale" }, this.#ends[0], element("span", { class: "ramp", "aria-hidden": "true" }), this.#ends[1])), this.#list);
    this.#color.addEventListener("input", () => this.#paint());
    for (const event of ["pointerover", "focusin"]) this.#list.addEventListener(event, ({ target }) => this.#showDetails(this.#placeOf(target)));
    this.#list.addEventListener("pointerleave", () => this.#showDetails(this.#selected));
    this.#list.addEventListener("click", ({ target }) => this.select(this.#placeOf(target)));
    this.#list.addEventListener("keydown", (event) => this.#move(event));
  }

  /** Shows a result of `POST /v1/inspect`. */
  show(result, selected) {
    this.#result = result;
    const buttons = result.tokens.map(({ token, logprob, rank }, at) => {
      const said = logprob === null ? "first token" : `probability ${percent(logprob)}, rank ${rank}`;
      const button = element("button", { type: "button", class: "token", tabindex: -1, "data-at": at, "aria-label": `${visible(token)}, ${said}` }, token.replaceAll("\n", "⏎\n"));
      return button;
    });
    buttons.push(element("button", { type: "button", class: "token next-token", tabindex: -1, "data-at": result.tokens.length }, "next token"));
    this.#list.replaceChildren(...buttons);
    this.#paint();
    this.select(Math.min(selected, result.tokens.length - 1));
  }

  /** Chooses a token. */
  select(at) {
    if (at === undefined) return;
    for (const button of this.#list.children) {
      const isSelected = Number(button.dataset.at) === at;
      button.setAttribute("aria-pressed", isSelected);
      button.tabIndex = isSelected ? 0 : -1;
    }
    this.#selected = at;
    this.#showDetails(at);
    this.#handlers.selected(Math.min(at, this.#result.tokens.length - 1));
  }

  #placeOf(target) {
    const at = target.closest(".token")?.dataset.at;
    return at === undefined ? undefined : Number(at);
  }

  #move(event) {
    const at = this.#placeOf(event.target);
    const last = this.#list.children.length - 1;
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: last }[event.key];
    if (to === undefined || to < 0 || to > last) return;
    event.preventDefault();
    this.select(to);
    this.#list.children[to].focus();
  }

  #paint() {
    const { of, ends } = COLORS[this.#color.value];
    this.#ends.forEach((end, at) => { end.textContent = ends[at]; });
    this.#result?.tokens.forEach((token, at) => {
      const strength = of(token, this.#result.predictions[at - 1]);
      const button = this.#list.children[at];
      button.classList.toggle("is-first", strength === null || strength === undefined);
      button.style.setProperty("--strength", `${Math.round(100 * Math.min(1, Math.max(0, strength ?? 0)))}%`);
    });
  }

  /** Shows what the model expected in the place of a token: the prediction after the one before it. */
  #showDetails(at) {
    if (at === undefined) return;
    const token = this.#result.tokens[at];
    const expected = this.#result.predictions[at - 1];
    const key = `${at} ${this.#result.model}`;
    if (this.#token.dataset.shown === key && this.#token.result === this.#result) return;
    this.#token.dataset.shown = key;
    this.#token.result = this.#result;
    const facts = [];
    if (token?.logprob !== null && token !== undefined) {
      facts.push(["Probability", percent(token.logprob)], ["Log-probability", token.logprob.toFixed(3).replace("-", "−")], ["Rank", String(token.rank)]);
    }
    if (expected) facts.push(["Entropy", `${expected.entropy.toFixed(2)} nats`]);
    if (token) facts.push(["Token id", String(token.id)]);
    this.#token.replaceChildren(
      element("h3", {}, token ? element("code", {}, visible(token.token)) : "Next token"),
      element("dl", { class: "measures" }, facts.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)])),
      ...this.#alternatives(at, token, expected));
  }

  #alternatives(at, token, expected) {
    if (!expected) return [element("p", { class: "help" }, "Nothing precedes this token, so the model expected nothing.")];
    const options = [...expected.top_logprobs];
    if (token && !options.some(({ id }) => id === token.id)) options.push(token);
    const rows = options.map((option) => {
      const isActual = option.id === token?.id;
      const button = element("button", {
        type: "button", class: "alternative", "aria-current": isActual ? "true" : false,
        title: isActual ? "The token in the text" : "Continue from this token",
        onclick: () => this.#handlers.branch(at, option),
      }, element("code", {}, visible(option.token)), element("span", {}, percent(option.logprob)));
      button.style.setProperty("--share", `${(Math.exp(option.logprob) * 100).toFixed(1)}%`);
      return element("li", {}, button);
    });
    return [element("h4", {}, token ? "Alternatives" : "What may come"), element("ol", { class: "alternatives" }, rows),
      element("p", { class: "help" }, "Choose one to continue from it.")];
  }
}
