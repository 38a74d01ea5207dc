// Attention maps: one layer's heads in small, and one head as a heat map and as arcs.
import { ArcView } from "./attention-arcs.js";
import { HeatMap } from "./attention-map.js";
import { element } from "./dom.js";
import { decodeFloat16 } from "./float16.js";
import { visible } from "./inspect-tokens.js";

const MEAN = "mean";
const THUMBNAIL = 56;

/** One head's weights: `at(query, key)`. With `first: false`, the first key has the weight 0, so rows are scaled without it. */
export class Weights {
  constructor(values, size, { first = true } = {}) {
    Object.assign(this, { values, size, first });
  }

  at(query, key) {
    return key > query || (!this.first && key === 0) ? 0 : this.values[query * this.size + key];
  }

  /** The largest weight of a row, to scale its colors. */
  largest(query) {
    let found = 0;
    for (let key = 0; key <= query; key += 1) found = Math.max(found, this.at(query, key));
    return found;
  }
}

export class AttentionView {
  #load;
  #result;
  #layers = new Map();
  #layer = 0;
  #head = MEAN;
  #selected = 0;
  #isShown = false;
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
    this.#map = new HeatMap(selected);
    this.#arcs = new ArcView(selected);
    this.#views = element("div", { class: "attention-views" }, this.#map.root, this.#arcs.root);
    this.root.append(
      element("div", { class: "attention-controls" }, element("label", { for: "attention-layer" }, "Layer"), this.#layerSelect,
        element("label", { class: "check" }, this.#first, " Leave out the first token, on which many heads rest")),
      this.#heads, this.#status, this.#error, this.#text, this.#views);
    this.#layerSelect.addEventListener("input", () => {
      this.#layer = Number(this.#layerSelect.value);
      this.#show();
    });
    this.#first.addEventListener("input", () => this.#draw());
    document.addEventListener("hearth-theme", () => this.#draw());
  }

  /** Shows another inspected text. `load(layers)` asks the server for the weights of layers. */
  reset(result, load) {
    this.#result = result;
    this.#load = load;
    this.#layers.clear();
    this.#layer = Math.min(this.#layer, result.layer_count - 1);
    if (this.#head !== MEAN && this.#head >= result.head_count) this.#head = MEAN;
    this.#layerSelect.replaceChildren(...Array.from({ length: result.layer_count }, (_, layer) => element("option", { value: layer }, String(layer))));
    this.#layerSelect.value = this.#layer;
    if (this.#isShown) this.#show();
  }

  setShown(isShown) {
    this.#isShown = isShown;
    if (isShown && this.#result) this.#show();
  }

  select(at) {
    this.#selected = at;
    if (this.#isShown && this.#layers.has(this.#layer)) this.#showSelected();
  }

  async #show() {
    const { tokens } = this.#result;
    const layer = this.#layer;
    const result = this.#result;
    this.#error.hidden = true;
    try {
      if (!this.#layers.has(layer)) {
        this.#status.textContent = "Loading attention…";
        const { attention } = await this.#load([layer]);
        if (result !== this.#result) return;
        this.#layers.set(layer, heads(attention, tokens.length));
      }
      this.#status.textContent = "";
      if (layer !== this.#layer) return;
      this.#showHeads();
      this.#draw();
    } catch (error) {
      this.#status.textContent = "";
      this.#error.textContent = error.message;
      this.#error.hidden = false;
    }
  }

  #showHeads() {
    const options = [MEAN, ...this.#layers.get(this.#layer).single.keys()];
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
    const { mean, single } = this.#layers.get(this.#layer);
    return new Weights(head === MEAN ? mean : single[head], this.#result.tokens.length, { first: !this.#first.checked });
  }

  #draw() {
    if (!this.#isShown || !this.#layers.has(this.#layer)) return;
    const labels = this.#result.tokens.map(({ token }) => visible(token));
    for (const button of this.#heads.children) {
      const head = button.dataset.head === MEAN ? MEAN : Number(button.dataset.head);
      HeatMap.drawSmall(button.querySelector("canvas"), this.#weights(head));
    }
    const name = `layer ${this.#layer}, ${this.#head === MEAN ? "mean of the heads" : `head ${this.#head}`}`;
    this.#map.show(this.#weights(this.#head), labels, name);
    this.#arcs.show(this.#weights(this.#head), labels, name);
    this.#showSelected();
  }

  /** Says in words what the chosen token attends to. */
  #showSelected() {
    const weights = this.#weights(this.#head);
    const labels = this.#result.tokens.map(({ token }) => visible(token));
    const query = Math.min(this.#selected, labels.length - 1);
    const keys = labels.map((label, key) => ({ label, weight: weights.at(query, key) })).filter(({ weight }) => weight >= 0.005);
    keys.sort((a, b) => b.weight - a.weight);
    const said = keys.slice(0, 5).map(({ label, weight }) => [element("code", {}, label), ` ${(weight * 100).toFixed(0)} %`]);
    this.#text.replaceChildren(element("code", {}, labels[query]), " attends to ", ...said.flatMap((each, at) => (at > 0 ? [", ", ...each] : each)), keys.length === 0 ? "nothing that is shown" : "");
    this.#map.select(query);
    this.#arcs.select(query);
  }
}

/** The weights of one layer: each head's, and their mean. */
function heads({ shape, data }, size) {
  const values = decodeFloat16(data);
  const [, count] = shape;
  const single = Array.from({ length: count }, (_, head) => values.subarray(head * size * size, (head + 1) * size * size));
  const mean = new Float32Array(size * size);
  for (const each of single) for (let at = 0; at < mean.length; at += 1) mean[at] += each[at] / count;
  return { single, mean };
}
