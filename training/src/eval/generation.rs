//! Generation of many texts at once with the engine that also serves: texts start when others end, and a text does not
//! depend on concurrent ones.

use std::{collections::BTreeSet, ops::ControlFlow, sync::Arc};

use anyhow::{Result, ensure};
use hearth_engine::{
    Event, FinishReason, LocalEngine, LocalOptions, StopCause,
    request::{RequestParts, StopConditions, Strategy},
    scheduler::most_pages,
};
use hearth_model::{
    TokenId,
    decode::sampling::{SamplingParams, beam::BeamKind},
    gpt::{Gpt, kv_cache::PAGE_SIZE},
    ops::KvDtype,
    text::tokenizer::Tokenizer,
};

/// Rows that decode in a step: enough for the kernels of matrices to be bound by arithmetic.
const DECODING_ROWS: usize = 64;
/// Maximum number of prompt rows in a step, in addition.
const PREFILL_ROWS: usize = 512;

/// Size of the KV cache, unless one text needs more: 1 GiB, as in serving.
const CACHE_BYTES: usize = 1 << 30;

/// How tokens are chosen.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "one for each evaluation")]
pub enum Decoding {
    /// One after the other, with these parameters.
    Sampling(SamplingParams),
    /// Beam search with this many partial texts; the best text is used.
    Beams {
        /// Number of partial texts.
        width: usize,
        /// How they are ranked.
        kind: BeamKind,
    },
}

/// A text to generate.
#[derive(Clone, Debug)]
pub struct GenerationTask {
    /// The prompt to continue, at least one token; for an encoder-decoder, the source.
    pub prompt_ids: Vec<TokenId>,
    /// How.
    pub decoding: Decoding,
    /// Distinguishes texts with the same parameters and prompt: each number has different random numbers.
    pub number: u32,
    /// Fewest new tokens: before, the text cannot end.
    pub min_tokens: usize,
    /// Most new tokens, at least 1.
    pub max_tokens: usize,
}

/// When texts end before their maximum length.
#[derive(Clone, Debug, Default)]
pub struct Endings {
    /// Tokens that end a text; they are not part of it.
    pub end_ids: Arc<BTreeSet<TokenId>>,
    /// Strings that end a text, none of them empty; they are not part of the text.
    pub stop_strings: Arc<[String]>,
}

/// A generated text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Generated {
    /// The new tokens, without the token that ended the text.
    pub token_ids: Vec<TokenId>,
    /// Their text, without special tokens and up to the stop string that ended it.
    pub text: String,
    /// Whether the text ended, rather than reached its length.
    pub is_ended: bool,
}

/// Generates texts with a model.
#[derive(Debug)]
pub struct Generator {
    gpt: Gpt,
    tokenizer: Tokenizer,
    endings: Endings,
    /// The start tokens of an encoder-decoder's decoder.
    decoder_start: Vec<TokenId>,
}

impl Generator {
    /// A generator on the model's device.
    pub fn new(gpt: &Gpt, tokenizer: &Tokenizer, endings: Endings) -> Self {
        Self { gpt: gpt.clone(), tokenizer: tokenizer.clone(), endings, decoder_start: Vec::new() }
    }

    /// A generator for an encoder-decoder whose decoder begins with `decoder_start`.
    #[must_use]
    pub fn with_decoder_start(self, decoder_start: &[TokenId]) -> Self {
        Self { decoder_start: decoder_start.to_vec(), ..self }
    }

    /// Number of slots of a task in the cache before its text: its prompt, or its source and the decoder's start
    /// tokens.
    fn n_places(&self, task: &GenerationTask) -> usize {
        let n_prompt = task.prompt_ids.len();
        if self.gpt.config().is_encoder_decoder() {
            return n_prompt.next_multiple_of(PAGE_SIZE) + self.decoder_start.len();
        }
        n_prompt
    }

    /// Generates the texts of `tasks`, in their order. Reports the number of finished texts to `progress`. The KV cache
    /// has the dtype that serving would choose.
    ///
    /// # Errors
    /// A prompt is empty or does not fit the model's context with the tokens to come, a parameter is out of range, or the device
    /// fails.
    pub fn generate(&self, tasks: &[GenerationTask], progress: &mut dyn FnMut(usize)) -> Result<Vec<Generated>> {
        tasks.iter().try_for_each(|task| self.check(task))?;
        let mut engine = LocalEngine::new(self.gpt.clone(), &self.tokenizer, self.options(tasks)?)?;
        let mut generated = vec![Generated::default(); tasks.len()];
        let mut n_done = 0;
        let requests = tasks.iter().map(|task| self.request(task)).collect();
        engine.run(requests, |index, event| {
            let Some(all) = generated.get_mut(index) else { return ControlFlow::Continue(()) };
            match event {
                Event::Token { id, text, .. } => {
                    all.token_ids.push(id);
                    all.text += &text;
                }
                Event::Finished { reason, cause, text, .. } => {
                    if matches!(cause, Some(StopCause::Token(_))) {
                        all.token_ids.pop();
                    }
                    all.text += &text;
                    all.is_ended = reason == FinishReason::Stop;
                    n_done += 1;
                    progress(n_done);
                }
                Event::PromptLogprobs(_) | Event::Embedding(_) => {}
            }
            ControlFlow::Continue(())
        })?;
        Ok(generated)
    }

    fn check(&self, task: &GenerationTask) -> Result<()> {
        let (config, n_prompt) = (self.gpt.config(), task.prompt_ids.len());
        let limit = config.max_seq_len;
        ensure!(n_prompt > 0, "a prompt is empty: it must have at least one token");
        if config.is_encoder_decoder() {
            let (most, n_start) = (config.max_source_len(), self.decoder_start.len());
            ensure!(
                n_prompt <= most,
                "a source has {n_prompt} tokens, but the encoder reads at most {most}\nhint: use shorter sources"
            );
            ensure!(
                n_start + task.max_tokens <= limit,
                "{} tokens to generate do not fit the decoder's context of {limit}, in which {n_start} begin each text\nhint: generate \
                 fewer tokens: `--max-tokens`",
                task.max_tokens
            );
            return Ok(());
        }
        ensure!(
            n_prompt + task.max_tokens <= limit,
            "a prompt of {n_prompt} tokens with {} tokens to generate does not fit the model's context of {limit}\nhint: use \
             shorter prompts, or generate fewer tokens: `--max-tokens`",
            task.max_tokens
        );
        Ok(())
    }

    /// A cache for all tasks, or of [`CACHE_BYTES`], but with room for the largest in any case.
    fn options(&self, tasks: &[GenerationTask]) -> Result<LocalOptions> {
        let kv_dtype = KvDtype::choose(None, self.gpt.dtype(), &self.gpt.device())?;
        let page_bytes = PAGE_SIZE * self.gpt.kv_bytes_per_token(kv_dtype)?;
        let pages_of = |task: &GenerationTask| {
            let n_places = self.n_places(task);
            most_pages(width_of(task), n_places, n_places + task.max_tokens)
        };
        let largest = tasks.iter().map(pages_of).max().unwrap_or(0);
        let all: usize = tasks.iter().map(pages_of).sum();
        let n_pages = all.min((CACHE_BYTES / page_bytes.max(1)).max(largest));
        let max_batch_size = tasks.iter().map(width_of).fold(DECODING_ROWS, usize::max);
        Ok(LocalOptions {
            max_batch_size,
            max_batch_tokens: max_batch_size + PREFILL_ROWS,
            kv_cache_tokens: n_pages * PAGE_SIZE,
            kv_cache_dtype: Some(kv_dtype),
        })
    }

    fn request(&self, task: &GenerationTask) -> RequestParts {
        let (sampling, strategy) = match &task.decoding {
            Decoding::Sampling(params) => (params.clone(), Strategy::Sample),
            Decoding::Beams { width, kind } => {
                let kind = match *kind {
                    // Each number has its own noise.
                    BeamKind::Stochastic { seed } => {
                        BeamKind::Stochastic { seed: seed ^ (u64::from(task.number) << 32) }
                    }
                    kind => kind,
                };
                (SamplingParams::greedy(), Strategy::Beams { width: *width, n_best: 1, kind })
            }
        };
        let given: &[TokenId] = &task.prompt_ids;
        let (source_ids, prompt_ids) = match self.gpt.config().is_encoder_decoder() {
            true => (given, &*self.decoder_start),
            false => (&[][..], given),
        };
        RequestParts {
            prompt_ids: prompt_ids.into(),
            source_ids: source_ids.into(),
            sampling,
            strategy,
            choice: task.number,
            stop: StopConditions {
                max_tokens: task.max_tokens,
                min_tokens: task.min_tokens,
                stop_strings: Arc::clone(&self.endings.stop_strings),
                stop_token_ids: Arc::clone(&self.endings.end_ids),
            },
            ..RequestParts::default()
        }
    }
}

/// Sequences of a text.
fn width_of(task: &GenerationTask) -> usize {
    match task.decoding {
        Decoding::Sampling(_) => 1,
        Decoding::Beams { width, .. } => width,
    }
}
