// The tab Server: what the server is doing, from its metrics, and what it runs. Asks only while it is looked at.
import { description, metricsText } from "./api.js";
import { Chart } from "./chart.js";
import { byId, element } from "./dom.js";
import { count } from "./measure.js";
import { modelList, models } from "./models.js";
import { meanBetween, Metrics, quantileBetween } from "./prometheus.js";

const INTERVAL_MS = 2000;
const MINUTES = 5;
/** Rates and latencies are averaged over this time, so that the lines are smooth. */
const WINDOW_MS = 10_000;

/** The libraries of the page: name, and name of the licence file. */
const LIBRARIES = [["marked", "marked"], ["DOMPurify", "dompurify"], ["highlight.js", "highlight"], ["KaTeX", "katex"]];

const whole = (value) => count(Math.round(value));
const percent = (value) => `${(value * 100).toFixed(value > 0 && value < 0.1 ? 1 : 0)} %`;
const rate = (value) => (value < 10 ? value.toFixed(1) : whole(value));
const duration = (value) => (value < 1 ? `${Number((value * 1000).toPrecision(3))} ms` : `${value.toFixed(2)} s`);

/** The charts. `values` computes what they show from a scrape `now` and an earlier one `before`, `seconds` apart. */
const latency = (title, name) => ({
  title, series: ["mean", "p95"], format: duration, floor: 0.001,
  values: (now, before) => [meanBetween(before, now, name), quantileBetween(before, now, name, 0.95)],
});
const perSecond = (now, before, seconds, name) => Math.max(0, (now.sum(name) ?? 0) - (before.sum(name) ?? 0)) / seconds;
const CHARTS = [
  { title: "Requests", series: ["running", "waiting"], format: whole, floor: 4,
    values: (now) => [now.sum("vllm:num_requests_running"), now.sum("vllm:num_requests_waiting")] },
  { title: "Tokens per second", series: ["generated", "prompt"], format: rate, floor: 10,
    values: (now, before, seconds) => ["vllm:generation_tokens_total", "vllm:prompt_tokens_total"].map((name) => perSecond(now, before, seconds, name)) },
  { title: "KV cache in use", series: ["share of pages"], format: percent, floor: 0.05, values: (now) => [now.sum("vllm:kv_cache_usage_perc")] },
  latency("Time to first token", "vllm:time_to_first_token_seconds"),
  latency("Time between tokens", "vllm:inter_token_latency_seconds"),
  latency("Request duration", "vllm:e2e_request_latency_seconds"),
];

let charts;
let cards;
let error;
/** Scrapes of the last minutes: `{ time, metrics }`; and what each chart shows of them. */
const scrapes = [];
let points;
let timer = null;
let isShown = false;
let version;

function forget(list, before) {
  while (list.length > 0 && list[0].time < before) list.shift();
}

async function scrape() {
  timer = null;
  try {
    const metrics = new Metrics(await metricsText());
    const time = Date.now();
    scrapes.push({ time, metrics });
    forget(scrapes, time - 2 * WINDOW_MS);
    const earlier = scrapes.find((each) => each.time >= time - WINDOW_MS && each.time < time);
    CHARTS.forEach(({ values, series }, at) => {
      const shown = earlier ? values(metrics, earlier.metrics, (time - earlier.time) / 1000) : series.map(() => null);
      points[at].push({ time, values: shown });
      forget(points[at], time - MINUTES * 60_000);
      charts[at].show(points[at], time);
    });
    error.hidden = true;
    showFacts(metrics);
  } catch (failure) {
    error.textContent = failure.message;
    error.hidden = false;
  }
  plan(INTERVAL_MS);
}

/** Asks again after some time, if anyone is looking. */
function plan(wait) {
  if (timer === null && isShown && document.visibilityState === "visible") timer = setTimeout(scrape, wait);
}

/** Facts below a title; without any, nothing. */
function facts(title, rows) {
  const known = rows.filter(([, value]) => value !== undefined && value !== null);
  if (known.length === 0) return [];
  return [element("h3", {}, title), element("dl", { class: "measures" }, known.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, ...[value].flat())]))];
}

const card = (...parts) => element("section", { class: "facts" }, parts.flat());

function modelFacts() {
  return modelList().map(({ id, max_model_len: context, meta = {}, parent }) => card(facts(id, [
    ["Adapter of", parent],
    ["Parameters", meta.n_params && count(meta.n_params)],
    ["Context", context && `${count(context)} tokens`],
    ["Vocabulary", meta.n_vocab && `${count(meta.n_vocab)} tokens`],
    ["Width", meta.n_embd && count(meta.n_embd)],
  ])));
}

function showFacts(metrics) {
  const cache = metrics.info("vllm:cache_config_info");
  const build = metrics.info("hearth_build_info");
  const started = modelList()[0]?.created;
  const queries = metrics.sum("vllm:prefix_cache_queries_total");
  const drafted = metrics.sum("vllm:spec_decode_num_draft_tokens_total");
  const total = (name) => (metrics.sum(name) === undefined ? undefined : count(metrics.sum(name)));
  const ended = metrics.all("vllm:request_success_total").map(({ labels, value }) => [`Ended by ${labels.finished_reason}`, count(value)]);
  cards.replaceChildren(
    card(facts("Server", [
      ["Hearth", build?.version ?? version],
      ["Device", build?.device],
      ["Weights", build?.dtype],
      ["Started", started && new Date(started * 1000).toLocaleString()],
      ["API", element("a", { href: "docs" }, "reference")],
      ["Libraries", LIBRARIES.flatMap(([name, file], at) => [at > 0 ? ", " : "", element("a", { href: `vendor/licences/${file}.txt` }, name)])],
    ])),
    ...modelFacts(),
    card(facts("KV cache", cache ? [
      ["Pages", cache.num_gpu_blocks && count(Number(cache.num_gpu_blocks))],
      ["Tokens per page", cache.block_size],
      ["Format", cache.cache_dtype],
      ["Prompt tokens found", queries ? percent(metrics.sum("vllm:prefix_cache_hits_total") / queries) : undefined],
      ["Preemptions", total("vllm:num_preemptions_total")],
    ] : []), facts("Since the start", [
      ["Prompt tokens", total("vllm:prompt_tokens_total")],
      ["Generated tokens", total("vllm:generation_tokens_total")],
      ["Accepted draft tokens", drafted ? percent(metrics.sum("vllm:spec_decode_num_accepted_tokens_total") / drafted) : undefined],
      ...ended,
    ])),
  );
}

export function start() {
  charts = CHARTS.map(({ title, series, format, floor }) => new Chart({ title, series, format, floor, minutes: MINUTES }));
  points = CHARTS.map(() => []);
  cards = element("div", { class: "fact-cards" });
  error = element("p", { class: "error", role: "alert", hidden: true });
  byId("server").append(
    element("div", {}, element("p", { class: "intro" }, `The last ${MINUTES} minutes, asked every ${INTERVAL_MS / 1000} seconds while this page is in view.`)), error,
    element("div", { class: "charts" }, charts.map(({ root }) => root)), cards);
  description().then(({ info }) => { version = info.version; }).catch(() => {});
  document.addEventListener("visibilitychange", () => plan(0));
  models.addEventListener("change", () => scrapes.length > 0 && showFacts(scrapes.at(-1).metrics));
  return {
    shown() {
      isShown = true;
      plan(0);
    },
    hidden() {
      isShown = false;
      clearTimeout(timer);
      timer = null;
    },
  };
}
