//! Tests of training from outside, in one program: each program links Burn anew.

mod accumulation;
mod data;
mod evaluation;
mod import;
mod memory;
mod optim;
mod overfit;
mod parquet;
mod quickstart;
mod recipe;
mod resume;
