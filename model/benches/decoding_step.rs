//! What each sampler, and watching for tool calls, adds to a decoding step of one sequence:
//! `cargo bench --package hearth-model --bench decoding_step -- MODEL_DIR [q8]`.
//!
//! A text is written greedily. After each step of the model, every sampler draws a token from the same row, by turns in
//! another order, so that what slows the machine down for a while slows all of them. The shares are those of the median
//! step.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark")]

use std::{collections::BTreeSet, hint::black_box, path::Path, sync::Arc, time::Instant};

use burn::tensor::Device;
use hearth_model::{
    TokenId,
    decode::{
        constraint::{AfterGrammar, Grammar, GrammarCompiler, Mark, Outlook, Watch, WatchRules},
        model_runner::ModelRunner,
        sampling::{
            AdaptiveP, Dry, LogitDemand, LogitRow, Mirostat, MirostatVersion, Sampler, SamplingParams, Smoothing, Xtc,
        },
    },
    gpt::kv_cache::{PAGE_SIZE, StepPart},
    ops::{Dtype, KvDtype},
    text::tokenizer::{EncodeOptions, Tokenizer},
    weights::model_dir::{self, LoadOptions},
};

const N_STEPS: usize = 256;

const PROMPT: &str = "The history of the town began when";

/// A call of a function with a string and a number, in Hermes' form, after its mark.
const CALL: &str = r#"
start: "\n{\"name\": \"weather\", \"arguments\": {\"city\": \"" CITY "\", \"days\": " DAYS "}}\n</tool_call>"
CITY: /[^"\\\x00-\x1f]{0,40}/
DAYS: /[0-9]{1,3}/
"#;

fn main() {
    // cargo adds an option of its own.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let Some(dir) = arguments.first() else {
        println!("skipped: give a model dir, as in `cargo bench --bench decoding_step -- MODEL_DIR`");
        return;
    };
    let dtype = arguments.get(1).is_some_and(|dtype| dtype == "q8").then_some(Dtype::Q8);
    let model = model_dir::load(Path::new(dir), &LoadOptions { device: Device::flex(), dtype }).unwrap();
    let prompt = model.tokenizer.encode(PROMPT, EncodeOptions::PROMPT).unwrap();
    let mut measured: Vec<Measured> = samplers(&model.tokenizer)
        .into_iter()
        .map(|(name, params)| Measured {
            name,
            draw: Draw::Sampler(Box::new(Sampler::new(params, 0, &prompt))),
            times: Vec::new(),
        })
        .collect();
    for (name, marks) in [
        ("watching for a mark", vec![Mark::anywhere("<tool_call>")]),
        ("watching for bare JSON", vec![bare("weather"), bare("time"), bare("search")]),
    ] {
        let draw = Draw::Watch(watch(&model.tokenizer, marks));
        measured.push(Measured { name, draw, times: Vec::new() });
    }
    let n_pages = (prompt.len() + N_STEPS).div_ceil(PAGE_SIZE);
    let mut runner = ModelRunner::new(model.gpt, n_pages, KvDtype::F32).unwrap();
    let mut table = runner.cache().table();
    let mut steps = Vec::new();
    let mut pending = prompt.clone();
    let mut greedy = Sampler::new(SamplingParams::greedy(), 0, &prompt);
    for number in 0..N_STEPS {
        let start = Instant::now();
        let output = runner.step(&pending, &mut [StepPart::new(&mut table, pending.len())]).unwrap();
        let rows = runner.read_logits(&output, &[pending.len() - 1], &[LogitDemand::Whole]).unwrap();
        if number > 0 {
            steps.push(micros(start));
        }
        let row = rows.iter().next().unwrap();
        let position = prompt.len() + number;
        let id = greedy.sample(&row, position).unwrap();
        let n_measured = measured.len();
        for turn in 0..n_measured {
            measured[(turn + number) % n_measured].take(&row, position, id);
        }
        pending = vec![id];
    }
    let step = median(&mut steps);
    println!("{dir}, {N_STEPS} tokens: a step of the model takes {step:.0} microseconds (median)");
    println!("{:32} {:>9} {:>9} {:>9}", "", "median", "mean", "of a step");
    for Measured { name, times, .. } in &mut measured {
        let mean = times.iter().sum::<f64>() / times.len() as f64;
        let median = median(times);
        println!("{name:32} {median:9.2} {mean:9.2} {:8.2} %", 100.0 * mean / step);
    }
}

/// What is measured: in microseconds, for each token.
struct Measured {
    name: &'static str,
    draw: Draw,
    times: Vec<f64>,
}

enum Draw {
    Sampler(Box<Sampler>),
    Watch(Watch),
}

impl Measured {
    /// Draws a token from `row`, or forbids what a watch forbids; then adds the token `id` of the text.
    fn take(&mut self, row: &LogitRow<'_>, position: usize, id: TokenId) {
        let start = Instant::now();
        match &mut self.draw {
            Draw::Sampler(sampler) => {
                black_box(sampler.sample(row, position).unwrap());
                sampler.accept(id);
            }
            Draw::Watch(watch) => {
                match watch.outlook() {
                    Outlook::Free(forbidden) if forbidden.is_empty() => {}
                    Outlook::Free(forbidden) => _ = black_box(row.without(&forbidden)),
                    Outlook::Bound => {}
                }
                watch.accept(id).unwrap();
            }
        }
        self.times.push(micros(start));
    }
}

/// Each sampler alone, at temperature 1.
fn samplers(tokenizer: &Tokenizer) -> Vec<(&'static str, SamplingParams)> {
    let plain = SamplingParams::default;
    let one = tokenizer.encode(" the", EncodeOptions::TEXT).unwrap();
    let word: Arc<[Vec<TokenId>]> = [one.clone()].into();
    let biased = one.iter().map(|&id| (id, -1.0)).collect();
    vec![
        ("greedy", SamplingParams::greedy()),
        ("none", plain()),
        ("temperature 0.8", SamplingParams { temperature: 0.8, ..plain() }),
        ("dynatemp_range 0.5", SamplingParams { dynatemp_range: 0.5, ..plain() }),
        ("smoothing_factor 0.3", SamplingParams { smoothing: Smoothing { factor: 0.3, curve: 1.0 }, ..plain() }),
        ("top_n_sigma 1", SamplingParams { top_n_sigma: 1.0, ..plain() }),
        ("top_k 40", SamplingParams { top_k: 40, ..plain() }),
        ("typical_p 0.9", SamplingParams { typical_p: 0.9, ..plain() }),
        ("epsilon_cutoff 0.0003", SamplingParams { epsilon_cutoff: 0.0003, ..plain() }),
        ("eta_cutoff 0.0003", SamplingParams { eta_cutoff: 0.0003, ..plain() }),
        ("tfs 0.95", SamplingParams { tfs: 0.95, ..plain() }),
        ("top_a 0.2", SamplingParams { top_a: 0.2, ..plain() }),
        ("top_p 0.95", SamplingParams { top_p: 0.95, ..plain() }),
        ("min_p 0.05", SamplingParams { min_p: 0.05, ..plain() }),
        ("xtc_probability 1", SamplingParams { xtc: Xtc { probability: 1.0, threshold: 0.1 }, ..plain() }),
        ("mirostat 2", SamplingParams { mirostat: Some(Mirostat::default()), ..plain() }),
        (
            "mirostat 1",
            SamplingParams {
                mirostat: Some(Mirostat { version: MirostatVersion::V1, ..Mirostat::default() }),
                ..plain()
            },
        ),
        (
            "adaptive_target 0.3",
            SamplingParams { adaptive_p: Some(AdaptiveP { target: 0.3, decay: 0.9 }), min_p: 0.05, ..plain() },
        ),
        ("repetition_penalty 1.1", SamplingParams { repetition_penalty: 1.1, ..plain() }),
        ("presence, frequency 0.5", SamplingParams { presence_penalty: 0.5, frequency_penalty: 0.5, ..plain() }),
        ("encoder_repetition_penalty 1.2", SamplingParams { prompt_bonus: 1.2, ..plain() }),
        ("no_repeat_ngram_size 3", SamplingParams { no_repeat_ngram_size: 3, ..plain() }),
        ("dry_multiplier 0.8", SamplingParams { dry: Dry { multiplier: 0.8, ..Dry::default() }, ..plain() }),
        ("logit_bias", SamplingParams { logit_bias: Arc::new(biased), ..plain() }),
        ("bad_words", SamplingParams { bad_words: word, ..plain() }),
        (
            "allowed_token_ids, all",
            SamplingParams {
                allowed_token_ids: Some(Arc::new((0..tokenizer.vocab_size() as TokenId).collect::<BTreeSet<_>>())),
                ..plain()
            },
        ),
    ]
}

/// The beginning of a call without a mark, of a function with this name.
fn bare(name: &str) -> Mark {
    let quoted = format!("\"{name}\"");
    Mark::at_start(&["{", "\"name\"", ":", &quoted], [b" \n\r\t;", b" \n\r\t"], "")
}

fn watch(tokenizer: &Tokenizer, marks: Vec<Mark>) -> Watch {
    let grammar = GrammarCompiler::new(tokenizer).unwrap().compile(&Grammar::Lark(CALL.into()), "tools").unwrap();
    Watch::new(grammar, WatchRules { marks, after: AfterGrammar::Sleep, shows_special: false })
}

fn micros(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e6
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
