//! SentencePiece's `tokenizer.model`, converted to `tokenizer.json`: BPE and unigram, with byte fallback for characters
//! without a piece.
//!
//! The file is a protocol buffer: fields with a number and a type; only the few needed ones are read here.

use std::{collections::HashMap, path::Path};

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Map, Value, json};

use crate::{
    error::{Error, Result},
    files::regular_file,
};

/// The tokenizer's file name in folders of models trained with SentencePiece.
pub(crate) const SENTENCE_PIECE_FILE: &str = "tokenizer.model";

/// Deriving merges costs the square of a token's length; real vocabularies cost a hundredth of this limit.
const MAX_MERGE_WORK: usize = 1 << 31;

/// Options that `tokenizer_config.json` adds to a SentencePiece file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Options {
    pub(super) adds_bos: bool,
    pub(super) adds_eos: bool,
    /// Whether a space is put in front of each part between special tokens, and not of the text alone.
    pub(super) is_legacy: bool,
}

/// The file `path` as `tokenizer.json` and `tokenizer_config.json`.
pub(super) fn read(path: &Path, options: Options) -> Result<[Vec<u8>; 2]> {
    Ok(read_json(path, options)?.map(|json| json.to_string().into_bytes()))
}

/// [`read`], not yet as text.
pub(super) fn read_json(path: &Path, options: Options) -> Result<[Value; 2]> {
    let bytes = regular_file::read(path)?;
    regular_file::refuse_lfs_pointer(path, &bytes)?;
    let converted = Model::parse(&bytes).and_then(|model| model.files(options));
    converted.map_err(|what| {
        Error::file(path, format!("is no SentencePiece model that Hearth reads: {what}"))
            .with_hint("create `tokenizer.json` with `AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)`")
    })
}

/// Stages before the model: spaces become `▁`, and one may be added in front.
pub(crate) fn normalizers(has_prefix: bool) -> Vec<Value> {
    let prepend = has_prefix.then(|| json!({ "type": "Prepend", "prepend": "▁" }));
    let replace = json!({ "type": "Replace", "pattern": { "String": " " }, "content": "▁" });
    prepend.into_iter().chain([replace]).collect()
}

/// The inverse of [`normalizers`], applied after bytes have become characters.
pub(crate) fn decoder(has_prefix: bool) -> Value {
    let strip = has_prefix.then(|| json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }));
    let decoders: Vec<Value> = [
        json!({ "type": "Replace", "pattern": { "String": "▁" }, "content": " " }),
        json!({ "type": "ByteFallback" }),
        json!({ "type": "Fuse" }),
    ]
    .into_iter()
    .chain(strip)
    .collect();
    json!({ "type": "Sequence", "decoders": decoders })
}

/// Merges equivalent to SentencePiece's BPE, which has scores instead: every pair of pieces whose concatenation is a
/// piece, highest score first. `None` if the pieces are too long.
pub(crate) fn merges<'a>(pieces: impl Iterator<Item = (usize, &'a str, f32)>) -> Option<Vec<Value>> {
    let pieces: HashMap<&str, (usize, f32)> = pieces.map(|(id, piece, score)| (piece, (id, score))).collect();
    let work = pieces.keys().fold(0usize, |work, piece| work.saturating_add(piece.len().saturating_mul(piece.len())));
    if work > MAX_MERGE_WORK {
        return None;
    }
    let mut merges = Vec::new();
    for (piece, &(id, score)) in &pieces {
        for (at, _) in piece.char_indices().skip(1) {
            let (left, right) = piece.split_at(at);
            if let (Some(&(left_id, _)), Some(&(right_id, _))) = (pieces.get(left), pieces.get(right)) {
                merges.push((score, id, (left, left_id), (right, right_id)));
            }
        }
    }
    // For equal scores, the order of `transformers`: the longer left half first.
    let length = |text: &str| text.chars().count();
    merges.sort_by(|a, b| {
        let by_length = || length(b.2.0).cmp(&length(a.2.0)).then_with(|| length(b.3.0).cmp(&length(a.3.0)));
        b.0.total_cmp(&a.0).then_with(by_length).then_with(|| (a.1, a.2.1, a.3.1).cmp(&(b.1, b.2.1, b.3.1)))
    });
    Some(merges.into_iter().map(|(_, _, (left, _), (right, _))| json!([left, right])).collect())
}

/// The contents of a file.
struct Model<'a> {
    pieces: Vec<Piece<'a>>,
    is_unigram: bool,
    byte_fallback: bool,
    /// Ids of the unknown token, and of the begin, end and padding tokens.
    ids: [i32; 4],
    /// Character replacements, in SentencePiece's own format; may be empty.
    map: &'a [u8],
    has_prefix: bool,
    /// Whether spaces are removed around a text, and all but one within it.
    trims: bool,
}

#[derive(Clone, Copy)]
struct Piece<'a> {
    text: &'a str,
    score: f32,
    kind: u64,
}

/// Kinds of pieces.
const NORMAL: u64 = 1;
const CONTROL: u64 = 3;
const USER_DEFINED: u64 = 4;
const BYTE: u64 = 6;

impl<'a> Model<'a> {
    fn parse(bytes: &'a [u8]) -> Result<Self, String> {
        let mut model = Self {
            pieces: Vec::new(),
            is_unigram: true,
            byte_fallback: false,
            ids: [0, 1, 2, -1],
            map: &[],
            has_prefix: true,
            trims: true,
        };
        for field in fields(bytes) {
            match field? {
                (1, Field::Bytes(piece)) => model.pieces.push(Piece::parse(piece)?),
                (2, Field::Bytes(spec)) => model.read_trainer(spec)?,
                (3, Field::Bytes(spec)) => model.read_normalizer(spec)?,
                _ => {}
            }
        }
        if model.pieces.is_empty() { Err("it has no pieces".to_owned()) } else { Ok(model) }
    }

    fn read_trainer(&mut self, spec: &[u8]) -> Result<(), String> {
        for field in fields(spec) {
            match field? {
                (3, Field::Number(1)) => self.is_unigram = true,
                (3, Field::Number(2)) => self.is_unigram = false,
                (3, Field::Number(kind)) => return Err(format!("it has the model type {kind}; 1 and 2 are supported")),
                (24, Field::Number(1)) => return Err("it puts spaces behind words".to_owned()),
                (35, Field::Number(flag)) => self.byte_fallback = flag != 0,
                // Numbers below 0 have 64 bits.
                (at @ 40..=43, Field::Number(id)) => self.ids[at as usize - 40] = id as i32,
                _ => {}
            }
        }
        Ok(())
    }

    fn read_normalizer(&mut self, spec: &'a [u8]) -> Result<(), String> {
        for field in fields(spec) {
            match field? {
                (2, Field::Bytes(map)) => self.map = map,
                (3, Field::Number(flag)) => self.has_prefix = flag != 0,
                (4, Field::Number(flag)) => self.trims = flag != 0,
                (5, Field::Number(0)) => return Err("it keeps spaces as they are".to_owned()),
                _ => {}
            }
        }
        Ok(())
    }

    /// `tokenizer.json` and `tokenizer_config.json`.
    fn files(&self, options: Options) -> Result<[Value; 2], String> {
        let [unk, bos, eos, pad] = self.ids.map(|id| usize::try_from(id).ok().filter(|&id| id < self.pieces.len()));
        let text = |id: usize| self.pieces[id].text;
        let mut stages = Vec::new();
        if !self.map.is_empty() {
            let map = BASE64_STANDARD.encode(self.map);
            stages.push(json!({ "type": "Precompiled", "precompiled_charsmap": map }));
        }
        if self.trims {
            stages.push(json!({ "type": "Replace", "pattern": { "Regex": " {2,}" }, "content": " " }));
            stages.push(json!({ "type": "Replace", "pattern": { "Regex": "\\A | \\z" }, "content": "" }));
            // Do not use the other way to add a space in front: it depends on the first character's offset, which may
            // have changed.
            stages.extend(normalizers(self.has_prefix));
        }
        let scheme = match (self.has_prefix, options.is_legacy) {
            (false, _) => "never",
            (true, false) => "first",
            (true, true) => "always",
        };
        let spaces = (!self.trims)
            .then(|| json!({ "type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": false }));
        let bos_and_eos = [bos.filter(|_| options.adds_bos), eos.filter(|_| options.adds_eos)];
        let [before, behind] =
            bos_and_eos.map(|id| id.map(|id| json!({ "SpecialToken": { "id": text(id), "type_id": 0 } })));
        let whole = json!({ "Sequence": { "id": "A", "type_id": 0 } });
        let template: Vec<Value> = before.into_iter().chain([whole]).chain(behind).collect();
        let special = bos_and_eos
            .into_iter()
            .flatten()
            .map(|id| (text(id).to_owned(), json!({ "id": text(id), "ids": [id], "tokens": [text(id)] })));
        let special: Map<String, Value> = special.collect();
        let tokenizer = json!({
            "version": "1.0",
            "added_tokens": self.added_tokens(),
            "normalizer": { "type": "Sequence", "normalizers": stages },
            "pre_tokenizer": spaces,
            "post_processor": {
                "type": "TemplateProcessing", "single": template, "pair": template, "special_tokens": special,
            },
            "decoder": decoder(self.has_prefix),
            "model": self.model(unk)?,
        });
        let role = |id: Option<usize>| id.map(text);
        let config = json!({
            "bos_token": role(bos), "eos_token": role(eos), "pad_token": role(pad), "unk_token": role(unk),
        });
        Ok([tokenizer, config])
    }

    fn model(&self, unk: Option<usize>) -> Result<Value, String> {
        let n_bytes = self.pieces.iter().filter(|piece| piece.kind == BYTE).count();
        let byte_fallback = self.byte_fallback && n_bytes == 256;
        if self.is_unigram {
            let vocab: Vec<Value> = self.pieces.iter().map(|piece| json!([piece.text, piece.score])).collect();
            return Ok(json!({ "type": "Unigram", "unk_id": unk, "vocab": vocab, "byte_fallback": byte_fallback }));
        }
        let mut vocab = Map::new();
        for (id, piece) in self.pieces.iter().enumerate() {
            if vocab.insert(piece.text.to_owned(), id.into()).is_some() {
                return Err(format!("it has the piece `{}` twice", piece.text.escape_debug()));
            }
        }
        let pieces = self.pieces.iter().enumerate().filter(|(_, piece)| matches!(piece.kind, NORMAL | USER_DEFINED));
        let merges = merges(pieces.map(|(id, piece)| (id, piece.text, piece.score)));
        Ok(json!({
            "type": "BPE",
            "unk_token": unk.map(|unk| self.pieces[unk].text),
            "fuse_unk": true,
            "byte_fallback": byte_fallback,
            "vocab": vocab,
            "merges": merges.ok_or("its pieces are too long to derive merges from")?,
        }))
    }

    /// Pieces that are found in a text before the model sees it.
    fn added_tokens(&self) -> Vec<Value> {
        let pieces = self.pieces.iter().enumerate();
        let added = pieces.filter(|(id, piece)| {
            // Spaces are `▁` where the library looks for pieces, so one with a space is never found.
            matches!(piece.kind, CONTROL | USER_DEFINED) && !piece.text.contains(' ')
                || usize::try_from(self.ids[0]) == Ok(*id)
        });
        let json = |(id, piece): (usize, &Piece<'_>)| {
            json!({
                "id": id, "content": piece.text, "special": piece.kind != USER_DEFINED,
                "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            })
        };
        added.map(json).collect()
    }
}

impl<'a> Piece<'a> {
    fn parse(bytes: &'a [u8]) -> Result<Self, String> {
        let mut piece = Self { text: "", score: 0.0, kind: NORMAL };
        for field in fields(bytes) {
            match field? {
                (1, Field::Bytes(text)) => {
                    piece.text = std::str::from_utf8(text).map_err(|_| "it has a piece that is not UTF-8")?;
                }
                (2, Field::Word(bits)) => piece.score = f32::from_bits(bits),
                (3, Field::Number(kind)) => piece.kind = kind,
                _ => {}
            }
        }
        match piece.score.is_finite() && !piece.text.is_empty() {
            true => Ok(piece),
            false => Err("it has a piece without a text, or with a score that is no number".to_owned()),
        }
    }
}

/// A value of a protocol buffer.
enum Field<'a> {
    Number(u64),
    Word(u32),
    Bytes(&'a [u8]),
    /// 64 bits; not used by any field here.
    Long,
}

/// The fields of a message with their numbers, up to the first that is malformed.
fn fields(bytes: &[u8]) -> impl Iterator<Item = Result<(u64, Field<'_>), String>> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let field = field(&mut rest);
        if field.is_none() {
            rest = &[];
        }
        Some(field.ok_or_else(|| "it is no protocol buffer, or cut short".to_owned()))
    })
}

fn field<'a>(rest: &mut &'a [u8]) -> Option<(u64, Field<'a>)> {
    let tag = number(rest)?;
    let field = match tag & 7 {
        0 => Field::Number(number(rest)?),
        1 => {
            take(rest, 8)?;
            Field::Long
        }
        2 => {
            let len = usize::try_from(number(rest)?).ok()?;
            Field::Bytes(take(rest, len)?)
        }
        5 => Field::Word(u32::from_le_bytes(take(rest, 4)?.try_into().ok()?)),
        _ => return None,
    };
    Some((tag >> 3, field))
}

fn take<'a>(rest: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (taken, behind) = rest.split_at_checked(len)?;
    *rest = behind;
    Some(taken)
}

/// A number in seven bits a byte, the lowest first, with the eighth bit on all bytes but the last.
fn number(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let &byte = take(rest, 1)?.first()?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}
