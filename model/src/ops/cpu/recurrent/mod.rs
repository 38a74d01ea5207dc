//! Recurrent layers: short convolutions, recurrences with a matrix as state, and their gates and norms.
//!
//! A row of a sequence changes the sequence's state and reads it, in the order of the rows, by one sequence of operations for
//! each value. So its bits depend neither on how the sequence is cut into steps nor on what else is in a step.

mod conv;
mod gates;
mod kernel;
#[expect(unsafe_code, reason = "compiled for instructions beyond the target's baseline, with raw loads")]
mod lanes;
mod norm;
mod products;
mod states;

pub(in crate::ops) use conv::Conv;
pub(in crate::ops) use gates::{delta_gates, state_space_gates};
pub(super) use kernel::{Pass, normalized_keys, recall};
pub(in crate::ops) use kernel::{RecurrentOperands, recurrence};
pub(super) use lanes::{Lanes, Plain, for_each_register};
pub(in crate::ops) use norm::gated_norm;
pub(in crate::ops) use products::{gate_rows, multiply_rows, product};
pub(in crate::ops) use states::States;
