// Metrics in Prometheus' text format.

/** A line: name, labels in braces, value. */
const SAMPLE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

/** One scrape. */
export class Metrics {
  #samples = new Map();

  constructor(text) {
    for (const line of text.split("\n")) {
      const [, name, labels = "", value] = SAMPLE.exec(line) ?? [];
      if (name === undefined) continue;
      const found = Object.fromEntries([...labels.matchAll(LABEL)].map(([, label, written]) => [label, written.replace(/\\(.)/g, "$1")]));
      if (!this.#samples.has(name)) this.#samples.set(name, []);
      this.#samples.get(name).push({ labels: found, value: Number(value) });
    }
  }

  /** All samples of a metric: `{ labels, value }`. */
  all(name) {
    return this.#samples.get(name) ?? [];
  }

  /** The sum over all labels, or undefined if there is none. */
  sum(name) {
    const samples = this.all(name);
    return samples.length === 0 ? undefined : samples.reduce((sum, { value }) => sum + value, 0);
  }

  /** The labels of an info metric, or undefined. */
  info(name) {
    return this.all(name)[0]?.labels;
  }

  /** A histogram's buckets, over all labels, as pairs of upper bound and count up to it. */
  buckets(name) {
    const counts = new Map();
    for (const { labels, value } of this.all(`${name}_bucket`)) {
      const bound = labels.le === "+Inf" ? Infinity : Number(labels.le);
      counts.set(bound, (counts.get(bound) ?? 0) + value);
    }
    return [...counts].sort(([a], [b]) => a - b);
  }
}

/** The mean of a histogram's values between two scrapes; null if there were none. */
export function meanBetween(before, after, name) {
  const difference = (suffix) => (after.sum(name + suffix) ?? 0) - (before.sum(name + suffix) ?? 0);
  const count = difference("_count");
  return count > 0 ? difference("_sum") / count : null;
}

/** A quantile of a histogram's values between two scrapes, interpolated within its bucket; null if there were none. */
export function quantileBetween(before, after, name, quantile) {
  const start = new Map(before.buckets(name));
  const buckets = after.buckets(name).map(([bound, count]) => [bound, count - (start.get(bound) ?? 0)]);
  const total = buckets.at(-1)?.[1] ?? 0;
  if (total <= 0) return null;
  let [low, below] = [0, 0];
  for (const [bound, count] of buckets) {
    if (count >= quantile * total) {
      return bound === Infinity ? low : low + (bound - low) * ((quantile * total - below) / Math.max(1e-9, count - below));
    }
    [low, below] = [bound, count];
  }
  return low;
}
