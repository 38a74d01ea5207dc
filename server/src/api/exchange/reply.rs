//! Answers a conversation: the steps between reading a request and writing its answer, which all endpoints for
//! conversations share.

use std::sync::Arc;

use hearth_engine::ServedModel;
use hearth_model::text::chat::ChatTemplate;

use super::{
    conversation::Conversation,
    generation::{GenerateParams, RunningAnswer},
    thinking::{ModelThoughts, Thinking},
};
use crate::api::{
    error::ApiError,
    tools::reasoning::AnswerReader,
    wire::{body::Body, state::AppState},
};

/// A parsed request; types and ranges are checked.
#[derive(Debug)]
pub(crate) struct ReplyRequest {
    pub(crate) conversation: Conversation,
    pub(crate) generation: GenerateParams,
}

/// A submitted request, with the data for reading its answer.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) started: RunningAnswer,
    pub(crate) generation: GenerateParams,
    /// Reads an answer's text.
    pub(crate) reader: AnswerReader,
}

/// Counts the tokens of the prompt that a conversation would have, without an answer. `n_bytes`: the size of the body.
///
/// # Errors
/// Those of rendering the conversation.
pub(crate) async fn count_tokens(
    state: &AppState,
    (mut conversation, thinking): (Conversation, Thinking),
    (body, n_bytes): (&Body, usize),
) -> Result<usize, ApiError> {
    let model = state.engine_for(body.arrived())?.model().clone();
    let preparation = conversation.preparation(n_bytes);
    let count = move || {
        let template = conversation.template(&model)?;
        conversation.add_thinking(thinking, &template);
        // No limit: texts of any length are counted.
        Ok(conversation.encode(&template, &model, |_| Ok(()))?.len())
    };
    state.prepare(preparation, body.turn_wait(), count).await
}

impl ReplyRequest {
    /// Renders the conversation and submits the request. Answers get ids that begin with `id_prefix`.
    ///
    /// # Errors
    /// The errors of [`GenerateParams::start`]; 400 if there is no chat template or it rejects the conversation.
    pub(crate) async fn start(self, state: &AppState, id_prefix: &str, body: Body) -> Result<Reply, ApiError> {
        let preparation = self.conversation.preparation(self.generation.n_bytes());
        let model = Arc::clone(state.engine_for(self.generation.arrived())?.model());
        let wait = self.generation.turn_wait();
        let with_template = move || self.with_template(&model);
        let (request, reader, template) = state.prepare_long(preparation, wait, with_template).await?;
        let Self { conversation, generation } = request;
        let thoughts = generation.thoughts();
        let prepare = move |generation: &GenerateParams, model: &ServedModel| {
            let check_length = |n_bytes| match generation.keeps_whole_prompt() {
                true => {
                    let param = generation.prompt_param();
                    model.check_text_length(param, n_bytes).map_err(ApiError::from)
                }
                false => Ok(()),
            };
            Ok(vec![generation.prompt(conversation.encode(&template, model, check_length)?, model)])
        };
        let started = generation.start(state, id_prefix, (preparation, prepare)).await?;
        // The text is tokenized, so the body's share of the memory limit can be released.
        drop(body);
        let opened = started.prompt_ids.first().zip(thoughts);
        let opened = opened.and_then(|(ids, thoughts)| thoughts.opened(ids, &started.tokenizer));
        let is_continued = thoughts.is_some_and(|thoughts| thoughts.is_continued());
        let reader = reader.within_thought(opened, is_continued);
        Ok(Reply { started, generation, reader })
    }

    /// Applies the template and the tools to the request: determines the fields that the template ignores, the
    /// structure of the answer, and how its text is read.
    fn with_template(self, model: &ServedModel) -> Result<(Self, AnswerReader, ChatTemplate), ApiError> {
        let Self { mut conversation, generation } = self;
        let template = conversation.template(model)?;
        let mut generation = generation.ignoring(conversation.unread(&template));
        let unread = conversation.add_thinking(generation.thinking(), &template);
        let thoughts = ModelThoughts::new(&template, &model.tokenizer, conversation.continued_thought(&template));
        let thoughts = thoughts.switched(conversation.thinks(), conversation.is_continued());
        let mut parser = None;
        if let Some((tools, style)) = conversation.tools(&template) {
            let form = generation.structure();
            if let Some(structure) = tools.structure(style, &model.tokenizer, form)? {
                generation = generation.with_structure(structure);
            }
            if style.has_special_marks(&model.tokenizer) {
                generation = generation.showing_special_tokens();
            }
            parser = Some(tools.parser(style));
        }
        for param in unread {
            generation = match generation.thinking().turned_off_by(param).filter(|_| thoughts.is_known()) {
                Some(off) => generation.with_thinking(off),
                None => generation.ignoring([param.to_owned()]),
            };
        }
        if thoughts.has_special_marks(&model.tokenizer) {
            generation = generation.showing_special_tokens();
        }
        let reader = AnswerReader::new(thoughts.form(), parser, generation.thinking().format);
        let is_bound = generation.structure().is_some_and(|structure| !structure.is_in_text());
        let reader = if is_bound { reader.following_grammar() } else { reader };
        let generation = generation.with_thoughts(thoughts);
        Ok((Self { conversation, generation }, reader, template))
    }
}
