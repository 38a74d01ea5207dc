// A head's attention as a heat map on a canvas: a row is a token that looks, a column one that is looked at.
import { element } from "./dom.js";

const MAX_CELL = 22;
const LABELS_FROM = 11;
const MAX_LABEL = 12;

const shortened = (label) => (label.length > MAX_LABEL ? `${label.slice(0, MAX_LABEL - 1)}…` : label);
/** The three numbers of a computed color. */
const rgb = (color) => color.match(/[\d.]+/g).slice(0, 3).map(Number);

/** A color scale of 256 opaque pixels, from the background color of the canvas's style to its text color. */
function ramp(canvas) {
  const { color, backgroundColor } = getComputedStyle(canvas);
  const [to, from] = [rgb(color), rgb(backgroundColor)];
  const pixels = new Uint8ClampedArray(4 * 256);
  for (let step = 0; step < 256; step += 1) {
    pixels.set([...from.map((each, at) => each + ((to[at] - each) * step) / 255), 255], 4 * step);
  }
  return new Uint32Array(pixels.buffer);
}

/** An image with one pixel per weight; each row is scaled to its largest. */
function image(weights, colors) {
  const { rows, columns } = weights;
  const made = new ImageData(columns, rows);
  const pixels = new Uint32Array(made.data.buffer);
  for (let query = 0; query < rows; query += 1) {
    const scale = 255 / (weights.largest(query) || 1);
    for (let key = 0; key < columns; key += 1) pixels[query * columns + key] = colors[Math.round(weights.at(query, key) * scale)];
  }
  return made;
}

function drawImage(context, pixels, at, [width, height]) {
  const small = new OffscreenCanvas(pixels.width, pixels.height);
  small.getContext("2d").putImageData(pixels, 0, 0);
  context.imageSmoothingEnabled = pixels.width > width || pixels.height > height;
  context.drawImage(small, at, at, width, height);
}

export class HeatMap {
  #weights;
  /** Of the rows and of the columns. */
  #labels = [[], []];
  #cell = 1;
  #margin = 0;
  #query = 0;
  #canvas = element("canvas", { class: "heat-map", role: "img", tabindex: "0" });
  #readout = element("p", { class: "quiet readout" });
  root = element("figure", { class: "attention-figure" }, element("figcaption", {}, "Heat map"), element("div", { class: "figure-frame map-frame" }, this.#canvas), this.#readout);

  constructor(selected) {
    this.#canvas.addEventListener("pointermove", (event) => this.#read(this.#cellAt(event)));
    this.#canvas.addEventListener("pointerleave", () => { this.#readout.textContent = this.#hint(); });
    this.#canvas.addEventListener("click", (event) => {
      const { query } = this.#cellAt(event);
      if (query >= 0 && query < this.#labels[0].length) selected(query);
    });
    this.#canvas.addEventListener("keydown", (event) => {
      const to = this.#query + ({ ArrowDown: 1, ArrowUp: -1 }[event.key] ?? NaN);
      if (!(to >= 0 && to < this.#labels[0].length)) return;
      event.preventDefault();
      selected(to);
    });
  }

  /** Draws a map without labels into `canvas`. */
  static drawSmall(canvas, weights) {
    drawImage(canvas.getContext("2d"), image(weights, ramp(canvas)), 0, [canvas.width, canvas.height]);
  }

  show(weights, labels, name) {
    this.#weights = weights;
    this.#labels = labels;
    this.#canvas.setAttribute("aria-label", `Attention of ${name}. The sentence above says what the chosen token attends to; the up and down arrows choose another one.`);
    this.#readout.textContent = this.#hint();
    this.#draw();
  }

  /** Marks a row. */
  select(query) {
    this.#query = query;
    this.#draw();
  }

  #hint() {
    return "Each row is scaled to its largest weight. Point at a cell to read it.";
  }

  #draw() {
    const [rows, columns] = this.#labels.map(({ length }) => length);
    if (!this.#weights || rows === 0) return;
    // Without the frame's padding and border.
    const room = Math.max(240, this.root.clientWidth || 480) - 20;
    const withLabels = (room - 84) / columns >= LABELS_FROM;
    this.#margin = withLabels ? 84 : 0;
    this.#cell = Math.min(MAX_CELL, Math.max(withLabels ? LABELS_FROM : 1, Math.floor((room - this.#margin) / columns)));
    const sides = [this.#cell * columns, this.#cell * rows];
    const scale = devicePixelRatio;
    // The mark of the chosen row is around it.
    const [width, height] = sides.map((side) => side + this.#margin + 2);
    Object.assign(this.#canvas, { width: width * scale, height: height * scale });
    this.#canvas.style.width = `${width}px`;
    this.#canvas.style.height = `${height}px`;
    const context = this.#canvas.getContext("2d");
    context.scale(scale, scale);
    drawImage(context, image(this.#weights, ramp(this.#canvas)), this.#margin, sides);
    if (withLabels) this.#drawLabels(context);
    context.strokeStyle = getComputedStyle(this.#canvas).color;
    context.lineWidth = 1.5;
    context.strokeRect(this.#margin - 0.5, this.#margin + this.#query * this.#cell - 0.5, sides[0] + 1, this.#cell + 1);
  }

  #drawLabels(context) {
    const { font, borderColor } = getComputedStyle(this.#canvas);
    context.font = font;
    context.fillStyle = borderColor;
    context.textBaseline = "middle";
    const [rows, columns] = this.#labels;
    const placeOf = (at) => this.#margin + (at + 0.5) * this.#cell;
    context.textAlign = "right";
    rows.forEach((label, at) => context.fillText(shortened(label), this.#margin - 4, placeOf(at)));
    context.textAlign = "left";
    columns.forEach((label, at) => {
      context.save();
      context.translate(placeOf(at), this.#margin - 4);
      context.rotate(-Math.PI / 2);
      context.fillText(shortened(label), 0, 0);
      context.restore();
    });
  }

  #cellAt({ offsetX, offsetY }) {
    const place = (offset) => Math.floor((offset - this.#margin) / this.#cell);
    return { query: place(offsetY), key: place(offsetX) };
  }

  #read({ query, key }) {
    const [rows, columns] = this.#labels;
    if (query < 0 || key < 0 || query >= rows.length || key >= columns.length) return;
    const said = this.#weights.hides(query, key) ? "comes later, so it cannot be seen" : `${(this.#weights.at(query, key) * 100).toFixed(1)} %`;
    this.#readout.textContent = `${rows[query]} looks at ${columns[key]}: ${said}`;
  }
}
