//! The formats in which models write tool calls: one table, from which the format of a chat template is detected, the
//! grammar for calls is made, and calls are parsed. Each family of models has a file with its rows.

mod cohere;
mod deepseek;
mod gemma;
mod glm;
mod gpt_oss;
mod granite;
mod hermes;
mod hunyuan;
mod lfm2;
mod llama;
mod minicpm;
mod mistral;
mod olmo;
mod phi;
mod qwen_coder;
mod seed_oss;

use super::call_arguments::Arguments;
use crate::random::{fresh_id, fresh_word};

pub(crate) use self::hermes::{ANY, HERMES};
#[cfg(test)]
pub(crate) use self::{
    cohere::COHERE,
    deepseek::{DEEPSEEK, DEEPSEEK_NAMED},
    gemma::{FUNCTION_GEMMA, GEMMA},
    glm::{GLM, GLM_DENSE},
    gpt_oss::GPT_OSS,
    granite::GRANITE,
    hunyuan::HUNYUAN,
    lfm2::LFM2,
    llama::{LLAMA, LLAMA_PYTHON},
    minicpm::{MINICPM, MINICPM_XML},
    mistral::{MISTRAL, MISTRAL_NAMED},
    olmo::OLMO,
    phi::PHI,
    qwen_coder::QWEN_CODER,
    seed_oss::SEED_OSS,
};

/// How calls are written.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CallFormat {
    /// A chat template has this format if its source contains all strings of one of these lists.
    signs: &'static [&'static [&'static str]],
    /// The marks before calls. The first one is written.
    pub(crate) openings: &'static [&'static str],
    /// Marks before calls that count only at the start of an answer, or after a mark that is no part of it.
    pub(crate) first_openings: &'static [&'static str],
    /// The mark after calls, which models may leave out.
    pub(crate) closing: Option<&'static str>,
    /// Calls without a mark.
    pub(crate) bare: Bare,
    /// The text between the marks.
    pub(crate) body: Body,
    /// The text before the first call and after the last one. The grammar for calls consists of this and the next three
    /// fields.
    pub(crate) around_all: [&'static str; 2],
    /// The text before a function's name, between the name and the arguments, and after the arguments.
    /// [`NUMBER`](super::call_arguments::NUMBER) in it is any number.
    pub(crate) around_parts: [&'static str; 3],
    /// Other texts between the name and the arguments.
    pub(crate) other_betweens: &'static [&'static str],
    /// The text between two calls.
    pub(crate) separator: &'static str,
    /// Further texts that may be special tokens.
    inner_marks: &'static [&'static str],
    ids: Ids,
}

/// Calls without a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bare {
    None,
    /// A JSON object at the start of a line.
    Json,
    /// A list of Python's calls at the start of the answer.
    Python,
}

/// The text between the marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    /// A JSON object with the name, as the member `name`, and the arguments, or a list of such objects.
    Json { name: &'static str },
    /// The name, `before_id` and an id, which models may leave out, `before_arguments`, and the arguments.
    Named { before_id: &'static str, before_arguments: &'static str },
    /// Exactly the texts of the format, in any white space, with names and arguments between them.
    Framed(Arguments),
}

/// The form of the ids of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ids {
    /// `call_` and hexadecimal digits.
    Prefixed,
    /// Nine letters and digits. Mistral's templates reject others.
    Nine,
}

/// A list of JSON objects.
const JSON_LIST: CallFormat = CallFormat {
    around_all: ["[", "]"],
    around_parts: ["{\"name\": \"", "\", \"arguments\": ", "}"],
    separator: ", ",
    ..ONE_BY_ONE
};

/// Calls with separate marks each.
const ONE_BY_ONE: CallFormat = CallFormat {
    signs: &[],
    openings: &[],
    first_openings: &[],
    closing: None,
    bare: Bare::None,
    body: Body::Json { name: "name" },
    around_all: ["", ""],
    around_parts: ["", "", ""],
    other_betweens: &[],
    separator: "\n",
    inner_marks: &[],
    ids: Ids::Prefixed,
};

/// All formats. If a template has signs of several, the first one counts.
static FORMATS: [&CallFormat; 23] = [
    &glm::GLM_DENSE,
    &glm::GLM,
    &seed_oss::SEED_OSS,
    &qwen_coder::QWEN_CODER,
    &hunyuan::HUNYUAN,
    &hermes::HERMES,
    &mistral::MISTRAL_NAMED,
    &mistral::MISTRAL,
    &phi::PHI,
    &granite::GRANITE,
    &minicpm::MINICPM,
    &minicpm::MINICPM_XML,
    &lfm2::LFM2,
    &deepseek::DEEPSEEK,
    &deepseek::DEEPSEEK_NAMED,
    &gpt_oss::GPT_OSS,
    &cohere::COHERE,
    &gemma::GEMMA,
    &gemma::FUNCTION_GEMMA,
    &olmo::OLMO,
    &llama::LLAMA_PYTHON,
    &llama::LLAMA,
    &hermes::ANY,
];

impl CallFormat {
    /// The format of a chat template that takes tools, by its source. [`ANY`] if it is not in the table.
    pub(crate) fn of_template(source: &str) -> &'static Self {
        let has_signs =
            |format: &&CallFormat| format.signs.iter().any(|signs| signs.iter().all(|sign| source.contains(sign)));
        FORMATS.into_iter().find(has_signs).unwrap_or(&ANY)
    }

    /// All marks. In many models they are special tokens.
    pub(crate) fn marks(&self) -> impl Iterator<Item = &'static str> {
        let inner = match self.body {
            Body::Named { before_id, before_arguments } => [Some(before_id), Some(before_arguments)],
            Body::Framed(Arguments::Members { quote }) => [Some(quote), None],
            Body::Json { .. } | Body::Framed(_) => [None, None],
        };
        let openings = self.openings.iter().chain(self.first_openings).chain(self.inner_marks);
        openings.copied().chain(self.closing).chain(inner.into_iter().flatten())
    }

    /// The texts between a function's name and the arguments, with the template's own first.
    pub(crate) fn betweens(&self) -> impl Iterator<Item = &'static str> {
        let [_, between, _] = self.around_parts;
        [between].into_iter().chain(self.other_betweens.iter().copied())
    }

    /// Whether arguments can be streamed: they can be recognized while a text that follows the grammar arrives.
    pub(crate) fn streams_arguments(&self) -> bool {
        !matches!(self.body, Body::Framed(Arguments::Tags(_) | Arguments::Python | Arguments::Members { .. }))
    }

    /// Whether one pair of marks is around all calls, not around each.
    pub(crate) fn has_group(&self) -> bool {
        self.around_all.iter().any(|text| !text.is_empty())
    }

    /// Calls as a model writes them, from the names of functions and arguments in the form of the format.
    #[cfg(test)]
    pub(crate) fn written(&self, calls: &[(String, String)]) -> String {
        let ([first, last], [before, between, after]) = (self.around_all, self.around_parts);
        let calls = calls.iter().map(|(name, arguments)| format!("{before}{name}{between}{arguments}{after}"));
        format!("{first}{}{last}", calls.collect::<Vec<_>>().join(self.separator))
            .replace(super::call_arguments::NUMBER, "0")
    }

    /// An id for a call.
    pub(crate) fn fresh_id(&self) -> String {
        match self.ids {
            Ids::Prefixed => fresh_id("call_"),
            Ids::Nine => fresh_word(9),
        }
    }
}

#[cfg(test)]
mod tests;
