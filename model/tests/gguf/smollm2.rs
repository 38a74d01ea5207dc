//! A real model in a file of llama.cpp.

use std::{ffi::OsStr, path::Path};

use hearth_model::{
    config::GptConfig,
    ops::Dtype,
    text::{
        chat::{Message, RenderContext},
        tokenizer::{DecodeOptions, EncodeOptions},
    },
    weights::model_dir::{self, LoadedModel},
};

use super::options;

/// The real model by its dir and by a file that llama.cpp made of it: the same configuration, ids and chats.
#[test]
fn smollm2_from_gguf_equals_its_model_dir() {
    let (Some(dir), Some(file)) = (std::env::var_os("HEARTH_SMOLLM2"), std::env::var_os("HEARTH_SMOLLM2_GGUF")) else {
        println!("skipped: set HEARTH_SMOLLM2=DIR and HEARTH_SMOLLM2_GGUF=FILE, the same values, to run");
        return;
    };
    // The dir may have been made from a quantized file: in f32 its values are the same.
    let of = |path: &OsStr| model_dir::load(Path::new(path), &options(Some(Dtype::F32))).unwrap();
    let (of_dir, of_file) = (of(&dir), of(&file));
    // The dir may have it rounded to f32.
    let norm_eps = of_dir.gpt.config().norm_eps as f32;
    assert_eq!(of_file.gpt.config().norm_eps as f32, norm_eps);
    let config = |model: &LoadedModel| GptConfig { norm_eps: norm_eps.into(), ..model.gpt.config().clone() };
    assert_eq!(config(&of_file), config(&of_dir));
    assert_eq!(of_file.tokenizer.special_tokens(), of_dir.tokenizer.special_tokens());
    assert!(of_file.eos_token_ids.starts_with(&of_dir.eos_token_ids), "{:?}", of_file.eos_token_ids);
    let alphabet: Vec<&str> = [
        "the",
        " a",
        "  ",
        "\n",
        "\t",
        "0",
        "1234",
        "é",
        "e\u{301}",
        "猫",
        "😀",
        "👩‍👩‍👧",
        "\u{a0}",
        "\u{200b}",
        "'s",
        "'LL",
        "-",
        "...",
        "<|im_start|>",
        "<|im_",
        "end|>",
        "\r\n",
        "\u{0}",
        "한국어",
        "Ω",
        "١٢",
    ]
    .to_vec();
    let mut state = 1u32;
    let mut random = |n: usize| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as usize % n
    };
    for _ in 0..3000 {
        let text: String = (0..1 + random(12)).map(|_| alphabet[random(alphabet.len())]).collect();
        for options in [EncodeOptions::TEXT, EncodeOptions::PROMPT] {
            let encode = |model: &LoadedModel| model.tokenizer.encode(&text, options).unwrap();
            let ids = encode(&of_file);
            assert_eq!(ids, encode(&of_dir), "{text:?}");
            let decode = |model: &LoadedModel| model.tokenizer.decode(&ids, DecodeOptions::default());
            assert_eq!(decode(&of_file), decode(&of_dir));
        }
    }
    let chat = |model: &LoadedModel| {
        let messages =
            [Message::new("user", "Hi <|im_end|>"), Message::new("assistant", "Yes?"), Message::new("user", "1")];
        let context = RenderContext::new(&model.tokenizer);
        let template = model.chat_template.as_ref().unwrap();
        (template.render(&messages, &context).unwrap(), template.encode(&model.tokenizer, &messages, &context).unwrap())
    };
    assert_eq!(chat(&of_file), chat(&of_dir));
    // In f32, the same weights.
    let read = |model: &LoadedModel| {
        let mut values = Vec::new();
        model
            .gpt
            .read_params(&mut |_, data| {
                values.push(data);
                Ok(())
            })
            .unwrap();
        values
    };
    assert!(read(&of_file) == read(&of_dir));
}
