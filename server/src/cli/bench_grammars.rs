//! `hearth bench --grammars`: the cost of structured output, next to the model's steps.

use std::{
    collections::BTreeSet,
    fmt::Write,
    time::{Duration, Instant},
};

use anyhow::Context;
use hearth_model::{
    decode::{
        constraint::{Constraint, Grammar, GrammarCompiler},
        model_runner::ModelRunner,
        sampling::{LogitDemand, Sampler, SamplingParams},
    },
    gpt::{
        Gpt,
        kv_cache::{PAGE_SIZE, StepPart},
    },
    ops::KvDtype,
    text::tokenizer::{EncodeOptions, Tokenizer},
    weights::model_dir::LoadedModel,
};
use serde::Serialize;
use serde_json::{Value, json};

use super::output;

/// Texts per grammar, each with its own seed.
const N_TEXTS: u64 = 4;

/// Maximum length of a text in tokens.
const MAX_TOKENS: usize = 128;

const PROMPT: &str = "An order of three articles, to be sent to a customer in Lyon:\n";

/// A date with a time, followed by words.
const REGEX: &str = r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}Z (\w+ ){3,20}\w+\.";

/// Queries of a small language.
const LARK: &str = r#"
start: "SELECT " columns " FROM " NAME (" WHERE " condition)? (" ORDER BY " NAME (" ASC" | " DESC")?)? (" LIMIT " INT)? ";"
columns: "*" | NAME (", " NAME)*
condition: comparison ((" AND " | " OR ") comparison)*
comparison: NAME (" = " | " < " | " > " | " LIKE ") value | "(" condition ")"
value: INT | /'[^'\n]*'/
NAME: /[a-z_]{1,20}/
INT: /[0-9]{1,9}/
"#;

/// Typical of services: references, enumerations, formats, optional members, arrays of objects.
fn schema() -> Value {
    json!({
        "$defs": {
            "address": {
                "type": "object",
                "properties": {
                    "street": { "type": "string", "maxLength": 80 },
                    "city": { "type": "string", "maxLength": 40 },
                    "postal_code": { "type": "string", "pattern": "^[0-9]{5}$" },
                    "country": { "enum": ["FR", "DE", "IT", "ES", "US"] },
                },
                "required": ["street", "city", "postal_code", "country"],
                "additionalProperties": false,
            },
            "line": {
                "type": "object",
                "properties": {
                    "article": { "type": "string", "minLength": 1, "maxLength": 60 },
                    "quantity": { "type": "integer", "minimum": 1, "maximum": 1000 },
                    "unit_price": { "type": "number", "minimum": 0 },
                    "discount": { "type": ["number", "null"] },
                },
                "required": ["article", "quantity", "unit_price"],
                "additionalProperties": false,
            },
        },
        "type": "object",
        "properties": {
            "order_id": { "type": "string", "pattern": "^[A-Z]{2}-[0-9]{6}$" },
            "created": { "type": "string", "format": "date-time" },
            "status": { "enum": ["new", "paid", "sent", "returned"] },
            "customer": {
                "type": "object",
                "properties": {
                    "name": { "type": "string", "maxLength": 60 },
                    "email": { "type": "string", "format": "email" },
                    "address": { "$ref": "#/$defs/address" },
                },
                "required": ["name", "address"],
                "additionalProperties": false,
            },
            "lines": { "type": "array", "items": { "$ref": "#/$defs/line" }, "minItems": 1, "maxItems": 5 },
            "gift": { "type": "boolean" },
        },
        "required": ["order_id", "created", "status", "customer", "lines"],
        "additionalProperties": false,
    })
}

#[derive(Debug, Serialize)]
pub(crate) struct GrammarReport {
    model: String,
    /// Time to build the vocabulary's trie, once per server.
    trie_ms: f64,
    grammars: Vec<Measured>,
}

/// Times in microseconds, except the compilation.
#[derive(Debug, Serialize)]
struct Measured {
    grammar: &'static str,
    /// Includes the mask of the first token.
    compile_ms: f64,
    n_tokens: usize,
    /// With a newly compiled grammar, as in every request.
    mean_mask_us: f64,
    p99_mask_us: f64,
    worst_mask_us: f64,
    /// With a compiled grammar that has already processed a text.
    mean_mask_again_us: f64,
    worst_mask_again_us: f64,
    /// Mean time of a step without masks.
    mean_step_us: f64,
    /// Mean time of a step while a mask is computed in parallel.
    mean_step_with_mask_us: f64,
    /// Mean time from the end of the model's step until the mask is ready.
    mean_wait_us: f64,
    worst_wait_us: f64,
}

/// When masks are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Timing {
    /// After the model's step, to measure their cost.
    Alone,
    /// During the model's step, as in the server.
    BesideTheModel,
}

/// Prints a table, followed by one line of JSON.
pub(crate) fn run(name: String, model: &LoadedModel, kv_dtype: KvDtype) -> anyhow::Result<()> {
    let LoadedModel { gpt, tokenizer, eos_token_ids, .. } = model;
    let start = Instant::now();
    let compiler = GrammarCompiler::new(tokenizer)?;
    let trie_ms = start.elapsed().as_secs_f64() * 1e3;
    let end_ids: BTreeSet<_> = eos_token_ids.iter().copied().collect();
    let grammars = [
        ("json_object", Grammar::Json(json!({ "type": "object" }))),
        ("json_schema", Grammar::Json(schema())),
        ("regex", Grammar::Regex(REGEX.to_owned())),
        ("lark", Grammar::Lark(LARK.to_owned())),
    ];
    let measured = grammars.into_iter().map(|(name, grammar)| {
        let compile = || compiler.compile(&grammar, "grammar").with_context(|| format!("`{name}`"));
        let mut compile_ms = f64::INFINITY;
        let (mut alone, mut again, mut beside) = (Times::default(), Times::default(), Times::default());
        for seed in 0..N_TEXTS {
            let text = Text { gpt, kv_dtype, tokenizer, end_ids: &end_ids, seed };
            let start = Instant::now();
            let constraint = compile()?;
            compile_ms = compile_ms.min(start.elapsed().as_secs_f64() * 1e3);
            // Clones share the grammar's caches.
            alone.add(text.write(constraint.clone(), Timing::Alone)?);
            again.add(text.write(constraint, Timing::Alone)?);
            beside.add(text.write(compile()?, Timing::BesideTheModel)?);
        }
        Ok(Measured {
            grammar: name,
            compile_ms,
            n_tokens: alone.masks.len(),
            mean_mask_us: mean(&alone.masks),
            p99_mask_us: quantile(&mut alone.masks, 0.99),
            worst_mask_us: quantile(&mut alone.masks, 1.0),
            mean_mask_again_us: mean(&again.masks),
            worst_mask_again_us: quantile(&mut again.masks, 1.0),
            mean_step_us: mean(&[&alone.steps[..], &again.steps].concat()),
            mean_step_with_mask_us: mean(&beside.steps),
            mean_wait_us: mean(&beside.masks),
            worst_wait_us: quantile(&mut beside.masks, 1.0),
        })
    });
    print(&GrammarReport { model: name, trie_ms, grammars: measured.collect::<anyhow::Result<_>>()? })
}

/// Times in microseconds, for all tokens except the first of a text.
#[derive(Debug, Default)]
struct Times {
    masks: Vec<f64>,
    steps: Vec<f64>,
}

impl Times {
    fn add(&mut self, other: Self) {
        self.masks.extend(other.masks);
        self.steps.extend(other.steps);
    }
}

/// One text that the model generates.
struct Text<'a> {
    gpt: &'a Gpt,
    kv_dtype: KvDtype,
    tokenizer: &'a Tokenizer,
    end_ids: &'a BTreeSet<u32>,
    seed: u64,
}

impl Text<'_> {
    fn write(&self, mut constraint: Constraint, timing: Timing) -> anyhow::Result<Times> {
        let prompt_ids = self.tokenizer.encode(PROMPT, EncodeOptions::PROMPT)?;
        let n_pages = (prompt_ids.len() + MAX_TOKENS).div_ceil(PAGE_SIZE);
        let mut runner = ModelRunner::new(self.gpt.clone(), n_pages, self.kv_dtype)?;
        let mut table = runner.cache().table();
        let mut sampler = Sampler::new(SamplingParams { seed: self.seed, ..SamplingParams::default() }, 0, &prompt_ids);
        let mut times = Times::default();
        let mut pending = prompt_ids.clone();
        for position in prompt_ids.len()..prompt_ids.len() + MAX_TOKENS {
            if timing == Timing::BesideTheModel {
                constraint.prepare();
            }
            let start = Instant::now();
            let output = runner.step(&pending, &mut [StepPart::new(&mut table, pending.len())])?;
            let logits = runner.read_logits(&output, &[pending.len() - 1], &[LogitDemand::Whole])?;
            let step = micros(start.elapsed());
            let start = Instant::now();
            let Some(row) = logits.iter().next() else { break };
            let allowed = constraint.restrict(row.whole()?, self.end_ids)?;
            let mask = micros(start.elapsed());
            if pending.len() == 1 {
                times.masks.push(mask);
                times.steps.push(step);
            }
            let id = sampler.sample(&allowed, position)?;
            sampler.accept(id);
            if self.end_ids.contains(&id) || constraint.accept(id)? {
                break;
            }
            pending = vec![id];
        }
        Ok(times)
    }
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn mean(times: &[f64]) -> f64 {
    times.iter().sum::<f64>() / times.len().max(1) as f64
}

fn quantile(times: &mut [f64], share: f64) -> f64 {
    times.sort_by(f64::total_cmp);
    let place = (times.len().saturating_sub(1) as f64 * share) as usize;
    times.get(place).copied().unwrap_or_default()
}

fn print(report: &GrammarReport) -> anyhow::Result<()> {
    let mut text = String::new();
    writeln!(
        text,
        "{}: building the vocabulary's trie takes {:.0} ms, once per server; times in microseconds",
        report.model, report.trie_ms
    )?;
    writeln!(
        text,
        "             compile    new grammar: mask    warm grammar: mask  step     step      wait for mask"
    )?;
    writeln!(text, "                         mean    p99  worst     mean   worst  alone    with mask    mean   worst")?;
    for row in &report.grammars {
        writeln!(
            text,
            "{:<12} {:>5.1} ms {:>7.0} {:>6.0} {:>6.0} {:>8.0} {:>7.0} {:>8.0} {:>11.0} {:>7.0} {:>7.0}",
            row.grammar,
            row.compile_ms,
            row.mean_mask_us,
            row.p99_mask_us,
            row.worst_mask_us,
            row.mean_mask_again_us,
            row.worst_mask_again_us,
            row.mean_step_us,
            row.mean_step_with_mask_us,
            row.mean_wait_us,
            row.worst_wait_us
        )?;
    }
    writeln!(text, "{}", serde_json::to_string(report)?)?;
    output::print(&text)
}
