//! Tests of training from outside, in one program: each program links Burn anew.

mod accumulation;
mod classify;
mod contrastive;
mod conversations;
mod data;
mod dataset;
mod eval;
mod eval_commands;
mod evaluation;
mod finetune;
mod finetune_length;
mod hub;
mod import;
mod known_model;
mod masks;
mod memory;
mod metrics;
mod mlm;
mod moved;
mod optim;
mod overfit;
mod parquet;
#[path = "../../model/tests/plain_generation.rs"]
mod plain_generation;
mod quickstart;
mod ranks;
mod recipe;
mod replicas;
mod resume;
mod retrieval;
#[path = "../../model/tests/stand_in_hub.rs"]
#[expect(dead_code, reason = "the model's tests use the rest")]
mod stand_in_hub;
#[path = "../../model/tests/test_gpu.rs"]
mod test_gpu;
mod tuning;
