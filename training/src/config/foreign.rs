//! Settings by their names in other programs, for the error about an unknown key and the table in docs/settings.md.

/// A setting that other programs have under another name.
struct Foreign {
    /// Its names there.
    names: &'static [&'static str],
    /// These programs.
    programs: &'static str,
    /// The setting to use here, as Markdown.
    here: &'static str,
}

const fn row(names: &'static [&'static str], programs: &'static str, here: &'static str) -> Foreign {
    Foreign { names, programs, here }
}

const NANOGPT: &str = "nanoGPT";
const LITGPT: &str = "LitGPT";
const HF: &str = "Hugging Face";
const TRL: &str = "TRL";
const PEFT: &str = "PEFT";

/// The table. A name is the last part of a key, in lower case and with `_`.
const FOREIGN: &[Foreign] = &[
    row(&["batch_size"], NANOGPT, "`data.micro_batch_size`, the rows that go through the model at once"),
    row(&["block_size"], "nanoGPT, LitGPT", "`model.max_seq_len`"),
    row(
        &["gradient_accumulation_steps", "gradient_accumulation_iters"],
        "nanoGPT, Hugging Face, LitGPT",
        "`data.tokens_per_step`, the tokens of a step: accumulation steps times `data.micro_batch_size` times `model.max_seq_len`",
    ),
    row(
        &["n_layer", "num_layers", "num_hidden_layers", "depth"],
        "nanoGPT, LitGPT, Hugging Face, nanochat",
        "`model.n_layers`",
    ),
    row(&["n_head", "num_attention_heads"], "nanoGPT, LitGPT, Hugging Face", "`model.n_heads`"),
    row(
        &["n_query_groups", "num_key_value_heads", "n_kv_head"],
        "LitGPT, Hugging Face, nanochat",
        "`model.n_kv_heads`",
    ),
    row(&["n_embd", "hidden_size"], "nanoGPT, LitGPT, Hugging Face", "`model.d_model`"),
    row(&["intermediate_size", "n_inner"], "LitGPT, Hugging Face", "`model.d_ff`"),
    row(&["num_experts", "num_local_experts", "n_expert"], "Hugging Face, LitGPT", "`model.n_experts`"),
    row(&["num_experts_per_tok", "n_expert_per_token"], "Hugging Face, LitGPT", "`model.n_active_experts`"),
    row(&["moe_intermediate_size"], "Hugging Face, LitGPT", "`model.expert_d_ff`"),
    row(&["head_size"], LITGPT, "`model.head_dim`"),
    row(
        &["n_positions", "n_ctx", "max_position_embeddings", "sequence_len"],
        "Hugging Face, nanochat",
        "`model.max_seq_len`",
    ),
    row(&["max_seq_length", "max_length"], "LitGPT, TRL", "`model.max_seq_len`"),
    row(&["max_prompt_length", "max_completion_length"], TRL, "`model.max_seq_len`, of prompt and answer together"),
    row(&["rope_base"], LITGPT, "`model.rope_theta`"),
    row(&["tie_word_embeddings"], HF, "`model.tie_embeddings`"),
    row(&["initializer_range"], HF, "`model.embedding_std`"),
    row(&["model_type", "model_name"], "Hugging Face, LitGPT", "`model.arch`, or `model.init` to start from a model"),
    row(
        &["init_from", "model_name_or_path", "initial_checkpoint_dir"],
        "nanoGPT, TRL, LitGPT",
        "`model.init` (`--init`); the argument `MODEL` of `finetune`",
    ),
    row(&["attention_dropout", "hidden_dropout_prob", "resid_pdrop", "attn_pdrop"], HF, "`model.dropout`"),
    row(
        &["padded_vocab_size", "vocab_size"],
        "LitGPT, Hugging Face",
        "`data.vocab_size` in `quickstart`; otherwise the tokenizer's",
    ),
    row(&["learning_rate", "embedding_lr", "unembedding_lr"], "nanoGPT, Hugging Face, nanochat", "`optim.lr`"),
    row(&["matrix_lr"], "nanochat", "`optim.muon.lr`"),
    row(&["adam_beta1"], HF, "`optim.beta1`"),
    row(&["adam_beta2"], HF, "`optim.beta2`"),
    row(&["adam_epsilon"], HF, "`optim.eps`"),
    row(
        &["grad_clip", "max_norm", "max_grad_norm", "gradient_clip_val"],
        "nanoGPT, LitGPT, Hugging Face, Lightning",
        "`optim.clip`",
    ),
    row(&["gradient_checkpointing", "activation_checkpointing"], "Hugging Face, LitGPT", "`optim.recompute`"),
    row(
        &["bf16", "fp16", "dtype", "torch_dtype"],
        "Hugging Face, nanoGPT",
        "`optim.precision` (`f32` or `bf16`); `checkpoint.save_dtype` for the saved model",
    ),
    row(&["optimizer"], "LitGPT, Hugging Face", "`optim.matrices` (`adamw` or `muon`)"),
    row(
        &["max_iters", "num_iterations", "num_training_steps"],
        "nanoGPT, nanochat, Hugging Face",
        "`schedule.max_steps`",
    ),
    row(&["num_train_epochs", "num_epochs"], "Hugging Face, nanochat", "`schedule.epochs`"),
    row(&["target_param_data_ratio"], "nanochat", "`schedule.tokens_per_param`"),
    row(&["max_time"], LITGPT, "`schedule.max_minutes`"),
    row(&["warmup_iters", "lr_warmup_steps"], "nanoGPT, LitGPT", "`schedule.warmup_steps`"),
    row(&["warmup_ratio", "lr_warmup_fraction"], "Hugging Face, LitGPT, nanochat", "`schedule.warmup_steps`, in steps"),
    row(&["warmdown_ratio"], "nanochat", "`schedule.cooldown_ratio` with `schedule.kind=wsd`"),
    row(&["lr_decay_iters"], NANOGPT, "the steps of the run, `schedule.max_steps`"),
    row(&["decay_lr"], NANOGPT, "`schedule.kind=constant` if false"),
    row(&["lr_scheduler_type", "lr_scheduler"], HF, "`schedule.kind`"),
    row(
        &["min_lr", "final_lr_frac", "min_lr_rate"],
        "nanoGPT, LitGPT, nanochat, Hugging Face",
        "`schedule.min_lr_ratio`, a fraction of the highest learning rate",
    ),
    row(
        &["per_device_train_batch_size", "per_device_eval_batch_size", "device_batch_size"],
        "Hugging Face, nanochat",
        "`data.micro_batch_size`",
    ),
    row(&["global_batch_size", "total_batch_size"], "LitGPT, nanochat", "`data.tokens_per_step`, in tokens"),
    row(&["packing", "group_by_length"], TRL, "`data.rows` (`documents` packs, `unpacked` does not)"),
    row(&["dataset", "dataset_name", "train_file", "data_dir"], "nanoGPT, TRL", "`--data`"),
    row(
        &["validation_split_percentage", "val_split_fraction", "test_size"],
        "Hugging Face, LitGPT",
        "`data.val_fraction`, a fraction",
    ),
    row(&["truncation_mode"], TRL, "`data.too_long`"),
    row(&["loss_type"], TRL, "`objective.kind`"),
    row(&["lora_r", "lora_rank"], "LitGPT, PEFT", "`lora.r` (`--lora r=16`)"),
    row(&["lora_alpha"], "LitGPT, PEFT", "`lora.alpha`"),
    row(&["lora_dropout"], "LitGPT, PEFT", "`lora.dropout`"),
    row(
        &[
            "target_modules",
            "lora_target_modules",
            "lora_query",
            "lora_key",
            "lora_value",
            "lora_projection",
            "lora_mlp",
            "lora_head",
        ],
        "PEFT, LitGPT",
        "`lora.targets`",
    ),
    row(&["target_parameters"], PEFT, "`lora.target_parameters`"),
    row(&["layers_to_transform"], PEFT, "`lora.layers`"),
    row(&["use_rslora"], PEFT, "`lora.rslora`"),
    row(&["use_peft"], TRL, "`--lora`"),
    row(&["load_in_4bit", "load_in_8bit", "quantize"], "TRL, LitGPT", "`lora.base=q4` or `q8`"),
    row(
        &["eval_interval", "eval_steps", "eval_every", "eval_strategy", "evaluation_strategy"],
        "nanoGPT, Hugging Face, nanochat",
        "`eval.every`",
    ),
    row(&["eval_iters", "max_eval_samples", "eval_tokens"], "nanoGPT, Hugging Face, nanochat", "`eval.batches`"),
    row(&["log_interval", "logging_steps"], "nanoGPT, LitGPT, Hugging Face", "`eval.log_every`"),
    row(&["early_stopping_patience"], HF, "`eval.patience`"),
    row(&["max_new_tokens"], "nanoGPT, LitGPT, Hugging Face", "`sample.max_tokens`"),
    row(&["start"], NANOGPT, "`sample.prompt`; the argument `PROMPT` of `sample`"),
    row(&["num_samples", "num_return_sequences"], "nanoGPT, LitGPT, Hugging Face", "`-n` of `hearth-train sample`"),
    row(
        &["save_interval", "save_steps", "save_every", "save_strategy"],
        "LitGPT, Hugging Face, nanochat",
        "`checkpoint.every`",
    ),
    row(&["save_total_limit"], HF, "`checkpoint.keep`"),
    row(&["out_dir", "output_dir"], "nanoGPT, LitGPT, Hugging Face", "`--out`"),
    row(&["resume", "resume_from_checkpoint"], "LitGPT, Hugging Face", "`--resume`"),
    row(&["device", "use_cpu", "no_cuda", "accelerator"], "nanoGPT, Hugging Face", "`--device`"),
    row(&["data_seed"], HF, "`seed`"),
];

/// A hint for the setting `key` of another program, if it is one.
pub(super) fn hint_of_foreign(key: &str) -> Option<String> {
    let name = key.rsplit('.').next()?.to_lowercase().replace('-', "_");
    let found = FOREIGN.iter().find(|foreign| foreign.names.contains(&&*name))?;
    Some(format!("`{name}` ({}) is here {}; docs/settings.md has a table of such names", found.programs, found.here))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use std::collections::BTreeSet;

    use super::*;
    use crate::config::{hint_of_unknown, known_keys};

    #[test]
    fn settings_docs_page_has_the_table_of_names_in_other_programs() {
        let page = include_str!("../../../docs/settings.md");
        let (_, table) = page.split_once("## Names in other programs").unwrap();
        let listed: Vec<&str> = table.lines().filter(|line| line.starts_with("| `")).collect();
        let row = |foreign: &Foreign| {
            let names: Vec<String> = foreign.names.iter().map(|name| format!("`{name}`")).collect();
            format!("| {} | {} | {} |", names.join(", "), foreign.programs, foreign.here)
        };
        assert_eq!(listed, FOREIGN.iter().map(row).collect::<Vec<_>>());
    }

    #[test]
    fn names_in_other_programs_occur_once_and_lead_to_settings_that_exist() {
        let (keys, mut names) = (known_keys(), BTreeSet::new());
        for foreign in FOREIGN {
            for name in foreign.names {
                assert!(names.insert(name), "{name} twice");
                let hint = hint_of_unknown(&format!("train.{name}"));
                assert!(hint.contains(&format!("`{name}` (")) && hint.contains(foreign.here), "{hint}");
            }
            let quoted = foreign.here.split('`').skip(1).step_by(2).map(|text| text.split('=').next().unwrap_or(text));
            for key in quoted.filter(|text| text.contains('.')) {
                assert!(keys.iter().any(|known| known == key), "`{key}` is no setting");
            }
        }
        assert!(hint_of_unknown("Learning-Rate").contains("`optim.lr`"), "{}", hint_of_unknown("Learning-Rate"));
    }
}
