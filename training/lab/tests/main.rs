//! Tests of the laboratory from outside, in one program.

mod decoding;
#[path = "../../tests/known_model.rs"]
mod known_model;
mod tales;
