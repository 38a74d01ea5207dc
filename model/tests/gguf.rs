//! GGUF files: what llama.cpp's own converter and quantizer write, and one of random blocks, against the goldens and
//! against `transformers` (`gguf/make_gguf.py`, `gguf/make_mixed.py`); broken and hostile ones.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]
#![expect(clippy::print_stdout, reason = "a skipped test says so")]

mod cases;
mod file;
mod smollm2;
mod tokenizers;

use std::{
    fs,
    path::{Path, PathBuf},
};

use burn::tensor::{Device, Int, Tensor, TensorData};
use hearth_model::{
    config::{GptConfig, Positions, Recurrence, Rope, RopeScaling},
    decode::sampling::SamplingParams,
    gpt::{Gpt, attention::AttentionContext},
    ops::Dtype,
    text::tokenizer::EncodeOptions,
    weights::model_dir::{self, LoadOptions},
};
use safetensors::SafeTensors;

use self::{
    cases::{CASES, OWN, WRAPPED},
    file::{Damaged, File, assert_rejected, f32_value, list_value, refused, text_value, u32_value},
};

/// All cases, with the dirs that have their configurations and oracles.
fn cases() -> impl Iterator<Item = (&'static str, PathBuf)> {
    let in_folder =
        |folder, names: &'static [&str]| names.iter().map(move |name| (*name, tests().join::<&str>(folder).join(name)));
    in_folder("golden", CASES).chain(in_folder("golden/wrapped", WRAPPED)).chain(in_folder("gguf", OWN))
}

fn tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")
}

fn gguf(name: &str) -> PathBuf {
    tests().join("gguf").join(format!("{name}.gguf"))
}

fn options(dtype: Option<Dtype>) -> LoadOptions {
    LoadOptions { device: Device::flex(), dtype }
}

/// The ids and the logits called `logits` in the file at `path`: ids, rows, logits.
fn oracle(path: &Path, logits: &str) -> (Vec<i32>, [usize; 2], Vec<f32>) {
    let bytes = fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let ids = file.tensor("input_ids").unwrap();
    let numbers = |name: &str| -> Vec<[u8; 4]> { file.tensor(name).unwrap().data().as_chunks().0.to_vec() };
    (
        numbers("input_ids").into_iter().map(i32::from_le_bytes).collect(),
        [ids.shape()[0], ids.shape()[1]],
        numbers(logits).into_iter().map(f32::from_le_bytes).collect(),
    )
}

/// Distances of the model's logits from the oracle's, relative to the spread of the logits.
fn errors(gpt: &Gpt, (ids, [batch, seq_len], expected): &(Vec<i32>, [usize; 2], Vec<f32>)) -> Vec<f32> {
    let ids: Tensor<1, Int> = Tensor::from_data(TensorData::new(ids.clone(), [ids.len()]), &gpt.device());
    let hidden = gpt.forward(ids, AttentionContext::dense(*batch, *seq_len));
    let found: Vec<f32> = gpt.logits(hidden).into_data().try_into_vec().unwrap();
    assert_eq!(found.len(), expected.len());
    let mean = expected.iter().sum::<f32>() / expected.len() as f32;
    let spread = (expected.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / expected.len() as f32).sqrt();
    found.iter().zip(expected).map(|(a, b)| (a - b).abs() / spread).collect()
}

fn error(gpt: &Gpt, oracle: &(Vec<i32>, [usize; 2], Vec<f32>)) -> f32 {
    errors(gpt, oracle).into_iter().fold(0.0, f32::max)
}

fn rms_error(gpt: &Gpt, oracle: &(Vec<i32>, [usize; 2], Vec<f32>)) -> f32 {
    let errors = errors(gpt, oracle);
    (errors.iter().map(|error| error * error).sum::<f32>() / errors.len() as f32).sqrt()
}

#[test]
fn gguf_models_give_the_reference_logits() {
    for (case, dir) in cases() {
        let gpt = model_dir::load_gpt(&gguf(case), &options(None)).unwrap();
        let error = error(&gpt, &oracle(&dir.join("oracle.safetensors"), "logits"));
        // In f16 and bf16 the CPU's kernels round activations nowhere, so the weights are the only difference: none.
        assert!(error < 1e-4, "{case}: {error}");
    }
}

#[test]
fn gguf_configs_equal_those_of_the_model_dirs() {
    for (case, dir) in cases() {
        let of_file = model_dir::load_config(&gguf(case)).unwrap();
        let of_dir = model_dir::load_config(&dir).unwrap();
        // Nothing is dropped when serving. Gemma's offset is in the file's weights already.
        // The value heads of gated delta nets are in another order.
        let common = |config: GptConfig| {
            let mut config = GptConfig { dropout: 0.0, norm_weight_offset: 0.0, final_norm_offset: None, ..config };
            if case == "nomic-bert" {
                // The converter writes the length of the texts that the released models were trained with.
                config.max_seq_len = 0;
            }
            if case == "muse-glimmer" {
                // The factor of the scores is in weights that the class does not have.
                (config.attention_scale, config.plain_qk_norm) = (None, false);
            }
            match config.recurrent.as_mut().map(|recurrent| &mut recurrent.recurrence) {
                Some(Recurrence::GatedDelta(net)) => net.tiled_heads = false,
                // Files have no limits of time steps, and the dirs' are below all steps.
                Some(Recurrence::Mamba2(mamba)) => mamba.min_time_step = 0.0,
                _ => {}
            }
            // Files do not have what only training needs.
            config.experts.iter_mut().for_each(|experts| experts.balance_loss = 0.0);
            config
        };
        let (mut found, expected) = (common(of_file), common(of_dir));
        if case == "rope-llama3" {
            // The same frequencies, by other figures; the logits show it.
            found.positions = expected.positions.clone();
        }
        assert_eq!(found, expected, "{case}");
    }
}

#[test]
fn gguf_model_with_a_fused_qkv_tensor_gives_the_reference_logits() {
    let gpt = model_dir::load_gpt(&gguf("fused-qkv"), &options(None)).unwrap();
    let error = error(&gpt, &oracle(&tests().join("golden/qwen2/oracle.safetensors"), "logits"));
    assert!(error < 1e-4, "{error}");
}

/// Keys of an architecture other than sizes.
type Keys<'a> = &'a [(&'a str, Vec<u8>)];

/// A file of an architecture with 4 heads and, at 64 wide, heads of 8; with these keys besides.
fn sized(name: &str, n_layers: u32, keys: Keys<'_>) -> File {
    let mut file = File::valid();
    file.set("general.architecture", text_value(name));
    let sizes = [
        ("context_length", u32_value(16)),
        ("embedding_length", u32_value(64)),
        ("block_count", u32_value(n_layers)),
        ("feed_forward_length", u32_value(32)),
        ("attention.head_count", u32_value(4)),
        ("attention.key_length", u32_value(8)),
        ("attention.value_length", u32_value(8)),
    ];
    for (key, value) in sizes.iter().chain(keys) {
        file.pairs.push((format!("{name}.{key}").leak(), value.clone()));
    }
    file
}

/// Where llama.cpp has constants in place of keys.
#[test]
fn gguf_config_fills_in_constants_of_the_architecture() {
    let config = |name, n_layers, keys: Keys<'_>| {
        model_dir::load_config(&Damaged::new(&sized(name, n_layers, keys).bytes()).path()).unwrap()
    };
    // Gemma 2 and 3 with 27 billion parameters scale scores by the width per head, the others by the head.
    for (name, n_layers) in [("gemma2", 46), ("gemma3", 62)] {
        assert_eq!(config(name, n_layers, &[]).attention_scale, Some(0.25));
        assert_eq!(config(name, n_layers - 1, &[]).attention_scale, None);
    }
    let gemma2 = config("gemma2", 5, &[]);
    assert_eq!((gemma2.sliding_window, &gemma2.full_layers[..]), (Some(4096), &[1, 3][..]));
    assert_eq!((gemma2.attention_softcap, gemma2.logit_softcap), (Some(50.0), Some(30.0)));
    // Of Gemma 3 as the first files have it, with a base for the layers without the window only.
    let keys = [("rope.freq_base", f32_value(1e6)), ("attention.sliding_window", u32_value(7))];
    let gemma3 = config("gemma3", 13, &keys);
    assert_eq!((gemma3.sliding_window, &gemma3.full_layers[..]), (Some(7), &[5, 11][..]));
    assert_eq!(gemma3.window_rope.as_ref().map(|rope| rope.theta), Some(10_000.0));
    assert_eq!((gemma3.attention_softcap, gemma3.logit_softcap), (None, None));
    assert_eq!(config("gemma3", 13, &keys[..1]).sliding_window, None);
    let pattern = ("attention.sliding_window_pattern", u32_value(3));
    assert_eq!(config("gemma3", 7, &[keys[1].clone(), pattern]).full_layers, [2, 5]);
    assert_eq!(config("smollm3", 9, &[]).unrotated_layers, [3, 7]);
    // As the converter writes OLMo 3: YaRN's own factor, and once.
    let olmo3 = [
        ("rope.scaling.type", text_value("yarn")),
        ("rope.scaling.factor", f32_value(8.0)),
        ("rope.scaling.yarn_attn_factor", f32_value(1.207_944_2)),
    ];
    let olmo3 = config("olmo2", 1, &olmo3).positions;
    assert!(matches!(olmo3, Positions::Rope(Rope { scaling: RopeScaling::Yarn { attention_factor, .. }, .. })
        if (attention_factor - 1.207_944_154).abs() < 1e-9));
    let cohere2 = config("cohere2", 9, &keys[1..]);
    assert_eq!((&cohere2.full_layers[..], &cohere2.unrotated_layers[..]), (&[3, 7][..], &[3, 7][..]));
}

/// Keys that would change what these architectures compute.
#[test]
fn unsupported_gguf_architecture_keys_are_rejected_by_name() {
    let refused = |name: &str, (key, value): (&str, Vec<u8>)| {
        assert_rejected(
            &Damaged::new(&sized(name, 1, &[(key, value)]).bytes()).path(),
            &[&format!("`{name}.{key}` is ")],
        );
    };
    for name in ["gemma2", "gemma3", "smollm3", "olmo2", "phi2", "command-r", "falcon", "starcoder"] {
        refused(name, ("attention.scale", f32_value(0.5)));
        refused(name, ("residual_scale", f32_value(0.5)));
        refused(name, ("expert_count", u32_value(4)));
    }
    refused("gemma3", ("attn_logit_softcapping", f32_value(50.0)));
    refused("granite", ("rope.scaling.finetuned", [7u32.to_le_bytes().as_slice(), &[0]].concat()));
    refused("granite", ("attention.sliding_window", u32_value(4)));
    refused("smollm3", ("attention.sliding_window", u32_value(4)));
    refused("gemma2", ("rope.freq_base_swa", f32_value(500.0)));
    refused("olmo2", ("attention.sliding_window_pattern", list_value(7, 2, &[1, 0])));
    refused("olmo2", ("rope.scaling.yarn_attn_factor", f32_value(1.2)));
    refused("cohere2", ("logit_softcapping", f32_value(4.0)));
}

#[test]
fn split_gguf_model_opens_only_from_its_complete_first_file() {
    let first = |dir: &Path| {
        let mut files: Vec<_> = fs::read_dir(dir).unwrap().map(|file| file.unwrap().path()).collect();
        files.retain(|path| path.file_name().unwrap().to_str().unwrap().starts_with("split-"));
        files.sort();
        files
    };
    let files = first(&tests().join("gguf"));
    assert!(files.len() > 1);
    let gpt = model_dir::load_gpt(&files[0], &options(None)).unwrap();
    let error = error(&gpt, &oracle(&tests().join("golden/qwen2/oracle.safetensors"), "logits"));
    assert!(error < 1e-4, "{error}");
    assert_rejected(&files[1], &["is not the first of its model's"]);
    // The first file without the others.
    let dir = tempfile::tempdir().unwrap();
    let alone = dir.path().join(files[0].file_name().unwrap());
    fs::copy(&files[0], &alone).unwrap();
    assert_rejected(&alone, &["cannot read", "00002-of-"]);
    let renamed = dir.path().join("renamed.gguf");
    fs::rename(&alone, &renamed).unwrap();
    assert_rejected(&renamed, &["its name does not end in `-00001-of-"]);
    fs::remove_file(&renamed).unwrap();
    // In the wrong order.
    for (from, to) in [(0, 0), (2, 1), (1, 2)] {
        fs::copy(&files[from], dir.path().join(files[to].file_name().unwrap())).unwrap();
    }
    assert_rejected(&alone, &["00002-of-", "`split.no` must be 1, got 2"]);
    assert_rejected(dir.path(), &[alone.to_str().unwrap()]);
}

#[test]
fn quantized_gguf_weights_are_kept_and_give_the_reference_logits() {
    let oracle = |name: &str| {
        let file = if name == "mixed" { "quantized-mixed" } else { "quantized" };
        oracle(&tests().join(format!("gguf/{file}.safetensors")), &format!("logits.{name}"))
    };
    let read = |path: &Path, dtype| {
        let gpt = model_dir::load_gpt(path, &options(dtype)).unwrap();
        let mut values = Vec::new();
        gpt.read_params(&mut |path, data| {
            values.push((path.to_owned(), data.try_into_vec::<f32>().unwrap()));
            Ok(())
        })
        .unwrap();
        (gpt, values)
    };
    for name in ["Q4_0", "Q8_0", "Q4_K", "mixed"] {
        let path = gguf(&format!("quantized-{name}"));
        let (gpt, exact) = read(&path, Some(Dtype::F32));
        let error = self::error(&gpt, &oracle(name));
        assert!(error < 1e-4, "{name}: {error}");
        let (gpt, stored) = read(&path, None);
        assert!(gpt.dtype().is_quantized());
        // The kernels round activations to 8 bits.
        let error = rms_error(&gpt, &oracle(name));
        println!("{name} as stored: {error} {}", self::error(&gpt, &oracle(name)));
        assert!(error < 0.05, "{name} as stored: {error}");
        for ((path, exact), (_, stored)) in exact.iter().zip(&stored) {
            let sum = |values: &mut dyn Iterator<Item = f32>| values.map(|x| x * x).sum::<f32>();
            let difference = sum(&mut exact.iter().zip(stored).map(|(a, b)| a - b));
            let error = (difference / sum(&mut exact.iter().copied())).sqrt();
            assert!(error == 0.0, "{name}: {path}: {error}");
        }
    }
}

/// Of `make_mixed.py`: the CPU computes with every type as it is, or with the same numbers in more bits.
#[test]
fn gguf_types_are_held_in_dtypes_that_represent_them_exactly() {
    let gpt = model_dir::load_gpt(&gguf("quantized-mixed"), &options(None)).unwrap();
    let dtypes: Vec<(String, String)> =
        gpt.matrices().into_iter().map(|(path, matrix)| (path, matrix.dtype().to_string())).collect();
    let dtype = |path: &str| {
        let found = dtypes.iter().find(|(known, _)| known.trim_start_matches("blocks.").replace(".weight", "") == path);
        found.map(|(_, dtype)| dtype.as_str()).unwrap_or_else(|| panic!("{path} of {dtypes:?}"))
    };
    for (path, expected) in [
        ("embed", "q3_k"),
        ("lm_head", "iq4_xs"),
        ("0.attn.out", "mxfp4"),
        ("0.mlp.down", "q2_k"),
        ("1.attn.out", "q2"),
        ("1.mlp.down", "iq1"),
        // Of the rows that are most.
        ("0.attn.qkv", "iq4_xs"),
        ("1.attn.qkv", "iq2"),
        // One of the three has floats.
        ("2.attn.qkv", "f32"),
        ("2.attn.out", "iq4_nl"),
        ("2.mlp.up", "iq2"),
        ("2.mlp.down", "iq3_s"),
    ] {
        assert_eq!(dtype(path), expected, "{path}");
    }
}

#[test]
fn valid_gguf_file_opens_also_with_harmless_keys() {
    let mut file = File::valid();
    let open = |file: &File| model_dir::load(&Damaged::new(&file.bytes()).path(), &options(None)).unwrap();
    let model = open(&file);
    assert_eq!(model.tokenizer.encode("abba<|end|>", EncodeOptions::PROMPT).unwrap(), [2, 1, 0, 3]);
    assert_eq!(model.eos_token_ids, [3]);
    // Changes that have no effect.
    file.version = 2;
    file.set("llama.expert_count", u32_value(0));
    file.set("llama.vocab_size", u32_value(4));
    file.set("general.alignment", u32_value(64));
    file.set("some.other.key", list_value(9, 1, &list_value(0, 2, &[1, 2])[4..]));
    open(&file);
}

#[test]
fn gguf_sampling_keys_become_sampling_defaults() {
    let mut file = File::valid();
    let load = |file: &File| {
        let file = Damaged::new(&file.bytes());
        let beside = model_dir::files_beside_weights(&file.path()).unwrap();
        (model_dir::load(&file.path(), &options(None)).unwrap().sampling_defaults, beside)
    };
    let (silent, beside) = load(&file);
    assert_eq!(silent, SamplingParams::default());
    assert!(beside.iter().all(|(name, _)| name != "generation_config.json"));
    file.set("general.sampling.temp", f32_value(0.6));
    file.set("general.sampling.top_k", [5u32.to_le_bytes(), 2i32.to_le_bytes()].concat());
    file.set("general.sampling.top_p", f32_value(0.9));
    file.set("general.sampling.min_p", f32_value(0.1));
    file.set("general.sampling.penalty_repeat", f32_value(1.1));
    let (advised, beside) = load(&file);
    let expected = SamplingParams {
        temperature: 0.6,
        top_k: 2,
        top_p: 0.9,
        min_p: 0.1,
        repetition_penalty: 1.1,
        ..SamplingParams::default()
    };
    assert_eq!(advised, expected);
    let (_, stored) = beside.into_iter().find(|(name, _)| name == "generation_config.json").unwrap();
    let stored: serde_json::Value = serde_json::from_slice(&stored).unwrap();
    assert_eq!(
        stored,
        serde_json::json!({ "temperature": 0.6, "top_k": 2, "top_p": 0.9, "min_p": 0.1, "repetition_penalty": 1.1, "do_sample": true })
    );
    // Values that are out of range, or no numbers, are left out.
    let mut file = File::valid();
    file.set("general.sampling.top_p", f32_value(1.5));
    file.set("general.sampling.min_p", f32_value(f32::INFINITY));
    file.set("general.sampling.temp", text_value("hot"));
    file.set("general.sampling.top_k", u32_value(7));
    let advised = model_dir::load(&Damaged::new(&file.bytes()).path(), &options(None)).unwrap().sampling_defaults;
    assert_eq!(advised, SamplingParams { top_k: 7, ..SamplingParams::default() });
}

#[test]
fn malformed_gguf_headers_are_rejected() {
    refused(&["does not start with `GGUF`"], |file| file.magic = b"GGML");
    refused(&["version 1"], |file| file.version = 1);
    refused(&["version 4"], |file| file.version = 4);
    refused(&["big-endian"], |file| file.version = 3u32.swap_bytes());
    refused(&["tensors, which"], |file| file.counts = Some((u64::MAX, 1)));
    refused(&["metadata, which"], |file| file.counts = Some((1, u64::MAX / 2)));
    refused(&["`tokenizer.ggml.model` occurs twice"], |file| {
        file.pairs.push(("tokenizer.ggml.model", text_value("gpt2")));
    });
    refused(&["a string that extends beyond the end of the file"], |file| {
        file.pairs.push(("a", [&8u32.to_le_bytes()[..], &u64::MAX.to_le_bytes()].concat()));
    });
    refused(&["not UTF-8"], |file| {
        file.pairs.insert(0, ("a", [&8u32.to_le_bytes()[..], &1u64.to_le_bytes(), &[0xff]].concat()));
    });
    for kind in [0, 8, 9, 10] {
        refused(&["a list of 18446744073709551615"], |file| {
            file.pairs.insert(0, ("a", list_value(kind, u64::MAX, &[])))
        });
    }
    refused(&["`a` has the unknown type 13"], |file| file.pairs.insert(0, ("a", 13u32.to_le_bytes().to_vec())));
    refused(&["more than 4 deep"], |file| {
        let deep = (0..50).fold(list_value(0, 0, &[]), |inner, _| list_value(9, 1, &inner[4..]));
        file.pairs.insert(0, ("a", deep));
    });
    refused(&["general.alignment", "power of two"], |file| file.set("general.alignment", u32_value(0)));
    refused(&["general.alignment", "got 48"], |file| file.set("general.alignment", u32_value(48)));
    refused(&["general.alignment", "whole number"], |file| file.set("general.alignment", text_value("32")));
}

#[test]
fn malformed_gguf_tensor_infos_are_rejected() {
    const NORM: &str = "output_norm.weight";
    refused(&[NORM, "0 dimensions"], |file| file.tensor(NORM).1 = vec![]);
    refused(&[NORM, "5 dimensions"], |file| file.tensor(NORM).1 = vec![1; 5]);
    refused(&[NORM, "not a whole number of blocks"], |file| file.tensor(NORM).1 = vec![0]);
    refused(&[NORM, "too large"], |file| file.tensor(NORM).1 = vec![1 << 40, 1 << 40]);
    refused(&[NORM, "the file has"], |file| file.tensor(NORM).1 = vec![1 << 60]);
    refused(&[NORM, "type 15 (Q8_K)", "with `llama-quantize`"], |file| file.tensor(NORM).2 = 15);
    refused(&[NORM, "type 42 (Q2_0)"], |file| file.tensor(NORM).2 = 42);
    refused(&[NORM, "type 4294967295"], |file| file.tensor(NORM).2 = u32::MAX);
    refused(&[NORM, "the file has"], |file| file.tensor(NORM).3 = u64::MAX - 31);
    refused(&[NORM, "not a multiple of 32"], |file| file.tensor(NORM).3 += 4);
    refused(&[NORM, "starts at byte 32, inside `"], |file| file.tensor(NORM).3 = 32);
    refused(&[NORM, "occurs twice"], |file| file.tensor("blk.0.attn_norm.weight").0 = NORM.to_owned());
    refused(&["a tensor's name has 0 bytes"], |file| file.tensor(NORM).0.clear());
    refused(&["a tensor's name has 1000 bytes"], |file| file.tensor(NORM).0 = "x".repeat(1000));
    refused(&[NORM, "is missing"], |file| file.tensor(NORM).0 = "another".to_owned());
    refused(&["`another`", "is not part of `llama`"], |file| file.add("another", &[32]));
    refused(&["blk.0.attn_k.weight", "has shape [32, 32]", "requires [16, 32]"], |file| {
        file.set("llama.attention.head_count_kv", u32_value(1));
    });
    refused(&["`token_embd.weight`", "is missing"], |file| {
        file.tensors.retain(|tensor| tensor.0 != "token_embd.weight")
    });
    refused(&["rope_freqs.weight", "has shape [7]"], |file| file.add("rope_freqs.weight", &[7]));
    refused(&["rope_freqs.weight", "factors other than"], |file| file.add("rope_freqs.weight", &[8]));
}

/// What other converters write: a value for each layer, flags as numbers, -1 for a token that there is not.
#[test]
fn gguf_metadata_in_other_notations_are_read() {
    let plain = File::valid();
    let open = |file: &File| model_dir::load(&Damaged::new(&file.bytes()).path(), &options(None)).unwrap();
    let expected = open(&plain);
    let u8_value = |number: u8| [&0u32.to_le_bytes()[..], &[number]].concat();
    let i32_value = |number: i32| [5u32.to_le_bytes(), number.to_le_bytes()].concat();
    let mut file = plain.clone();
    let head_count = 2u32;
    for kind in [4, 5] {
        file.set("llama.attention.head_count", list_value(kind, 1, &head_count.to_le_bytes()));
        file.set("llama.attention.head_count_kv", list_value(kind, 2, &head_count.to_le_bytes().repeat(2)));
    }
    file.set("llama.attention.causal", u8_value(1));
    file.set("llama.expert_count", list_value(4, 2, &[0; 8]));
    file.set("tokenizer.ggml.add_bos_token", u8_value(0));
    file.set("tokenizer.ggml.padding_token_id", i32_value(-1));
    file.set("tokenizer.ggml.unknown_token_id", u32_value(u32::MAX));
    file.set("tokenizer.ggml.token_type", list_value(0, 4, &[1, 1, 1, 3]));
    let found = open(&file);
    assert_eq!(found.gpt.config(), expected.gpt.config());
    assert_eq!((found.tokenizer.pad(), found.tokenizer.unk()), (None, None));
    refused(&["`llama.attention.causal`"], |file| file.set("llama.attention.causal", u8_value(0)));
    refused(&["`tokenizer.ggml.add_bos_token` must be true or false"], |file| {
        file.set("tokenizer.ggml.add_bos_token", u8_value(2));
    });
    refused(&["`tokenizer.ggml.padding_token_id`"], |file| {
        file.set("tokenizer.ggml.padding_token_id", i32_value(-2));
    });
}

#[test]
fn invalid_gguf_model_metadata_is_rejected() {
    refused(&["architecture `mamba` is not supported", "`qwen3`"], |file| {
        file.set("general.architecture", text_value("mamba"));
    });
    refused(&["`general.architecture` is missing"], |file| drop(file.pairs.remove(0)));
    refused(&["`llama.block_count` must be a whole number", "\"one\""], |file| {
        file.set("llama.block_count", text_value("one"));
    });
    refused(&["`llama.block_count` is missing"], |file| {
        file.pairs.retain(|(key, _)| *key != "llama.block_count");
    });
    refused(&["n_layers"], |file| file.set("llama.block_count", u32_value(u32::MAX)));
    refused(&["blk.1.", "is missing"], |file| file.set("llama.block_count", u32_value(2)));
    refused(&["n_heads"], |file| file.set("llama.attention.head_count", u32_value(0)));
    refused(&["`llama.expert_used_count` is missing"], |file| file.set("llama.expert_count", u32_value(8)));
    refused(&["`blk.0.ffn_gate_inp.weight`", "is missing"], |file| {
        file.set("llama.expert_count", u32_value(8));
        file.set("llama.expert_used_count", u32_value(2));
    });
    refused(&["experts.n_active", "got 9"], |file| {
        file.set("llama.expert_count", u32_value(8));
        file.set("llama.expert_used_count", u32_value(9));
    });
    refused(&["`llama.expert_gating_func` is 7"], |file| {
        file.set("llama.expert_count", u32_value(8));
        file.set("llama.expert_used_count", u32_value(2));
        file.set("llama.expert_gating_func", u32_value(7));
    });
    refused(&["`llama.logit_scale` is 2"], |file| file.set("llama.logit_scale", f32_value(2.0)));
    refused(&["`llama.feed_forward_length` must be a whole number", "a list of 2"], |file| {
        file.set("llama.feed_forward_length", list_value(4, 2, &[32, 0, 0, 0, 33, 0, 0, 0]));
    });
    refused(&["`llama.rope.scaling.type` is \"spiral\"", "yarn, longrope"], |file| {
        file.set("llama.rope.scaling.type", text_value("spiral"));
    });
    refused(&["`rope_factors_short.weight`: is missing"], |file| {
        file.set("llama.rope.scaling.type", text_value("longrope"));
    });
    let lists = ["rope_factors_short.weight", "rope_factors_long.weight"];
    refused(&["`rope_factors_long.weight`: is missing"], |file| file.add(lists[0], &[8]));
    refused(&["`rope_factors_short.weight`: has shape [16]", "[8]"], |file| {
        lists.iter().for_each(|name| file.add(name, &[16]));
    });
    // They are zeros.
    refused(&["short_factors`: must be finite and positive, got 0"], |file| {
        lists.iter().for_each(|name| file.add(name, &[8]));
    });
    refused(&["`llama.rope.scaling.factor` cannot be combined with the tensors"], |file| {
        lists.iter().for_each(|name| file.add(name, &[8]));
        file.set("llama.rope.scaling.factor", f32_value(2.0));
    });
    refused(&["`llama.rope.scaling.factor` is 2"], |file| {
        file.set("llama.rope.scaling.type", text_value("longrope"));
        file.set("llama.rope.scaling.factor", f32_value(2.0));
    });
    refused(&["`llama.rope.scaling.attn_factor` is 1.5"], |file| {
        file.set("llama.rope.scaling.attn_factor", f32_value(1.5));
    });
    refused(&["layer_norm_rms_epsilon` must be a number", "NaN"], |file| {
        file.set("llama.attention.layer_norm_rms_epsilon", f32_value(f32::NAN));
    });
}

/// Truncated to any length, opening fails; with any byte before the tensor data changed, it fails or gives a model.
#[test]
fn damaged_gguf_files_never_panic() {
    let bytes = File::valid().bytes();
    for len in 0..bytes.len() {
        if len < 2000 || len % 97 == 0 {
            assert!(model_dir::load(&Damaged::new(&bytes[..len]).path(), &options(None)).is_err(), "{len}");
        }
    }
    for at in 0..bytes.len() - File::valid().data.len() {
        for change in [0x01, 0x80, 0xff] {
            let mut bytes = bytes.clone();
            bytes[at] ^= change;
            drop(model_dir::load(&Damaged::new(&bytes).path(), &options(None)));
        }
    }
}
