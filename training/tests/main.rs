//! Tests of training from outside, in one program: each program links Burn anew.

mod evaluation;
mod optim;
mod overfit;
mod quickstart;
