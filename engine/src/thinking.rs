//! Tracks the thoughts of a sequence before its answer: counts their tokens, and ends them at a budget by forcing the
//! closing words.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
};

use hearth_model::{
    TokenId,
    decode::constraint::Constraint,
    text::{
        chat::thought::{Part, Place, ThoughtForm, ThoughtScan},
        tokenizer::{DecodeOptions, Detokenizer, Tokenizer},
    },
};

/// How thoughts in an answer are tracked and limited.
#[derive(Clone, Debug)]
pub struct ThinkingRules {
    /// How the model writes thoughts.
    pub form: &'static ThoughtForm,
    /// The marks that can close the thought that the prompt opens. `None` if it opens none.
    pub opened: Option<&'static [&'static str]>,
    /// The tokens that end a thought at the budget. They are also forced if the model ends its text within a thought
    /// although an answer must follow a grammar.
    pub closing_ids: Arc<[TokenId]>,
    /// The limit of thinking.
    pub budget: Option<ThinkingBudget>,
    /// How an answer that follows a grammar begins. `None` without a grammar.
    pub answer: Option<AnswerStart>,
}

/// How many tokens the model may think.
#[derive(Clone, Debug)]
pub struct ThinkingBudget {
    /// Maximum number of tokens of thoughts, over all of them, without marks and closing words.
    pub n_tokens: usize,
    /// The parameter that requests it.
    pub param: &'static str,
}

/// Text that may or must come before an answer that follows a grammar, outside of the grammar.
#[derive(Clone, Debug, Default)]
pub struct AnswerStart {
    /// Marks that the text may begin with.
    pub opening: Option<Opening>,
    /// The tokens that the text begins with.
    pub first_ids: Arc<[TokenId]>,
    /// The tokens after a thought.
    pub after_thought: Arc<[TokenId]>,
    /// Tokens of white space, of which a few may follow a thought.
    pub blank_ids: Arc<BTreeSet<TokenId>>,
}

/// Marks at the beginning of a text: marks that open a thought, and marks before an answer.
#[derive(Clone, Debug)]
pub struct Opening {
    /// One of the marks.
    pub grammar: Constraint,
    /// Whether there must be one.
    pub is_required: bool,
}

/// The thoughts of one sequence.
#[derive(Clone, Debug)]
pub(crate) struct Thinking {
    rules: ThinkingRules,
    detokenizer: Detokenizer,
    scan: ThoughtScan,
    /// Tokens that may still be part of a mark.
    unsettled: VecDeque<Unsettled>,
    /// Number of thinking tokens among the settled tokens.
    n_settled: usize,
    /// Tokens that come next.
    forced: VecDeque<TokenId>,
    /// Whether there has been nothing but thoughts, marks and white space since the start or the last thought, so that
    /// the answer has not begun.
    is_before_answer: bool,
    /// Where the text so far ends.
    place: Place,
    /// The text after the last mark, if the last token closed a thought.
    after_thought: String,
}

/// A token whose text may be part of a mark.
#[derive(Clone, Copy, Debug)]
struct Unsettled {
    n_bytes: usize,
    is_forced: bool,
    /// Whether some of the token's text belongs to a thought.
    is_thought: bool,
}

/// The place of an added token.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThinkingStep {
    /// Whether a thought was open before it.
    pub(crate) was_open: bool,
    /// Whether a thought is open after it.
    pub(crate) is_open: bool,
    pub(crate) is_forced: bool,
    /// Whether the answer had begun before it and after it.
    begun: [bool; 2],
}

impl ThinkingStep {
    /// Whether none of the token's text belongs to the answer, so that stop strings do not count.
    pub(crate) fn is_before_answer(self) -> bool {
        self.was_open || self.is_open || self.is_forced || self.begun == [false; 2]
    }

    /// Whether the answer begins in it.
    pub(crate) fn begins_answer(self) -> bool {
        self.begun == [false, true]
    }
}

/// Tokens of a prompt that may matter for the text after it.
const N_PREFIX: usize = 16;

impl Thinking {
    pub(crate) fn new(rules: ThinkingRules, prompt_ids: &[TokenId], tokenizer: &Tokenizer) -> Self {
        let last = &prompt_ids[prompt_ids.len().saturating_sub(N_PREFIX)..];
        let detokenizer = Detokenizer::new(tokenizer, DecodeOptions { skip_special_tokens: false }).with_prefix(last);
        let scan = ThoughtScan::new(rules.form).within(rules.opened);
        let forced = rules.answer.iter().flat_map(|answer| answer.first_ids.iter().copied()).collect();
        let is_before_answer = rules.opened.is_some() || !rules.form.answer_marks.is_empty();
        let unsettled = VecDeque::new();
        let mut thinking = Self {
            rules,
            detokenizer,
            scan,
            unsettled,
            n_settled: 0,
            forced,
            is_before_answer,
            place: Place::Text,
            after_thought: String::new(),
        };
        thinking.check_budget();
        thinking
    }

    /// Whether the next token belongs to a thought, as far as is known.
    pub(crate) fn is_open(&self) -> bool {
        self.scan.is_open()
    }

    /// Number of tokens of thoughts, without marks and forced tokens.
    pub(crate) fn n_tokens(&self) -> usize {
        let unsettled = self.unsettled.iter().filter(|token| !token.is_forced && self.is_open());
        self.n_settled + unsettled.count()
    }

    /// The next token, if it is forced.
    pub(crate) fn forced(&self) -> Option<TokenId> {
        self.forced.front().copied()
    }

    /// Forces the end of the open thought.
    pub(crate) fn close(&mut self) {
        self.forced.extend(self.rules.closing_ids.iter());
    }

    /// How an answer begins that follows a grammar.
    pub(crate) fn answer_start(&self) -> Option<&AnswerStart> {
        self.rules.answer.as_ref()
    }

    /// Whether this token would close the thought and have more than white space after the mark.
    pub(crate) fn would_begin_answer(&self, id: TokenId) -> bool {
        let (mut detokenizer, mut scan) = (self.detokenizer.clone(), self.scan.clone());
        scan.push(&detokenizer.push(id));
        let mut is_closed = false;
        while let Some(part) = scan.next(Place::Text) {
            match part {
                Part::Mark(_) => is_closed = true,
                Part::Answer(text) if !text.trim().is_empty() => return true,
                Part::Answer(_) | Part::Thought(_) => {}
            }
        }
        is_closed && !scan.held().trim().is_empty()
    }

    /// The text after the thought that the last token closed.
    pub(crate) fn after_thought(&self) -> &str {
        &self.after_thought
    }

    /// Adds a token. `is_in_call`: it belongs to a tool call, or to an answer that follows a grammar and has begun, where
    /// no mark opens a thought.
    pub(crate) fn accept(&mut self, id: TokenId, is_in_call: bool) -> ThinkingStep {
        let (was_open, had_begun) = (self.is_open(), !self.is_before_answer);
        let is_forced = self.forced.pop_front().is_some();
        let text = self.detokenizer.push(id);
        self.unsettled.push_back(Unsettled { n_bytes: text.len(), is_forced, is_thought: was_open && text.is_empty() });
        self.place = match (is_in_call, self.place) {
            (true, _) => Place::InCall,
            (false, Place::InCall) => Place::AfterCall,
            (false, place) => place,
        };
        self.scan.push(&text);
        self.after_thought.clear();
        while let Some(part) = self.scan.next(self.place) {
            self.settle(&part);
        }
        if was_open && !self.is_open() {
            self.after_thought.push_str(self.scan.held());
        }
        if let Some(answer) = self.rules.answer.as_ref().filter(|_| was_open && !self.is_open()) {
            // The closing words of the budget may have it too.
            if self.forced.is_empty() {
                self.forced.extend(answer.after_thought.iter());
            }
        }
        self.check_budget();
        ThinkingStep { was_open, is_open: self.is_open(), is_forced, begun: [had_begun, !self.is_before_answer] }
    }

    /// Attributes a part of the text to its tokens.
    fn settle(&mut self, part: &Part) {
        let (is_thought, text) = match part {
            Part::Thought(text) => (true, text),
            Part::Mark(text) | Part::Answer(text) => (false, text),
        };
        match part {
            Part::Mark(_) | Part::Thought(_) => {
                self.is_before_answer = true;
                self.after_thought.clear();
            }
            Part::Answer(text) => {
                let is_blank = text.trim().is_empty();
                self.is_before_answer &= is_blank;
                if !is_blank && self.place == Place::AfterCall {
                    self.place = Place::Text;
                }
                self.after_thought.push_str(text);
            }
        }
        let mut n_bytes = text.len();
        while let Some(token) = self.unsettled.front_mut() {
            let n_taken = n_bytes.min(token.n_bytes);
            (token.n_bytes, n_bytes) = (token.n_bytes - n_taken, n_bytes - n_taken);
            token.is_thought |= is_thought && n_taken > 0;
            if token.n_bytes > 0 {
                return;
            }
            self.n_settled += usize::from(token.is_thought && !token.is_forced);
            self.unsettled.pop_front();
        }
    }

    fn check_budget(&mut self) {
        let Some(budget) = &self.rules.budget else { return };
        if self.is_open() && self.forced.is_empty() && self.n_tokens() >= budget.n_tokens {
            self.close();
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::path::Path;

    use serde_json::{Map, Value, json};

    use super::*;

    /// A token for each printable ASCII character and the line feed, and one for each mark.
    fn tokenizer() -> Tokenizer {
        let single = (' '..='~').chain(['\n']).map(String::from);
        let marks = ["<think>", "</think>"].map(String::from);
        let vocab: Map<String, Value> =
            single.chain(marks).zip(0..).map(|(token, id)| (token, Value::from(id))).collect();
        let json = json!({
            "decoder": { "type": "Fuse" }, "model": { "type": "WordLevel", "vocab": vocab, "unk_token": " " },
        });
        Tokenizer::from_json(json.to_string().as_bytes(), None, Path::new("tokenizer.json")).unwrap()
    }

    fn form() -> &'static ThoughtForm {
        ThoughtForm::of_template("<think>").unwrap()
    }

    /// The tokens of a text, with marks as one token each if `has_marks`.
    fn ids(tokenizer: &Tokenizer, text: &str, has_marks: bool) -> Vec<TokenId> {
        let (mut ids, mut rest) = (Vec::new(), text);
        while let Some(first) = rest.chars().next() {
            let mark = form().all_marks().find(|mark| has_marks && rest.starts_with(mark));
            let token = mark.map_or(first.to_string(), str::to_owned);
            ids.push(tokenizer.token_id(&token).unwrap());
            rest = &rest[token.len()..];
        }
        ids
    }

    /// The written tokens, including forced ones, and the number of thinking tokens.
    fn written(text: &str, has_marks: bool, is_opened: bool, budget: Option<usize>) -> (String, usize) {
        let tokenizer = tokenizer();
        let closing_ids: Arc<[TokenId]> = ids(&tokenizer, "\n</think>\n\n", has_marks).into();
        let budget = budget.map(|n_tokens| ThinkingBudget { n_tokens, param: "thinking_token_budget" });
        let opened = is_opened.then_some(form().marks[0].closes);
        let rules = ThinkingRules { form: form(), opened, closing_ids, budget, answer: None };
        let mut thinking = Thinking::new(rules, &[], &tokenizer);
        let mut all = Vec::new();
        for id in ids(&tokenizer, text, has_marks) {
            while let Some(forced) = thinking.forced() {
                thinking.accept(forced, false);
                all.push(forced);
            }
            thinking.accept(id, false);
            all.push(id);
        }
        let text = all.iter().map(|&id| String::from_utf8(tokenizer.token_bytes(id)).unwrap()).collect();
        (text, thinking.n_tokens())
    }

    #[test]
    fn tokens_of_thoughts_are_counted_without_marks() {
        for has_marks in [true, false] {
            for (text, is_opened, n_tokens) in [
                ("<think>abc</think>de", false, 3),
                ("abc</think>de", true, 3),
                ("abc", true, 3),
                ("abc", false, 0),
                ("<think>\na\n</think>\n\nb\n<think>c", false, 4),
                ("a </thin b", true, 10),
            ] {
                assert_eq!(written(text, has_marks, is_opened, None), (text.to_owned(), n_tokens), "{text}");
            }
        }
    }

    #[test]
    fn closing_words_are_forced_after_exactly_the_budget() {
        for has_marks in [true, false] {
            for (budget, expected) in [
                (0, "\n</think>\n\nabcdef"),
                (1, "a\n</think>\n\nbcdef"),
                (5, "abcde\n</think>\n\nf"),
                (6, "abcdef"),
                (100, "abcdef"),
            ] {
                let found = written("abcdef", has_marks, true, Some(budget));
                assert_eq!(found, (expected.to_owned(), budget.min(6)), "{budget}");
                let found = written("<think>abcdef", has_marks, false, Some(budget));
                assert_eq!(found, (format!("<think>{expected}"), budget.min(6)), "{budget}");
            }
        }
        let text = "ab</think>c\nd";
        assert_eq!(written(text, true, true, Some(3)), (text.to_owned(), 2));
        // The budget covers all thoughts together.
        let two = "ab</think>c\n<think>defg";
        let expected = "ab</think>c\n<think>d\n</think>\n\nefg";
        assert_eq!(written(two, true, true, Some(3)), (expected.to_owned(), 3));
    }

    #[test]
    fn mark_that_the_budget_interrupts_is_a_part_of_the_thought() {
        assert_eq!(written("a</thxyz", false, true, Some(3)), ("a</\n</think>\n\nthxyz".to_owned(), 3));
    }
}
