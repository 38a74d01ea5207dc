//! How families of models write thoughts: one table.

use crate::text::tokenizer::Tokenizer;

/// How a model family writes its thoughts (reasoning).
#[derive(Debug, PartialEq, Eq)]
pub struct ThoughtForm {
    /// A chat template has this form if its source contains one of these strings.
    signs: &'static [&'static str],
    /// The marks around a thought.
    pub marks: &'static [ThoughtMarks],
    /// Marks around an answer, which are no part of it.
    pub answer_marks: &'static [&'static str],
    /// The beginning of an answer after a thought, and without one.
    pub before_answer: [&'static str; 2],
    /// The text that ends a thought. A line feed precedes marks that are plain text, so that they do not count as
    /// quoted.
    pub closing_words: &'static str,
    /// Where a thought may begin.
    pub opens: Opens,
}

/// A mark that opens a thought, and the marks that may close it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThoughtMarks {
    /// The opening mark.
    pub open: &'static str,
    /// The closing marks; a model writes one of them.
    pub closes: &'static [&'static str],
}

/// Where a mark counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opens {
    /// At the start of a line, outside of fenced code: the mark is plain text that may be quoted.
    LineStart,
    /// Anywhere: the mark is never written for anything else.
    Anywhere,
}

const fn marks(open: &'static str, closes: &'static [&'static str]) -> ThoughtMarks {
    ThoughtMarks { open, closes }
}

const THINK: ThoughtMarks = marks("<think>", &["</think>"]);
const BRACKETS: ThoughtMarks = marks("[THINK]", &["[/THINK]"]);
const PHRASE_ENDS: &[&str] = &["Here is my response:", "Here's my response:"];

/// `<think>`: Qwen 3, DeepSeek R1 and its distillates, SmolLM3, OLMo 3, Phi 4 reasoning, GLM, MiniCPM, LFM2, Nemotron,
/// Granite 4. Models without a sign of another form may write Mistral's marks too.
static PLAIN: ThoughtForm = ThoughtForm {
    signs: &["<think>", "</think>"],
    marks: &[THINK, BRACKETS],
    answer_marks: &[],
    before_answer: ["", ""],
    closing_words: "\n</think>\n\n",
    opens: Opens::LineStart,
};

/// The other forms. If a template has signs of several, the first one counts.
static OTHERS: [ThoughtForm; 10] = [
    // gpt-oss (harmony).
    ThoughtForm {
        signs: &["<|channel|>analysis"],
        marks: &[marks("<|channel|>analysis<|message|>", &["<|end|>"])],
        answer_marks: &[
            "<|start|>assistant<|channel|>final<|message|>",
            "<|channel|>final<|message|>",
            "<|start|>assistant<|channel|>commentary<|message|>",
            "<|channel|>commentary<|message|>",
            "<|start|>assistant",
            "<|end|>",
            "<|return|>",
        ],
        before_answer: ["<|start|>assistant<|channel|>final<|message|>", "<|channel|>final<|message|>"],
        closing_words: "<|end|><|start|>assistant<|channel|>final<|message|>",
        opens: Opens::Anywhere,
    },
    // Gemma 4.
    ThoughtForm {
        signs: &["<|channel>", "<channel|>"],
        marks: &[marks("<|channel>thought", &["<channel|>"])],
        closing_words: "\n<channel|>",
        opens: Opens::Anywhere,
        ..PLAIN
    },
    // Cohere: Command R7B and Command A.
    ThoughtForm {
        signs: &["<|START_THINKING|>"],
        marks: &[marks("<|START_THINKING|>", &["<|END_THINKING|>"])],
        answer_marks: &["<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"],
        before_answer: ["<|START_RESPONSE|>", "<|START_RESPONSE|>"],
        closing_words: "<|END_THINKING|>",
        opens: Opens::Anywhere,
    },
    // Seed-OSS.
    ThoughtForm {
        signs: &["<seed:think>"],
        marks: &[marks("<seed:think>", &["</seed:think>"])],
        closing_words: "\n</seed:think>",
        ..PLAIN
    },
    // Kimi.
    ThoughtForm {
        signs: &["◁think▷"],
        marks: &[marks("◁think▷", &["◁/think▷"])],
        closing_words: "\n◁/think▷",
        ..PLAIN
    },
    // Apertus.
    ThoughtForm {
        signs: &["<|inner_prefix|>"],
        marks: &[marks("<|inner_prefix|>", &["<|inner_suffix|>"])],
        closing_words: "<|inner_suffix|>",
        opens: Opens::Anywhere,
        ..PLAIN
    },
    // Granite 3.2.
    ThoughtForm {
        signs: &["Here is my thought process:"],
        marks: &[marks("Here is my thought process:", PHRASE_ENDS), marks("Here's my thought process:", PHRASE_ENDS)],
        closing_words: "\n\nHere is my response:\n\n",
        ..PLAIN
    },
    // Granite 3.3, Ernie 4.5 and Hunyuan, which put the answer between marks too.
    ThoughtForm {
        signs: &["<response>", "<answer>"],
        marks: &[THINK],
        answer_marks: &["<response>", "</response>", "<answer>", "</answer>"],
        ..PLAIN
    },
    // Magistral and Ministral 3.
    ThoughtForm { signs: &["[THINK]"], marks: &[BRACKETS], closing_words: "\n[/THINK]", ..PLAIN },
    // EXAONE Deep.
    ThoughtForm {
        signs: &["<thought>"],
        marks: &[marks("<thought>", &["</thought>"])],
        closing_words: "\n</thought>\n\n",
        ..PLAIN
    },
];

impl ThoughtForm {
    /// The form of a model, by the source of its chat template, or else by its tokens; if neither shows it, the most
    /// common form. Also returns whether one of them shows it.
    pub fn of_model(template: &str, tokenizer: &Tokenizer) -> (&'static Self, bool) {
        match Self::of_template(template) {
            Some(form) => (form, true),
            None => Self::of_tokens(tokenizer).map_or((&PLAIN, false), |form| (form, true)),
        }
    }

    /// The form of a chat template, by its source. `None` if it shows no form.
    pub fn of_template(source: &str) -> Option<&'static Self> {
        all().find(|form| form.signs.iter().any(|sign| source.contains(sign)))
    }

    fn of_tokens(tokenizer: &Tokenizer) -> Option<&'static Self> {
        let is_token = |mark: &ThoughtMarks| {
            let parts = mark.open.split_inclusive('>').chain([mark.open]);
            parts.filter(|part| part.starts_with(['<', '[', '◁'])).any(|part| tokenizer.token_id(part).is_some())
        };
        all().find(|form| form.marks.iter().any(is_token))
    }

    /// All marks.
    pub fn all_marks(&self) -> impl Iterator<Item = &'static str> {
        let marks = self.marks.iter().flat_map(|marks| [marks.open].into_iter().chain(marks.closes.iter().copied()));
        marks.chain(self.answer_marks.iter().copied())
    }

    /// The marks that close the thought that a prompt opens at its end.
    pub fn opened_by(&self, prompt: &str) -> Option<&'static [&'static str]> {
        self.marks.iter().find(|marks| prompt.trim_end().ends_with(marks.open)).map(|marks| marks.closes)
    }

    /// Whether a prompt ends with a closed thought, after which the model only answers.
    pub fn is_closed_by(&self, prompt: &str) -> bool {
        let mut closes = self.marks.iter().flat_map(|marks| marks.closes);
        closes.any(|close| prompt.trim_end().ends_with(close))
    }

    /// A message as a model of this form writes it: with its thought, which stays open if there is no answer.
    pub fn written(&self, thought: &str, answer: &str) -> String {
        let open = self.marks.first().map_or("", |marks| marks.open);
        let between = if self.opens == Opens::LineStart { "\n" } else { "" };
        let closed = if answer.is_empty() { String::new() } else { format!("{}{answer}", self.closing_words) };
        format!("{open}{between}{thought}{closed}")
    }

    /// Whether a thought opens with words that may also begin an answer.
    pub fn opens_with_words(&self) -> bool {
        self.marks.iter().any(|marks| marks.open.starts_with(char::is_alphabetic))
    }
}

/// All forms, the most common one last.
pub(super) fn all() -> impl Iterator<Item = &'static ThoughtForm> {
    OTHERS.iter().chain([&PLAIN])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn form_of_thoughts_is_detected_from_the_chat_template() {
        // Lines of the families' templates, shortened.
        for (source, open) in [
            ("{{- '<|im_start|>assistant\\n<think>\\n' }}", "<think>"),
            ("{% set content = content.split('</think>')[-1] %}", "<think>"),
            ("{{- '[THINK]' + block['thinking'] + '[/THINK]' }}", "[THINK]"),
            (
                "Write your thoughts after 'Here is my thought process:' and your response",
                "Here is my thought process:",
            ),
            ("Write your thoughts between <think></think> and your response between <response></response>", "<think>"),
            ("{{- '<|channel>thought\\n' + thinking_text + '\\n<channel|>' -}}", "<|channel>thought"),
            ("{{- \"<|start|>assistant<|channel|>analysis<|message|>\" }}", "<|channel|>analysis<|message|>"),
            ("<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|><|START_THINKING|>", "<|START_THINKING|>"),
            ("{{ '<seed:think>' + message.reasoning_content + '</seed:think>' }}", "<seed:think>"),
            ("{{- '<thought>\\n' }}", "<thought>"),
        ] {
            let form = ThoughtForm::of_template(source);
            assert_eq!(form.map(|form| form.marks[0].open), Some(open), "{source}");
        }
        assert_eq!(ThoughtForm::of_template("{{ messages }}"), None);
    }

    #[test]
    fn closing_words_close_the_thoughts_of_their_form() {
        for form in all() {
            for marks in form.marks.iter().filter(|marks| *marks != &BRACKETS || form.marks.len() == 1) {
                assert!(marks.closes.iter().any(|close| form.closing_words.contains(close)), "{form:?}");
            }
        }
    }
}
