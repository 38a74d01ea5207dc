//! The files of a repository that make up a model: a model dir, or one GGUF file in one or several parts.

use std::path::Path;

use super::{
    file_names::{BESIDE_WEIGHTS, CONFIG_FILE, INDEX_FILE, WEIGHTS_FILE},
    files,
};
use crate::{
    error::Result,
    files::byte_size::ByteSize,
    text::tokenizer::{BPE_PIECES_FILE, SENTENCE_PIECE_FILE, SOURCE_PIECES_FILE, TEKKEN_FILE, TOKENIZER_FILE},
};

/// At most this many GGUF files are shown in a message.
const MAX_SHOWN: usize = 40;

/// Words in the names of GGUF files that are no language models: projectors of pictures, and statistics for quantizing.
const OTHER_GGUF: [&str; 2] = ["mmproj", "imatrix"];

/// A file of a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepositoryFile<'a> {
    /// Its path in the repository, with `/`.
    pub path: &'a str,
    /// Its size in bytes.
    pub n_bytes: u64,
}

/// The files of a model, by their paths in the repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelFiles {
    /// The files of a model dir.
    Dir {
        /// The configuration first, the weights if they are in one file, and all other files.
        paths: Vec<String>,
        /// The index of sharded weights, which lists the shards: see [`shards`].
        index: Option<String>,
    },
    /// The parts of a GGUF file. The first one is opened.
    Gguf {
        /// In order.
        parts: Vec<String>,
    },
}

/// Why a repository has no model, or not the requested one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoModel {
    /// The error.
    pub what: String,
    /// A hint; may be empty.
    pub hint: String,
}

/// The files of the model in a repository. `choice` is the path or the quantization of a GGUF file; without it, the
/// repository must have a model dir or a single GGUF file. `name` is the repository's in messages.
///
/// # Errors
/// There is no model, or several and no choice, or none that matches the choice. The message lists the available ones.
pub fn choose(name: &str, files: &[RepositoryFile<'_>], choice: Option<&str>) -> Result<ModelFiles, NoModel> {
    let ggufs = gguf_models(files);
    let Some(choice) = choice else {
        return match (model_dir(files), ggufs.as_slice()) {
            (Some(dir), _) => Ok(dir),
            (None, [only]) => only.files(),
            (None, []) => Err(no_model(files)),
            (None, several) => {
                let what = format!("the repository has {} GGUF files:{}", several.len(), list(several));
                Err(NoModel { what, hint: format!("choose one, as in `{name}:{}`", name_in(several, 0)) })
            }
        };
    };
    let found: Vec<_> = ggufs.iter().filter(|gguf| gguf.has_part(choice)).collect();
    let found = if found.is_empty() { ggufs.iter().filter(|gguf| gguf.has_tag(choice)).collect() } else { found };
    match (found.as_slice(), ggufs.as_slice()) {
        ([only], _) => only.files(),
        ([], []) => {
            let what = format!("the repository has no GGUF files, so `:{choice}` chooses none");
            let is_dir = model_dir(files).is_some();
            let hint = if is_dir { format!("it has a model dir: use `{name}`") } else { no_model(files).hint };
            Err(NoModel { what, hint })
        }
        ([], all) => {
            let what = format!("the repository has no GGUF file `{choice}`; it has:{}", list(all));
            Err(NoModel { what, hint: format!("choose one of them, as in `{name}:{}`", name_in(all, 0)) })
        }
        (several, _) => {
            let several: Vec<_> = several.iter().map(|gguf| (*gguf).clone()).collect();
            let what = format!("`{choice}` is the name of {} GGUF files:{}", several.len(), list(&several));
            Err(NoModel { what, hint: format!("use the name of the file, as in `{name}:{}`", several[0].first()) })
        }
    }
}

/// The available GGUF files: the name of each, and its files.
pub fn choices<'a>(files: &[RepositoryFile<'a>]) -> Vec<(String, Vec<&'a str>)> {
    let ggufs = gguf_models(files);
    (0..ggufs.len()).map(|at| (name_in(&ggufs, at), ggufs[at].parts.clone())).collect()
}

/// The files besides weights, such as the tokenizer's.
pub fn beside_weights(files: &[RepositoryFile<'_>]) -> Vec<String> {
    // If there are several tokenizers, the first is read.
    let has = |name: &str| files.iter().any(|file| file.path == name);
    let is_read = |path: &str| match path {
        TEKKEN_FILE => !has(TOKENIZER_FILE),
        SENTENCE_PIECE_FILE => !has(TOKENIZER_FILE) && !has(TEKKEN_FILE),
        SOURCE_PIECES_FILE | "target.spm" | BPE_PIECES_FILE => !has(TOKENIZER_FILE),
        _ => true,
    };
    let found = files.iter().filter(|file| BESIDE_WEIGHTS.contains(&file.path) && is_read(file.path));
    found.map(|file| file.path.to_owned()).collect()
}

/// Whether the files include a tokenizer, without which a model dir cannot be used.
pub fn has_tokenizer(paths: &[String]) -> bool {
    let files = [TOKENIZER_FILE, TEKKEN_FILE, SENTENCE_PIECE_FILE, SOURCE_PIECES_FILE, BPE_PIECES_FILE];
    paths.iter().any(|path| files.contains(&path.as_str()))
}

/// The shards that the index of sharded weights at `path` names.
///
/// # Errors
/// The file cannot be read, or is not such an index.
pub fn shards(path: &Path) -> Result<Vec<String>> {
    Ok(files::read_index(path)?.into_keys().collect())
}

fn model_dir(files: &[RepositoryFile<'_>]) -> Option<ModelFiles> {
    let has = |name: &str| files.iter().any(|file| file.path == name);
    let (is_single, is_sharded) = (has(WEIGHTS_FILE), has(INDEX_FILE));
    if !has(CONFIG_FILE) || !is_single && !is_sharded {
        return None;
    }
    let mut paths = vec![CONFIG_FILE.to_owned()];
    paths.extend(beside_weights(files));
    if is_single {
        paths.push(WEIGHTS_FILE.to_owned());
    }
    // If both exist, the single file is used, as in `TensorFiles::open`.
    Some(ModelFiles::Dir { paths, index: (!is_single).then(|| INDEX_FILE.to_owned()) })
}

fn no_model(files: &[RepositoryFile<'_>]) -> NoModel {
    let has = |test: &dyn Fn(&str) -> bool| files.iter().any(|file| test(file.path));
    let what = format!("the repository has neither `{CONFIG_FILE}` with `{WEIGHTS_FILE}` nor a GGUF file");
    let hint = if has(&|path| path == "adapter_config.json") {
        "it has an adapter without its base model: download it, and merge them (`hearth merge MODEL ADAPTER OUT`)"
    } else if has(&|path| path.starts_with("pytorch_model") || path.ends_with(".pt") || path.ends_with(".pth")) {
        "it has pickled weights, which are not supported: look for a repository with safetensors, or convert them with \
         `transformers` (`save_pretrained`)"
    } else {
        "use a repository of a language model with safetensors or GGUF files"
    };
    NoModel { what, hint: hint.to_owned() }
}

/// A GGUF file, or the parts of one.
#[derive(Clone, Debug)]
struct GgufModel<'a> {
    /// Path without part number and extension.
    stem: &'a str,
    parts: Vec<&'a str>,
    /// The number of parts by their names.
    n_parts: usize,
    n_bytes: u64,
}

/// The GGUF files by path, with the parts of each.
fn gguf_models<'a>(files: &[RepositoryFile<'a>]) -> Vec<GgufModel<'a>> {
    let mut found: Vec<GgufModel<'a>> = Vec::new();
    let mut sorted = files.to_vec();
    sorted.sort_by_key(|file| file.path);
    for RepositoryFile { path, n_bytes } in sorted {
        let Some(whole) = without_extension(path) else { continue };
        let name = whole.rsplit('/').next().unwrap_or(whole).to_ascii_lowercase();
        if OTHER_GGUF.iter().any(|word| name.contains(word)) {
            continue;
        }
        let (stem, n_parts) = part_of(whole).unwrap_or((whole, 1));
        match found.iter_mut().find(|gguf| gguf.stem == stem && n_parts > 1 && gguf.n_parts == n_parts) {
            Some(gguf) => {
                gguf.parts.push(path);
                gguf.n_bytes += n_bytes;
            }
            None => found.push(GgufModel { stem, parts: vec![path], n_parts, n_bytes }),
        }
    }
    found
}

fn without_extension(path: &str) -> Option<&str> {
    let (stem, extension) = path.rsplit_once('.')?;
    extension.eq_ignore_ascii_case("gguf").then_some(stem)
}

/// `NAME-00001-of-00003` is a part of `NAME`, of three.
fn part_of(stem: &str) -> Option<(&str, usize)> {
    let (rest, n_parts) = stem.rsplit_once("-of-")?;
    let (name, number) = rest.rsplit_once('-')?;
    let is_number = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    (is_number(number) && is_number(n_parts)).then_some((name, n_parts.parse().ok()?))
}

impl<'a> GgufModel<'a> {
    fn first(&self) -> &'a str {
        self.parts.first().copied().unwrap_or_default()
    }

    fn files(&self) -> Result<ModelFiles, NoModel> {
        if self.parts.len() < self.n_parts {
            let what = format!(
                "`{}` is in {} parts, of which the repository has {}",
                self.stem,
                self.n_parts,
                self.parts.len()
            );
            return Err(NoModel { what, hint: "the repository is incomplete: choose another file".to_owned() });
        }
        Ok(ModelFiles::Gguf { parts: self.parts.iter().map(|&part| part.to_owned()).collect() })
    }

    /// Whether `choice` is the path or the file name of a part.
    fn has_part(&self, choice: &str) -> bool {
        self.parts.iter().any(|part| *part == choice || part.rsplit('/').next() == Some(choice))
    }

    /// Whether `tag` is a word of the name: `Q4_K_M` of `model-Q4_K_M` and `Q4_K_M/model`, and `Q4_K` of neither.
    fn has_tag(&self, tag: &str) -> bool {
        let (stem, tag) = (self.stem.to_ascii_lowercase(), tag.to_ascii_lowercase());
        let is_border = |character: Option<char>| character.is_none_or(|c| matches!(c, '-' | '.' | '/'));
        !tag.is_empty()
            && stem.match_indices(&tag).any(|(start, found)| {
                let before = stem[..start].chars().next_back();
                (is_border(before) || before == Some('_')) && is_border(stem[start + found.len()..].chars().next())
            })
    }

    /// The quantization in the name, such as `Q4_K_M`.
    fn quantization(&self) -> Option<&'a str> {
        let is_quantization = |word: &str| {
            let word = word.to_ascii_uppercase();
            let rest = ["IQ", "TQ", "Q", "BF", "F", "MXFP"].iter().find_map(|kind| word.strip_prefix(kind));
            rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        };
        let name = self.stem.rsplit('/').next().unwrap_or(self.stem);
        name.rsplit(['-', '.']).find(|word| is_quantization(word))
    }
}

/// The shortest name for the choice `at`: its quantization if no other has it, else its path.
fn name_in(all: &[GgufModel<'_>], at: usize) -> String {
    let Some(gguf) = all.get(at) else { return String::new() };
    let quantization = gguf.quantization().filter(|tag| all.iter().filter(|other| other.has_tag(tag)).count() == 1);
    quantization.unwrap_or(gguf.first()).to_owned()
}

/// One line for each GGUF file: how it is chosen, its size, its name.
fn list(all: &[GgufModel<'_>]) -> String {
    let names: Vec<_> = (0..all.len()).map(|at| name_in(all, at)).collect();
    let width = names.iter().take(MAX_SHOWN).map(|name| name.chars().count()).max().unwrap_or(0) + 1;
    let lines = all.iter().zip(&names).take(MAX_SHOWN).map(|(gguf, name)| {
        let name = format!(":{name}");
        let line = format!("  {name:width$}  {:>9}  {}", ByteSize(gguf.n_bytes), gguf.first());
        format!("\n{}", line.strip_suffix(&format!("  {}", &name[1..])).unwrap_or(&line))
    });
    let more = if all.len() > MAX_SHOWN { "\n  ..." } else { "" };
    lines.collect::<String>() + more
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn chosen(paths: &[&str], choice: Option<&str>) -> Result<Vec<String>, String> {
        let files: Vec<_> = paths.iter().map(|path| RepositoryFile { path, n_bytes: 2_000_000 }).collect();
        match choose("org/name", &files, choice) {
            Ok(ModelFiles::Dir { paths, index }) => Ok(paths.into_iter().chain(index).collect()),
            Ok(ModelFiles::Gguf { parts }) => Ok(parts),
            Err(NoModel { what, hint }) => Err(format!("{what}\nhint: {hint}")),
        }
    }

    #[test]
    fn model_dir_in_a_repository_is_only_the_files_that_opening_reads() {
        let files = [
            ".gitattributes",
            "README.md",
            "chat_template.jinja",
            "config.json",
            "consolidated.safetensors",
            "model.safetensors",
            "onnx/model.onnx",
            "tokenizer.json",
            "tokenizer_config.json",
        ];
        let mut found = chosen(&files, None).unwrap();
        found.sort();
        let expected =
            ["chat_template.jinja", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"];
        assert_eq!(found, expected);
        let sharded = ["config.json", "model-00001-of-00002.safetensors", "model.safetensors.index.json", "x.gguf"];
        assert_eq!(chosen(&sharded, None).unwrap(), ["config.json", "model.safetensors.index.json"]);
        assert_eq!(chosen(&sharded, Some("x.gguf")).unwrap(), ["x.gguf"]);
        let error = chosen(&files, Some("Q4_0")).unwrap_err();
        assert!(
            error.ends_with("has no GGUF files, so `:Q4_0` chooses none\nhint: it has a model dir: use `org/name`")
        );
    }

    #[test]
    fn a_gguf_file_is_chosen_by_name_or_quantization() {
        let files = [
            "README.md",
            "big/m-Q8_0-00001-of-00002.gguf",
            "big/m-Q8_0-00002-of-00002.gguf",
            "m-Q4_K_M.gguf",
            "m-Q4_K_S.gguf",
            "m-UD-IQ2_M.gguf",
            "m.f16.gguf",
            "mmproj-F16.gguf",
        ];
        for (choice, found) in [
            ("Q4_K_M", &files[3..4]),
            ("q4_k_s", &files[4..5]),
            ("m-Q4_K_S.gguf", &files[4..5]),
            ("IQ2_M", &files[5..6]),
            ("UD-IQ2_M", &files[5..6]),
            ("F16", &files[6..7]),
            ("Q8_0", &files[1..3]),
            ("big/m-Q8_0-00002-of-00002.gguf", &files[1..3]),
        ] {
            assert_eq!(chosen(&files, Some(choice)).unwrap(), found, "{choice}");
        }
        let error = chosen(&files, None).unwrap_err();
        let lines: Vec<Vec<&str>> = error.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(error.lines().next().unwrap(), "the repository has 5 GGUF files:");
        assert_eq!(lines[1], [":Q8_0", "4.0", "MB", "big/m-Q8_0-00001-of-00002.gguf"]);
        assert_eq!(lines[4], [":IQ2_M", "2.0", "MB", "m-UD-IQ2_M.gguf"]);
        assert!(error.ends_with("\nhint: choose one, as in `org/name:Q8_0`"), "{error}");
        for wrong in ["Q4_K", "Q4", "_K_M", "absent.gguf"] {
            let error = chosen(&files, Some(wrong)).unwrap_err();
            assert!(error.contains(&format!("has no GGUF file `{wrong}`; it has:\n  :Q8_0")), "{error}");
        }
        assert_eq!(chosen(&["x.gguf"], None).unwrap(), ["x.gguf"]);
        let two = ["a-Q4_0.gguf", "b-Q4_0.gguf"];
        let error = chosen(&two, Some("Q4_0")).unwrap_err();
        assert!(error.starts_with("`Q4_0` is the name of 2 GGUF files:\n  :a-Q4_0.gguf"), "{error}");
        assert!(error.ends_with("hint: use the name of the file, as in `org/name:a-Q4_0.gguf`"), "{error}");
        let error = chosen(&files[1..2], None).unwrap_err();
        assert!(error.starts_with("`big/m-Q8_0` is in 2 parts, of which the repository has 1"), "{error}");
    }

    #[test]
    fn repository_without_a_model_is_rejected_with_a_hint() {
        for (files, hint) in [
            (&["adapter_config.json", "adapter_model.safetensors"][..], "an adapter without its base model"),
            (&["config.json", "pytorch_model.bin"], "pickled weights"),
            (&["README.md"], "use a repository of a language model"),
            (&["mmproj-model-f16.gguf"], "use a repository of a language model"),
        ] {
            let error = chosen(files, None).unwrap_err();
            assert!(error.starts_with("the repository has neither `config.json`") && error.contains(hint), "{error}");
        }
    }
}
