//! Encodes records as examples, and rejects data that would not train what it is meant to.

use anyhow::{Result, anyhow};
use hearth_model::{
    Error, TokenId,
    text::{
        chat::{ChatTemplate, Ending, MaskedChat, Message, RenderContext},
        tokenizer::{EncodeOptions, Tokenizer},
    },
};
use serde_json::Value;

use super::Example;
use crate::data::{
    continuation::encode_continued,
    corpus::{
        ASSISTANT, Marks, Note, Problem, RecordKind, TextKind, Turn, as_served, note_of_end, note_of_kind,
        note_of_mark, require_written,
    },
};

/// Encodes examples for a model.
#[derive(Clone, Debug)]
pub struct ExampleEncoder {
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
    eos_token_ids: Vec<TokenId>,
    context: RenderContext,
    marks: Marks,
}

impl ExampleEncoder {
    /// An encoder with a model's tokenizer, its chat template, and the tokens that end its answers
    /// (`LoadedModel::eos_token_ids`).
    pub fn new(tokenizer: &Tokenizer, template: Option<&ChatTemplate>, eos_token_ids: &[TokenId]) -> ExampleEncoder {
        let context = RenderContext { ending: Ending::Closed, ..RenderContext::new(tokenizer) };
        ExampleEncoder {
            tokenizer: tokenizer.clone(),
            template: template.cloned(),
            eos_token_ids: eos_token_ids.to_vec(),
            context,
            marks: Marks::new(tokenizer, template),
        }
    }

    /// The strings in texts that represent tokens.
    pub(super) fn marks(&self) -> &Marks {
        &self.marks
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Encodes one example, and returns notes about it. `origin` is its file and line.
    pub(super) fn encode(&self, form: &RecordKind, origin: &str) -> Result<(Example, Vec<Note>)> {
        let named = |error: EncodeError| match error {
            EncodeError::Model(error) => anyhow!("{origin}: {error}"),
            EncodeError::Data(problem) => wrong(origin, problem),
        };
        let mut notes = Vec::new();
        let (ids, trained) = match form {
            RecordKind::Conversation { turns, tools, first } => {
                self.conversation(turns, tools.as_ref(), *first, &mut notes).map_err(named)?
            }
            RecordKind::Completion { prompt, completion } => {
                notes.extend(self.template.is_some().then(|| Note::Other(OF_STRINGS.into())));
                self.completion(prompt, completion).map_err(|error| named(EncodeError::Model(error)))?
            }
            RecordKind::Text(text) => {
                let ids = self.text(text, &mut notes).map_err(named)?;
                let trained = vec![true; ids.len()];
                (ids, trained)
            }
            RecordKind::Keep(text) => {
                let options = EncodeOptions { add_special_tokens: true, ..EncodeOptions::TEXT };
                let ids = self.tokenizer.encode(text, options).map_err(|error| named(EncodeError::Model(error)))?;
                if ids.len() < 2 {
                    let what = "its `keep` is a single token, so nothing is predicted there".to_owned();
                    return Err(wrong(origin, (what, "use a longer text, or remove it")));
                }
                return Ok((Example { trained: vec![false; ids.len()], ids, origin: origin.to_owned() }, notes));
            }
        };
        let example = Example { ids, trained, origin: origin.to_owned() };
        self.check(&example).map_err(|problem| wrong(origin, problem))?;
        Ok((example, notes))
    }

    /// A text with the token that ends it. A chat that a template rendered is encoded as the template's own: the
    /// strings of special tokens are tokens. In other texts they stay text, except for the strings that end a document.
    fn text(&self, text: &str, notes: &mut Vec<Note>) -> Result<Vec<TokenId>, EncodeError> {
        let whole = EncodeOptions { add_special_tokens: true, ..EncodeOptions::TEXT };
        let kind = self.marks.kind(text);
        if let TextKind::ForeignChat(mark) = kind {
            return Err(EncodeError::Data((
                format!(
                    "it is a chat that a template rendered, but its `{mark}` is no token of the model, so it would be trained as \
                     plain characters"
                ),
                "write the conversation as `messages`: the model's own chat template renders them",
            )));
        }
        notes.extend(note_of_kind(kind).or_else(|| note_of_mark(&self.marks, text)));
        match kind {
            TextKind::Chat(_) => {
                // The template wrote all special tokens, including those before the first message.
                let ids = self.tokenizer.encode(text, EncodeOptions::RENDERED)?;
                let after = ids.iter().rposition(|id| self.eos_token_ids.contains(id)).map_or(0, |end| end + 1);
                let is_ended = after > 0 && self.tokenizer.decode(&ids[after..], Default::default()).trim().is_empty();
                Ok(if is_ended { ids } else { self.ended(ids) })
            }
            TextKind::Plain | TextKind::ForeignChat(_) => {
                let mut documents = vec![text];
                for end in self.marks.ends() {
                    documents = documents.into_iter().flat_map(|part| part.split(end.as_str())).collect();
                }
                if let [text] = documents[..] {
                    return Ok(self.ended(self.tokenizer.encode(text, whole)?));
                }
                notes.extend(
                    self.marks.ends().iter().filter(|end| text.contains(end.as_str())).map(|end| note_of_end(end)),
                );
                let mut ids = Vec::new();
                for text in documents.into_iter().filter(|text| !text.trim().is_empty()) {
                    ids.extend(self.ended(self.tokenizer.encode(text, whole)?));
                }
                Ok(ids)
            }
        }
    }

    fn conversation(
        &self,
        turns: &[Turn],
        tools: Option<&Value>,
        first: usize,
        notes: &mut Vec<Note>,
    ) -> Result<(Vec<TokenId>, Vec<bool>), EncodeError> {
        let Some(template) = &self.template else {
            return Err(EncodeError::Data((
                "it is a conversation, but the model has no chat template".into(),
                "save one as `chat_template.jinja` in the model dir, or use prompts with completions",
            )));
        };
        let messages: Vec<Message> = turns.iter().map(|turn| turn.message.clone()).collect();
        let (messages, context) = as_served(template, &messages, &tools.cloned(), &self.context);
        // Tools and calls as text may add or join messages, but never the assistant's.
        let answers: Vec<usize> = (0..messages.len()).filter(|&index| messages[index].role == ASSISTANT).collect();
        let place = |index: usize| {
            let before = turns[..index].iter().filter(|turn| turn.is_assistant()).count();
            answers.get(before).copied().unwrap_or(messages.len())
        };
        notes.extend(require_written(template, &self.tokenizer, &messages, &context).map_err(EncodeError::Data)?);
        let mask_from = |first: usize| {
            template.encode_with_mask(&self.tokenizer, &messages, &context, first).map_err(EncodeError::Model)
        };
        let MaskedChat { ids, is_assistant: mut trained, .. } = mask_from(place(first))?;
        // At each message that differs from the previous one, the mask of all later text of the assistant changes.
        let mut was_trained = true;
        for (index, turn) in turns.iter().enumerate().skip(first).filter(|(_, turn)| turn.is_assistant()) {
            if turn.is_trained != was_trained {
                let changed =
                    trained.iter_mut().zip(mask_from(place(index))?.is_assistant).filter(|(_, changes)| *changes);
                changed.for_each(|(trained, _)| *trained = turn.is_trained);
                was_trained = turn.is_trained;
            }
        }
        Ok((ids, trained))
    }

    /// The prompt is not trained; without a prompt, the tokens that the tokenizer adds before a text are not trained.
    fn completion(&self, prompt: &str, completion: &str) -> Result<(Vec<TokenId>, Vec<bool>), Error> {
        let (ids, n_prompt) = match prompt {
            "" => {
                let ids = self.tokenizer.encode(completion, EncodeOptions::PROMPT)?;
                let n_added = ids.len().min(self.n_added_before()?);
                (ids, n_added)
            }
            prompt => {
                let (ids, rest) = encode_continued(&self.tokenizer, prompt, completion)?;
                let n_prompt = ids.len();
                ([ids, rest].concat(), n_prompt)
            }
        };
        let ids = self.ended(ids);
        let trained = (0..ids.len()).map(|at| at >= n_prompt).collect();
        Ok((ids, trained))
    }

    /// The number of tokens that the tokenizer adds before a text.
    fn n_added_before(&self) -> Result<usize, Error> {
        let with = self.tokenizer.encode("a", EncodeOptions::PROMPT)?;
        let without = self.tokenizer.encode("a", EncodeOptions::RENDERED)?;
        Ok(with.windows(without.len().max(1)).position(|window| window == without).unwrap_or(0))
    }

    /// Adds the token that ends an answer, unless the ids end with one.
    fn ended(&self, mut ids: Vec<TokenId>) -> Vec<TokenId> {
        let eos = self.tokenizer.eos().map(|eos| eos.id).filter(|id| self.eos_token_ids.contains(id));
        if !ids.last().is_some_and(|last| self.eos_token_ids.contains(last)) {
            ids.extend(eos.or(self.eos_token_ids.first().copied()));
        }
        ids
    }

    /// Whether a token that ends an answer is trained.
    pub(super) fn trains_end(&self, Example { ids, trained, .. }: &Example) -> bool {
        ids.iter().zip(trained).any(|(id, trained)| *trained && self.eos_token_ids.contains(id))
    }

    /// Rejects an example that would train something else than is meant.
    fn check(&self, example: &Example) -> Result<(), Problem> {
        let ids = &example.ids;
        if let Some(bos) = self.tokenizer.bos()
            && ids.starts_with(&[bos.id, bos.id])
        {
            return Err((
                format!("it begins with two BOS tokens, `{}`", bos.content),
                "the tokenizer or the chat template adds one: remove the other from the text",
            ));
        }
        if example.n_trained() == 0 {
            return Err((
                "nothing of it would be trained".into(),
                "a conversation needs a message with the role `assistant`, without `\"train\": false` and `\"weight\": 0`, which \
                 the chat template writes",
            ));
        }
        if !self.trains_end(example) {
            let tokens =
                self.eos_token_ids.iter().map(|&id| self.tokenizer.token(id).unwrap_or_else(|| id.to_string()));
            let tokens: Vec<_> = tokens.map(|token| format!("`{token}`")).collect();
            let expected = match tokens[..] {
                [] => "the model has no token for it".to_owned(),
                _ => format!("expected one of {}", tokens.join(", ")),
            };
            return Err((
                format!("no end of turn is trained, so the model would not learn to stop: {expected}"),
                "list the token that ends a turn in `eos_token_id` of `generation_config.json`, or use a chat template that \
                 ends the assistant's messages with it",
            ));
        }
        Ok(())
    }
}

/// The note about prompts that are strings, for a chat model.
const OF_STRINGS: &str = "its prompt and completion are strings, so they are trained as they are, without the chat template; for a \
                          chat write `messages`, or lists of messages in `prompt` and `completion`";

/// Why an example cannot be encoded.
enum EncodeError {
    Model(Error),
    Data(Problem),
}

impl From<Error> for EncodeError {
    fn from(error: Error) -> EncodeError {
        EncodeError::Model(error)
    }
}

/// The error for a record.
pub(super) fn wrong(origin: &str, (what, hint): Problem) -> anyhow::Error {
    anyhow!("{origin}: {what}\nhint: {hint}")
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::path::Path;

    use serde_json::json;

    use super::*;
    use crate::data::tokenizer_build::BuiltTokenizer;

    #[test]
    fn example_encoder_gives_messages_the_token_ids_of_serving() {
        let tokenizer = BuiltTokenizer::bpe(&"[system]a[user]b[assistant]c ".repeat(20), 280, 64).unwrap();
        let tokenizer = tokenizer.open().unwrap();
        let source = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% for call in m.tool_calls or [] %}\
            {{ call.function.arguments | tojson }}{% endfor %}<|endoftext|>{% endfor %}\
            {% if add_generation_prompt %}[assistant]{% endif %}";
        let template = ChatTemplate::new(source, Path::new("chat_template.jinja")).unwrap();
        let end = tokenizer.token_id("<|endoftext|>").unwrap();
        let encoder = ExampleEncoder::new(&tokenizer, Some(&template), &[end]);
        let read = |role: &str, arguments: Value| {
            let call = json!({ "function": { "name": "f", "arguments": arguments } });
            let list = json!([
                { "role": role, "content": "a" }, { "role": "user", "content": [{ "type": "text", "text": "b" }] },
                { "role": "assistant", "content": null, "tool_calls": [call] },
            ]);
            let members = serde_json::Map::from_iter([("messages".to_owned(), list)]);
            match RecordKind::of(&members, "text").unwrap().0 {
                RecordKind::Conversation { turns, .. } => turns,
                other => unreachable!("{other:?}"),
            }
        };
        let encode = |turns| encoder.encode(&RecordKind::Conversation { turns, tools: None, first: 0 }, "").unwrap().0;
        let as_sent = read("developer", json!("{\"x\": 1}"));
        let context = RenderContext { ending: Ending::Closed, ..RenderContext::new(&tokenizer) };
        let messages: Vec<Message> = as_sent.iter().map(|turn| turn.message.clone()).collect();
        assert_eq!(encode(as_sent.clone()).ids, template.encode(&tokenizer, &messages, &context).unwrap());
        assert_eq!(encode(as_sent), encode(read("system", json!({ "x": 1 }))));
    }
}
