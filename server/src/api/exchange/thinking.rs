//! The thinking options of a request, and how the model writes its thoughts.

use std::sync::Arc;

use hearth_engine::{
    ServedModel,
    thinking::{AnswerStart, Opening, ThinkingBudget, ThinkingRules},
};
use hearth_model::{
    TokenId,
    decode::constraint::Grammar,
    text::{
        chat::{ChatTemplate, thought::ThoughtForm},
        tokenizer::{DecodeOptions, EncodeOptions, Tokenizer},
    },
};
use serde_json::{Map, Value};

use crate::api::{
    error::ApiError,
    tools::{call_arguments::text_in_lark, reasoning::ReasoningFormat, structured::Structure},
    wire::fields::Fields,
};

/// How the model should think, and where its thoughts go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Thinking {
    pub(crate) format: ReasoningFormat,
    /// Maximum number of thinking tokens, with the name of the parameter.
    pub(crate) budget: Option<(usize, &'static str)>,
    pub(crate) effort: Option<Effort>,
    /// Whether the model should think, if the request sets it.
    pub(crate) is_enabled: Option<bool>,
    /// Whether thoughts of earlier answers are kept, if the request sets it.
    pub(crate) is_preserved: Option<bool>,
}

/// The reasoning effort.
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

/// Variables with which templates keep the thoughts of earlier answers, and their value then: of Qwen, GLM and Nemotron.
const KEEPERS: [(&str, bool); 3] =
    [("preserve_thinking", true), ("clear_thinking", false), ("truncate_history_thinking", false)];

/// Variables with which templates turn thinking on and off.
pub(crate) const SWITCHES: [&str; 2] = ["enable_thinking", "thinking"];

impl Thinking {
    /// The effort that the field `name` asks for, and its word.
    pub(crate) fn effort_of(
        fields: &mut Fields,
        name: &'static str,
    ) -> Result<Option<(&'static str, Effort)>, ApiError> {
        fields.one_of(name, &EFFORTS.map(|(word, effort)| (word, (word, effort))))
    }

    /// Reads the fields of thinking.
    pub(crate) fn from_fields(fields: &mut Fields) -> Result<Self, ApiError> {
        let format = fields.one_of_or("reasoning_format", &FORMATS, ReasoningFormat::default())?;
        let is_included = fields.flag_or("include_reasoning", true)?;
        let format = if is_included { format } else { ReasoningFormat::Omitted };
        let effort = fields.one_of("reasoning_effort", &EFFORTS)?;
        let is_enabled = fields.flag("enable_thinking")?;
        let is_preserved = fields.flag("preserve_thinking")?;
        Ok(Self { format, budget: budget(fields)?, effort, is_enabled, is_preserved })
    }

    /// Whether the model should think, if the request sets it.
    fn switch(self, kwargs: &Map<String, Value>) -> Option<bool> {
        let given = SWITCHES.into_iter().find_map(|name| kwargs.get(name)?.as_bool());
        given.or(self.is_enabled).or(self.effort.map(|effort| effort != Effort::None))
    }

    /// Adds the variables for the template. Variables that the client sets itself are kept. Returns the parameters that
    /// have no effect because the template does not read their variables.
    pub(crate) fn add_to(self, kwargs: &mut Map<String, Value>, template: &ChatTemplate) -> Vec<&'static str> {
        let switch = self.switch(kwargs);
        let mut add = |name: &str, value: Value| {
            let is_read = template.reads_variable(name);
            if is_read {
                kwargs.entry(name).or_insert(value);
            }
            is_read
        };
        let mut has_effect = false;
        if let Some(is_enabled) = switch {
            for name in SWITCHES {
                has_effect |= add(name, is_enabled.into());
            }
            // Seed-OSS.
            has_effect |= !is_enabled && add("thinking_budget", 0.into());
        }
        if let Some(effort) = self.effort
            && (effort != Effort::None || !has_effect)
        {
            has_effect |= add("reasoning_effort", effort.known_to(template.source()).into());
        }
        let given = self.effort.map(|_| "reasoning_effort").or(self.is_enabled.map(|_| "enable_thinking"));
        let mut unread: Vec<&str> = given.into_iter().filter(|_| !has_effect).collect();
        if let Some(is_preserved) = self.is_preserved {
            let added = KEEPERS.map(|(name, value)| add(name, (value == is_preserved).into()));
            unread.extend(added.iter().all(|is_read| !is_read).then_some("preserve_thinking"));
        }
        unread
    }

    /// As `self`, with a limit that turns thinking off, if `param` asks for that and the template cannot do it.
    pub(crate) fn turned_off_by(self, param: &'static str) -> Option<Self> {
        let is_off = match param {
            "reasoning_effort" => self.effort == Some(Effort::None),
            "enable_thinking" => self.is_enabled == Some(false),
            _ => false,
        };
        is_off.then_some(Self { budget: Some((0, param)), ..self })
    }
}

/// -1 is no limit, as in llama.cpp.
pub(crate) fn budget(fields: &mut Fields) -> Result<Option<(usize, &'static str)>, ApiError> {
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
        // A single value is a default, and does not rule out others.
        let known = if listed.len() > 1 { listed } else { EFFORTS[2..5].to_vec() };
        let nearest = known.into_iter().min_by_key(|(_, other)| (*other as i32 - self as i32).abs());
        nearest.map_or("medium", |(name, _)| name)
    }
}

/// How a model writes thoughts, and where an answer begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ModelThoughts {
    form: &'static ThoughtForm,
    /// Whether the model's template or its tokens show that it thinks.
    is_known: bool,
    /// The marks that can close the thought that the answer continues.
    continued: Option<&'static [&'static str]>,
    /// Whether the model should think, if the request sets it.
    thinks: Option<bool>,
    /// Whether the answer continues a message, so that no thought begins it.
    has_begun: bool,
}

impl ModelThoughts {
    pub(crate) fn new(
        template: &ChatTemplate,
        tokenizer: &Tokenizer,
        continued: Option<&'static [&'static str]>,
    ) -> Self {
        let (form, is_known) = ThoughtForm::of_model(template.source(), tokenizer);
        Self { form, is_known, continued, thinks: None, has_begun: false }
    }

    /// Sets whether the model should think, if the request sets it, and whether the answer continues a message.
    pub(crate) fn switched(self, thinks: Option<bool>, has_begun: bool) -> Self {
        Self { thinks, has_begun, ..self }
    }

    pub(crate) fn form(&self) -> &'static ThoughtForm {
        self.form
    }

    /// Whether the model's template or its tokens show that it thinks.
    pub(crate) fn is_known(&self) -> bool {
        self.is_known
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

    /// The marks that can close the thought within which an answer to this prompt begins.
    pub(crate) fn opened(&self, prompt_ids: &[TokenId], tokenizer: &Tokenizer) -> Option<&'static [&'static str]> {
        self.continued.or_else(|| self.form.opened_by(&end_of(prompt_ids, tokenizer)))
    }

    /// The text between this prompt and an answer without a thought: the end of a thought that the prompt opens, and
    /// the mark of an answer.
    pub(crate) fn without_thought(&self, prompt_ids: &[TokenId], tokenizer: &Tokenizer) -> String {
        let [after_thought, without_thought] = if self.is_known { self.form.before_answer } else { ["", ""] };
        let closing = self.form.closing_words;
        match self.opened(prompt_ids, tokenizer) {
            Some(_) if closing.ends_with(after_thought) => closing.to_owned(),
            Some(_) => format!("{closing}{after_thought}"),
            None if self.form.is_closed_by(&end_of(prompt_ids, tokenizer)) => after_thought.to_owned(),
            None => without_thought.to_owned(),
        }
    }

    /// The rules for the thoughts in an answer to this prompt, which follows `structure`.
    ///
    /// # Errors
    /// 400 if there is a budget, and neither template nor tokens show that the model thinks.
    pub(crate) fn rules(
        &self,
        thinking: Thinking,
        prompt_ids: &[TokenId],
        model: &ServedModel,
        structure: Option<&Structure>,
    ) -> Result<ThinkingRules, ApiError> {
        let budget = match thinking.budget {
            Some((n_tokens, param)) if self.is_known => Some(ThinkingBudget { n_tokens, param }),
            Some((_, param)) => {
                let message = format!(
                    "`{param}` is not supported with this model: its chat template has no marks of thoughts\n\
                     hint: `max_completion_tokens` limits the whole answer"
                );
                return Err(ApiError::invalid(param, message));
            }
            None => None,
        };
        let opened = self.opened(prompt_ids, &model.tokenizer);
        let closing_ids = ids_of(self.form.closing_words, &model.tokenizer)?;
        let answer = match structure {
            Some(structure) if self.is_known => {
                let end = end_of(prompt_ids, &model.tokenizer);
                Some(self.answer_start(structure, model, opened.is_some(), self.form.is_closed_by(&end))?)
            }
            _ => None,
        };
        Ok(ThinkingRules { form: self.form, opened, closing_ids, budget, answer })
    }

    /// How an answer begins that follows a structure, if the prompt opens a thought, or ends with a closed one.
    fn answer_start(
        &self,
        structure: &Structure,
        model: &ServedModel,
        is_opened: bool,
        is_closed: bool,
    ) -> Result<AnswerStart, ApiError> {
        let tokenizer = &model.tokenizer;
        // Calls have separate marks.
        let [after_thought, without_thought] = if structure.has_calls() { ["", ""] } else { self.form.before_answer };
        let may_think =
            !self.has_begun && !is_opened && !is_closed && self.thinks.unwrap_or_else(|| !self.form.opens_with_words());
        let first = match (self.has_begun || is_opened || may_think, is_closed) {
            (true, _) => "",
            (false, true) => after_thought,
            (false, false) => without_thought,
        };
        let opening = if may_think { Some(self.opening(structure, model, without_thought)?) } else { None };
        let blank = |text| ids_of(text, tokenizer).map(|ids| ids.first().copied().filter(|_| ids.len() == 1));
        let blank_ids = ["\n", "\n\n", " "].into_iter().filter_map(|text| blank(text).transpose());
        Ok(AnswerStart {
            opening,
            first_ids: ids_of(first, tokenizer)?,
            after_thought: ids_of(after_thought, tokenizer)?,
            blank_ids: Arc::new(blank_ids.collect::<Result<_, _>>()?),
        })
    }

    /// The marks that open thoughts, or one before an answer.
    fn opening(&self, structure: &Structure, model: &ServedModel, before: &str) -> Result<Opening, ApiError> {
        // Others may begin an answer: `[` of `[THINK]`.
        let n_marks = if self.form.opens_with_words() { self.form.marks.len() } else { 1 };
        let opens = self.form.marks.iter().take(n_marks).map(|marks| marks.open);
        let marks: Vec<&str> = opens.chain([before].into_iter().filter(|mark| !mark.is_empty())).collect();
        let special = model.tokenizer.special_tokens();
        let special: Vec<(&str, TokenId)> = special.iter().map(|(id, token)| (token.as_str(), *id)).collect();
        let used = special.iter().copied().filter(|(token, _)| marks.iter().any(|mark| mark.contains(token)));
        let used: Vec<(&str, TokenId)> = used.collect();
        let written: Vec<String> = marks.iter().map(|mark| text_in_lark(mark, &used)).collect();
        let grammar = Grammar::Lark(format!("start: {}", written.join(" | ")));
        let ids: Vec<TokenId> = used.into_iter().map(|(_, id)| id).collect();
        let compiler = model.grammars().map_err(|error| ApiError::internal(error.to_string()))?;
        let grammar = compiler.compile_with_tokens(&grammar, &ids, structure.param());
        let grammar = grammar.map_err(|error| ApiError::internal(error.to_string()))?;
        Ok(Opening { grammar, is_required: !before.is_empty() })
    }
}

/// The end of a prompt as text, special tokens included.
fn end_of(prompt_ids: &[TokenId], tokenizer: &Tokenizer) -> String {
    /// Enough for a mark and white space, a byte each.
    const N_LAST: usize = 48;
    let last = &prompt_ids[prompt_ids.len().saturating_sub(N_LAST)..];
    tokenizer.decode(last, DecodeOptions { skip_special_tokens: false })
}

/// The tokens of a text that may contain special tokens.
fn ids_of(text: &str, tokenizer: &Tokenizer) -> Result<Arc<[TokenId]>, ApiError> {
    if text.is_empty() {
        return Ok(Arc::default());
    }
    let ids = tokenizer.encode(text, EncodeOptions::RENDERED);
    ids.map(Arc::from).map_err(|error| ApiError::internal(error.to_string()))
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
        const GLM: &str = "{% if clear_thinking is defined and not clear_thinking %}x{% endif %}";
        for (is_preserved, expected) in [(true, false), (false, true)] {
            let keeping = Thinking { is_preserved: Some(is_preserved), ..Thinking::default() };
            assert_eq!(kwargs(keeping, GLM), json!({ "clear_thinking": expected }));
        }
    }
}
