//! Small GGUF files that tests change or damage.

use std::{
    fs,
    path::{Path, PathBuf},
};

use hearth_model::{error::Error, weights::model_dir};
use tempfile::TempDir;

use super::options;

/// A damaged copy of a file.
pub(super) struct Damaged(TempDir);

impl Damaged {
    pub(super) fn new(bytes: &[u8]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("model.gguf"), bytes).unwrap();
        Self(dir)
    }

    pub(super) fn path(&self) -> PathBuf {
        self.0.path().join("model.gguf")
    }
}

#[track_caller]
pub(super) fn assert_rejected(path: &Path, parts: &[&str]) {
    let Err(error) = model_dir::load(path, &options(None)) else { panic!("opened, expected {parts:?}") };
    let message = error.to_string();
    assert!(parts.iter().all(|part| message.contains(part)), "{parts:?} are not all in: {message}");
    assert!(matches!(error, Error::File { .. } | Error::Tensor { .. } | Error::Io { .. }), "{error:?}");
}

/// The parts of a GGUF file, which tests change before they assemble it.
#[derive(Clone)]
pub(super) struct File {
    pub(super) magic: &'static [u8],
    pub(super) version: u32,
    pub(super) pairs: Vec<(&'static str, Vec<u8>)>,
    /// Name, dimensions (innermost first), type, offset.
    pub(super) tensors: Vec<(String, Vec<u64>, u32, u64)>,
    pub(super) counts: Option<(u64, u64)>,
    pub(super) data: Vec<u8>,
}

pub(super) fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

pub(super) fn u32_value(number: u32) -> Vec<u8> {
    [4u32.to_le_bytes(), number.to_le_bytes()].concat()
}

pub(super) fn f32_value(number: f32) -> Vec<u8> {
    [6u32.to_le_bytes(), number.to_le_bytes()].concat()
}

pub(super) fn text_value(value: &str) -> Vec<u8> {
    [8u32.to_le_bytes().to_vec(), text(value)].concat()
}

pub(super) fn list_value(kind: u32, len: u64, items: &[u8]) -> Vec<u8> {
    [&9u32.to_le_bytes()[..], &kind.to_le_bytes(), &len.to_le_bytes(), items].concat()
}

pub(super) fn texts_value(texts: &[&str]) -> Vec<u8> {
    list_value(8, texts.len() as u64, &texts.iter().flat_map(|item| text(item)).collect::<Vec<_>>())
}

impl File {
    /// A Llama of one layer, 32 wide, that opens.
    pub(super) fn valid() -> Self {
        let mut file = Self {
            magic: b"GGUF",
            version: 3,
            pairs: vec![
                ("general.architecture", text_value("llama")),
                ("llama.context_length", u32_value(16)),
                ("llama.embedding_length", u32_value(32)),
                ("llama.block_count", u32_value(1)),
                ("llama.feed_forward_length", u32_value(32)),
                ("llama.attention.head_count", u32_value(2)),
                ("llama.attention.layer_norm_rms_epsilon", f32_value(1e-5)),
                ("tokenizer.ggml.model", text_value("gpt2")),
                ("tokenizer.ggml.pre", text_value("gpt-2")),
                ("tokenizer.ggml.tokens", texts_value(&["a", "b", "ab", "<|end|>"])),
                ("tokenizer.ggml.token_type", list_value(5, 4, &[1i32, 1, 1, 3].map(i32::to_le_bytes).concat())),
                ("tokenizer.ggml.merges", texts_value(&["a b"])),
            ],
            tensors: Vec::new(),
            counts: None,
            data: Vec::new(),
        };
        file.add("token_embd.weight", &[32, 4]);
        file.add("output_norm.weight", &[32]);
        for name in ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"] {
            file.add(&format!("blk.0.{name}.weight"), &[32, 32]);
        }
        file.add("blk.0.attn_norm.weight", &[32]);
        file.add("blk.0.ffn_norm.weight", &[32]);
        file
    }

    pub(super) fn add(&mut self, name: &str, dims: &[u64]) {
        self.tensors.push((name.to_owned(), dims.to_vec(), 0, self.data.len() as u64));
        self.data.resize(self.data.len() + dims.iter().product::<u64>() as usize * 4, 0);
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let counts = self.counts.unwrap_or((self.tensors.len() as u64, self.pairs.len() as u64));
        let mut bytes = [self.magic, &self.version.to_le_bytes()].concat();
        bytes.extend(counts.0.to_le_bytes());
        bytes.extend(counts.1.to_le_bytes());
        for (key, value) in &self.pairs {
            bytes.extend(text(key));
            bytes.extend(value);
        }
        for (name, dims, kind, offset) in &self.tensors {
            bytes.extend(text(name));
            bytes.extend((dims.len() as u32).to_le_bytes());
            bytes.extend(dims.iter().flat_map(|dim| dim.to_le_bytes()));
            bytes.extend(kind.to_le_bytes());
            bytes.extend(offset.to_le_bytes());
        }
        bytes.resize(bytes.len().next_multiple_of(32), 0);
        bytes.extend(&self.data);
        bytes
    }

    pub(super) fn set(&mut self, key: &'static str, value: Vec<u8>) {
        self.pairs.retain(|(known, _)| *known != key);
        self.pairs.push((key, value));
    }

    pub(super) fn tensor(&mut self, name: &str) -> &mut (String, Vec<u64>, u32, u64) {
        self.tensors.iter_mut().find(|tensor| tensor.0 == name).unwrap()
    }
}

#[track_caller]
pub(super) fn refused(parts: &[&str], damage: impl FnOnce(&mut File)) {
    let mut file = File::valid();
    damage(&mut file);
    assert_rejected(&Damaged::new(&file.bytes()).path(), parts);
}
