//! Pre-tokenizers: how text is split into words before byte-level BPE, by the name in `tokenizer.ggml.pre`.
//!
//! The expressions come from the `tokenizer.json` of each family, so that ids are the same as in training; llama.cpp's
//! are adaptations of them to its own regex engine.

use serde_json::{Value, json};

/// The meaning of a value of `tokenizer.ggml.pre`.
pub(super) struct PreTokenizer {
    /// The names; families that cut alike share a row.
    names: &'static [&'static str],
    /// Text is brought into Unicode's composed form first.
    pub(super) nfc: bool,
    /// Expressions whose matches become separate words, applied one after the other.
    splits: &'static [&'static str],
    /// Expressions that split every text into the same words, if `splits` take quadratic time for a long run of digits.
    linear: Option<&'static [&'static str]>,
    /// Whether a word that is a token is encoded as that token without applying merges.
    pub(super) ignore_merges: bool,
    /// Whether texts begin with `bos` if the file does not state it.
    pub(super) add_bos: bool,
}

const PLAIN: PreTokenizer =
    PreTokenizer { names: &[], nfc: false, splits: &[], linear: None, ignore_merges: false, add_bos: false };

pub(super) const SINGLE_DIGITS: &str = r"\p{N}";
/// Knows English contractions.
pub(super) const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const SEED_CODER: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Cased letters, as far as they are in DeepSeek's list.
const DEEPSEEK_LETTERS: &str = r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+";
const BLOOM: &str = r" ?[^(\s|[.,!?…。，、।۔،])]+";

const ALL: &[PreTokenizer] = &[
    PreTokenizer {
        names: &[
            "gpt-2",
            "phi-2",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "exaone4",
            "jais",
            "trillion",
            "granite-docling",
            "roberta-bpe",
        ],
        splits: &[GPT2],
        ..PLAIN
    },
    // The tokenizer of GPT-NeoX.
    PreTokenizer { names: &["mpt", "olmo", "modern-bert"], nfc: true, splits: &[GPT2], ..PLAIN },
    PreTokenizer {
        names: &["smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b", "mellum2"],
        splits: &[SINGLE_DIGITS, GPT2],
        ..PLAIN
    },
    PreTokenizer { names: &["command-r"], nfc: true, splits: &[SINGLE_DIGITS, GPT2], ..PLAIN },
    PreTokenizer {
        names: &["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"],
        splits: &[LLAMA3],
        ignore_merges: true,
        add_bos: true,
        ..PLAIN
    },
    PreTokenizer { names: &["dbrx", "smaug-bpe", "chatglm-bpe"], splits: &[LLAMA3], ..PLAIN },
    PreTokenizer { names: &["glm4", "glm5"], splits: &[LLAMA3], ignore_merges: true, ..PLAIN },
    PreTokenizer {
        names: &["qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez"],
        nfc: true,
        splits: &[QWEN2],
        ..PLAIN
    },
    PreTokenizer { names: &["stablelm2", "hunyuan", "solar-open", "grok-2"], splits: &[QWEN2], ..PLAIN },
    PreTokenizer { names: &["qwen35"], nfc: true, splits: &[QWEN35], ..PLAIN },
    PreTokenizer { names: &["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"], splits: &[GPT4O], ..PLAIN },
    PreTokenizer { names: &["tekken"], splits: &[TEKKEN], ignore_merges: true, add_bos: true, ..PLAIN },
    PreTokenizer {
        names: &["tiny_aya"],
        splits: &[r"\d{1,3}(?=(?:\d{3})*\b)", GPT4O],
        // Whole numbers, then their first digits; `GPT4O` splits the others into groups of three.
        linear: Some(&[r"\d+(?=\W|\z)", r"\A\d{1,2}(?=(?:\d{3})+\z)", GPT4O]),
        ..PLAIN
    },
    PreTokenizer { names: &["seed-coder"], splits: &[SEED_CODER], ..PLAIN },
    // Words may hold spaces.
    PreTokenizer {
        names: &["superbpe"],
        splits: &[r"\p{N}+", r"(?=(\d{3})+(?!\d))"],
        // Split before the groups of three digits at the end of a number, then after each of these groups but the last.
        linear: Some(&[r"\p{N}+", r"(?<!\d{3})(?=(?:\d{3})+(?:\D|\z))", r"\d{3}(?=\d{3})"]),
        ..PLAIN
    },
    PreTokenizer {
        names: &["deepseek-llm"],
        splits: &[
            r"[\r\n]",
            DEEPSEEK_LETTERS,
            r"\s?[!-/:-~！-／：-～‘-‟\x{3000}-。]+",
            r"\s+$",
            r"[一-龥ࠀ-一가-퟿]+",
            SINGLE_DIGITS,
        ],
        ..PLAIN
    },
    PreTokenizer {
        names: &["deepseek-coder"],
        splits: &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", SINGLE_DIGITS],
        ..PLAIN
    },
    PreTokenizer {
        names: &["deepseek-v3", "hunyuan-dense", "joyai-llm"],
        splits: &[
            r"\p{N}{1,3}",
            r"[一-龥぀-ゟ゠-ヿ]+",
            r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
        ],
        ..PLAIN
    },
    PreTokenizer { names: &["falcon"], splits: &[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, r"[0-9][0-9][0-9]"], ..PLAIN },
    PreTokenizer { names: &["bloom", "poro-chat", "gpt3-finnish"], splits: &[BLOOM], ..PLAIN },
    PreTokenizer { names: &["viking"], splits: &[BLOOM, SINGLE_DIGITS], ..PLAIN },
    // llama.cpp's default for files without the key.
    PreTokenizer {
        names: &["default"],
        splits: &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"],
        ..PLAIN
    },
];

/// The pre-tokenizer called `name`. The error lists the known names.
pub(super) fn find(name: &str) -> Result<&'static PreTokenizer, String> {
    ALL.iter().find(|known| known.names.contains(&name)).ok_or_else(|| {
        let names: Vec<_> = ALL.iter().flat_map(|known| known.names).copied().collect();
        names.join(", ")
    })
}

/// A name for texts that are split in this way, if there is one.
pub(super) fn name_of(splits: &[String], nfc: bool, ignore_merges: bool) -> Option<&'static str> {
    let is_same = |known: &&PreTokenizer| {
        let has_splits = known.splits == splits || known.linear.is_some_and(|linear| linear == splits);
        has_splits && known.nfc == nfc && known.ignore_merges == ignore_merges && known.names != ["default"]
    };
    ALL.iter().find(is_same)?.names.first().copied()
}

impl PreTokenizer {
    /// The JSON form in `tokenizer.json`.
    pub(super) fn json(&self) -> Value {
        splitting(self.linear.unwrap_or(self.splits))
    }
}

/// A sequence of splits at these expressions, in the form of `tokenizer.json`.
fn splitting(expressions: &[&str]) -> Value {
    let split = |pattern: &str| json!({ "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated", "invert": false });
    let bytes = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false });
    let steps = expressions.iter().copied().map(split).chain([bytes]);
    json!({ "type": "Sequence", "pretokenizers": steps.collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::time::{Duration, Instant};

    use proptest::prelude::*;
    use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _, PreTokenizerWrapper};

    use super::*;

    /// Where each word begins and ends.
    fn words(pre_tokenizer: Value, text: &str) -> Vec<(usize, usize)> {
        let pre_tokenizer: PreTokenizerWrapper = serde_json::from_value(pre_tokenizer).unwrap();
        let mut words = PreTokenizedString::from(text);
        pre_tokenizer.pre_tokenize(&mut words).unwrap();
        words.get_splits(OffsetReferential::Original, OffsetType::Byte).into_iter().map(|(_, at, _)| at).collect()
    }

    proptest! {
        /// Runs of digits next to every kind of neighbour: other numerals, letters, marks, spaces.
        #[test]
        fn linear_time_regexes_split_like_the_original_pre_tokenizer(
            parts in prop::collection::vec("[0-9]{0,9}|[٠-٩]{0,5}|[²Ⅷ]{0,2}|[a_\u{301}Aß]{0,2}|[ \n.,-]{0,2}", 0..12),
        ) {
            let text = parts.concat();
            for known in ALL.iter().filter(|known| known.linear.is_some()) {
                prop_assert_eq!(words(known.json(), &text), words(splitting(known.splits), &text), "{:?}", known.names);
            }
        }
    }

    #[test]
    fn pre_tokenizers_split_long_digit_runs_in_linear_time() {
        let digits = "1".repeat(1 << 18);
        for known in ALL.iter().filter(|known| known.linear.is_some()) {
            for text in [digits.clone(), format!("{digits}a")] {
                let started = Instant::now();
                words(known.json(), &text);
                // In quadratic time it would be minutes.
                assert!(started.elapsed() < Duration::from_secs(30), "{:?}", known.names);
            }
        }
    }

    #[test]
    fn both_regex_forms_map_to_the_same_pre_tokenizer_name() {
        for known in ALL.iter().filter(|known| known.names != ["default"]) {
            for splits in [known.splits].into_iter().chain(known.linear) {
                let splits: Vec<_> = splits.iter().map(|split| (*split).to_owned()).collect();
                let name = name_of(&splits, known.nfc, known.ignore_merges);
                let same = find(name.unwrap()).unwrap();
                assert_eq!((same.splits, same.nfc, same.ignore_merges), (known.splits, known.nfc, known.ignore_merges));
            }
        }
    }
}
