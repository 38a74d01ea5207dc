//! GGUF files that Hearth writes: read again, they are the same model. `golden/check_exported.py` and
//! `golden/check_with_llama_cpp.py` check how other programs read them.
#![expect(clippy::unwrap_used, reason = "tests")]
#![expect(clippy::print_stdout, reason = "a skipped test says so")]

use std::{fs, path::Path};

use burn::tensor::Device;
use hearth_model::{
    config::{Experts, GptConfig, Positions, Rope, RopeScaling},
    decode::sampling::SamplingParams,
    files::partial_file::PartialFile,
    gpt::{
        Gpt,
        attention::AttentionContext,
        pooling::{OwnPooling, Prompts},
        token_ids::token_tensor,
    },
    ops::Dtype,
    text::{
        chat::ChatTemplate,
        tokenizer::{DecodeOptions, EncodeOptions, Tokenizer},
    },
    weights::{
        gguf::export::{ExportOptions, export},
        model_dir::{self, LoadOptions, LoadedModel, SaveOptions},
    },
};
use serde_json::json;

use crate::golden::{Oracle, distance, golden, load, logits};

/// Models that GGUF files describe.
const EXPORTED: [&str; 23] = [
    "gpt2",
    "llama",
    "llama-tied-bias",
    "mistral",
    "qwen2",
    "qwen3",
    "phi3",
    "phi3-longrope",
    "gpt-neox-parallel",
    "gpt-neox-serial",
    "stablelm",
    "bloom",
    "granite",
    "olmo2",
    "rope-linear",
    "rope-dynamic",
    "exaone4",
    "ernie4-5",
    "glm4",
    "seed-oss",
    "arcee",
    "olmo",
    "minicpm",
];

/// Files of llama.cpp's converter. Written again, they are the same models.
const REWRITTEN: [&str; 32] = [
    "rope-llama3",
    "gemma2",
    "gemma3",
    "phi",
    "cohere2",
    "falcon",
    "falcon-new",
    "starcoder2",
    "ministral3",
    "hunyuan",
    "granite-moe",
    "granite-moe-shared",
    "glm4-moe",
    "mixtral",
    "qwen2-moe",
    "qwen3-moe",
    "olmoe",
    "gpt-oss",
    "lfm2",
    "lfm2-moe",
    "granite4-h",
    "granite4-h-moe",
    "nemotron-h",
    "nemotron-h-moe",
    "qwen3-next",
    "deepseek-v2",
    "deepseek-v3",
    "glm4-moe-lite",
    "youtu",
    "gemma4",
    "gemma4-experts",
    "gemma4-per-layer",
];

/// The tags that mark the assistant's text for training are exported unchanged.
const TEMPLATE: &str = "{% generation %}{{ messages[0].content }}{% endgeneration %}";

fn options(dtype: Option<Dtype>) -> LoadOptions {
    LoadOptions { device: Device::flex(), dtype }
}

/// A few tokens, split as GPT-2 splits.
fn tokenizer_json() -> Vec<u8> {
    let bytes = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true });
    let end = json!({
        "id": 5, "content": "<|end|>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
        "special": true,
    });
    let vocab = json!({ "a": 0, "b": 1, "ab": 2, "Ġ": 3, "Ġab": 4 });
    let model = json!({ "type": "BPE", "vocab": vocab, "merges": [["a", "b"], ["Ġ", "ab"]] });
    let json = json!({
        "version": "1.0", "added_tokens": [end], "normalizer": null, "pre_tokenizer": bytes, "post_processor": null,
        "decoder": bytes, "model": model,
    });
    json.to_string().into_bytes()
}

fn tokenizer() -> Tokenizer {
    let config = json!({ "eos_token": "<|end|>" }).to_string().into_bytes();
    Tokenizer::from_json(&tokenizer_json(), Some(&config), Path::new("tokenizer.json")).unwrap()
}

fn model(case: &str) -> LoadedModel {
    LoadedModel {
        gpt: load(case, &Device::flex()),
        tokenizer: tokenizer(),
        chat_template: Some(ChatTemplate::new(TEMPLATE, Path::new("template")).unwrap()),
        eos_token_ids: vec![5],
        decoder_start: Vec::new(),
        sampling_defaults: SamplingParams::default(),
        own_pooling: OwnPooling::Unstated,
        writes_text: true,
        prompts: Prompts::default(),
        text_limit: None,
        classifier: None,
    }
}

fn new_file(path: &Path) -> PartialFile {
    PartialFile::create(path).unwrap()
}

fn export_options(case: &str, dtype: Option<Dtype>) -> ExportOptions {
    ExportOptions {
        dtype,
        name: case.to_owned(),
        class: Some(model_dir::load_class(&golden(case)).unwrap().to_owned()),
        extra_files: vec![("tokenizer.json".to_owned(), tokenizer_json())],
    }
}

#[test]
fn exported_gguf_reopens_as_the_same_model() {
    let dir = tempfile::tempdir().unwrap();
    for case in EXPORTED {
        let (model, oracle) = (model(case), Oracle::read(case));
        let path = dir.path().join(format!("{case}.gguf"));
        export(new_file(&path), &model, &export_options(case, None))
            .unwrap_or_else(|error| unreachable!("{case}: {error}"));
        let found = model_dir::load(&path, &options(None)).unwrap();
        let mut config = GptConfig { dropout: found.gpt.config().dropout, ..model.gpt.config().clone() };
        if let Positions::Rope(rope) = &mut config.positions
            && case == "rope-dynamic"
        {
            // It would begin beyond the model's context.
            rope.scaling = RopeScaling::None;
        }
        assert_eq!(found.gpt.config(), &config, "{case}");
        assert!(distance(&logits(&found.gpt, &oracle), &logits(&model.gpt, &oracle)) < 1e-5, "{case}");
        assert_eq!(found.eos_token_ids, [5], "{case}");
        assert_eq!(found.chat_template.unwrap().source(), TEMPLATE, "{case}");
        for text in ["ab ab", "<|end|>a b", "abab ab"] {
            let ids = |tokenizer: &Tokenizer| tokenizer.encode(text, EncodeOptions::RENDERED).unwrap();
            assert_eq!(ids(&found.tokenizer), ids(&model.tokenizer), "{case}: {text}");
        }
    }
}

/// The logits of a few texts.
fn some_logits(gpt: &Gpt) -> Vec<f32> {
    let vocab_size = gpt.config().vocab_size as u64;
    let ids = (0..48u64).map(|n| (n * n * 31 + n * 7) % vocab_size);
    let ids: Vec<_> = ids.map(|id| id as u32).collect();
    gpt.logits(gpt.forward(token_tensor(gpt, &ids), AttentionContext::dense(2, 24))).into_data().try_into_vec().unwrap()
}

/// Their class, if there is a model dir of it.
fn class_of(case: &str) -> Option<String> {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let dirs = [tests.join("gguf").join(case), tests.join("golden").join(case)];
    dirs.iter().find_map(|dir| Some(model_dir::load_class(dir).ok()?.to_owned()))
}

#[test]
fn models_of_converted_files_are_written_as_the_same_models() {
    let dir = tempfile::tempdir().unwrap();
    let gguf = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gguf");
    for case in REWRITTEN {
        let gpt = model_dir::load_gpt(&gguf.join(format!("{case}.gguf")), &options(None)).unwrap();
        let model = LoadedModel { gpt, ..model("llama") };
        let path = dir.path().join(format!("{case}.gguf"));
        let of_class = ExportOptions { class: class_of(case), ..export_options("llama", None) };
        export(new_file(&path), &model, &of_class).unwrap_or_else(|error| unreachable!("{case}: {error}"));
        let found = model_dir::load_gpt(&path, &options(None)).unwrap();
        let mut config = found.config().clone();
        if case == "rope-llama3" {
            // The same frequencies, by other figures.
            config.positions = model.gpt.config().positions.clone();
        }
        assert_eq!(&config, model.gpt.config(), "{case}");
        let (found, expected) = (some_logits(&found), some_logits(&model.gpt));
        let apart = found.iter().zip(&expected).map(|(a, b)| (a - b).abs());
        let apart = apart.fold(0.0, f32::max);
        assert!(apart < 1e-4, "{case}: {apart}");
    }
}

#[test]
fn exported_experts_are_rounded_and_routers_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let config = GptConfig { d_model: 64, ..load("granite-moe", &Device::flex()).config().clone() };
    let experts = config.experts.clone().map(|experts| Experts { d_ff: 32, ..experts });
    let gpt = Gpt::init(&GptConfig { experts, ..config }, 1, &Device::flex()).unwrap();
    let model = LoadedModel { gpt, ..model("llama") };
    let of_class = |dtype| ExportOptions { class: class_of("granite-moe"), ..export_options("llama", dtype) };
    let [exact, rounded] = [None, Some(Dtype::Q8)].map(|dtype| {
        let path = dir.path().join(format!("{}.gguf", dtype.is_some()));
        export(new_file(&path), &model, &of_class(dtype)).unwrap();
        model_dir::load_gpt(&path, &options(None)).unwrap()
    });
    let values = |gpt: &Gpt, part: &str| {
        let mut all = Vec::new();
        let visit = gpt.read_params(&mut |path, data| {
            if path.contains(part) {
                all.extend(data.try_into_vec::<f32>().unwrap());
            }
            Ok(())
        });
        visit.unwrap();
        all
    };
    assert!(values(&exact, ".router.") == values(&rounded, ".router."));
    let (exact, rounded) = (values(&exact, ".routed."), values(&rounded, ".routed."));
    let off = exact.iter().zip(&rounded).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(off > 0.0 && off < 1e-3, "{off}");
}

/// What only Hearth would compute from the file is refused, too.
#[test]
fn gguf_export_names_the_feature_that_llama_cpp_does_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.gguf");
    for (case, feature) in [
        ("qwen3_5", "value heads"),
        ("qwen3-moe", "layers without experts between others"),
        ("ernie4_5-moe", "layers without experts between others"),
        ("afmoe", "`AfmoeForCausalLM`"),
        ("apertus", "xIELU"),
        ("opt", "`OPTForCausalLM`"),
        ("bert", "`BertModel`"),
        ("cohere-qk-norm", "cannot say `qk_norm` = true"),
    ] {
        let error = export(new_file(&path), &model(case), &export_options(case, None)).unwrap_err().to_string();
        assert!(error.contains(feature) && error.contains("hint: "), "{case}: {error}");
    }
}

/// Gemma's norms are stored as they are used.
#[test]
fn gguf_export_adds_norm_weight_offsets_to_the_weights() {
    let dir = tempfile::tempdir().unwrap();
    for case in ["gemma", "gemma2", "gemma3", "nemotron"] {
        // As in the published models, which lack some features of the golden dirs.
        let golden = load(case, &Device::flex()).config().clone();
        let mut config = GptConfig { attention_scale: None, ..golden };
        if case == "gemma3" {
            let positions = Positions::Rope(Rope::new(2000.0, 12));
            config = GptConfig { full_layers: Vec::new(), positions, logit_softcap: None, ..config };
        }
        let gpt = Gpt::init(&config, 1, &Device::flex()).unwrap();
        assert_eq!(config.norm_weight_offset, 1.0, "{case}");
        let (model, oracle) = (LoadedModel { gpt, ..model(case) }, Oracle::read(case));
        let path = dir.path().join(format!("{case}.gguf"));
        export(new_file(&path), &model, &export_options(case, None))
            .unwrap_or_else(|error| unreachable!("{case}: {error}"));
        let found = model_dir::load_gpt(&path, &options(None)).unwrap();
        assert_eq!(found.config().norm_weight_offset, 0.0, "{case}");
        assert!(distance(&logits(&found, &oracle), &logits(&model.gpt, &oracle)) < 1e-5, "{case}");
    }
}

#[test]
fn gguf_export_writes_sampling_defaults_and_both_chat_templates() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    let template = ChatTemplate::with_tool_use("plain", Some("tools"), Path::new("template")).unwrap();
    let sampling_defaults = SamplingParams {
        temperature: 0.6,
        top_k: 20,
        top_p: 0.95,
        min_p: 0.05,
        repetition_penalty: 1.1,
        ..SamplingParams::default()
    };
    let own = LoadedModel { chat_template: Some(template), sampling_defaults, ..model("llama") };
    export(new_file(&path), &own, &export_options("llama", None)).unwrap();
    let found = model_dir::load(&path, &options(None)).unwrap();
    assert_eq!(found.sampling_defaults, own.sampling_defaults);
    let template = found.chat_template.unwrap();
    assert_eq!((template.source(), template.tools_source()), ("plain", "tools"));
    export(new_file(&path), &model("llama"), &export_options("llama", None)).unwrap();
    assert_eq!(model_dir::load(&path, &options(None)).unwrap().sampling_defaults, SamplingParams::default());
}

/// Neutral values mean something to programs with other defaults.
#[test]
fn gguf_export_writes_neutral_sampling_defaults_that_are_stated() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    let written = |generation: serde_json::Value| {
        let mut options = export_options("llama", None);
        options.extra_files.push(("generation_config.json".to_owned(), generation.to_string().into_bytes()));
        export(new_file(&path), &model("llama"), &options).unwrap();
        assert_eq!(model_dir::load(&path, &self::options(None)).unwrap().sampling_defaults, SamplingParams::default());
        let files = model_dir::files_beside_weights(&path).unwrap();
        let found = files.into_iter().find(|(name, _)| name == "generation_config.json");
        found.map(|(_, bytes)| serde_json::from_slice::<serde_json::Value>(&bytes).unwrap())
    };
    let all = json!({
        "do_sample": true, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0,
    });
    assert_eq!(written(all.clone()), Some(all));
    assert_eq!(written(json!({ "top_p": 1, "top_k": null })), Some(json!({ "do_sample": true, "top_p": 1.0 })));
    assert_eq!(written(json!({ "do_sample": false, "temperature": 1.0 })), None);
    assert_eq!(written(json!({ "eos_token_id": 5 })), None);
}

/// GGUF files store SentencePiece's BPE as scores, not as merges.
#[test]
fn gguf_export_keeps_the_tokens_of_a_sentencepiece_tokenizer() {
    let mut vocab = json!({ "<unk>": 0, "<s>": 1, "</s>": 2 });
    let bytes = (0..256).map(|byte| format!("<0x{byte:02X}>"));
    let pieces = ["▁", "a", "b", "ab", "▁ab", "abab"].map(str::to_owned);
    for (id, piece) in (3..).zip(bytes.chain(pieces)) {
        vocab[piece] = json!(id);
    }
    let added = |id: u32, content: &str| {
        json!({
            "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            "special": true,
        })
    };
    let merges = json!([["a", "b"], ["▁", "ab"], ["ab", "ab"]]);
    let mut text = json!({
        "version": "1.0",
        "added_tokens": [added(0, "<unk>"), added(1, "<s>"), added(2, "</s>")],
        "normalizer": { "type": "Sequence", "normalizers": [
            { "type": "Prepend", "prepend": "▁" }, { "type": "Replace", "pattern": { "String": " " }, "content": "▁" },
        ] },
        "pre_tokenizer": null,
        "post_processor": null,
        "decoder": { "type": "Sequence", "decoders": [
            { "type": "Replace", "pattern": { "String": "▁" }, "content": " " }, { "type": "ByteFallback" }, { "type": "Fuse" },
            { "type": "Strip", "content": " ", "start": 1, "stop": 0 },
        ] },
        "model": { "type": "BPE", "vocab": vocab, "merges": merges, "unk_token": "<unk>", "byte_fallback": true, "fuse_unk": true },
    });
    let (tokenizer, found) = sentence_piece_exported(&text);
    for text in ["ab abab", "a ba b", "baab é </s> ab", "", "  ab"] {
        let ids = |tokenizer: &Tokenizer| tokenizer.encode(text, EncodeOptions::RENDERED).unwrap();
        assert_eq!(ids(&found), ids(&tokenizer), "{text:?}");
        let decoded =
            |tokenizer: &Tokenizer| tokenizer.decode(&ids(tokenizer), DecodeOptions { skip_special_tokens: false });
        assert_eq!(decoded(&found), decoded(&tokenizer), "{text:?}");
    }
    // The prefix space, as other versions of the file state it.
    text["normalizer"] = json!(null);
    for (key, value) in
        [("prepend_scheme", json!("always")), ("prepend_scheme", json!("never")), ("add_prefix_space", json!(true))]
    {
        text["pre_tokenizer"] = json!({ "type": "Metaspace", "replacement": "▁", key: value });
        let (tokenizer, found) = sentence_piece_exported(&text);
        let ids = |tokenizer: &Tokenizer| tokenizer.encode("ab abab", EncodeOptions::RENDERED).unwrap();
        assert_eq!(ids(&found), ids(&tokenizer), "{key} {value}");
    }
}

/// The tokenizer of `json`, of 265 tokens, and that of a GGUF file with it.
fn sentence_piece_exported(json: &serde_json::Value) -> (Tokenizer, Tokenizer) {
    let text = json.to_string().into_bytes();
    let roles = json!({ "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>" }).to_string().into_bytes();
    let tokenizer = Tokenizer::from_json(&text, Some(&roles), Path::new("tokenizer.json")).unwrap();
    let config = GptConfig { vocab_size: 265, ..load("llama", &Device::flex()).config().clone() };
    let gpt = Gpt::init(&config, 1, &Device::flex()).unwrap();
    let model = LoadedModel { gpt, tokenizer: tokenizer.clone(), eos_token_ids: vec![2], ..model("llama") };
    let extra_files = vec![("tokenizer.json".to_owned(), text)];
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    export(new_file(&path), &model, &ExportOptions { extra_files, ..export_options("llama", None) }).unwrap();
    (tokenizer, model_dir::load(&path, &options(None)).unwrap().tokenizer)
}

/// As `hearth quantize` and `hearth serve --dtype` round.
#[test]
fn gguf_export_rounds_weights_like_loading_does() {
    let dir = tempfile::tempdir().unwrap();
    // Rows are whole blocks: what else is stored in blocks is rounded when loading, and not in GGUF files.
    let config = GptConfig { d_ff: 64, ..load("llama", &Device::flex()).config().clone() };
    let gpt = Gpt::init(&config, 1, &Device::flex()).unwrap();
    let stored = dir.path().join("stored");
    model_dir::save(&stored, &gpt, &SaveOptions::default()).unwrap();
    let (model, oracle) = (LoadedModel { gpt, ..model("llama") }, Oracle::read("llama"));
    for dtype in [Dtype::F16, Dtype::Bf16, Dtype::Q8, Dtype::Q5_1, Dtype::Q4_1, Dtype::Q4] {
        let path = dir.path().join(format!("{dtype}.gguf"));
        export(new_file(&path), &model, &export_options("llama", Some(dtype))).unwrap();
        let found = model_dir::load_gpt(&path, &options(None)).unwrap();
        let rounded = model_dir::load_gpt(&stored, &options(Some(dtype))).unwrap();
        assert!(distance(&logits(&found, &oracle), &logits(&rounded, &oracle)) < 1e-5, "{dtype}");
        assert!(distance(&logits(&found, &oracle), &logits(&model.gpt, &oracle)) > 1e-6, "{dtype}");
    }
}

/// Blocks are written as they are, and rounded like `hearth quantize` does.
#[test]
fn gguf_export_keeps_quantized_blocks_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let gguf = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gguf");
    for (name, dtype) in [("quantized-Q8_0.gguf", Dtype::Q8), ("quantized-Q4_0.gguf", Dtype::Q4)] {
        let gpt = model_dir::load_gpt(&gguf.join(name), &options(None)).unwrap();
        let vocab_size = gpt.config().vocab_size;
        let read = |gpt: &hearth_model::gpt::Gpt| {
            let mut all = Vec::new();
            let visit = gpt.read_params(&mut |path, data| {
                // Outside blocks, the files have K-quants, which are written in 8 bits.
                if path.starts_with("blocks.") {
                    all.push((path.to_owned(), data.try_to_vec::<f32>().unwrap()));
                }
                Ok(())
            });
            visit.unwrap();
            all
        };
        let expected = read(&gpt);
        let model = LoadedModel {
            gpt,
            tokenizer: tokenizer(),
            chat_template: None,
            eos_token_ids: vec![5],
            decoder_start: Vec::new(),
            sampling_defaults: SamplingParams::default(),
            own_pooling: OwnPooling::Unstated,
            writes_text: true,
            prompts: Prompts::default(),
            text_limit: None,
            classifier: None,
        };
        for asked in [None, Some(dtype)] {
            let path = dir.path().join(format!("{name}-{}", asked.is_some()));
            let path = path.with_extension("gguf");
            let options_of = ExportOptions {
                dtype: asked,
                name: name.to_owned(),
                class: None,
                extra_files: vec![("tokenizer.json".to_owned(), tokenizer_json())],
            };
            export(new_file(&path), &model, &options_of).unwrap();
            let found = model_dir::load_gpt(&path, &options(None)).unwrap();
            assert_eq!(found.config().vocab_size, vocab_size);
            assert_eq!(found.dtype(), dtype, "{name}");
            assert!(read(&found) == expected, "{name}, {asked:?}");
            fs::remove_file(&path).unwrap();
        }
    }
}

#[test]
fn gguf_export_rejects_models_and_tokenizers_without_gguf_form() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.gguf");
    for case in ["opt", "ctrl", "nanochat"] {
        let error = export(new_file(&path), &model(case), &export_options(case, None)).unwrap_err().to_string();
        assert!(error.contains("no architecture of GGUF files") && error.contains("hint: "), "{case}: {error}");
    }
    let with = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut json: serde_json::Value = serde_json::from_slice(&tokenizer_json()).unwrap();
        change(&mut json);
        let extra_files = vec![("tokenizer.json".to_owned(), json.to_string().into_bytes())];
        export(new_file(&path), &model("llama"), &ExportOptions { extra_files, ..export_options("llama", None) })
            .unwrap_err()
            .to_string()
    };
    let words = with(&|json| json["model"]["type"] = "WordLevel".into());
    assert!(words.contains("WordLevel") && words.contains("hint: "), "{words}");
    let split = with(&|json| json["pre_tokenizer"] = json!({ "type": "Whitespace" }));
    assert!(split.contains("Whitespace") && split.contains("hint: "), "{split}");
    let none = ExportOptions { extra_files: Vec::new(), ..export_options("llama", None) };
    let error = export(new_file(&path), &model("llama"), &none).unwrap_err().to_string();
    assert!(error.contains("`tokenizer.json`: is missing"), "{error}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left of what was refused");
}

/// A real model: the same ids for texts of all kinds, the same logits.
#[test]
fn smollm2_exported_to_gguf_reopens_as_the_same_model() {
    let Some(dir) = std::env::var_os("HEARTH_SMOLLM2") else {
        println!("skipped: set HEARTH_SMOLLM2 to the model dir that `shared/tools/get-smollm2` makes");
        return;
    };
    let dir = Path::new(&dir);
    let model = model_dir::load(dir, &options(None)).unwrap();
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("smollm2.gguf");
    let options_of = ExportOptions {
        dtype: Some(Dtype::Q8),
        name: "smollm2".to_owned(),
        class: Some(model_dir::load_class(dir).unwrap().to_owned()),
        extra_files: model_dir::files_beside_weights(dir).unwrap(),
    };
    export(new_file(&path), &model, &options_of).unwrap();
    let found = model_dir::load(&path, &options(None)).unwrap();
    assert_eq!(found.gpt.dtype(), Dtype::Q8);
    // The reader adds tokens that are known to end texts.
    assert!(found.eos_token_ids.starts_with(&model.eos_token_ids), "{:?}", found.eos_token_ids);
    for text in ["Hello, world! 123 4.5", "naïve café\n\n  indented\tλ→∞ 漢字 🙂", "<|im_start|>user\nHi<|im_end|>\n"]
    {
        for options in [EncodeOptions::RENDERED, EncodeOptions::TEXT, EncodeOptions::PROMPT] {
            let ids = |tokenizer: &Tokenizer| tokenizer.encode(text, options).unwrap();
            assert_eq!(ids(&found.tokenizer), ids(&model.tokenizer), "{text}");
        }
    }
    let rounded = model_dir::load_gpt(dir, &options(Some(Dtype::Q8))).unwrap();
    let read = |gpt: &hearth_model::gpt::Gpt| {
        let mut sums = Vec::new();
        let visit = gpt.read_params(&mut |path, data| {
            let sum: f64 = data.as_slice::<f32>().unwrap().iter().map(|value| f64::from(*value)).sum();
            sums.push((path.to_owned(), sum));
            Ok(())
        });
        visit.unwrap();
        sums
    };
    assert!(read(&found.gpt) == read(&rounded), "other numbers than those of `hearth quantize`");
}
