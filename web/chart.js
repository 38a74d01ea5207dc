// A small line chart of the last minutes, as SVG.
import { element, svg } from "./dom.js";

const WIDTH = 320;
const HEIGHT = 96;
const TOP = 8;

/** The next round number above: 1, 2 or 5 times a power of ten. */
function round(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].find((factor) => factor * power >= value) * power;
}

/** The line of a series, beside its name. */
const key = (at) => svg("svg", { class: "chart-key", viewBox: "0 0 18 6", "aria-hidden": "true" }, svg("path", { class: `chart-line line-${at}`, d: "M1 3H17", fill: "none" }));

export class Chart {
  #series;
  #format;
  #minutes;
  #floor;
  #lines;
  #values;
  #top = element("span", { class: "chart-top" });
  #drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", class: "chart", role: "img" });
  root;

  /** `series`: names of the lines. `format(value)` writes a value. `floor`: the smallest upper end of the axis. */
  constructor({ title, series, format, minutes, floor = 1 }) {
    Object.assign(this, { title });
    this.#series = series;
    this.#format = format;
    this.#minutes = minutes;
    this.#floor = floor;
    this.#lines = series.map((_, at) => svg("path", { class: `chart-line line-${at}`, fill: "none", "vector-effect": "non-scaling-stroke" }));
    this.#values = series.map(() => element("strong", {}, "–"));
    const guides = [TOP, HEIGHT / 2 + TOP / 2, HEIGHT].map((y) => svg("path", { class: "chart-guide", d: `M0 ${y}H${WIDTH}`, "vector-effect": "non-scaling-stroke" }));
    this.#drawing.append(...guides, ...this.#lines);
    const legend = series.map((name, at) => element("span", { class: "chart-value" }, key(at), `${name} `, this.#values[at]));
    this.root = element("section", { class: "chart-card", "aria-label": title },
      element("h3", {}, title), element("p", { class: "chart-legend" }, legend),
      element("div", { class: "chart-frame" }, this.#top, this.#drawing),
      element("p", { class: "chart-axis", "aria-hidden": "true" }, element("span", {}, `${minutes} min ago`), element("span", {}, "now")));
  }

  /** Shows points `{ time, values }`: times in ms, one value per series, null where there is none. */
  show(points, now) {
    const start = now - this.#minutes * 60_000;
    const seen = points.filter(({ time }) => time >= start);
    const highest = Math.max(this.#floor, ...seen.flatMap(({ values }) => values.map((value) => value ?? 0)));
    const top = round(highest);
    this.#top.textContent = this.#format(top);
    const x = (time) => (((time - start) / (now - start)) * WIDTH).toFixed(1);
    const y = (value) => (HEIGHT - 1 - (value / top) * (HEIGHT - TOP - 1)).toFixed(1);
    this.#lines.forEach((line, at) => {
      let path = "";
      let isDrawing = false;
      for (const { time, values } of seen) {
        const value = values[at];
        if (value === null || value === undefined) {
          isDrawing = false;
          continue;
        }
        // A point alone is a short line, so that it can be seen.
        path += isDrawing ? `L${x(time)} ${y(value)}` : `M${x(Math.max(start, time - 1000))} ${y(value)}L${x(time)} ${y(value)}`;
        isDrawing = true;
      }
      line.setAttribute("d", path);
    });
    const latest = this.#series.map((_, at) => seen.findLast(({ values }) => values[at] !== null && values[at] !== undefined)?.values[at]);
    this.#values.forEach((value, at) => { value.textContent = latest[at] === undefined ? "–" : this.#format(latest[at]); });
    const said = this.#series.map((name, at) => `${name}: ${latest[at] === undefined ? "no value" : this.#format(latest[at])}`);
    this.#drawing.setAttribute("aria-label", `${this.title}, last ${this.#minutes} minutes. ${said.join(", ")}.`);
  }
}
