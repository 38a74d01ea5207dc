// A head's attention as arcs: the tokens from top to bottom, and an arc from each one to those that it looks at.
import { element, svg } from "./dom.js";

const ROW = 22;
const LABEL = 110;
const MAX_ARCS = 300;
const MIN_WEIGHT = 0.04;

export class ArcView {
  #weights;
  #labels = [];
  #selected;
  #frame = element("div", { class: "figure-frame arcs", tabindex: "0", role: "group", "aria-label": "Arcs" });
  root = element("figure", { class: "attention-figure" }, element("figcaption", {}, "Arcs"), this.#frame,
    element("p", { class: "quiet readout" }, "From the chosen token to what it looks at. The thicker, the more. Faint: the other tokens."));

  constructor(selected) {
    this.#selected = selected;
  }

  show(weights, labels, name) {
    this.#weights = weights;
    this.#labels = labels;
    const height = labels.length * ROW;
    const room = Math.max(90, Math.min(260, height * 0.42));
    const y = (at) => (at + 0.5) * ROW;
    const rows = labels.map((label, at) => {
      const text = svg("text", { x: LABEL - 8, y: y(at), "text-anchor": "end", "dominant-baseline": "central", "data-at": at });
      text.textContent = label.length > 14 ? `${label.slice(0, 13)}…` : label;
      text.addEventListener("click", () => this.#selected(at));
      return text;
    });
    const arcs = this.#strongest().map(({ query, key, weight }) => {
      const bend = Math.min(room, 16 + (query - key) * ROW * 0.42);
      return svg("path", {
        d: `M${LABEL} ${y(query)} C${LABEL + bend} ${y(query)} ${LABEL + bend} ${y(key)} ${LABEL} ${y(key)}`,
        "data-query": query, "stroke-width": (0.75 + 4 * weight).toFixed(2), "stroke-opacity": (0.15 + 0.85 * weight).toFixed(2),
      });
    });
    const drawing = svg("svg", { width: LABEL + room, height, viewBox: `0 0 ${LABEL + room} ${height}`, role: "img", "aria-label": `Attention of ${name} as arcs` },
      svg("g", { class: "arc-lines", fill: "none" }, arcs), svg("g", { class: "arc-labels" }, rows));
    this.#frame.replaceChildren(drawing);
  }

  /** The arcs that are drawn: those of large weights, the largest first if there are too many. */
  #strongest() {
    const found = [];
    for (let query = 1; query < this.#labels.length; query += 1) {
      // A token that looks at itself has no arc.
      for (let key = 0; key < query; key += 1) {
        const weight = this.#weights.at(query, key);
        if (weight >= MIN_WEIGHT) found.push({ query, key, weight });
      }
    }
    return found.sort((a, b) => b.weight - a.weight).slice(0, MAX_ARCS);
  }

  select(query) {
    for (const arc of this.#frame.querySelectorAll("path")) arc.classList.toggle("is-selected", Number(arc.dataset.query) === query);
    for (const label of this.#frame.querySelectorAll("text")) label.classList.toggle("is-selected", Number(label.dataset.at) === query);
    const top = query * ROW - this.#frame.clientHeight / 2;
    this.#frame.scrollTop = Math.max(0, top);
  }
}
