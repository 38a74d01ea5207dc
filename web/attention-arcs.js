// A head's attention as arcs: the tokens from top to bottom, and an arc from each one to those that it looks at. If these are the tokens
// of another text, they are a column of their own, and the arcs are lines.
import { element, svg } from "./dom.js";

const ROW = 22;
const LABEL = 110;
/** Between the columns of two texts. */
const GAP = 110;
const MAX_ARCS = 300;
const MIN_WEIGHT = 0.04;

export class ArcView {
  #selected;
  #frame = element("div", { class: "figure-frame arcs", tabindex: "0", role: "group", "aria-label": "Arcs" });
  root = element("figure", { class: "attention-figure" }, element("figcaption", {}, "Arcs"), this.#frame,
    element("p", { class: "quiet readout" }, "From the chosen token to what it looks at. The thicker, the more. Faint: the other tokens."));

  constructor(selected) {
    this.#selected = selected;
  }

  /** `labels` are those of the rows and of the columns; `isApart` if they are two texts. */
  show(weights, [rows, columns], name, { isApart = false } = {}) {
    const height = Math.max(rows.length, columns.length) * ROW;
    const room = isApart ? GAP : Math.max(90, Math.min(260, height * 0.42));
    const y = (at) => (at + 0.5) * ROW;
    const column = (labels, attributes, attributesOf) => labels.map((label, at) => {
      const text = svg("text", { y: y(at), "dominant-baseline": "central", ...attributes, ...attributesOf(at) });
      text.textContent = label.length > 14 ? `${label.slice(0, 13)}…` : label;
      return text;
    });
    const texts = column(rows, { x: LABEL - 8, "text-anchor": "end" }, (at) => ({ "data-at": at }));
    texts.forEach((text, at) => text.addEventListener("click", () => this.#selected(at)));
    if (isApart) texts.push(...column(columns, { x: LABEL + GAP + 8, class: "looked-at" }, (at) => ({ "data-key": at })));
    const curve = (query, key) => {
      const bend = isApart ? GAP / 2 : Math.min(room, 16 + Math.abs(query - key) * ROW * 0.42);
      return `M${LABEL} ${y(query)} C${LABEL + bend} ${y(query)} ${LABEL + bend} ${y(key)} ${isApart ? LABEL + GAP : LABEL} ${y(key)}`;
    };
    const arcs = strongest(weights, isApart).map(({ query, key, weight }) => svg("path", {
      d: curve(query, key), "data-query": query, "data-key": key,
      "stroke-width": (0.75 + 4 * weight).toFixed(2), "stroke-opacity": (0.15 + 0.85 * weight).toFixed(2),
    }));
    const width = LABEL + room + (isApart ? LABEL : 0);
    const drawing = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Attention of ${name} as arcs` },
      svg("g", { class: "arc-lines", fill: "none" }, arcs), svg("g", { class: "arc-labels" }, texts));
    this.#frame.replaceChildren(drawing);
  }

  select(query) {
    for (const arc of this.#frame.querySelectorAll("path")) arc.classList.toggle("is-selected", Number(arc.dataset.query) === query);
    for (const label of this.#frame.querySelectorAll("[data-at]")) label.classList.toggle("is-selected", Number(label.dataset.at) === query);
    const top = query * ROW - this.#frame.clientHeight / 2;
    this.#frame.scrollTop = Math.max(0, top);
  }
}

/** The arcs that are drawn: those of large weights, the largest first if there are too many. */
function strongest(weights, isApart) {
  const found = [];
  for (let query = 0; query < weights.rows; query += 1) {
    for (let key = 0; key < weights.columns; key += 1) {
      const weight = weights.at(query, key);
      // A token that looks at itself has no arc.
      if (weight >= MIN_WEIGHT && (isApart || key !== query)) found.push({ query, key, weight });
    }
  }
  return found.sort((a, b) => b.weight - a.weight).slice(0, MAX_ARCS);
}
