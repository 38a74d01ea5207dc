// The logit lens: what each layer would predict if it were the last one.
import { element } from "./dom.js";
import { visible } from "./inspect-tokens.js";

/** Number of tokens that are shown side by side. */
const COLUMNS = 10;

export class LogitLens {
  #load;
  #result;
  #lens = null;
  #selected = 0;
  #start = 0;
  #isShown = false;
  #choose;
  #status = element("p", { class: "quiet", role: "status" });
  #error = element("p", { class: "error", role: "alert", hidden: true });
  #table = element("table", { class: "lens" });
  #readout = element("p", { class: "attention-text", "aria-live": "polite" });
  #earlier = element("button", { type: "button", class: "button", onclick: () => this.#scroll(-COLUMNS) }, "Earlier tokens");
  #later = element("button", { type: "button", class: "button", onclick: () => this.#scroll(COLUMNS) }, "Later tokens");
  root = element("div", { class: "logit-lens" });

  constructor(choose) {
    this.#choose = choose;
    this.root.append(
      element("p", { class: "quiet" }, "Each row is a layer, the last one on top; each column is a token of the text. A cell is what the layer would predict to follow, darker if it is surer."),
      element("p", { class: "actions" }, this.#earlier, this.#later), this.#status, this.#error, this.#readout,
      element("div", { class: "table-frame", tabindex: "0", role: "group", "aria-label": "Logit lens" }, this.#table));
    for (const event of ["pointerover", "click"]) this.#table.addEventListener(event, ({ target }) => this.#read(target.closest("td")));
  }

  /** Shows another inspected text. `load()` asks the server for the lens. */
  reset(result, load) {
    this.#result = result;
    this.#load = load;
    this.#lens = null;
    if (this.#isShown) this.#show();
  }

  setShown(isShown) {
    this.#isShown = isShown;
    if (isShown && this.#result) this.#show();
  }

  select(at) {
    this.#selected = at;
    if (at <= this.#start || at >= this.#start + COLUMNS - 1) this.#setStart(at - COLUMNS / 2);
    if (this.#isShown && this.#lens) this.#draw();
  }

  async #show() {
    const result = this.#result;
    this.#error.hidden = true;
    try {
      if (this.#lens === null) {
        this.#status.textContent = "Loading…";
        const { logit_lens: lens } = await this.#load();
        if (result !== this.#result) return;
        this.#lens = lens;
      }
      this.#status.textContent = "";
      this.#draw();
    } catch (error) {
      this.#status.textContent = "";
      this.#error.textContent = error.message;
      this.#error.hidden = false;
    }
  }

  /** The first column, as far as there are columns. */
  #setStart(at) {
    this.#start = Math.max(0, Math.min(at, this.#result.tokens.length - COLUMNS));
  }

  #scroll(step) {
    this.#setStart(this.#start + step);
    this.#draw();
  }

  #draw() {
    const { tokens } = this.#result;
    const end = Math.min(tokens.length, this.#start + COLUMNS);
    const places = Array.from({ length: end - this.#start }, (_, column) => this.#start + column);
    this.#earlier.disabled = this.#start === 0;
    this.#later.disabled = end >= tokens.length;
    const heads = places.map((at) => element("th", { scope: "col", class: at === this.#selected && "is-selected" },
      element("button", { type: "button", class: "lens-token", onclick: () => this.#choose(at) }, visible(tokens[at].token))));
    const rows = this.#lens.layers.map((layer, row) => {
      const cells = places.map((at) => {
        const [top] = this.#lens.predictions[row][at];
        const isRight = top.id === tokens[at + 1]?.id;
        const cell = element("td", { "data-row": row, "data-at": at, class: isRight && "is-right" }, visible(top.token));
        cell.style.setProperty("--strength", `${Math.round(100 * Math.exp(top.logprob))}%`);
        return cell;
      });
      return element("tr", {}, element("th", { scope: "row" }, layer === 0 ? "embedding" : `layer ${layer - 1}`), cells);
    });
    this.#table.replaceChildren(element("thead", {}, element("tr", {}, element("td", {}), heads)), element("tbody", {}, rows.reverse()));
    const last = this.#lens.layers.length - 1;
    if (this.#selected >= this.#start && this.#selected < end) this.#say(last, this.#selected);
  }

  #read(cell) {
    if (cell?.dataset.at !== undefined) this.#say(Number(cell.dataset.row), Number(cell.dataset.at));
  }

  #say(row, at) {
    const layer = this.#lens.layers[row];
    const said = this.#lens.predictions[row][at].flatMap(({ token, logprob }, place) => [place > 0 ? ", " : "", element("code", {}, visible(token)), ` ${(Math.exp(logprob) * 100).toFixed(0)} %`]);
    this.#readout.replaceChildren(`After `, element("code", {}, visible(this.#result.tokens[at].token)), layer === 0 ? ", the embedding predicts " : `, layer ${layer - 1} predicts `, ...said);
  }
}
