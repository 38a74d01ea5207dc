//! `hearth perplexity`: how well a model predicts a text, as llama.cpp's tool of that name measures it, so that the two
//! can be compared.

#[cfg(unix)]
use std::os::unix::fs::FileTypeExt;
use std::{
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::Context;
use burn::tensor::{Int, Tensor, TensorData};
use clap::Args;
use hearth_model::{
    TokenId,
    attention::AttentionContext,
    generate::token_tensor,
    gpt::Gpt,
    kv_cache::{KvCache, PAGE_SIZE, StepPart},
    ops::KvDtype,
    tokenizer::EncodeOptions,
};
use serde::Serialize;

use super::output;
use crate::config::ModelConfig;

/// Tokens of a window where nothing is said, llama.cpp's default.
const DEFAULT_CONTEXT: usize = 512;

/// Rows whose logits are held at once; a row is the whole vocabulary.
const LOGIT_ROWS: usize = 64;

/// The arguments of `hearth perplexity`.
#[derive(Args, Debug)]
pub(crate) struct PerplexityArgs {
    /// Text to predict
    text: PathBuf,
    #[command(flatten)]
    model: ModelConfig,
    /// Tokens of the windows that the text is cut into; the second half of each is predicted [default: 512, or the model's
    /// context if that is shorter]
    #[arg(long, value_name = "TOKENS")]
    context: Option<usize>,
}

#[derive(Debug, Serialize)]
struct Report {
    model: String,
    dtype: String,
    kv_cache_dtype: String,
    n_windows: usize,
    n_predicted: usize,
    /// Nats per token.
    loss: f64,
    perplexity: f64,
}

/// Prints the perplexity, and last of all one line of JSON.
pub(crate) fn run(args: PerplexityArgs) -> anyhow::Result<()> {
    let text = read(&args.text).with_context(|| format!("cannot read `{}`", args.text.display()))?;
    anyhow::ensure!(!text.is_empty(), "`{}` is empty", args.text.display());
    let model = args.model.load()?;
    let limit = model.gpt.config().max_seq_len;
    let context = args.context.unwrap_or(DEFAULT_CONTEXT.min(limit));
    anyhow::ensure!((4..=limit).contains(&context), "`--context` must be in 4..={limit} for this model, got {context}");
    let ids = model.tokenizer.encode(&text, EncodeOptions::TEXT)?;
    let windows = ids.chunks_exact(context);
    anyhow::ensure!(
        windows.len() > 0,
        "`{}` has {} tokens, fewer than one window of {}\nhint: a longer text, or a smaller `--context`",
        args.text.display(),
        ids.len(),
        context
    );
    let (n_windows, mut total) = (windows.len(), 0.0);
    let kv_dtype = args.model.kv_dtype(&model.gpt)?;
    for window in windows {
        total += window_loss(&model.gpt, kv_dtype, window)?;
    }
    let n_predicted = n_windows * (context - context / 2 - 1);
    let loss = total / n_predicted as f64;
    anyhow::ensure!(
        loss.is_finite(),
        "the model's logits cannot be used: the loss is {loss}\nhint: its weights may be broken, or too large for their dtype; \
         weights that are not finite are named when it is loaded"
    );
    let report = Report {
        model: args.model.model_id(),
        dtype: model.gpt.dtype().to_string(),
        kv_cache_dtype: kv_dtype.to_string(),
        n_windows,
        n_predicted,
        loss,
        perplexity: loss.exp(),
    };
    output::print(&format!(
        "{} in {}, KV cache in {}: perplexity {:.4}, {:.4} nats per token, {n_predicted} tokens predicted in {n_windows} \
         windows\n{}\n",
        report.model,
        report.dtype,
        report.kv_cache_dtype,
        report.perplexity,
        report.loss,
        serde_json::to_string(&report)?
    ))
}

/// The whole text. A device may never end; a pipe ends with its writer.
fn read(path: &Path) -> io::Result<String> {
    #[cfg(unix)]
    let is_device = {
        let kind = fs::metadata(path)?.file_type();
        kind.is_char_device() || kind.is_block_device()
    };
    #[cfg(not(unix))]
    let is_device = false;
    if is_device {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "is a device, must be a file or a pipe"));
    }
    fs::read_to_string(path)
}

/// Minus the log-probability of the tokens in the second half of `window`, all but the first of them.
fn window_loss(gpt: &Gpt, kv_dtype: KvDtype, window: &[TokenId]) -> anyhow::Result<f64> {
    let mut cache = KvCache::new(gpt.config(), window.len().div_ceil(PAGE_SIZE), kv_dtype, &gpt.device());
    let mut table = cache.table().of_prompt(window.len());
    let step = cache.step(&mut [StepPart { table: &mut table, n_new: window.len() }])?;
    let hidden = gpt.forward(token_tensor(gpt, window), AttentionContext::Paged(step));
    let mut loss = 0.0;
    let rows = (window.len() / 2..window.len() - 1).collect::<Vec<_>>();
    for rows in rows.chunks(LOGIT_ROWS) {
        let targets: Vec<i32> = rows.iter().map(|row| window[row + 1] as i32).collect();
        let targets = Tensor::<1, Int>::from_data(TensorData::from(targets.as_slice()), &gpt.device());
        let first = rows.first().copied().unwrap_or_default();
        let mean = gpt.loss(hidden.clone().slice(first..first + rows.len()), targets);
        let mean: f32 = mean.try_into_scalar().context("the device failed")?;
        loss += f64::from(mean) * rows.len() as f64;
    }
    Ok(loss)
}
