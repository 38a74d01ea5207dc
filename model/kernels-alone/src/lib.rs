//! The CPU's kernels without Burn and the rest of Hearth: they build in seconds, also for a processor that is emulated.
//! `README.md` beside this file has the commands.
#![allow(dead_code, unused_imports, unreachable_pub, reason = "callers are missing here")]

pub mod config {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum NormKind {
        LayerNorm,
        RmsNorm,
    }
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Activation {
        Relu,
        ReluSquared,
        Gelu,
        GeluTanh,
        Silu,
    }
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct ClampedSwiglu {
        pub alpha: f64,
        pub limit: f64,
    }
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum QkNormSpan {
        Head,
        AllHeads,
        EachHead,
    }
}

mod error {
    #[derive(Debug)]
    pub enum Error {
        Param { name: &'static str, what: String },
    }
    pub type Result<T> = std::result::Result<T, Error>;
}

pub mod ops;
