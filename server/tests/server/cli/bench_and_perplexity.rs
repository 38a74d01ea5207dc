//! `hearth bench` and `hearth perplexity`.

use std::fs;

use burn::tensor::Device;
use hearth_model::{
    TokenId,
    gpt::kv_cache::KvCache,
    ops::{KvDtype, has_fast_bf16_products},
    text::tokenizer::{EncodeOptions, Tokenizer},
};
use serde_json::{Value, json};

use super::{model_dir, path, run, stderr, stdout};
use crate::{
    plain_generation::next_logits,
    support::{EOS, gpt},
};

/// Both commands accept `--kv-cache-dtype`, and report the dtype of their KV cache.
#[test]
fn bench_and_perplexity_use_the_requested_kv_cache_dtype() {
    let (model, parent) = (model_dir(), tempfile::tempdir().unwrap());
    let text = parent.path().join("text");
    fs::write(&text, "abcabcaabbcc".repeat(8)).unwrap();
    let last_line = |args: &[&str]| {
        let output = run(&[args, &["--model", path(model.path()), "--device", "cpu"]].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        serde_json::from_str::<Value>(stdout(&output).lines().last().unwrap()).unwrap()
    };
    let bench = ["bench", "--prefill", "8", "--prompt", "24", "--steps", "16", "--batch", "2", "--runs", "1"];
    let perplexity = ["perplexity", path(&text), "--context", "32"];
    for (more, expected) in [
        (&[][..], "f32"),
        (&["--quantize", "q8"], "f16"),
        (&["--dtype", "f16", "--kv-cache-dtype", "auto"], "f16"),
        (&["--dtype", "bf16"], "f32"),
        (&["--quantize", "q8", "--kv-cache-dtype", "f32"], "f32"),
        (&["--kv-cache-dtype", "f16"], "f16"),
        (&["--kv-cache-dtype", "q8"], "q8"),
    ] {
        let report = last_line(&[&bench[..], more].concat());
        assert_eq!(report["kv_cache_dtype"], expected, "{more:?}");
        assert_eq!(report["precision"], "f32", "{more:?}");
        // Two sequences of 24 + 8 tokens on average: half of the 16 steps.
        let gpt = gpt();
        let config = gpt.config();
        let n_heads = 2 * 32 * 2 * config.n_layers * config.n_kv_heads;
        let n_bytes = match expected {
            "f32" => n_heads * config.head_dim * 4,
            "f16" => n_heads * config.head_dim * 2,
            // Dimensions are stored sixteen at a time, with a factor.
            _ => n_heads * (config.head_dim.next_multiple_of(16) + 4),
        };
        assert_eq!(report["results"][1]["kv_bytes_per_step"], n_bytes, "{more:?}");
        assert_eq!(last_line(&[&perplexity[..], more].concat())["kv_cache_dtype"], expected, "{more:?}");
    }
    // A batch beyond the available memory is rejected before anything is allocated.
    for (batch, flags) in [("18446744073709551615", ["--prompt", "8"]), ("1000000000000", ["--prompt", "16"])] {
        let vast =
            run(&[&["bench", "--model", path(model.path()), "--steps", "1", "--batch", batch], &flags[..]].concat());
        assert_eq!(vast.status.code(), Some(1), "{}", stderr(&vast));
        let message = format!("error: `--batch` {batch} needs ");
        assert!(stderr(&vast).contains(&message) && stderr(&vast).contains(" GiB are available"), "{}", stderr(&vast));
    }
    for (wrong, hint) in [(["--dtype", "q8"], "`--quantize q8`"), (["--quantize", "bf16"], "`--dtype bf16`")] {
        let output = run(&[&["generate", "a"][..], &wrong].concat());
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains("must be") && stderr(&output).contains(hint), "{}", stderr(&output));
    }
    let wrong = run(&["generate", "a", "--kv-cache-dtype", "q4"]);
    assert_eq!(wrong.status.code(), Some(2));
    let message = stderr(&wrong);
    assert!(message.contains("'q4' for '--kv-cache-dtype") && message.contains("auto, f32, f16, q8"), "{message}");
}

#[test]
fn max_seq_len_limits_the_context_of_commands() {
    let (model, parent) = (model_dir(), tempfile::tempdir().unwrap());
    let text = parent.path().join("text");
    fs::write(&text, "abcabcaabbcc".repeat(8)).unwrap();
    for (context, message) in [
        ("16", "`--context` must be in 4..=16 for this model, got 32"),
        ("0", "`--max-seq-len` must be from 1 to "),
        ("1000000", "the model's context, got 1000000"),
    ] {
        let args = ["perplexity", path(&text), "--context", "32", "--max-seq-len", context, "--model"];
        let refused = run(&[&args[..], &[path(model.path()), "--device", "cpu"]].concat());
        assert!(refused.status.code() == Some(1) && stderr(&refused).contains(message), "{}", stderr(&refused));
    }
}

/// Computes the definition from the model's logits: the loss of the second half of each window without its first token.
#[test]
fn perplexity_command_matches_its_definition() {
    let (model, parent) = (model_dir(), tempfile::tempdir().unwrap());
    let text = parent.path().join("text");
    std::fs::write(&text, "abcabcaabbcc".repeat(5)).unwrap();
    let perplexity = |context: &str| {
        let args = ["perplexity", path(&text), "--model", path(model.path()), "--device", "cpu", "--context", context];
        let output = run(&args);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let json = stdout(&output).lines().last().unwrap().to_owned();
        serde_json::from_str::<Value>(&json).unwrap()
    };
    let gpt = gpt();
    let tokenizer = Tokenizer::from_dir(model.path()).unwrap();
    let ids = tokenizer.encode(&"abcabcaabbcc".repeat(5), EncodeOptions::TEXT).unwrap();
    let check = |bos: Option<TokenId>| {
        let report = perplexity("16");
        let ids: Vec<TokenId> = bos.into_iter().chain(ids.clone()).collect();
        let (mut loss, mut n) = (0.0, 0);
        for window in ids.chunks_exact(16) {
            let window = [&[bos.unwrap_or(window[0])], &window[1..]].concat();
            for end in 9..16 {
                let mut cache = KvCache::new(gpt.config(), 1, KvDtype::F32, &gpt.device());
                let mut table = cache.table();
                let logits = next_logits(&gpt, &mut cache, &mut table, &window[..end]);
                let total: f64 = logits.iter().map(|logit| f64::from(*logit).exp()).sum();
                loss += total.ln() - f64::from(logits[window[end] as usize]);
                n += 1;
            }
        }
        assert_eq!(report["n_predicted"], n);
        let found = report["perplexity"].as_f64().unwrap();
        assert!((found / (loss / f64::from(n)).exp() - 1.0).abs() < 1e-4, "{report}");
    };
    check(None);
    // As in llama.cpp, each window begins with the BOS token if the tokenizer adds one.
    let write = |name: &str, json: &Value| std::fs::write(model.path().join(name), json.to_string()).unwrap();
    let mut json: Value = serde_json::from_slice(&std::fs::read(model.path().join("tokenizer.json")).unwrap()).unwrap();
    json["post_processor"] = json!({
        "type": "TemplateProcessing", "pair": [],
        "single": [{ "SpecialToken": { "id": "<|end|>", "type_id": 0 } }, { "Sequence": { "id": "A", "type_id": 0 } }],
        "special_tokens": { "<|end|>": { "id": "<|end|>", "ids": [EOS], "tokens": ["<|end|>"] } },
    });
    write("tokenizer.json", &json);
    write("tokenizer_config.json", &json!({ "bos_token": "<|end|>", "eos_token": "<|end|>" }));
    check(Some(EOS));
}

#[test]
fn bench_random_rejects_a_shape_larger_than_memory() {
    let dir = tempfile::tempdir().unwrap();
    let shape = json!({
        "model_type": "llama", "vocab_size": 1 << 28, "hidden_size": 16384, "intermediate_size": 64,
        "num_hidden_layers": 1, "num_attention_heads": 64, "max_position_embeddings": 64,
    });
    fs::write(dir.path().join("config.json"), shape.to_string()).unwrap();
    let output = run(&["bench", "--device", "cpu", "--random", path(dir.path())]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("GiB of memory, but") && stderr(&output).contains("hint: "),
        "{}",
        stderr(&output)
    );
}

#[test]
fn bench_grammars_reports_compile_mask_and_step_times() {
    let dir = model_dir();
    let output = run(&["bench", "--grammars", "--device", "cpu", "--model", path(dir.path())]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let report: Value = serde_json::from_str(stdout(&output).lines().last().unwrap()).unwrap();
    let grammars = report["grammars"].as_array().unwrap();
    assert_eq!(grammars.len(), 4);
    for measured in grammars {
        let number = |name: &str| measured[name].as_f64().unwrap();
        assert!(number("n_tokens") > 0.0 && number("mean_mask_us") > 0.0 && number("compile_ms") > 0.0, "{measured}");
        assert!(number("mean_mask_us") <= number("worst_mask_us") && number("mean_step_us") > 0.0, "{measured}");
    }
}

/// `--precision bf16` needs weights in bf16 and a CPU with fast bf16 products.
#[test]
fn bf16_precision_requires_bf16_weights_and_cpu_support() {
    let (model, parent) = (model_dir(), tempfile::tempdir().unwrap());
    let text = parent.path().join("text");
    fs::write(&text, "abcabcaabbcc".repeat(8)).unwrap();
    let run = |more: &[&str]| {
        let args = ["perplexity", path(&text), "--context", "32", "--model", path(model.path()), "--device", "cpu"];
        run(&[&args[..], more].concat())
    };
    let loss = |more: &[&str]| {
        let output = run(more);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let report: Value = serde_json::from_str(stdout(&output).lines().last().unwrap()).unwrap();
        report["perplexity"].as_f64().unwrap().ln()
    };
    let refused = run(&["--precision", "bf16", "--dtype", "bf16"]);
    if !has_fast_bf16_products(&Device::flex()) {
        assert!(stderr(&refused).contains("`--precision` is `bf16`, which this CPU multiplies no faster than f32"));
        return;
    }
    let (exact, rounded) = (loss(&["--dtype", "bf16"]), loss(&["--dtype", "bf16", "--precision", "bf16"]));
    assert!(exact != rounded && (exact - rounded).abs() < 0.01, "{exact}, {rounded}");
    let refused = run(&["--precision", "bf16", "--dtype", "f32"]);
    let message = "`--precision` is `bf16`, which is for weights in bf16; they are in f32\nhint: add `--dtype bf16`";
    assert!(refused.status.code() == Some(1) && stderr(&refused).contains(message), "{}", stderr(&refused));
}
