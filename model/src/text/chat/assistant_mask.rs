//! Finds which tokens of a conversation the assistant writes: what fine-tuning trains.
//!
//! A template may mark them with `{% generation %}` tags, as in `transformers`. Otherwise the conversation is rendered
//! several times, and the texts are compared. The assistant's text of message i begins at the end of the rendered
//! messages before i with a generation prompt, and ends at the end of the rendered messages up to i. Some templates
//! write a message differently if others follow. Then the text is located by rendering the whole conversation with
//! another text in place of the message.

use std::ops::Range;

use serde_json::{Value, json};

use super::{
    ChatTemplate, Ending, Inputs, Message, RenderContext,
    environment::{GENERATION_END, GENERATION_START},
    marks,
    messages::ASSISTANT,
    thought,
};
use crate::{
    TokenId,
    error::{Error, Result},
    text::tokenizer::{EncodeOptions, Tokenizer},
};

/// A conversation as token ids, with the assistant's tokens marked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MaskedChat {
    /// The ids, equal to those of [`ChatTemplate::encode`].
    pub ids: Vec<TokenId>,
    /// For each id, whether any of its text is the assistant's.
    pub is_assistant: Vec<bool>,
    /// For each id, whether any of its text was written by the assistant.
    pub source: MaskSource,
}

/// How the assistant's text was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaskSource {
    /// Between the template's `{% generation %}` and `{% endgeneration %}`.
    GenerationTags,
    /// By comparing renderings.
    Rendering,
}

impl ChatTemplate {
    /// Renders and tokenizes a complete conversation, and marks the tokens that the assistant writes in the messages from
    /// index `first` on, each with the end of its turn. `context.ending` is ignored. The template gets the messages in the
    /// form that it supports, as in [`encode`](Self::encode).
    ///
    /// # Errors
    /// As [`encode`](Self::encode); [`Error::Template`] if the template has no `{% generation %}` tags and writes a message
    /// in a way in which it cannot be located.
    pub fn encode_with_mask(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
        context: &RenderContext,
        first: usize,
    ) -> Result<MaskedChat> {
        self.in_supported_form(messages, context, |messages| {
            self.mask_of(tokenizer, self.inputs(messages, context)?, context, first)
        })
    }

    fn mask_of(
        &self,
        tokenizer: &Tokenizer,
        mut inputs: Inputs,
        context: &RenderContext,
        first: usize,
    ) -> Result<MaskedChat> {
        let [mark, start, end, stand_in] = marks::unused(&inputs, &self.compiled_sources())?;
        let special_tokens = tokenizer.special_tokens();
        marks::break_up(&mut inputs, &special_tokens, mark);
        let context = RenderContext { ending: Ending::Closed, ..context.clone() };
        let text = self.render_inputs(&inputs, &context)?;
        let special_tokens = special_tokens.into_iter().map(|(_, content)| content).collect();
        let renderings = Renderings { template: self, inputs, context, special_tokens, stand_in };

        let tagged = renderings.tagged_spans(&text, [start, end])?;
        let (spans, source) = match tagged {
            Some(spans) => (renderings.spans_from(spans, &text, first)?, MaskSource::GenerationTags),
            None => (renderings.found_spans(&text, first)?, MaskSource::Rendering),
        };
        let add_special_tokens = renderings.context.add_special_tokens;
        let options = EncodeOptions { add_special_tokens, ..EncodeOptions::RENDERED };
        let tokens = tokenizer.locate_marked(&text, mark, options)?;
        let is_assistant = |bytes: &Option<Range<usize>>| {
            let overlaps = |bytes: &Range<usize>| {
                spans.iter().any(|span| span.start < bytes.end && bytes.start < span.end && !bytes.is_empty())
            };
            bytes.as_ref().is_some_and(overlaps)
        };
        let is_assistant = tokens.iter().map(|(_, bytes)| is_assistant(bytes)).collect();
        Ok(MaskedChat { ids: tokens.into_iter().map(|(id, _)| id).collect(), is_assistant, source })
    }
}

/// Renders variants of a conversation.
struct Renderings<'a> {
    template: &'a ChatTemplate,
    inputs: Inputs,
    context: RenderContext,
    special_tokens: Vec<String>,
    /// A character that occurs in no input or template: the text of a message in its place.
    stand_in: char,
}

impl Renderings<'_> {
    /// Whether this message is the assistant's.
    fn is_assistant(&self, index: usize) -> bool {
        self.inputs.messages.get(index).and_then(|message| message.get("role")).is_some_and(|role| role == ASSISTANT)
    }

    fn assistants_from(&self, first: usize) -> impl Iterator<Item = usize> {
        (first..self.inputs.messages.len()).filter(|&index| self.is_assistant(index))
    }

    /// The conversation of these messages; `None` if the template rejects it.
    fn render(&self, messages: &[Value], ending: Ending) -> Option<String> {
        let inputs = Inputs {
            messages: messages.to_vec(),
            tools: self.inputs.tools.clone(),
            kwargs: self.inputs.kwargs.clone(),
        };
        let context = RenderContext { ending, ..self.context.clone() };
        self.template.render_inputs(&inputs, &context).ok()
    }

    /// The text between the template's tags; `None` if it has no tags, or processes the text between them.
    fn tagged_spans(&self, text: &str, [start, end]: [char; 2]) -> Result<Option<Vec<Range<usize>>>> {
        let sources = self.template.compiled_sources();
        if !sources.contains(GENERATION_START) {
            return Ok(None);
        }
        let mut inputs = self.inputs.clone();
        inputs.kwargs.insert(GENERATION_START.into(), start.to_string().into());
        inputs.kwargs.insert(GENERATION_END.into(), end.to_string().into());
        let marked = self.template.render_inputs(&inputs, &self.context)?;
        let mut plain = String::with_capacity(marked.len());
        let mut spans = Vec::new();
        let mut open = None;
        for character in marked.chars() {
            match character {
                _ if character == start => open = Some(plain.len()),
                _ if character == end => spans.extend(open.take().map(|start| start..plain.len())),
                _ => plain.push(character),
            }
        }
        let has_any = !spans.is_empty() || self.assistants_from(0).next().is_none();
        Ok((plain == text && has_any).then_some(spans))
    }

    /// The tagged spans in the messages from index `first` on.
    fn spans_from(&self, mut spans: Vec<Range<usize>>, text: &str, first: usize) -> Result<Vec<Range<usize>>> {
        if first > 0 {
            let Some(index) = self.assistants_from(first).next() else { return Ok(Vec::new()) };
            let found = self.span(text, index, 0).ok_or_else(|| cannot_locate(index))?;
            spans.retain(|span| span.end > found.start);
        }
        Ok(spans)
    }

    /// The assistant's spans, found by rendering.
    fn found_spans(&self, text: &str, first: usize) -> Result<Vec<Range<usize>>> {
        let mut spans: Vec<Range<usize>> = Vec::new();
        for index in self.assistants_from(first) {
            let before = spans.last().map_or(0, |span| span.end);
            spans.push(self.span(text, index, before).ok_or_else(|| cannot_locate(index))?);
        }
        Ok(spans)
    }

    /// The assistant's span of message `index`. `before` is the end of the previous span.
    fn span(&self, text: &str, index: usize, before: usize) -> Option<Range<usize>> {
        let span = self.rendered_span(text, index, before)?;
        (span.start <= span.end).then_some(span)
    }

    fn rendered_span(&self, text: &str, index: usize, before: usize) -> Option<Range<usize>> {
        let messages = &self.inputs.messages;
        let (earlier, until) = (messages.get(..index)?, messages.get(..=index)?);
        // Rarely needed.
        let located = || self.locate(text, messages, index);

        let prompt = self.render(earlier, Ending::GenerationPrompt);
        let prompt = prompt.as_deref().map(thought::without_start);
        let start = match prompt {
            Some(prompt) if text.starts_with(prompt) => prompt.len(),
            _ => {
                let start = located()?.start;
                let closed = self.render(earlier, Ending::Closed);
                // The header of the assistant's messages.
                let header = prompt.zip(closed).map_or("", |(prompt, closed)| {
                    prompt.get(self.common_prefix(prompt, &closed)..).unwrap_or_default()
                });
                let found = text.get(before..start)?.rfind(header).filter(|_| !header.is_empty());
                found.map_or(start, |at| before + at + header.len())
            }
        };
        if until.len() == messages.len() {
            return Some(start..text.len());
        }
        let closed = self.render(until, Ending::Closed)?;
        if text.starts_with(&closed) {
            return Some(start..closed.len());
        }
        // The end of the turn, as far as it does not depend on the messages that follow.
        let end = located()?.end;
        let rest = text.get(end..)?;
        let turn_end = closed.get(self.locate(&closed, until, index)?.end..)?;
        let n_bytes = match self.common_prefix(rest, turn_end) {
            // A template may end the last turn with another token than the others.
            0 if self.leading_special(turn_end) > 0 => self.leading_special(rest),
            n_bytes => n_bytes,
        };
        Some(start..end + n_bytes)
    }

    /// Where `text`, the rendering of `messages`, depends on the assistant's text in message `index`.
    fn locate(&self, text: &str, messages: &[Value], index: usize) -> Option<Range<usize>> {
        let mut messages = messages.to_vec();
        let content = self.template.text_content(ASSISTANT, &self.stand_in.to_string());
        *messages.get_mut(index)? = json!({ "role": ASSISTANT, "content": content });
        let other = self.render(&messages, Ending::Closed)?;
        let is_same = |(a, b): &(u8, u8)| a == b;
        let start = text.bytes().zip(other.bytes()).take_while(is_same).count();
        let start = text.floor_char_boundary(start);
        let (rest, other) = (text.get(start..)?, other.get(start..)?);
        let n_same = rest.bytes().rev().zip(other.bytes().rev()).take_while(is_same).count();
        Some(start..start + rest.ceil_char_boundary(rest.len() - n_same))
    }

    /// Length in bytes of the common prefix, without a part of a special token.
    fn common_prefix(&self, a: &str, b: &str) -> usize {
        let mut end = a.floor_char_boundary(a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count());
        loop {
            let cuts = |text: &str, token: &str| {
                let first = (end + 1).saturating_sub(token.len());
                (first..end).find(|&at| text.get(at..).is_some_and(|rest| rest.starts_with(token)))
            };
            let first = self.special_tokens.iter().flat_map(|token| [cuts(a, token), cuts(b, token)]).flatten().min();
            match first {
                Some(first) => end = first,
                None => return end,
            }
        }
    }

    /// Length in bytes of the special token at the start of a text, or 0.
    fn leading_special(&self, text: &str) -> usize {
        let starts = self.special_tokens.iter().filter(|token| text.starts_with(token.as_str()));
        starts.map(String::len).max().unwrap_or(0)
    }
}

fn cannot_locate(index: usize) -> Error {
    let n = index + 1;
    Error::template(format!("does not show what the assistant writes in message {n}, of role `{ASSISTANT}`"))
        .with_hint("mark it with `{% generation %}` and `{% endgeneration %}` in the template")
}
