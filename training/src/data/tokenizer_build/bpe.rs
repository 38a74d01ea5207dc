//! Byte-level BPE: merges learned from counts of words.

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::Value;
use tokenizers::{
    AddedToken, TokenizerBuilder,
    decoders::DecoderWrapper,
    models::bpe::{BPE, BpeTrainer},
    normalizers::NormalizerWrapper,
    pre_tokenizers::{
        PreTokenizerWrapper,
        byte_level::ByteLevel,
        sequence::Sequence,
        split::{Split, SplitPattern},
    },
    processors::PostProcessorWrapper,
    tokenizer::SplitDelimiterBehavior,
};

use super::{special::SpecialTokens, word_counts::WordCounts};
use crate::data::corpus::{GPT4_PATTERN, WordSplit};

/// Single bytes, each a token.
const N_BYTES: usize = 256;

/// Larger than the vocabulary of any current model.
const LARGEST: usize = 1 << 20;

/// `tokenizer.json` of byte-level BPE ([Radford et al.,
/// 2019](https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf)): the
/// special tokens, then 256 bytes, then merges up to `vocab_size` tokens. A short text may have too few pairs to fill
/// the vocabulary. The tokenizer encodes any text.
pub(super) fn train(counts: &WordCounts, vocab_size: usize, special: &SpecialTokens) -> Result<String> {
    check_vocab_size(vocab_size, special)?;
    let bytes = ByteLevel::default().add_prefix_space(false);
    let pre_tokenizer: PreTokenizerWrapper = match counts.split() {
        WordSplit::Gpt2 => bytes.into(),
        WordSplit::Gpt4 => {
            let pattern = SplitPattern::Regex(GPT4_PATTERN.to_owned());
            let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false)
                .map_err(|error| anyhow!("cannot set up the pre-tokenizer: {error}"))?;
            Sequence::new(vec![split.into(), bytes.use_regex(false).into()]).into()
        }
    };
    let added: Vec<AddedToken> = special.all().map(|token| AddedToken::from(token, true)).collect();
    let trainer = BpeTrainer::builder()
        .vocab_size(vocab_size)
        .show_progress(false)
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .special_tokens(added.clone())
        .build();
    let mut bpe = BPE::default();
    trainer
        .do_train(&counts.byte_level(), &mut bpe)
        .map_err(|error| anyhow!("cannot train the BPE tokenizer: {error}"))?;
    let mut tokenizer = TokenizerBuilder::<_, NormalizerWrapper, _, PostProcessorWrapper, DecoderWrapper>::new()
        .with_model(bpe)
        .with_pre_tokenizer(Some(pre_tokenizer))
        .with_decoder(Some(bytes.into()))
        .build()
        .map_err(|error| anyhow!("cannot set up the BPE tokenizer: {error}"))?;
    tokenizer.add_special_tokens(added).map_err(|error| anyhow!("cannot add the special tokens: {error}"))?;
    let json = tokenizer.to_string(false).map_err(|error| anyhow!("cannot write the BPE tokenizer: {error}"))?;
    let json: Value = serde_json::from_str(&json).context("the BPE tokenizer is not JSON")?;
    Ok(serde_json::to_string_pretty(&json)?)
}

/// Rejects a vocabulary that is too small for the bytes and the special tokens.
pub(super) fn check_vocab_size(vocab_size: usize, special: &SpecialTokens) -> Result<()> {
    let smallest = N_BYTES + special.all().count();
    ensure!(
        (smallest..=LARGEST).contains(&vocab_size),
        "the vocabulary must have from {smallest} tokens (256 bytes and {} special tokens: {}) to {LARGEST}, got \
         {vocab_size}\nhint: use a {} vocabulary, or a character tokenizer",
        special.all().count(),
        special.all().map(|token| format!("`{token}`")).collect::<Vec<_>>().join(", "),
        if vocab_size > LARGEST { "smaller" } else { "larger" }
    );
    Ok(())
}
