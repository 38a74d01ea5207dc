//! `hearth perplexity`: measures how well a model predicts a text, with the method of llama.cpp's tool of that name, so
//! that results are comparable.

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
    gpt::{
        Gpt,
        attention::AttentionContext,
        kv_cache::{PAGE_SIZE, StepPart},
        token_ids::token_tensor,
    },
    ops::KvDtype,
    text::tokenizer::{EncodeOptions, Tokenizer},
};
use serde::Serialize;

use super::{download, output};
use crate::config::ModelConfig;

/// Default window size in tokens, as in llama.cpp.
const DEFAULT_CONTEXT: usize = 512;

/// Rows of logits in memory at once; each has one number per token of the vocabulary.
const LOGIT_ROWS: usize = 64;

/// The arguments of `hearth perplexity`.
#[derive(Args, Debug)]
pub(crate) struct PerplexityArgs {
    /// Text file to predict
    text: PathBuf,
    #[command(flatten)]
    model: ModelConfig,
    /// Window size in tokens; the second half of each window is predicted [default: 512, or the model's context if that is
    /// shorter]
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

/// Prints the perplexity, followed by one line of JSON.
pub(crate) fn run(args: PerplexityArgs) -> anyhow::Result<()> {
    let text = read(&args.text).with_context(|| format!("cannot read `{}`", args.text.display()))?;
    anyhow::ensure!(!text.is_empty(), "`{}` is empty", args.text.display());
    let model = download::load_for_text(&args.model)?;
    let limit = model.gpt.config().max_seq_len;
    let context = args.context.unwrap_or(DEFAULT_CONTEXT.min(limit));
    anyhow::ensure!((4..=limit).contains(&context), "`--context` must be in 4..={limit} for this model, got {context}");
    let (ids, bos) = tokens(&model.tokenizer, &text)?;
    let windows = ids.chunks_exact(context);
    anyhow::ensure!(
        windows.len() > 0,
        "`{}` has {} tokens, fewer than one window of {}\nhint: use a longer text or a smaller `--context`",
        args.text.display(),
        ids.len(),
        context
    );
    let (n_windows, mut total) = (windows.len(), 0.0);
    let kv_dtype = args.model.kv_dtype(&model.gpt)?;
    for window in windows {
        let mut window = window.to_vec();
        // Replaces the first token of the window, which is not predicted.
        window[0] = bos.unwrap_or(window[0]);
        total += window_loss(&model.gpt, kv_dtype, &window)?;
    }
    let n_predicted = n_windows * (context - context / 2 - 1);
    let loss = total / n_predicted as f64;
    anyhow::ensure!(
        loss.is_finite(),
        "the model's logits are invalid: the loss is {loss}\nhint: the weights may be broken or too large for their dtype; \
         loading the model reports weights that are not finite"
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

/// The tokens of `text`, and the BOS token, if the tokenizer adds one to prompts. It is then the first token, as in
/// llama.cpp.
fn tokens(tokenizer: &Tokenizer, text: &str) -> hearth_model::Result<(Vec<TokenId>, Option<TokenId>)> {
    let first = tokenizer.encode("", EncodeOptions::PROMPT)?.first().copied();
    let bos = tokenizer.bos().map(|bos| bos.id).filter(|id| first == Some(*id));
    let ids = bos.into_iter().chain(tokenizer.encode(text, EncodeOptions::TEXT)?).collect();
    Ok((ids, bos))
}

/// Reads the whole text. Devices are rejected because they may never end; a pipe ends with its writer.
fn read(path: &Path) -> io::Result<String> {
    #[cfg(unix)]
    let is_device = {
        let kind = fs::metadata(path)?.file_type();
        kind.is_char_device() || kind.is_block_device()
    };
    #[cfg(not(unix))]
    let is_device = false;
    if is_device {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "is a device; it must be a file or a pipe"));
    }
    fs::read_to_string(path)
}

/// The sum of negative log-probabilities of the tokens in the second half of `window`, except the first.
fn window_loss(gpt: &Gpt, kv_dtype: KvDtype, window: &[TokenId]) -> anyhow::Result<f64> {
    let mut cache = gpt.kv_cache(window.len().div_ceil(PAGE_SIZE), kv_dtype)?;
    let mut table = cache.table();
    let step = cache.step(&mut [StepPart::new(&mut table, window.len())])?;
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
