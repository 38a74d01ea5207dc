//! Samples: texts that the model writes during a run.

use std::{ops::ControlFlow, sync::Arc};

use anyhow::Result;
use hearth_engine::{
    Event, LocalEngine, LocalOptions,
    request::{RequestParts, StopConditions},
};
use hearth_model::{
    TokenId,
    decode::sampling::SamplingParams,
    text::tokenizer::{DecodeOptions, EncodeOptions, Tokenizer},
};

use super::Trainer;
use crate::{config::SampleSettings, data::loader::mix};

impl Trainer<'_> {
    /// Generates a sample.
    pub(super) fn sample(&self, settings: &SampleSettings) -> Result<String> {
        let (gpt, tokenizer) = (self.packed()?, &self.data.tokenizer);
        let context = gpt.config().max_seq_len;
        let prompt_ids = prompt_ids(&settings.prompt, tokenizer, context);
        // An encoder reads the prompt, and the decoder begins with its start tokens.
        let (source_ids, prompt_ids) = match gpt.config().is_encoder_decoder() {
            true => (prompt_ids, self.data.decoder.start.clone()),
            false => (Vec::new(), prompt_ids),
        };
        let max_tokens = settings.max_tokens.min(context - prompt_ids.len());
        let n_tokens = prompt_ids.len() + max_tokens;
        let sampling = SamplingParams {
            seed: mix(self.config.seed) ^ self.state.step as u64,
            ..settings.params(SamplingParams::default())
        };
        let stop_token_ids = Arc::new(self.data.eos_token_ids.iter().copied().collect());
        let stop = StopConditions { max_tokens, stop_token_ids, ..StopConditions::default() };
        let request = RequestParts {
            prompt_ids: prompt_ids.into(),
            source_ids: source_ids.into(),
            sampling,
            stop,
            ..RequestParts::default()
        };
        let options = LocalOptions::for_one(request.n_source_places() + n_tokens, None);
        let mut token_ids = Vec::new();
        LocalEngine::new(gpt, tokenizer, options)?.run(vec![request], |_, event| {
            if let Event::Token { id, .. } = event {
                token_ids.push(id);
            }
            ControlFlow::Continue(())
        })?;
        Ok(tokenizer.decode(&token_ids, DecodeOptions { skip_special_tokens: true }))
    }
}

/// The ids of a sample's prompt, as `hearth-train sample` and servers encode it. Neither a prompt with characters outside the
/// vocabulary nor one that leaves no room in the context may end a run.
fn prompt_ids(prompt: &str, tokenizer: &Tokenizer, max_seq_len: usize) -> Vec<TokenId> {
    let ids = tokenizer.encode(prompt, EncodeOptions::PROMPT).unwrap_or_default();
    let ids = if ids.is_empty() { vec![0] } else { ids };
    ids[(ids.len() + 1).saturating_sub(max_seq_len)..].to_vec()
}

impl SampleSettings {
    /// The sampling settings, on top of `defaults`.
    pub fn params(&self, defaults: SamplingParams) -> SamplingParams {
        SamplingParams { temperature: self.temperature, top_k: self.top_k, top_p: self.top_p, ..defaults }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::data::tokenizer_build::{BuiltTokenizer, SpecialTokens};

    #[test]
    fn sample_prompt_has_bos_leaves_room_and_is_never_empty() {
        let special = SpecialTokens { bos: Some("<b>".to_owned()), ..SpecialTokens::default() };
        // a, b and c are 0 to 2.
        let tokenizer = BuiltTokenizer::from_characters(&"abc".chars().collect(), &special).unwrap().open().unwrap();
        assert_eq!(prompt_ids("ab", &tokenizer, 8), [3, 0, 1]);
        assert_eq!(prompt_ids("abcabc", &tokenizer, 4), [0, 1, 2], "with room for one token");
        assert_eq!(prompt_ids("x", &tokenizer, 8), [0], "it has no id");
    }
}
