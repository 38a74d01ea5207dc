//! Conversations as documents: rendered by the chat template that a server would use.

use std::path::Path;

use anyhow::{Context, Result};
use hearth_model::{
    TokenId,
    chat::{ChatTemplate, Ending, Message, RenderContext},
    tokenizer::Tokenizer,
};

/// A document that is a conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct Conversation {
    /// The messages.
    pub messages: Vec<Message>,
    /// Its place in its file, such as "line 3".
    pub place: String,
}

impl Conversation {
    /// Roles and messages line by line, as most templates write them: the text to count words in, and to split documents
    /// by.
    pub fn text(&self) -> String {
        self.messages.iter().map(|message| format!("{}\n{}\n", message.role, message.content)).collect()
    }
}

/// Tokenizes conversations.
#[derive(Clone, Debug)]
pub struct ConversationEncoder {
    tokenizer: Tokenizer,
    template: ChatTemplate,
    context: RenderContext,
}

impl ConversationEncoder {
    /// An encoder with the chat template of a tokenizer's folder; `None` if it has none.
    ///
    /// # Errors
    /// The template cannot be read.
    pub fn from_dir(dir: &Path, tokenizer: &Tokenizer) -> Result<Option<ConversationEncoder>> {
        let template = ChatTemplate::from_dir(dir).with_context(|| format!("cannot open `{}`", dir.display()))?;
        let context = RenderContext { ending: Ending::Closed, ..RenderContext::new(tokenizer) };
        Ok(template.map(|template| ConversationEncoder { tokenizer: tokenizer.clone(), template, context }))
    }

    /// The ids of a whole conversation, with the end of its last message. Special-token strings in messages stay text.
    ///
    /// # Errors
    /// The template rejects the messages, or a character is not in the vocabulary.
    pub fn encode(&self, messages: &[Message]) -> Result<Vec<TokenId>> {
        self.template.encode(&self.tokenizer, messages, &self.context).context("cannot encode the conversation")
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use serde_json::{Value, json};

    use super::*;
    use crate::tokenizer_build::BuiltTokenizer;

    #[test]
    fn conversation_encoder_normalizes_roles_content_parts_and_arguments() {
        let tokenizer = BuiltTokenizer::bpe(&"[system]a[assistant]b ".repeat(20), 280, 64).unwrap().open().unwrap();
        let source = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% for call in m.tool_calls or [] %}\
            {{ call.function.arguments | tojson }}{% endfor %}{% endfor %}";
        let template = ChatTemplate::new(source, Path::new("chat_template.jinja")).unwrap();
        let encoder =
            ConversationEncoder { context: RenderContext::new(&tokenizer), tokenizer: tokenizer.clone(), template };
        let encode = |role: &str, content: Value, arguments: Value| {
            let call = json!({ "function": { "name": "f", "arguments": arguments } });
            let messages = json!([
                { "role": role, "content": content }, { "role": "assistant", "content": null, "tool_calls": [call] },
            ]);
            encoder.encode(&serde_json::from_value::<Vec<Message>>(messages).unwrap()).unwrap()
        };
        let parts = json!([{ "type": "text", "text": "a" }]);
        let expected = encode("system", json!("a"), json!({ "x": 1 }));
        assert_eq!(tokenizer.decode(&expected, Default::default()), "[system]a[assistant]{\"x\": 1}");
        assert_eq!(encode("developer", parts, json!("{\"x\": 1}")), expected);
    }
}
