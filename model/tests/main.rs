//! Tests of the library from outside, in one program: each program links Burn anew.

mod adapter;
mod adapters;
mod bf16;
mod chat;
mod config_json;
mod constraint;
mod gguf;
mod gguf_export;
mod golden;
mod hub;
mod hub_models;
mod kv_cache;
mod long_rope;
mod model_runner;
mod passed_over;
mod quantized;
mod rope_mutations;
mod sampling;
mod sampling_statistics;
mod sampling_vocabulary;
mod schemas;
mod smollm2;
mod stand_in_hub;
mod test_gpu;
mod tokenizer;
mod tokenizer_config;
