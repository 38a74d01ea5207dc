//! Byte-level BPE as `tiktoken` describes it, in the format of the `tokenizers` library.

use std::collections::HashSet;

use anyhow::{Result, bail};
use hearth_model::weights::import::Encoding;
use serde_json::{Map, Value, json};

use super::{BuiltTokenizer, special::framed_by, word_counts::byte_alphabet};

/// Tokens that take a role if an encoding has them: nanochat's.
const BOS: &str = "<|bos|>";
const END_OF_ANSWER: &str = "<|assistant_end|>";
const OF_CHATS: [&str; 4] = ["<|user_start|>", "<|user_end|>", "<|assistant_start|>", END_OF_ANSWER];

/// nanochat's conversations: a system message is the beginning of the user's first one.
const TEMPLATE: &str = "{{- bos_token }}\n\
    {%- set ns = namespace(system='') %}\n\
    {%- for message in messages %}\n    \
    {%- if message['role'] == 'system' %}\n        \
    {%- set ns.system = message['content'] + '\\n\\n' %}\n    \
    {%- elif message['role'] == 'user' %}\n        \
    {{- '<|user_start|>' + ns.system + message['content'] + '<|user_end|>' }}\n        \
    {%- set ns.system = '' %}\n    \
    {%- elif message['role'] == 'assistant' %}\n        \
    {{- '<|assistant_start|>' + message['content'] + '<|assistant_end|>' }}\n    \
    {%- endif %}\n\
    {%- endfor %}\n\
    {%- if add_generation_prompt %}\n    \
    {{- '<|assistant_start|>' }}\n\
    {%- endif %}\n";

/// The tokenizer that encodes as `encoding` does. Prompts begin with `<|bos|>` if there is such a token.
///
/// # Errors
/// A byte has no token, a token occurs twice, or a special token has the id of another token.
pub fn from_encoding(encoding: &Encoding) -> Result<BuiltTokenizer> {
    let Encoding { pattern, tokens, special } = encoding;
    let known: HashSet<&[u8]> = tokens.iter().map(Vec::as_slice).collect();
    if known.len() != tokens.len() {
        bail!("the encoding has {} tokens, of which {} are there twice", tokens.len(), tokens.len() - known.len());
    }
    if let Some(byte) = (0..=u8::MAX).find(|byte| !known.contains(&[*byte][..])) {
        bail!("the encoding has no token for the byte {byte:#04x}");
    }
    let alphabet = byte_alphabet();
    let spell = |bytes: &[u8]| bytes.iter().map(|&byte| alphabet[usize::from(byte)]).collect::<String>();
    let vocab: Map<String, Value> = tokens.iter().enumerate().map(|(id, token)| (spell(token), id.into())).collect();
    // tiktoken merges any two adjacent tokens whose concatenation is a token; the format needs every such pair, lowest
    // rank first.
    let merges = tokens.iter().flat_map(|token| {
        let pairs = (1..token.len()).map(|middle| token.split_at(middle));
        let are_tokens = |(left, right): &(&[u8], &[u8])| known.contains(left) && known.contains(right);
        pairs.filter(are_tokens).map(|(left, right)| json!([spell(left), spell(right)])).collect::<Vec<_>>()
    });
    let mut added = Vec::new();
    for (token, id) in special {
        let is_taken = (*id as usize) < tokens.len() || added.iter().any(|other: &Value| other["id"] == *id);
        if is_taken || token.is_empty() {
            bail!("the special token `{token}` has id {id}, which is another token's");
        }
        added.push(json!({
            "id": id, "content": token, "special": true,
            "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
        }));
    }
    let id_of = |name: &str| special.iter().find(|(token, _)| token == name).map(|(_, id)| *id);
    let post_processor = id_of(BOS).map(|id| framed_by((BOS, id.into()), None));
    let tokenizer = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": null,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                { "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated", "invert": false },
                { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false },
            ],
        },
        "post_processor": post_processor,
        "decoder": { "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true },
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": false,
            "byte_fallback": false,
            // As tiktoken: a word that is a token is that token, whatever its merges are.
            "ignore_merges": true,
            "vocab": vocab,
            "merges": merges.collect::<Vec<_>>(),
        },
    });
    let mut config = json!({ "tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": false });
    let roles =
        [("bos_token", Some(BOS)), ("eos_token", [END_OF_ANSWER, BOS].into_iter().find(|name| id_of(name).is_some()))];
    let mut with_roles = Vec::new();
    for (role, token) in roles {
        if let Some(token) = token.filter(|token| id_of(token).is_some()) {
            config[role] = token.into();
            with_roles.push(token);
        }
    }
    let rest: Vec<_> =
        special.iter().map(|(token, _)| token).filter(|token| !with_roles.contains(&token.as_str())).collect();
    if !rest.is_empty() {
        config["additional_special_tokens"] = json!(rest);
    }
    let has_chat = OF_CHATS.iter().chain([&BOS]).all(|token| id_of(token).is_some());
    Ok(BuiltTokenizer {
        tokenizer_json: serde_json::to_string_pretty(&tokenizer)?,
        tokenizer_config_json: serde_json::to_string_pretty(&config)?,
        chat_template: has_chat.then(|| TEMPLATE.to_owned()),
    })
}
