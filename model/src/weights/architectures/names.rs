//! The tensors of a class's files for each of Hearth's parameters: a list for each class, by family. Classes share
//! lists: a class may have names of parameters that it never uses.

mod encoders;
mod experts;
mod gpt;
mod latent;
mod llama;
mod mamba;
mod norms;
mod recurrent;
mod seq2seq;

pub(super) use self::{
    encoders::{BERT, DISTILBERT, MODERN_BERT, MPNET, NOMIC_BERT, ROBERTA},
    experts::{
        AFMOE, ERNIE_MOE, EXAONE_MOE, FLEX_OLMO, GLM_MOE, GPT_OSS, GRANITE_MOE, HUNYUAN_MOE, MINIMAX_M2, MIXTRAL,
        QWEN_MOE,
    },
    gpt::{
        BIGCODE, BLOOM, CODEGEN, CTRL, FALCON, GPT_NEO, GPT1, GPT2, GPTJ, MPT, NEOX, OPT, PERSIMMON, PHI, STARCODER2,
    },
    latent::{LATENT, LATENT_MOE},
    llama::{APERTUS, EXAONE, GLM, HUNYUAN, INTERLEAVED, LLAMA, NANOCHAT, PHI3, STABLELM, UNGATED},
    mamba::{BAMBA, GRANITE_HYBRID, NEMOTRON_H},
    norms::{COHERE, GEMMA2, GEMMA4, GLM4, HYPERCLOVAX, MUSE_GLIMMER, OLMO2},
    recurrent::{LFM2, QWEN3_5, QWEN3_NEXT},
    seq2seq::{BART, T5, UMT5},
};
