// Attention maps: one layer's heads in small, and one head as a heat map and as arcs. Of an encoder-decoder, those of the decoder, of the
// encoder, and from the target to the source.
import { ArcView } from "./attention-arcs.js";
import { HeatMap } from "./attention-map.js";
import { element } from "./dom.js";
import { decodeFloat16 } from "./float16.js";
import { visible } from "./inspect-tokens.js";

const MEAN = "mean";
const THUMBNAIL = 56;

/** What can be shown of a result: its layers, the tokens that look (rows) and those that are looked at (columns), and how to ask for a layer. */
const KINDS = {
  decoder: {
    label: "Target to target (decoder)", count: (result) => result.layer_count, rows: (result) => result.tokens, columns: (result) => result.tokens, isCausal: true,
    ask: (layer, result) => (result.source ? { layers: [layer], encoder_layers: [] } : { layers: [layer] }), of: (answer) => answer.attention,
  },
  cross: {
    label: "Target to source (cross-attention)", count: (result) => result.layer_count, rows: (result) => result.tokens, columns: (result) => result.source.tokens,
    ask: (layer) => ({ layers: [layer], encoder_layers: [] }), of: (answer) => answer.source.cross_attention,
  },
  encoder: {
    label: "Source to source (encoder)", count: (result) => result.source.layer_count, rows: (result) => result.source.tokens, columns: (result) => result.source.tokens,
    ask: (layer) => ({ layers: [], encoder_layers: [layer] }), of: (answer) => answer.source.attention,
  },
};

/** One head's weights: `at(query, key)`. With `first: false`, the first key has the weight 0, so rows are scaled without it. */
export class Weights {
  constructor(values, [rows, columns], { first = true, isCausal = true } = {}) {
    Object.assign(this, { values, rows, columns, first, isCausal });
  }

  /** Whether the token at `query` cannot see the one at `key`. */
  hides(query, key) {
    return this.isCausal && key > query;
  }

  at(query, key) {
    return this.hides(query, key) || (!this.first && key === 0) ? 0 : this.values[query * this.columns + key];
  }

  /** The largest weight of a row, to scale its colors. */
  largest(query) {
    let found = 0;
    for (let key = 0; key < this.columns; key += 1) found = Math.max(found, this.at(query, key));
    return found;
  }
}

export class AttentionView {
  #load;
  #result;
  /** The weights of the layers so far, by kind and number. */
  #layers = new Map();
  #kind = "decoder";
  #layer = 0;
  #head = MEAN;
  /** The chosen row: of the text, and of the source. */
  #selected = 0;
  #selectedSource = 0;
  #isShown = false;
  #kindSelect = element("select", { id: "attention-kind" }, Object.entries(KINDS).map(([name, { label }]) => element("option", { value: name }, label)));
  #kinds = element("span", { class: "attention-kinds", hidden: true }, element("label", { for: "attention-kind" }, "From what to what"), this.#kindSelect);
  #layerSelect = element("select", { id: "attention-layer" });
  #first = element("input", { type: "checkbox", id: "attention-first" });
  #heads = element("div", { class: "heads", role: "group", "aria-label": "Heads" });
  #status = element("p", { class: "quiet", role: "status" });
  #error = element("p", { class: "error", role: "alert", hidden: true });
  #text = element("p", { class: "attention-text", "aria-live": "polite" });
  #map;
  #arcs;
  #views;
  root = element("div", { class: "attention" });

  /** `selected(at)` is called when a person chooses a token in a view. */
  constructor(selected) {
    const choose = (at) => {
      if (this.#kind !== "encoder") {
        selected(at);
        return;
      }
      this.#selectedSource = at;
      this.#showSelected();
    };
    this.#map = new HeatMap(choose);
    this.#arcs = new ArcView(choose);
    this.#views = element("div", { class: "attention-views" }, this.#map.root, this.#arcs.root);
    this.root.append(
      element("div", { class: "attention-controls" }, this.#kinds, element("label", { for: "attention-layer" }, "Layer"), this.#layerSelect,
        element("label", { class: "check" }, this.#first, " Leave out the first token, on which many heads rest")),
      this.#heads, this.#status, this.#error, this.#text, this.#views);
    this.#kindSelect.addEventListener("input", () => {
      this.#kind = this.#kindSelect.value;
      this.#listLayers();
      this.#show();
    });
    this.#layerSelect.addEventListener("input", () => {
      this.#layer = Number(this.#layerSelect.value);
      this.#show();
    });
    this.#first.addEventListener("input", () => this.#draw());
    document.addEventListener("hearth-theme", () => this.#draw());
  }

  /** Shows another inspected text. `load(attention)` asks the server for the weights of layers. */
  reset(result, load) {
    const had = this.#result?.source;
    this.#result = result;
    this.#load = load;
    this.#layers.clear();
    this.#kinds.hidden = !result.source;
    this.#selectedSource = 0;
    // What is new about such a model comes first.
    if (!result.source) this.#kind = "decoder";
    else if (!had) this.#kind = "cross";
    this.#kindSelect.value = this.#kind;
    this.#listLayers();
    if (this.#isShown) this.#show();
  }

  setShown(isShown) {
    this.#isShown = isShown;
    if (isShown && this.#result) this.#show();
  }

  select(at) {
    this.#selected = at;
    if (this.#isShown && this.#maps) this.#showSelected();
  }

  /** The maps of the chosen layer, if they are here. */
  get #maps() {
    return this.#layers.get(`${this.#kind} ${this.#layer}`);
  }

  get #labels() {
    const { rows, columns } = KINDS[this.#kind];
    return [rows, columns].map((of) => of(this.#result).map(({ token }) => visible(token)));
  }

  #listLayers() {
    const count = KINDS[this.#kind].count(this.#result);
    this.#layer = Math.min(this.#layer, count - 1);
    this.#layerSelect.replaceChildren(...Array.from({ length: count }, (_, layer) => element("option", { value: layer }, String(layer))));
    this.#layerSelect.value = this.#layer;
  }

  async #show() {
    const [kind, layer, result] = [this.#kind, this.#layer, this.#result];
    this.#error.hidden = true;
    try {
      if (!this.#maps) {
        this.#status.textContent = "Loading attention…";
        const answer = await this.#load(KINDS[kind].ask(layer, result));
        if (result !== this.#result) return;
        this.#layers.set(`${kind} ${layer}`, heads(KINDS[kind].of(answer)));
      }
      this.#status.textContent = "";
      if (kind !== this.#kind || layer !== this.#layer) return;
      this.#showHeads();
      this.#draw();
    } catch (error) {
      this.#status.textContent = "";
      this.#error.textContent = error.message;
      this.#error.hidden = false;
    }
  }

  #showHeads() {
    const { single } = this.#maps;
    if (this.#head !== MEAN && this.#head >= single.length) this.#head = MEAN;
    const options = [MEAN, ...single.keys()];
    this.#heads.replaceChildren(...options.map((head) => {
      const canvas = element("canvas", { width: THUMBNAIL, height: THUMBNAIL, class: "head-map" });
      return element("button", { type: "button", class: "head", "data-head": head, "aria-pressed": head === this.#head, onclick: () => {
        this.#head = head;
        for (const each of this.#heads.children) each.setAttribute("aria-pressed", each.dataset.head === String(head));
        this.#draw();
      } }, canvas, element("span", {}, head === MEAN ? "mean" : `head ${head}`));
    }));
  }

  #weights(head) {
    const { mean, single, sizes } = this.#maps;
    return new Weights(head === MEAN ? mean : single[head], sizes, { first: !this.#first.checked, isCausal: KINDS[this.#kind].isCausal === true });
  }

  #draw() {
    if (!this.#isShown || !this.#maps) return;
    for (const button of this.#heads.children) {
      const head = button.dataset.head === MEAN ? MEAN : Number(button.dataset.head);
      HeatMap.drawSmall(button.querySelector("canvas"), this.#weights(head));
    }
    const name = `${this.#result.source ? `${KINDS[this.#kind].label}, ` : ""}layer ${this.#layer}, ${this.#head === MEAN ? "mean of the heads" : `head ${this.#head}`}`;
    this.#map.show(this.#weights(this.#head), this.#labels, name);
    this.#arcs.show(this.#weights(this.#head), this.#labels, name, { isApart: this.#kind === "cross" });
    this.#showSelected();
  }

  /** Says in words what the chosen token attends to. */
  #showSelected() {
    const weights = this.#weights(this.#head);
    const [rows, columns] = this.#labels;
    const query = Math.min(this.#kind === "encoder" ? this.#selectedSource : this.#selected, rows.length - 1);
    const keys = columns.map((label, key) => ({ label, weight: weights.at(query, key) })).filter(({ weight }) => weight >= 0.005);
    keys.sort((a, b) => b.weight - a.weight);
    const said = keys.slice(0, 5).map(({ label, weight }) => [element("code", {}, label), ` ${(weight * 100).toFixed(0)} %`]);
    this.#text.replaceChildren(element("code", {}, rows[query]), " attends to ", ...said.flatMap((each, at) => (at > 0 ? [", ", ...each] : each)), keys.length === 0 ? "nothing that is shown" : "");
    this.#map.select(query);
    this.#arcs.select(query);
  }
}

/** The weights of one layer: each head's, and their mean; `sizes` are rows and columns. */
function heads({ shape, data }) {
  const values = decodeFloat16(data);
  const [, count, ...sizes] = shape;
  const size = sizes[0] * sizes[1];
  const single = Array.from({ length: count }, (_, head) => values.subarray(head * size, (head + 1) * size));
  const mean = new Float32Array(size);
  for (const each of single) for (let at = 0; at < mean.length; at += 1) mean[at] += each[at] / count;
  return { single, mean, sizes };
}
