//! What a request says of thinking, and how the model writes its thoughts.

use std::sync::Arc;

use hearth_engine::thinking::{ThinkingBudget, ThinkingRules};
use hearth_model::{
    TokenId,
    chat::{ChatTemplate, thought::ThoughtForm},
    tokenizer::{DecodeOptions, EncodeOptions, Tokenizer},
};
use serde_json::{Map, Value};

use super::{error::ApiError, fields::Fields, reasoning::ReasoningFormat};

/// How the model should think, and where its thoughts go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Thinking {
    pub(crate) format: ReasoningFormat,
    /// The most tokens of thoughts, with the name of the parameter.
    pub(crate) budget: Option<(usize, &'static str)>,
    pub(crate) effort: Option<Effort>,
    /// Whether the model thinks, if the request says so.
    pub(crate) is_enabled: Option<bool>,
}

/// How much the model should think.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Effort {
    None,
    Minimal,
    Low,
    Medium,
    High,
    XHigh,
    Max,
}

/// All efforts by their names, the lowest first.
const EFFORTS: [(&str, Effort); 7] = [
    ("none", Effort::None),
    ("minimal", Effort::Minimal),
    ("low", Effort::Low),
    ("medium", Effort::Medium),
    ("high", Effort::High),
    ("xhigh", Effort::XHigh),
    ("max", Effort::Max),
];

/// The formats of llama.cpp's server, and Groq's names for the same.
const FORMATS: [(&str, ReasoningFormat); 6] = [
    ("auto", ReasoningFormat::Apart),
    ("deepseek", ReasoningFormat::Apart),
    ("none", ReasoningFormat::InContent),
    ("parsed", ReasoningFormat::Apart),
    ("raw", ReasoningFormat::InContent),
    ("hidden", ReasoningFormat::Omitted),
];

/// The budget's names: of vLLM, llama.cpp's requests, and llama.cpp's setting.
const BUDGETS: [&str; 3] = ["thinking_token_budget", "thinking_budget_tokens", "reasoning_budget"];

/// Variables with which templates turn thinking on and off.
const SWITCHES: [&str; 2] = ["enable_thinking", "thinking"];

impl Thinking {
    /// Reads the fields of thinking.
    pub(crate) fn from_fields(fields: &mut Fields) -> Result<Self, ApiError> {
        let format = fields.one_of_or("reasoning_format", &FORMATS, ReasoningFormat::default())?;
        let is_included = fields.flag_or("include_reasoning", true)?;
        let format = if is_included { format } else { ReasoningFormat::Omitted };
        let effort = fields.one_of("reasoning_effort", &EFFORTS)?;
        let is_enabled = fields.flag("enable_thinking")?;
        Ok(Self { format, budget: budget(fields)?, effort, is_enabled })
    }

    /// Adds the variables by which the template learns of it. Those that the client sets itself stay. Returns the
    /// parameter that has no effect since the template reads no such variable.
    pub(crate) fn add_to(self, kwargs: &mut Map<String, Value>, template: &ChatTemplate) -> Option<&'static str> {
        let mut has_effect = false;
        let mut add = |name: &str, value: Value| {
            if template.reads_variable(name) {
                has_effect = true;
                kwargs.entry(name).or_insert(value);
            }
        };
        let is_enabled = self.is_enabled.or(self.effort.map(|effort| effort != Effort::None));
        if let Some(is_enabled) = is_enabled {
            SWITCHES.into_iter().for_each(|name| add(name, is_enabled.into()));
            if !is_enabled {
                // Seed-OSS.
                add("thinking_budget", 0.into());
            }
        }
        if let Some(effort) = self.effort {
            let has_switch = SWITCHES.into_iter().any(|name| template.reads_variable(name));
            if effort != Effort::None || !has_switch {
                add("reasoning_effort", effort.known_to(template.source()).into());
            }
        }
        let given = self.effort.map(|_| "reasoning_effort").or(self.is_enabled.map(|_| "enable_thinking"));
        given.filter(|_| !has_effect)
    }
}

/// -1 is no limit, as in llama.cpp.
fn budget(fields: &mut Fields) -> Result<Option<(usize, &'static str)>, ApiError> {
    let mut found: Option<(usize, &'static str)> = None;
    for name in BUDGETS {
        let Some(n_tokens) = fields.integer(name, -1..=i64::from(u32::MAX))? else { continue };
        let Ok(n_tokens) = usize::try_from(n_tokens) else { continue };
        match found {
            Some((other, first)) if other != n_tokens => {
                let message =
                    format!("`{name}` and `{first}` are the same limit and must be equal, got {n_tokens} and {other}");
                return Err(ApiError::invalid(name, message));
            }
            _ => found = Some((n_tokens, name)),
        }
    }
    Ok(found)
}

impl Effort {
    /// The name of this effort or, if the template lists others, of the nearest one that it lists.
    fn known_to(self, source: &str) -> &'static str {
        let is_listed = |name: &str| source.contains(&format!("'{name}'")) || source.contains(&format!("\"{name}\""));
        let listed: Vec<(&str, Effort)> = EFFORTS.into_iter().filter(|(name, _)| is_listed(name)).collect();
        // A single one is a default, which says nothing of the others.
        let known = if listed.len() > 1 { listed } else { EFFORTS[2..5].to_vec() };
        let nearest = known.into_iter().min_by_key(|(_, other)| (*other as i32 - self as i32).abs());
        nearest.map_or("medium", |(name, _)| name)
    }
}

/// How a model writes thoughts, and where an answer begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ModelThoughts {
    form: &'static ThoughtForm,
    /// Whether its template or its tokens say that it thinks.
    is_known: bool,
    /// The marks of which one closes the thought that the answer continues.
    continued: Option<&'static [&'static str]>,
}

impl ModelThoughts {
    pub(crate) fn new(
        template: &ChatTemplate,
        tokenizer: &Tokenizer,
        continued: Option<&'static [&'static str]>,
    ) -> Self {
        let (form, is_known) = ThoughtForm::of_model(template.source(), tokenizer);
        Self { form, is_known, continued }
    }

    pub(crate) fn form(&self) -> &'static ThoughtForm {
        self.form
    }

    /// Whether the answer continues a thought of the last message.
    pub(crate) fn is_continued(&self) -> bool {
        self.continued.is_some()
    }

    /// Whether marks are special tokens, which must be kept in the text.
    pub(crate) fn has_special_marks(&self, tokenizer: &Tokenizer) -> bool {
        let special = tokenizer.special_tokens();
        self.form.all_marks().any(|mark| special.iter().any(|(_, token)| mark.contains(token)))
    }

    /// The marks of which one closes the thought within which an answer to this prompt begins.
    pub(crate) fn opened(&self, prompt_ids: &[TokenId], tokenizer: &Tokenizer) -> Option<&'static [&'static str]> {
        /// Enough for a mark and white space, a byte each.
        const N_LAST: usize = 48;
        let last = &prompt_ids[prompt_ids.len().saturating_sub(N_LAST)..];
        let opened = || self.form.opened_by(&tokenizer.decode(last, DecodeOptions { skip_special_tokens: false }));
        self.continued.or_else(opened)
    }

    /// The rules for the thoughts in an answer to this prompt.
    ///
    /// # Errors
    /// 400 if there is a budget, and neither template nor tokens say that the model thinks.
    pub(crate) fn rules(
        &self,
        thinking: Thinking,
        prompt_ids: &[TokenId],
        tokenizer: &Tokenizer,
    ) -> Result<ThinkingRules, ApiError> {
        let budget = match thinking.budget {
            Some((n_tokens, param)) if self.is_known => {
                let ids = tokenizer.encode(self.form.closing_words, EncodeOptions::RENDERED);
                let ids = ids.map_err(|error| ApiError::internal(error.to_string()))?;
                Some(ThinkingBudget { n_tokens, closing_ids: Arc::from(ids), param })
            }
            Some((_, param)) => {
                let message = format!(
                    "`{param}` is not supported with this model: its chat template has no marks of thoughts\n\
                     hint: `max_completion_tokens` limits the whole answer"
                );
                return Err(ApiError::invalid(param, message));
            }
            None => None,
        };
        Ok(ThinkingRules { form: self.form, opened: self.opened(prompt_ids, tokenizer), budget })
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::path::Path;

    use serde_json::json;

    use super::*;

    fn kwargs(thinking: Thinking, source: &str) -> Value {
        let template = ChatTemplate::new(source, Path::new("chat_template.jinja")).unwrap();
        let mut kwargs = Map::new();
        thinking.add_to(&mut kwargs, &template);
        kwargs.into()
    }

    #[test]
    fn effort_reaches_the_template_by_the_names_that_it_reads() {
        const QWEN: &str =
            "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>{% endif %}";
        const QWEN_38: &str = "{% if enable_thinking is undefined or enable_thinking is true %}\
            {% set e = reasoning_effort|default('xhigh') %}{% if e not in ('xhigh', 'medium', 'low') %}x{% endif %}{% endif %}";
        const GPT_OSS: &str = "{% if reasoning_effort is not defined %}{% set reasoning_effort = \"medium\" %}{% endif %}\
            {{ reasoning_effort }}{{ message.thinking }}";
        const GRANITE: &str = "{% if thinking %}Write your thoughts{% endif %}";
        const SEED: &str = "{% if thinking_budget is defined %}{{ thinking_budget }}{% endif %}";
        for (source, effort, expected) in [
            (QWEN, Effort::None, json!({ "enable_thinking": false })),
            (QWEN, Effort::High, json!({ "enable_thinking": true })),
            (QWEN_38, Effort::None, json!({ "enable_thinking": false })),
            (QWEN_38, Effort::Max, json!({ "enable_thinking": true, "reasoning_effort": "xhigh" })),
            (QWEN_38, Effort::Minimal, json!({ "enable_thinking": true, "reasoning_effort": "low" })),
            (GPT_OSS, Effort::High, json!({ "reasoning_effort": "high" })),
            (GPT_OSS, Effort::None, json!({ "reasoning_effort": "low" })),
            (GRANITE, Effort::Low, json!({ "thinking": true })),
            (SEED, Effort::None, json!({ "thinking_budget": 0 })),
            ("{{ messages }}", Effort::High, json!({})),
        ] {
            let thinking = Thinking { effort: Some(effort), ..Thinking::default() };
            assert_eq!(kwargs(thinking, source), expected, "{effort:?} {source}");
        }
        let off = Thinking { is_enabled: Some(false), ..Thinking::default() };
        assert_eq!(kwargs(off, QWEN), json!({ "enable_thinking": false }));
        assert_eq!(kwargs(Thinking::default(), QWEN), json!({}));
    }
}
