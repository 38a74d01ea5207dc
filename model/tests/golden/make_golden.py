#!/usr/bin/env python3
"""Makes the golden references that the model crate is compared with.

Usage:
    python make_golden.py               every case of the table below, and versions.json
    python make_golden.py gpt2 llama    these cases only (needs the library versions of versions.json)
    python make_golden.py --list        the names of the cases

Needs torch, transformers and safetensors (no GPU, no network). The versions that made the committed
files, the seed of every case and the numbers measured on it are in `versions.json` beside this file.

Each case becomes a folder `<case>/`:
    config.json, model.safetensors (or an index and its shards), generation_config.json
        written by transformers' `save_pretrained`; there is no tokenizer
    oracle.safetensors
        input_ids       [batch, seq] int32, uniform random ids
        logits          [batch, seq, vocab] f32
        loss            [1] f32: mean cross entropy, in nats, of input_ids[:, 1:] under logits[:, :-1]
        grad.<name>     f32, the shape of the tensor <name> of model.safetensors: d loss / d parameter.
                        A tied embedding appears once, with the sum of both uses. Absent in the cases that
                        store another case's weights in another way (`storage_of` in the table).
        logits_alone    [batch, alone_len, vocab] f32, where `alone_len` is given: the logits of the first so many ids
                        of each sequence without those that follow

    router_losses.safetensors, of some mixtures
        counted         [batch * seq] f32: 1 for the rows that count
        balance, z      [1] f32: the load-balancing loss and the router z-loss; `_counted`: over these rows
        grad.<name>     f32: the gradients of ROUTER_LOSS_WEIGHTS times the last two

How the numbers come about. All weights are random, drawn in the order of `named_parameters` from one
generator per case. Everything is computed twice with eager attention, in float32 and in float64, where
the places that transformers pins to float32 (softmax, RMSNorm, rotary tables) are lifted to float64 too.
The float64 results are the ones stored, cast to f32.

A reference is only as good as what it would notice, so a case is refused unless
    - attention is sharp but not saturated, and the logits spread (see `check_not_gentle`),
    - float32 and float64 agree far better than Hearth is asked to agree with either,
    - every parameter has a gradient, but for those whose true gradient is zero (`zero_gradients`),
    - each change of the configuration listed under `teeth` moves the logits well beyond the tolerance,
    - the folder opens again with `AutoModelForCausalLM` with no key missing or left over, same logits.

A new case is one entry in CASES. Run it twice: the bytes must not change.
"""

import argparse
import contextlib
import copy
import inspect
import json
import os
import platform
import shutil
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import safetensors
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch.overrides import TorchFunctionMode
from transformers.core_model_loading import revert_weight_conversion
from transformers.modeling_outputs import CausalLMOutput
from transformers.models.muse_glimmer import modeling_muse_glimmer
from transformers.models.switch_transformers.modeling_switch_transformers import router_z_loss_func

HERE = Path(__file__).resolve().parent
VERSIONS_FILE = HERE / "versions.json"

# What Hearth is held to is 1e-4 of the logits' spread and 1e-3 of a gradient's norm.
MAX_LOGIT_DISAGREEMENT = 1e-5  # of the spread, float32 against float64
MAX_GRADIENT_DISAGREEMENT = 1e-4  # of the norm, float32 against float64
MIN_TOOTH = 1e-3  # of the spread: ten times the tolerance

# Only choose experts: not learned by gradients.
SELECTION_BIASES = ("e_score_correction_bias", "expert_bias")


@dataclass(frozen=True)
class Case:
    """One tiny model: what to build, and how wide its weights are.

    `weight_std` is the standard deviation of every matrix, embeddings included, unless `std_of` names a
    part of a parameter's name with its own. `norm_mean` is the centre of the norm weights (0 where the
    family adds the 1 itself), unless `mean_of` names a part of a parameter's name with its own. `teeth` are changes of the configuration, by field, that must show in the
    logits. `zero_gradients` are parts of names whose true gradient is zero, with the reason in a comment.
    `saved_as` is what `save_pretrained` calls a parameter, where that is not its name in the module.
    `first_id` is the least of the ids that are drawn.
    `router_losses` asks for router_losses.safetensors: the losses of the routers, and the gradients of
    ROUTER_LOSS_WEIGHTS times these.
    `alone_len` is the length of a start of the sequences whose logits depend on what follows.
    `published_as` are the keys of the config.json of a class that transformers does not have: the case's keys that
    neither the sizes nor this have are left out, and `architecture` computes the same.
    """

    architecture: str
    config: dict
    seed: int
    weight_std: float
    std_of: dict = field(default_factory=dict)
    norm_mean: float = 1.0
    mean_of: dict = field(default_factory=dict)
    seq_len: int = 24
    teeth: tuple = ()
    zero_gradients: tuple = ()
    saved_as: dict = field(default_factory=dict)
    alone_len: int = 0
    router_losses: bool = False
    first_id: int = 0
    published_as: dict = field(default_factory=dict)
    config_class: str = ""


    @property
    def is_encoder(self):
        """Encoders have no logits. Theirs are the products of the last hidden states and the embeddings."""
        return is_encoder(self.architecture)


@dataclass(frozen=True)
class Stored:
    """The weights of another case, stored in another way."""

    storage_of: str
    dtype: torch.dtype = torch.float32
    max_shard_size: str = "5GB"


# Kept inside the tiny vocabularies. No padding id: torch zeroes the gradient of that row of an embedding.
IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None}

GPT2 = {
    "vocab_size": 61,
    "n_positions": 40,
    "n_embd": 24,
    "n_layer": 3,
    "n_head": 3,
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-3,
    **IDS,
}
GPT2_TEETH = (
    {"layer_norm_epsilon": 1e-5},
    {"activation_function": "gelu"},
    {"n_head": 2},
    {"scale_attn_weights": False},
    {"scale_attn_by_inverse_layer_idx": True},
)

LLAMA = {
    "vocab_size": 61,
    "max_position_embeddings": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 52,
    "rms_norm_eps": 1e-3,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
    "tie_word_embeddings": False,
    **IDS,
}
LLAMA_TEETH = (
    {"rms_norm_eps": 1e-5},
    {"hidden_act": "gelu"},
    {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
)

# The families below are smaller still: hidden 16, two layers, 37 ids.
SMALL = {
    "vocab_size": 37,
    "max_position_embeddings": 64,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 28,
    **IDS,
}
SMALL_ROPE = {
    **SMALL,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "rms_norm_eps": 1e-3,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
    "tie_word_embeddings": False,
}
ROPE_TEETH = (
    {"rms_norm_eps": 1e-5},
    {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
)
# What a rope scaling must differ from: the same theta, unscaled.
UNSCALED = ({"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},)


def rope_case(seed, rope_parameters, teeth=UNSCALED, **config):
    """A small Llama with the given rope scaling."""
    return Case(
        "LlamaForCausalLM",
        {**SMALL_ROPE, **config, "rope_parameters": {"rope_theta": 500.0, **rope_parameters}},
        seed=seed,
        weight_std=0.5,
        teeth=teeth,
    )


def long_rope(**changes):
    """Rotary positions with the scaling of Phi 3's long contexts."""
    factors = {"short_factor": [1.0, 1.5, 2.5], "long_factor": [1.25, 4.0, 20.0]}
    return {"rope_type": "longrope", "rope_theta": 500.0, "partial_rotary_factor": 0.75, **factors, **changes}


def ministral3_rope(**changes):
    """Rotary positions as in Ministral 3, whose queries grow with their position."""
    return {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "beta_fast": 1.0, "beta_slow": 0.02, "attention_factor": 1.25,
            "original_max_position_embeddings": 5, "llama_4_scaling_beta": 0.6, **changes}


GLM = {
    **SMALL_ROPE,
    "head_dim": 12,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5},
}
GLM_TEETH = (
    {"rms_norm_eps": 1e-5},
    {"hidden_act": "gelu"},
    {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 1.0}},
)


def gemma4_rope(theta=500.0, share=0.5, windowed=100.0):
    return {"rope_parameters": {
        "full_attention": {"rope_type": "proportional", "rope_theta": theta, "partial_rotary_factor": share},
        "sliding_attention": {"rope_type": "default", "rope_theta": windowed},
    }}


GEMMA4 = {
    **SMALL,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "global_head_dim": 12,
    "rms_norm_eps": 1e-3,
    "sliding_window": 6,
    "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    "hidden_size_per_layer_input": 0,
    **gemma4_rope(),
}
GEMMA4_MEANS = {"q_norm": 0.8, "k_norm": 0.8}
GEMMA4_TEETH = (
    {"rms_norm_eps": 1e-5},
    {"hidden_activation": "silu"},
    {"sliding_window": 7},
    gemma4_rope(theta=100.0),
    gemma4_rope(share=1.0),
    gemma4_rope(windowed=10000.0),
)


BERT = {
    "vocab_size": 61,
    "max_position_embeddings": 42,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 52,
    "layer_norm_eps": 1e-3,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    **IDS,
}
BERT_TEETH = ({"layer_norm_eps": 1e-5}, {"hidden_act": "relu"}, {"num_attention_heads": 2})
# Adding the same to all scores of a query changes nothing.
BERT_ZEROS = ("key.bias",)

CASES = {
    "gpt2": Case("GPT2LMHeadModel", GPT2, seed=101, weight_std=0.35, teeth=GPT2_TEETH),
    # An MLP width that is not 4 * n_embd comes with it.
    "gpt2-untied": Case(
        "GPT2LMHeadModel",
        {**GPT2, "tie_word_embeddings": False, "n_inner": 52},
        seed=112,
        weight_std=0.35,
        teeth=GPT2_TEETH,
    ),
    "llama": Case("LlamaForCausalLM", LLAMA, seed=201, weight_std=0.35, teeth=LLAMA_TEETH),
    "llama-tied-bias": Case(
        "LlamaForCausalLM",
        {
            **LLAMA,
            "attention_bias": True,
            "mlp_bias": True,
            "head_dim": 12,
            "num_key_value_heads": 1,
            "tie_word_embeddings": True,
        },
        seed=202,
        weight_std=0.35,
        teeth=LLAMA_TEETH,
    ),
    "llama-sharded": Stored("llama", max_shard_size="20KB"),
    "llama-f16": Stored("llama", dtype=torch.float16),
    "llama-bf16": Stored("llama", dtype=torch.bfloat16),
    # The rest of the family.
    "mistral": Case(
        "MistralForCausalLM",
        {**SMALL_ROPE, "sliding_window": 5},
        seed=301,
        weight_std=0.5,
        teeth=(*ROPE_TEETH, {"sliding_window": None}, {"sliding_window": 6}),
    ),
    "qwen2": Case("Qwen2ForCausalLM", SMALL_ROPE, seed=302, weight_std=0.5, teeth=ROPE_TEETH),
    "qwen3": Case(
        "Qwen3ForCausalLM",
        {**SMALL_ROPE, "head_dim": 12},
        seed=303,
        weight_std=0.5,
        teeth=ROPE_TEETH,
    ),
    # Norms without weights, heads that rotate the other way round.
    "nanochat": Case(
        "NanoChatForCausalLM",
        {**SMALL_ROPE, "head_dim": 12, "attention_bias": True, "final_logit_softcapping": 3.0},
        seed=341,
        weight_std=0.5,
        teeth=(*ROPE_TEETH, {"hidden_act": "relu"}, {"final_logit_softcapping": 15.0}),
    ),
    # A layer without rotary positions, and windows on some layers, not the same.
    "smollm3": Case(
        "SmolLM3ForCausalLM",
        {
            **SMALL_ROPE,
            "num_hidden_layers": 3,
            "no_rope_layers": [1, 0, 1],
            "use_sliding_window": True,
            "sliding_window": 6,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            "attention_bias": True,
            "mlp_bias": True,
        },
        seed=314,
        weight_std=0.45,
        teeth=(
            *ROPE_TEETH,
            {"no_rope_layers": [1, 1, 1]},
            {"no_rope_layers": [0, 1, 1]},
            {"layer_types": ["full_attention", "sliding_attention", "full_attention"]},
            {"layer_types": ["full_attention", "full_attention", "full_attention"]},
            {"sliding_window": 7},
        ),
        zero_gradients=("layers.1.self_attn.k_proj.bias",),  # not rotated: as for OPT
    ),
    "granite": Case(
        "GraniteForCausalLM",
        {
            **SMALL_ROPE,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.6,
            "logits_scaling": 0.7,
            "attention_multiplier": 0.25,
        },
        seed=315,
        weight_std=0.5,
        teeth=(
            *ROPE_TEETH,
            {"embedding_multiplier": 1.0},
            {"residual_multiplier": 1.0},
            {"logits_scaling": 1.0},
            {"attention_multiplier": 12**-0.5},
        ),
    ),
    "olmo2": Case(
        "Olmo2ForCausalLM",
        {**SMALL_ROPE, "attention_bias": True},
        seed=316,
        weight_std=0.5,
        teeth=(*ROPE_TEETH, {"hidden_act": "gelu"}),
    ),
    # Its layers with the window rotate without the scaling.
    "olmo3": Case(
        "Olmo3ForCausalLM",
        {
            **SMALL_ROPE,
            "sliding_window": 6,
            "layer_types": ["full_attention", "sliding_attention"],
            "rope_parameters": {
                "full_attention": {"rope_theta": 500.0, "rope_type": "yarn", "factor": 4.0, "beta_fast": 4.0,
                                   "beta_slow": 0.05, "original_max_position_embeddings": 64},
                "sliding_attention": {"rope_theta": 500.0, "rope_type": "default"},
            },
            "max_position_embeddings": 256,
        },
        seed=317,
        weight_std=0.5,
        norm_mean=1.4,
        teeth=(
            {"rms_norm_eps": 1e-5},
            {"sliding_window": 7},
            {"layer_types": ["sliding_attention", "full_attention"]},
            {"rope_parameters": {kind: {"rope_theta": 500.0, "rope_type": "default"}
                                 for kind in ("full_attention", "sliding_attention")}},
        ),
    ),
    # Llama's variants, each with one thing or two of its own.
    "starcoder2": Case(
        "Starcoder2ForCausalLM",
        {**SMALL, "num_attention_heads": 2, "num_key_value_heads": 1, "norm_epsilon": 1e-3, "sliding_window": 7,
         "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
        seed=313,
        weight_std=0.55,
        teeth=({"norm_epsilon": 1e-5}, {"hidden_act": "gelu"}, {"sliding_window": None}),
    ),
    "ministral": Case(
        "MinistralForCausalLM",
        {**SMALL_ROPE, "num_hidden_layers": 3, "head_dim": 12, "sliding_window": 6,
         "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
        seed=601,
        weight_std=0.45,
        teeth=(*ROPE_TEETH, {"sliding_window": 7}, {"layer_types": ["sliding_attention"] * 3}),
    ),
    # Queries grow every 5 positions.
    "ministral3": Case(
        "Ministral3ForCausalLM",
        {**SMALL_ROPE, "head_dim": 12, "rope_parameters": ministral3_rope()},
        seed=602,
        weight_std=0.4,
        teeth=(
            {"rms_norm_eps": 1e-5},
            {"rope_parameters": ministral3_rope(llama_4_scaling_beta=0.2)},
            {"rope_parameters": ministral3_rope(factor=2.0)},
            {"rope_parameters": ministral3_rope(original_max_position_embeddings=6)},
            {"rope_parameters": ministral3_rope(attention_factor=1.0)},
        ),
    ),
    # Norms after the two parts; the layer without the window does not rotate.
    "exaone4": Case(
        "Exaone4ForCausalLM",
        {**SMALL_ROPE, "num_hidden_layers": 3, "head_dim": 12, "sliding_window": 6,
         "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
        seed=603,
        weight_std=0.5,
        norm_mean=1.4,
        teeth=(*ROPE_TEETH, {"hidden_act": "gelu"}, {"sliding_window": 7}, {"layer_types": ["sliding_attention"] * 3}),
    ),
    "ernie4-5": Case(
        "Ernie4_5ForCausalLM",
        {**SMALL_ROPE, "head_dim": 12, "use_bias": True, "tie_word_embeddings": True},
        seed=604,
        weight_std=0.55,
        teeth=(*ROPE_TEETH, {"hidden_act": "gelu"}),
    ),
    "glm": Case("GlmForCausalLM", GLM, seed=605, weight_std=0.5, teeth=GLM_TEETH),
    "glm4": Case("Glm4ForCausalLM", GLM, seed=606, weight_std=0.5, teeth=GLM_TEETH),
    # Norms of queries and keys after rotation.
    "hunyuan": Case(
        "HunYuanDenseV1ForCausalLM",
        {**SMALL_ROPE, "head_dim": 12, "attention_bias": True,
         "rope_parameters": {"rope_type": "dynamic", "rope_theta": 100.0, "alpha": 5.0, "factor": 1.0}},
        seed=607,
        weight_std=0.5,
        teeth=(
            {"rms_norm_eps": 1e-5},
            {"hidden_act": "gelu"},
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 100.0, "alpha": 50.0, "factor": 1.0}},
        ),
    ),
    "seed-oss": Case(
        "SeedOssForCausalLM",
        {**SMALL_ROPE, "head_dim": 12, "attention_out_bias": True, "mlp_bias": True, "residual_dropout": 0.0},
        seed=608,
        weight_std=0.45,
        teeth=(*ROPE_TEETH, {"hidden_act": "gelu"}),
    ),
    "gpt-neo": Case(
        "GPTNeoForCausalLM",
        {"vocab_size": 37, "max_position_embeddings": 40, "hidden_size": 16, "num_layers": 3, "num_heads": 2,
         "attention_types": [[["global", "local"], 1], [["local"], 1]], "window_size": 6, "layer_norm_epsilon": 1e-3, **IDS},
        seed=617,
        weight_std=0.35,
        teeth=(
            {"layer_norm_epsilon": 1e-5},
            {"activation_function": "gelu"},
            {"window_size": 7},
            {"attention_types": [[["local"], 3]]},
            {"attention_types": [[["local", "global", "local"], 1]]},
        ),
    ),
    "jais2": Case(
        "Jais2ForCausalLM",
        {**SMALL, "num_attention_heads": 2, "num_key_value_heads": 1, "layer_norm_eps": 1e-3, "head_dim": 12,
         "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
        seed=618,
        weight_std=0.45,
        teeth=({"layer_norm_eps": 1e-5}, {"hidden_act": "relu"}, ROPE_TEETH[1]),
    ),
    "hyperclovax": Case(
        "HyperCLOVAXForCausalLM",
        {
            **SMALL_ROPE,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.6,
            "logits_scaling": 1.5,
            "attention_multiplier": 0.25,
        },
        seed=619,
        weight_std=0.5,
        teeth=(
            *ROPE_TEETH,
            {"embedding_multiplier": 1.0},
            {"residual_multiplier": 1.0},
            {"logits_scaling": 1.0},
            {"attention_multiplier": 12**-0.5},
        ),
    ),
    # Its activation has two learned numbers in each layer.
    "apertus": Case(
        "ApertusForCausalLM",
        {**SMALL_ROPE, "attention_bias": True},
        seed=616,
        weight_std=0.5,
        teeth=(*ROPE_TEETH,),
    ),
    "arcee": Case(
        "ArceeForCausalLM",
        {**SMALL_ROPE, "head_dim": 12, "attention_bias": True, "mlp_bias": True},
        seed=609,
        weight_std=0.45,
        teeth=(*ROPE_TEETH, {"hidden_act": "relu"}),
    ),
    "nemotron": Case(
        "NemotronForCausalLM",
        {**SMALL, "num_attention_heads": 2, "num_key_value_heads": 1, "norm_eps": 1e-3, "attention_bias": True,
         "mlp_bias": True,
         "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5}},
        seed=610,
        weight_std=0.45,
        norm_mean=0.0,
        teeth=(
            {"norm_eps": 1e-5},
            {"hidden_act": "relu"},
            {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 1.0}},
        ),
    ),
    # Norms without weights, whose epsilon is a constant.
    "olmo": Case(
        "OlmoForCausalLM",
        {**{key: value for key, value in SMALL_ROPE.items() if key != "rms_norm_eps"}, "attention_bias": True},
        seed=611,
        weight_std=0.5,
        teeth=(ROPE_TEETH[1], {"hidden_act": "gelu"}),
    ),
    "helium": Case(
        "HeliumForCausalLM",
        {**SMALL_ROPE, "head_dim": 8, "attention_bias": True, "mlp_bias": True},
        seed=612,
        weight_std=0.45,
        teeth=(*ROPE_TEETH, {"hidden_act": "gelu"}),
    ),
    "cwm": Case(
        "CwmForCausalLM",
        {**SMALL_ROPE, "num_hidden_layers": 3, "head_dim": 12, "mlp_bias": True, "sliding_window": 6,
         "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
         "rope_parameters": {"rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.0,
                             "high_freq_factor": 4.0, "original_max_position_embeddings": 64}},
        seed=613,
        weight_std=0.55,
        teeth=({"rms_norm_eps": 1e-5}, {"sliding_window": 7}, {"layer_types": ["sliding_attention"] * 3}, *UNSCALED),
    ),
    "vaultgemma": Case(
        "VaultGemmaForCausalLM",
        {
            **SMALL_ROPE,
            "head_dim": 12,
            "tie_word_embeddings": True,
            "sliding_window": 6,
            "query_pre_attn_scalar": 7,
            "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 9.0,
        },
        seed=614,
        weight_std=0.4,
        norm_mean=0.0,
        teeth=(
            *ROPE_TEETH,
            {"hidden_activation": "silu"},
            {"sliding_window": 7},
            {"query_pre_attn_scalar": 12},
            {"attn_logit_softcapping": None},
            {"final_logit_softcapping": None},
        ),
    ),
    # Transformers has no such class. Its three scales are those of Granite under other names.
    "minicpm": Case(
        "GraniteForCausalLM",
        {
            **SMALL_ROPE,
            "num_hidden_layers": 4,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.9 / 2,
            "logits_scaling": 16 / 20,
            "attention_multiplier": 8**-0.5,
            "tie_word_embeddings": True,
        },
        seed=615,
        weight_std=0.5,
        teeth=(*ROPE_TEETH, {"embedding_multiplier": 1.0}, {"residual_multiplier": 1.0}, {"logits_scaling": 1.0}),
        published_as={
            "architectures": ["MiniCPMForCausalLM"],
            "model_type": "minicpm",
            "scale_emb": 3,
            "scale_depth": 0.9,
            "dim_model_base": 20,
            "rope_theta": 500.0,
        },
    ),
    "phi3": Case("Phi3ForCausalLM", SMALL_ROPE, seed=304, weight_std=0.5, teeth=ROPE_TEETH),
    "stablelm": Case(
        "StableLmForCausalLM",
        {
            **SMALL,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "layer_norm_eps": 1e-3,
            "use_qkv_bias": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5},
        },
        seed=371,
        weight_std=0.5,
        teeth=(
            {"layer_norm_eps": 1e-5},
            {"hidden_act": "gelu"},
            {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 1.0}},
        ),
    ),
    "gpt-neox-parallel": Case(
        "GPTNeoXForCausalLM",
        {
            **SMALL,
            "num_attention_heads": 2,
            "use_parallel_residual": True,
            "layer_norm_eps": 1e-3,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5},
        },
        seed=355,
        weight_std=0.5,
        teeth=(
            {"use_parallel_residual": False},
            {"layer_norm_eps": 1e-5},
            {"hidden_act": "gelu_new"},
            {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 1.0}},
        ),
        saved_as={"lm_head.weight": "embed_out.weight"},
    ),
    "gpt-neox-serial": Case(
        "GPTNeoXForCausalLM",
        {
            **SMALL,
            "num_attention_heads": 2,
            "use_parallel_residual": False,
            "layer_norm_eps": 1e-3,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.25},
        },
        seed=306,
        weight_std=0.5,
        teeth=({"use_parallel_residual": True},),
        saved_as={"lm_head.weight": "embed_out.weight"},
    ),
    "gemma": Case(
        "GemmaForCausalLM",
        {**SMALL_ROPE, "head_dim": 12, "tie_word_embeddings": True},
        seed=307,
        weight_std=0.35,
        norm_mean=0.0,
        teeth=(*ROPE_TEETH, {"hidden_act": "silu"}),
    ),
    "gemma2": Case(
        "Gemma2ForCausalLM",
        {
            **SMALL_ROPE,
            "head_dim": 12,
            "tie_word_embeddings": True,
            "sliding_window": 6,
            "query_pre_attn_scalar": 7,
            "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 9.0,
        },
        seed=327,
        weight_std=0.45,
        norm_mean=0.0,
        teeth=(
            *ROPE_TEETH,
            {"hidden_activation": "silu"},
            {"sliding_window": 7},
            {"query_pre_attn_scalar": 12},
            {"attn_logit_softcapping": 4.0},
            {"attn_logit_softcapping": None},
            {"final_logit_softcapping": None},
            {"layer_types": ["full_attention", "sliding_attention"]},
        ),
    ),
    "gemma3": Case(
        "Gemma3ForCausalLM",
        {
            **SMALL_ROPE,
            "num_hidden_layers": 3,
            "head_dim": 12,
            "tie_word_embeddings": True,
            "sliding_window": 6,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {
                "full_attention": {"rope_theta": 2000.0, "rope_type": "linear", "factor": 3.0},
                "sliding_attention": {"rope_theta": 100.0, "rope_type": "default"},
            },
            "query_pre_attn_scalar": 7,
            "final_logit_softcapping": 9.0,
        },
        seed=318,
        weight_std=0.35,
        norm_mean=0.0,
        teeth=(
            {"rms_norm_eps": 1e-5},
            {"hidden_activation": "silu"},
            {"sliding_window": 7},
            {"query_pre_attn_scalar": 12},
            {"final_logit_softcapping": None},
            {"layer_types": ["sliding_attention", "sliding_attention", "full_attention"]},
            {"rope_parameters": {kind: {"rope_theta": 100.0, "rope_type": "default"}
                                 for kind in ("full_attention", "sliding_attention")}},
        ),
    ),
    # Heads of two sizes, keys that are values, and a factor for each block.
    "gemma4": Case(
        "Gemma4ForCausalLM",
        {**GEMMA4, "attention_k_eq_v": True, "num_global_key_value_heads": 1, "final_logit_softcapping": 9.0},
        seed=321,
        weight_std=0.4,
        mean_of=GEMMA4_MEANS,
        teeth=(*GEMMA4_TEETH, {"final_logit_softcapping": None}),
    ),
    # The last layers attend to the keys of others, and have wider MLPs.
    "gemma4-unified": Case(
        "Gemma4UnifiedForCausalLM",
        {
            **{key: value for key, value in GEMMA4.items() if key != "hidden_size_per_layer_input"},
            "num_hidden_layers": 5,
            "layer_types": ["full_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention"],
            "num_kv_shared_layers": 2,
            "use_double_wide_mlp": True,
            "attention_bias": True,
        },
        seed=322,
        weight_std=0.4,
        mean_of=GEMMA4_MEANS,
        teeth=GEMMA4_TEETH,
    ),
    # Experts beside the MLP.
    "gemma4-experts": Case(
        "Gemma4ForCausalLM",
        {**GEMMA4, "num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"], "enable_moe_block": True,
         "num_experts": 6, "top_k_experts": 3, "moe_intermediate_size": 12},
        seed=323,
        weight_std=0.4,
        mean_of=GEMMA4_MEANS,
        teeth=(*GEMMA4_TEETH, {"top_k_experts": 2}),
    ),
    # Inputs of each layer's own, and shared keys.
    "gemma4-per-layer": Case(
        "Gemma4ForCausalLM",
        {**GEMMA4, "num_hidden_layers": 4,
         "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
         "num_kv_shared_layers": 2, "use_double_wide_mlp": True, "hidden_size_per_layer_input": 6,
         "vocab_size_per_layer_input": 41},
        seed=324,
        weight_std=0.4,
        mean_of=GEMMA4_MEANS,
        teeth=GEMMA4_TEETH,
    ),
    # Both parts of a block read one norm.
    "phi": Case(
        "PhiForCausalLM",
        {
            **SMALL,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "layer_norm_eps": 1e-3,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5},
        },
        seed=369,
        weight_std=0.6,
        teeth=({"layer_norm_eps": 1e-5}, {"hidden_act": "gelu"}),
    ),
    "stablelm-parallel": Case(
        "StableLmForCausalLM",
        {
            **SMALL,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "layer_norm_eps": 1e-3,
            "use_parallel_residual": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5},
        },
        seed=320,
        weight_std=0.5,
        teeth=({"layer_norm_eps": 1e-5}, {"hidden_act": "gelu"}),
    ),
    # Dimensions that turn together lie side by side, of half the head.
    "gptj": Case(
        "GPTJForCausalLM",
        {
            "vocab_size": 37,
            "n_positions": 40,
            "n_embd": 16,
            "n_layer": 2,
            "n_head": 2,
            "n_inner": 28,
            "rotary_dim": 4,
            "layer_norm_epsilon": 1e-3,
            **IDS,
        },
        seed=341,
        weight_std=0.5,
        teeth=({"layer_norm_epsilon": 1e-5}, {"activation_function": "gelu"}, {"rotary_dim": 8}),
    ),
    "gpt-bigcode": Case(
        "GPTBigCodeForCausalLM",
        {**GPT2, "n_layer": 2, "n_embd": 18, "activation_function": "gelu_pytorch_tanh"},
        seed=362,
        weight_std=0.4,
        teeth=({"layer_norm_epsilon": 1e-5}, {"activation_function": "gelu"}, {"scale_attn_weights": False}),
    ),
    # As Falcon 7B, and as Falcon 40B.
    "falcon": Case(
        "FalconForCausalLM",
        {
            "vocab_size": 37,
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "layer_norm_epsilon": 1e-3,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
            **IDS,
        },
        seed=323,
        weight_std=0.5,
        teeth=({"layer_norm_epsilon": 1e-5}, {"activation": "relu"}),
    ),
    "falcon-new": Case(
        "FalconForCausalLM",
        {
            "vocab_size": 37,
            "hidden_size": 24,
            "num_hidden_layers": 2,
            "num_attention_heads": 6,
            "num_kv_heads": 2,
            "new_decoder_architecture": True,
            "ffn_hidden_size": 28,
            "bias": True,
            "layer_norm_epsilon": 1e-3,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
            **IDS,
        },
        seed=324,
        weight_std=0.5,
        teeth=({"layer_norm_epsilon": 1e-5}, {"activation": "relu"}),
    ),
    "cohere": Case(
        "CohereForCausalLM",
        {
            **SMALL,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "layer_norm_eps": 1e-3,
            "attention_bias": True,
            "logit_scale": 0.7,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        },
        seed=325,
        weight_std=0.5,
        teeth=({"layer_norm_eps": 1e-5}, {"hidden_act": "gelu"}, {"logit_scale": 1.0}),
    ),
    # Only layers with the window rotate.
    "cohere2": Case(
        "Cohere2ForCausalLM",
        {
            **SMALL,
            "num_hidden_layers": 3,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "layer_norm_eps": 1e-3,
            "logit_scale": 0.7,
            "sliding_window": 6,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        },
        seed=326,
        weight_std=0.5,
        teeth=(
            {"layer_norm_eps": 1e-5},
            {"sliding_window": 7},
            {"layer_types": ["sliding_attention", "sliding_attention", "full_attention"]},
        ),
    ),
    "opt": Case(
        "OPTForCausalLM",
        {
            "vocab_size": 37,
            "max_position_embeddings": 40,
            "hidden_size": 16,
            "word_embed_proj_dim": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "ffn_dim": 28,
            **IDS,
        },
        seed=308,
        weight_std=0.5,
        teeth=({"activation_function": "gelu"}, {"num_attention_heads": 4}),
        # A key bias adds the same to every score of a row, which softmax does not see.
        zero_gradients=("k_proj.bias",),
    ),
    "bloom": Case(
        "BloomForCausalLM",
        {
            "vocab_size": 37,
            "hidden_size": 16,
            "n_layer": 2,
            "n_head": 4,
            "layer_norm_epsilon": 1e-3,
            **IDS,
        },
        seed=309,
        weight_std=0.4,
        teeth=({"layer_norm_epsilon": 1e-5}, {"n_head": 2}),
    ),
    # Post-norm blocks. Its config's "gelu" is what other families call "gelu_new".
    "openai-gpt": Case(
        "OpenAIGPTLMHeadModel",
        {
            "vocab_size": 37,
            "n_positions": 40,
            "n_embd": 16,
            "n_layer": 2,
            "n_head": 2,
            "layer_norm_epsilon": 1e-3,
        },
        seed=310,
        weight_std=0.5,
        teeth=({"layer_norm_epsilon": 1e-5}, {"afn": "relu"}, {"n_head": 4}),
    ),
    "ctrl": Case(
        "CTRLLMHeadModel",
        {
            "vocab_size": 37,
            "n_positions": 40,
            "n_embd": 16,
            "dff": 28,
            "n_layer": 2,
            "n_head": 2,
            "layer_norm_epsilon": 1e-3,
        },
        seed=311,
        weight_std=0.4,
        teeth=({"n_head": 4},),
        zero_gradients=("Wk.bias",),  # as for OPT
    ),
    "rope-linear": rope_case(401, {"rope_type": "linear", "factor": 3.0}),
    # Wave lengths of the four frequencies: 6.3, 30, 140 and 660. The band is 16..64, so that one is kept,
    # one blended and two divided by the factor.
    "rope-llama3": rope_case(
        402,
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
        max_position_embeddings=512,
    ),
    # The ramp runs over all four frequencies.
    "rope-yarn": rope_case(
        403,
        {
            "rope_type": "yarn",
            "factor": 4.0,
            "beta_fast": 4.0,
            "beta_slow": 0.05,
            "original_max_position_embeddings": 64,
        },
        max_position_embeddings=256,
    ),
    # As Phi 4 mini: the heads are rotated in part, the embedding is tied. The sequences are longer than the original
    # context, so the long factors apply, and their start alone is not.
    "phi3-longrope": Case(
        "Phi3ForCausalLM",
        {
            **SMALL_ROPE,
            "original_max_position_embeddings": 12,
            "tie_word_embeddings": True,
            "rope_parameters": long_rope(),
        },
        seed=408,
        weight_std=0.5,
        alone_len=12,
        teeth=(
            {"original_max_position_embeddings": 24},
            {"rope_parameters": long_rope(long_factor=[1.25, 4.0, 10.0])},
            {"rope_parameters": long_rope(attention_factor=1.0)},
        ),
    ),
    # A context that is not longer than the original one, with the attention of a longer one.
    "phi3-longrope-short": Case(
        "Phi3ForCausalLM",
        {
            **SMALL_ROPE,
            "original_max_position_embeddings": 64,
            "rope_parameters": long_rope(
                partial_rotary_factor=1.0,
                factor=4.0,
                short_factor=[1.0, 1.5, 2.5, 6.0],
                long_factor=[1.25, 4.0, 20.0, 40.0],
            ),
        },
        seed=406,
        weight_std=0.5,
        teeth=({"original_max_position_embeddings": 12},),
    ),
    # As long as max_position_embeddings: one token more, and this scaling would begin.
    "rope-dynamic": rope_case(
        414,
        {"rope_type": "dynamic", "factor": 3.0},
        teeth=(
            {"max_position_embeddings": 23},
            {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 500.0}},
        ),
        max_position_embeddings=24,
    ),
}


# Mixtures: four experts or more, so that the choice differs from row to row.
MIXTURE = {
    **SMALL,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_experts_per_tok": 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
}
GRANITE_MIXTURE = {
    **MIXTURE,
    "intermediate_size": 12,
    "num_local_experts": 4,
    "embedding_multiplier": 1.5,
    "residual_multiplier": 0.7,
    "attention_multiplier": 0.4,
    "logits_scaling": 0.6,
}
GRANITE_MIXTURE_TEETH = (
    {"num_experts_per_tok": 3},
    {"embedding_multiplier": 1.0},
    {"residual_multiplier": 1.0},
    {"attention_multiplier": 1.0},
    {"logits_scaling": 1.0},
)
YARN = {
    "rope_type": "yarn",
    "rope_theta": 500.0,
    "factor": 4.0,
    "beta_fast": 1.0,
    "beta_slow": 0.02,
    "original_max_position_embeddings": 16,
}
CASES |= {
    "mixtral": Case(
        "MixtralForCausalLM",
        {**MIXTURE, "intermediate_size": 12, "num_local_experts": 4, "sliding_window": 9},
        router_losses=True,
        seed=501,
        weight_std=0.5,
        teeth=({"num_experts_per_tok": 3}, {"sliding_window": None}),
    ),
    "qwen2-moe": Case(
        "Qwen2MoeForCausalLM",
        {
            **MIXTURE,
            "num_hidden_layers": 3,
            "moe_intermediate_size": 12,
            "shared_expert_intermediate_size": 20,
            "num_experts": 5,
            "mlp_only_layers": [1],
            "norm_topk_prob": False,
        },
        router_losses=True,
        seed=502,
        weight_std=0.4,
        teeth=({"num_experts_per_tok": 3}, {"norm_topk_prob": True}),
    ),
    "qwen3-moe": Case(
        "Qwen3MoeForCausalLM",
        {
            **MIXTURE,
            "num_hidden_layers": 3,
            "head_dim": 12,
            "moe_intermediate_size": 12,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "decoder_sparse_step": 2,
            "norm_topk_prob": True,
            "attention_bias": True,
        },
        seed=503,
        weight_std=0.5,
        teeth=({"num_experts_per_tok": 2}, {"norm_topk_prob": False}),
    ),
    "olmoe": Case(
        "OlmoeForCausalLM",
        {**MIXTURE, "intermediate_size": 12, "num_experts": 4, "num_key_value_heads": 2},
        seed=504,
        weight_std=0.5,
        teeth=({"num_experts_per_tok": 3}, {"norm_topk_prob": True}),
    ),
    "granite-moe": Case(
        "GraniteMoeForCausalLM", GRANITE_MIXTURE, seed=505, weight_std=0.5, teeth=GRANITE_MIXTURE_TEETH
    ),
    "granite-moe-shared": Case(
        "GraniteMoeSharedForCausalLM",
        {**GRANITE_MIXTURE, "shared_intermediate_size": 20},
        seed=506,
        weight_std=0.5,
        teeth=GRANITE_MIXTURE_TEETH,
    ),
    "glm4-moe": Case(
        "Glm4MoeForCausalLM",
        {
            **MIXTURE,
            "num_hidden_layers": 3,
            "num_key_value_heads": 2,
            "head_dim": 12,
            "moe_intermediate_size": 12,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "n_shared_experts": 2,
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 1.5,
            "first_k_dense_replace": 1,
            "use_qk_norm": True,
            "attention_bias": True,
            "num_nextn_predict_layers": 0,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5},
        },
        seed=507,
        weight_std=0.5,
        teeth=(
            {"num_experts_per_tok": 2},
            {"norm_topk_prob": False},
            {"topk_group": 3},
            {"routed_scaling_factor": 1.0},
        ),
    ),
    "dots1": Case(
        "Dots1ForCausalLM",
        {
            **MIXTURE,
            "num_hidden_layers": 3,
            "moe_intermediate_size": 12,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "n_shared_experts": 1,
            "n_group": 4,
            "topk_group": 2,
            "norm_topk_prob": True,
            "routed_scaling_factor": 1.5,
            "first_k_dense_replace": 1,
            "attention_bias": True,
            "sliding_window": 7,
            "max_window_layers": 2,
        },
        seed=511,
        weight_std=0.5,
        norm_mean=1.3,
        teeth=({"num_experts_per_tok": 2}, {"norm_topk_prob": False}, {"topk_group": 3}, {"sliding_window": None}),
    ),
    "minimax-m2": Case(
        "MiniMaxM2ForCausalLM",
        {
            **MIXTURE,
            "head_dim": 12,
            "intermediate_size": 12,
            "num_local_experts": 5,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5},
        },
        seed=512,
        weight_std=0.5,
        norm_mean=1.3,
        teeth=({"num_experts_per_tok": 3}, {"rms_norm_eps": 1e-2}),
    ),
    # A norm behind the experts hides the scale of their weights.
    "flex-olmo": Case(
        "FlexOlmoForCausalLM",
        {**MIXTURE, "intermediate_size": 12, "num_experts": 4, "num_key_value_heads": 2, "attention_bias": True},
        seed=513,
        weight_std=0.5,
        norm_mean=1.3,
        teeth=({"num_experts_per_tok": 3}, {"hidden_act": "gelu"}),
    ),
    "exaone-moe": Case(
        "ExaoneMoeForCausalLM",
        {
            **MIXTURE,
            "num_hidden_layers": 4,
            "head_dim": 12,
            "moe_intermediate_size": 12,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "num_shared_experts": 2,
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 1.5,
            "first_k_dense_replace": 1,
            "sliding_window": 6,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
        },
        seed=514,
        weight_std=0.5,
        norm_mean=1.3,
        teeth=({"num_experts_per_tok": 2}, {"norm_topk_prob": False}, {"topk_group": 3}, {"sliding_window": 7}),
    ),
    # Norms of queries and keys after rotation.
    "hunyuan-moe": Case(
        "HunYuanMoEV1ForCausalLM",
        {
            **{key: value for key, value in MIXTURE.items() if key != "num_experts_per_tok"},
            "head_dim": 12,
            "intermediate_size": 12,
            "num_experts": 4,
            "moe_topk": 2,
            "attention_bias": True,
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 100.0, "alpha": 5.0, "factor": 1.0},
        },
        seed=515,
        weight_std=0.5,
        teeth=({"moe_topk": 3}, {"hidden_act": "gelu"}),
    ),
    "ernie4_5-moe": Case(
        "Ernie4_5_MoeForCausalLM",
        {
            **MIXTURE,
            "num_hidden_layers": 4,
            "moe_intermediate_size": 12,
            "moe_num_experts": 5,
            "moe_k": 2,
            "moe_num_shared_experts": 2,
            "moe_layer_start_index": 1,
            "moe_layer_end_index": 3,
            "moe_layer_interval": 2,
            "use_bias": False,
        },
        seed=508,
        weight_std=0.35,
        teeth=({"moe_k": 3},),
    ),
    "gpt-oss": Case(
        "GptOssForCausalLM",
        {
            **MIXTURE,
            "head_dim": 12,
            "intermediate_size": 12,
            "num_local_experts": 4,
            "sliding_window": 6,
            "rms_norm_eps": 1e-3,
            # At the limits of what the experts compute here.
            "swiglu_alpha": 1.3,
            "swiglu_limit": 1.5,
            "rope_parameters": {**YARN, "truncate": False},
        },
        router_losses=True,
        seed=509,
        weight_std=0.5,
        mean_of={"sinks": 0.5},
        teeth=(
            {"num_experts_per_tok": 3},
            {"sliding_window": 7},
            {"layer_types": ["full_attention", "sliding_attention"]},
            {"rms_norm_eps": 1e-5},
            {"swiglu_alpha": 1.702},
            {"swiglu_limit": 7.0},
            {"rope_parameters": YARN},
        ),
    ),
}
CASES["ernie4_5-moe"].config.pop("num_experts_per_tok")


# Latent attention. Queries, keys and values have several widths; norms of latents have an epsilon of their own.
LATENT = {
    **SMALL,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "kv_lora_rank": 10,
    "q_lora_rank": 12,
    "qk_rope_head_dim": 6,
    "qk_nope_head_dim": 4,
    "v_head_dim": 7,
    "rms_norm_eps": 1e-3,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
}
LATENT_MIXTURE = {
    **LATENT,
    "num_hidden_layers": 3,
    "moe_intermediate_size": 12,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
}
# As DeepSeek's: the two multipliers differ.
LATENT_YARN = {
    "rope_type": "yarn",
    "rope_theta": 500.0,
    "factor": 4.0,
    "original_max_position_embeddings": 10,
    "beta_fast": 0.15,
    "beta_slow": 0.003,
    "mscale": 1.0,
    "mscale_all_dim": 0.707,
}
LATENT_TEETH = (
    {"rms_norm_eps": 1e-5},
    {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
)
CASES |= {
    "deepseek-v2": Case(
        "DeepseekV2ForCausalLM",
        {
            **LATENT_MIXTURE,
            "q_lora_rank": None,
            "topk_method": "group_limited_greedy",
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 1.5,
            "first_k_dense_replace": 1,
            "attention_bias": True,
        },
        seed=701,
        weight_std=0.4,
        teeth=(
            *LATENT_TEETH,
            {"topk_group": 3},
            {"topk_method": "greedy"},
            {"num_experts_per_tok": 2},
            {"routed_scaling_factor": 1.0},
        ),
    ),
    "deepseek-v3": Case(
        "DeepseekV3ForCausalLM",
        {
            **LATENT_MIXTURE,
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 1.5,
            "first_k_dense_replace": 1,
            "attention_bias": True,
            "max_position_embeddings": 40,
            "rope_parameters": LATENT_YARN,
        },
        seed=702,
        weight_std=0.4,
        teeth=(
            {"rms_norm_eps": 1e-5},
            {"rope_parameters": {**LATENT_YARN, "mscale": 0.5}},
            {"rope_parameters": {**LATENT_YARN, "mscale_all_dim": 0.5}},
            {"rope_interleave": False},
            {"topk_group": 3},
            {"norm_topk_prob": False},
            {"num_experts_per_tok": 2},
            {"routed_scaling_factor": 1.0},
        ),
    ),
    # Values are wider than keys.
    "glm4-moe-lite": Case(
        "Glm4MoeLiteForCausalLM",
        {
            **LATENT_MIXTURE,
            "v_head_dim": 13,
            "mlp_layer_types": ["sparse", "dense", "sparse"],
            "n_shared_experts": 1,
            "routed_scaling_factor": 1.5,
        },
        seed=703,
        weight_std=0.4,
        teeth=(
            *LATENT_TEETH,
            {"rope_interleave": False},
            {"norm_topk_prob": False},
            {"num_experts_per_tok": 2},
            {"routed_scaling_factor": 1.0},
        ),
    ),
    "minicpm3": Case(
        "MiniCPM3ForCausalLM",
        {**LATENT, "scale_emb": 2.0, "scale_depth": 1.1, "dim_model_base": 20},
        seed=704,
        weight_std=0.5,
        teeth=(*LATENT_TEETH, {"scale_emb": 1.0}, {"scale_depth": None}, {"dim_model_base": None}),
    ),
    "youtu": Case(
        "YoutuForCausalLM",
        {**LATENT, "rope_interleave": False},
        seed=705,
        weight_std=0.5,
        teeth=(*LATENT_TEETH, {"rope_interleave": True}),
    ),
}


# Recurrent layers beside a layer that attends.
DELTA_NET = {
    **SMALL,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 12,
    "rms_norm_eps": 1e-3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 5,
    "linear_conv_kernel_dim": 3,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5},
}
# The norms of recurrences add nothing to their weights. Decays are slow, attention is sharp.
DELTA_NET_MEANS = {"linear_attn.norm": 1.0, "A_log": -1.5, "q_norm": 0.8, "k_norm": 0.8}
DELTA_NET_TEETH = (
    {"rms_norm_eps": 1e-5},
    {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 1.0}},
    {"linear_num_key_heads": 1, "linear_key_head_dim": 12},
)
DELTA_NET_MIXTURE = {
    **DELTA_NET,
    "moe_intermediate_size": 12,
    "shared_expert_intermediate_size": 20,
    "num_experts": 5,
    "num_experts_per_tok": 2,
}
LFM2 = {
    **SMALL,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "norm_eps": 1e-3,
    "conv_L_cache": 4,
    "layer_types": ["conv", "full_attention", "conv"],
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
}
LFM2_TEETH = (
    {"norm_eps": 1e-5},
    {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
)
CASES |= {
    "qwen3_5": Case(
        "Qwen3_5ForCausalLM",
        {**DELTA_NET, "attention_bias": True},
        seed=601,
        weight_std=0.4,
        norm_mean=0.0,
        mean_of=DELTA_NET_MEANS,
        teeth=DELTA_NET_TEETH,
    ),
    "qwen3_5-moe": Case(
        "Qwen3_5MoeForCausalLM",
        DELTA_NET_MIXTURE,
        seed=607,
        weight_std=0.4,
        norm_mean=0.0,
        mean_of=DELTA_NET_MEANS,
        teeth=(*DELTA_NET_TEETH, {"num_experts_per_tok": 3}),
    ),
    "qwen3-next": Case(
        "Qwen3NextForCausalLM",
        {**DELTA_NET_MIXTURE, "mlp_only_layers": [1], "norm_topk_prob": False},
        seed=606,
        weight_std=0.4,
        norm_mean=0.0,
        mean_of=DELTA_NET_MEANS,
        teeth=(*DELTA_NET_TEETH[:2], {"num_experts_per_tok": 3}, {"norm_topk_prob": True}),
    ),
    "lfm2": Case(
        "Lfm2ForCausalLM",
        {**LFM2, "conv_bias": True, "block_multiple_of": 4, "block_ffn_dim_multiplier": 1.5},
        seed=604,
        weight_std=0.5,
        mean_of={"_layernorm": 1.7},
        teeth=LFM2_TEETH,
    ),
    "lfm2-moe": Case(
        "Lfm2MoeForCausalLM",
        {
            **LFM2,
            "moe_intermediate_size": 12,
            "num_experts": 5,
            "num_experts_per_tok": 2,
            "num_dense_layers": 1,
            "routed_scaling_factor": 1.5,
            "tie_word_embeddings": False,
        },
        seed=605,
        weight_std=0.5,
        mean_of={"_layernorm": 1.7},
        teeth=(*LFM2_TEETH, {"num_experts_per_tok": 3}, {"norm_topk_prob": False}, {"routed_scaling_factor": 1.0}),
    ),
}
CASES["qwen3_5-moe"].config.pop("intermediate_size")


# Mixtures with windows.
WINDOWED_MIXTURE = {
    **MIXTURE,
    "num_hidden_layers": 3,
    "head_dim": 12,
    "moe_intermediate_size": 12,
    "sliding_window": 6,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
WINDOWED_TEETH = (
    {"rms_norm_eps": 1e-5},
    {"num_experts_per_tok": 3},
    {"sliding_window": 7},
    {"layer_types": ["sliding_attention", "sliding_attention", "full_attention"]},
)
CASES |= {
    # Embeddings, queries and keys are normalized without weights; the norms behind the parts have an epsilon of their own, and the
    # last one stores its weight as it is.
    "muse-glimmer": Case(
        "MuseGlimmerForCausalLM",
        {
            **SMALL_ROPE,
            "num_hidden_layers": 3,
            "head_dim": 12,
            "sliding_window": 6,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "layer_rope_theta": [500.0, 0.0, 500.0],
            "qk_scale_factor": 3.1,
            "output_multiplier": 0.7,
            "final_logit_softcapping": 5.0,
            "post_norm_eps": 0.5,
        },
        seed=715,
        weight_std=0.5,
        mean_of={"layernorm": 0.0},
        teeth=(
            *ROPE_TEETH[:1],
            {"sliding_window": 7},
            {"layer_rope_theta": [500.0, 500.0, 500.0]},
            {"qk_scale_factor": 2.1},
            {"output_multiplier": 1.0},
            {"final_logit_softcapping": 9.0},
            {"post_norm_eps": 1e-3},
        ),
    ),
    # Only layers with the window rotate. Heads have gates.
    "afmoe": Case(
        "AfmoeForCausalLM",
        {
            **WINDOWED_MIXTURE,
            "rms_norm_eps": 1e-3,
            "num_experts": 5,
            "num_shared_experts": 2,
            "num_dense_layers": 1,
            "route_scale": 1.5,
            "mup_enabled": True,
        },
        seed=711,
        weight_std=0.5,
        mean_of={"q_norm": 1.6, "k_norm": 1.6},
        teeth=(*WINDOWED_TEETH, {"route_scale": 1.0}, {"mup_enabled": False}),
    ),
    "mellum": Case(
        "MellumForCausalLM",
        {
            **WINDOWED_MIXTURE,
            "rms_norm_eps": 1e-3,
            "num_experts": 5,
            "norm_topk_prob": False,
            "mlp_layer_types": ["sparse", "dense", "sparse"],
            "attention_bias": True,
            "rope_parameters": {
                "full_attention": {"rope_theta": 500.0, "rope_type": "default"},
                "sliding_attention": {"rope_theta": 100.0, "rope_type": "default"},
            },
        },
        seed=712,
        weight_std=0.5,
        mean_of={"q_norm": 1.6, "k_norm": 1.6},
        teeth=(*WINDOWED_TEETH, {"norm_topk_prob": True}),
    ),
    # As published: GPT-2's names, and keys of its own. Transformers computes both of these as Llama.
    "exaone": Case(
        "LlamaForCausalLM",
        SMALL_ROPE,
        seed=713,
        weight_std=0.5,
        teeth=ROPE_TEETH,
        config_class="ExaoneConfig",
        published_as={
            "architectures": ["ExaoneForCausalLM"],
            "model_type": "exaone",
            "activation_function": "silu",
            "num_hidden_layers": None,
            "num_layers": 2,
            "rms_norm_eps": None,
            "layer_norm_epsilon": 1e-3,
            "rope_theta": 500.0,
            "tie_word_embeddings": False,
        },
    ),
    "internlm3": Case(
        "LlamaForCausalLM",
        {**SMALL_ROPE, "head_dim": 12, "attention_bias": True, "mlp_bias": True},
        seed=714,
        weight_std=0.5,
        teeth=ROPE_TEETH,
        config_class="InternLM3Config",
        published_as={
            "architectures": ["InternLM3ForCausalLM"],
            "model_type": "internlm3",
            "head_dim": 12,
            "qkv_bias": True,
            "bias": True,
            "rope_theta": 500.0,
            "tie_word_embeddings": False,
        },
    ),
}


# Mamba-2 beside a layer that attends.
MAMBA = {
    **SMALL,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "rms_norm_eps": 1e-3,
    "mamba_n_heads": 4,
    "mamba_n_groups": 2,
    "mamba_d_state": 6,
    "mamba_d_conv": 3,
    "tie_word_embeddings": False,
}
GRANITE_4 = {
    **MAMBA,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "embedding_multiplier": 1.5,
    "residual_multiplier": 0.7,
    "attention_multiplier": 0.4,
    "logits_scaling": 0.6,
    "num_local_experts": 0,
    "shared_intermediate_size": 28,
}
# Decays are slow.
MAMBA_MEANS = {"A_log": -1.5}
MAMBA_TEETH = (
    {"rms_norm_eps": 1e-5},
    {"mamba_n_groups": 1, "mamba_d_state": 12},
)
GRANITE_4_TEETH = (
    *MAMBA_TEETH,
    {"embedding_multiplier": 1.0},
    {"residual_multiplier": 1.0},
    {"attention_multiplier": 1.0},
    {"logits_scaling": 1.0},
)
CASES |= {
    "granite4-h": Case(
        "GraniteMoeHybridForCausalLM",
        {**GRANITE_4, "mamba_proj_bias": True, "time_step_limit": (0.4, 1.5)},
        seed=623,
        weight_std=0.35,
        std_of={"in_proj": 0.3},
        mean_of=MAMBA_MEANS,
        teeth=(*GRANITE_4_TEETH, {"time_step_limit": (0.4, float("inf"))}, {"time_step_limit": (0.0, 1.5)}),
    ),
    "granite4-h-moe": Case(
        "GraniteMoeHybridForCausalLM",
        {
            **GRANITE_4,
            "mamba_conv_bias": False,
            "intermediate_size": 12,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "shared_intermediate_size": 20,
            "position_embedding_type": "rope",
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
            "tie_word_embeddings": True,
        },
        seed=622,
        weight_std=0.35,
        std_of={"in_proj": 0.3},
        mean_of=MAMBA_MEANS,
        teeth=(*GRANITE_4_TEETH, {"num_experts_per_tok": 3}, {"position_embedding_type": None}),
    ),
    "bamba": Case(
        "BambaForCausalLM",
        {
            **MAMBA,
            "attn_layer_indices": [1],
            "attention_bias": True,
            "mlp_bias": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5},
        },
        seed=625,
        weight_std=0.35,
        std_of={"in_proj": 0.3},
        mean_of=MAMBA_MEANS,
        teeth=(*MAMBA_TEETH, {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}),
    ),
}


# Layers that are a Mamba-2 layer, attention, an MLP or experts only.
NEMOTRON_H = {
    **{key: value for key, value in SMALL.items() if key != "num_hidden_layers"},
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 12,
    "layer_norm_epsilon": 1e-3,
    "mamba_num_heads": 4,
    "mamba_head_dim": 5,
    "n_groups": 2,
    "ssm_state_size": 6,
    "conv_kernel": 3,
    "time_step_min": 0.4,
}
NEMOTRON_H_TEETH = (
    {"layer_norm_epsilon": 1e-5},
    {"n_groups": 1, "ssm_state_size": 12},
    {"time_step_min": 0.001},
    {"mlp_hidden_act": "relu"},
)
CASES |= {
    "nemotron-h": Case(
        "NemotronHForCausalLM",
        {
            **NEMOTRON_H,
            "layers_block_type": ["linear_attention", "mlp", "full_attention", "linear_attention", "mlp"],
            "use_bias": True,
        },
        seed=633,
        weight_std=0.3,
        std_of={"in_proj": 0.3},
        mean_of=MAMBA_MEANS,
        teeth=NEMOTRON_H_TEETH,
    ),
    "nemotron-h-moe": Case(
        "NemotronHForCausalLM",
        {
            **NEMOTRON_H,
            "layers_block_type": ["linear_attention", "moe", "full_attention", "moe", "mlp"],
            "use_conv_bias": False,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 12,
            "moe_shared_expert_intermediate_size": 20,
            "moe_latent_size": 8,
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 1.5,
        },
        seed=643,
        weight_std=0.3,
        std_of={"in_proj": 0.3},
        mean_of=MAMBA_MEANS,
        teeth=(
            *NEMOTRON_H_TEETH,
            {"num_experts_per_tok": 2},
            {"norm_topk_prob": False},
            {"topk_group": 3},
            {"routed_scaling_factor": 1.0},
        ),
    ),
    "bert": Case(
        architecture="BertModel",
        config=BERT,
        seed=701,
        weight_std=0.3,
        seq_len=20,
        teeth=BERT_TEETH,
        zero_gradients=BERT_ZEROS,
    ),
    "mpnet": Case(
        architecture="MPNetModel",
        config={**BERT, "pad_token_id": 1},
        seed=706,
        weight_std=0.3,
        std_of={"relative_attention_bias": 1.0},
        seq_len=20,
        first_id=3,
        # Two heads would have another table of distances.
        teeth=BERT_TEETH[:2],
        zero_gradients=("attn.k.bias",),
    ),
    "nomic-bert": Case(
        architecture="NomicBertModel",
        config={
            **BERT,
            "hidden_act": "silu",
            "pad_token_id": 0,
            "head_dim": 10,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        },
        seed=707,
        weight_std=0.3,
        seq_len=20,
        first_id=1,
        teeth=(
            {"layer_norm_eps": 1e-5},
            {"hidden_act": "gelu"},
            {"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}},
        ),
    ),
    # EmbeddingGemma. Its window sees 3 positions on each side.
    "embedding-gemma": Case(
        "Gemma3TextModel",
        {
            **SMALL_ROPE,
            "vocab_size": 61,
            "num_hidden_layers": 3,
            "head_dim": 12,
            "tie_word_embeddings": True,
            "use_bidirectional_attention": True,
            "sliding_window": 6,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {
                "full_attention": {"rope_theta": 2000.0, "rope_type": "linear", "factor": 3.0},
                "sliding_attention": {"rope_theta": 100.0, "rope_type": "default"},
            },
            "query_pre_attn_scalar": 7,
        },
        seed=708,
        weight_std=0.35,
        norm_mean=0.0,
        teeth=(
            {"rms_norm_eps": 1e-5},
            {"hidden_activation": "silu"},
            {"sliding_window": 8},
            {"query_pre_attn_scalar": 12},
            {"use_bidirectional_attention": False},
        ),
    ),
    "roberta": Case(
        architecture="RobertaModel",
        config={**BERT, "type_vocab_size": 1, "pad_token_id": 1, "hidden_act": "gelu_new"},
        seed=702,
        weight_std=0.3,
        seq_len=20,
        first_id=3,
        teeth=BERT_TEETH,
        zero_gradients=BERT_ZEROS,
    ),
    "xlm-roberta": Case(
        architecture="XLMRobertaModel",
        config={**BERT, "type_vocab_size": 1, "pad_token_id": 1},
        seed=703,
        weight_std=0.3,
        seq_len=20,
        first_id=3,
        teeth=BERT_TEETH,
        zero_gradients=BERT_ZEROS,
    ),
    "distilbert": Case(
        architecture="DistilBertModel",
        config={
            "vocab_size": 61,
            "max_position_embeddings": 40,
            "dim": 32,
            "n_layers": 2,
            "n_heads": 4,
            "hidden_dim": 52,
            "activation": "gelu",
            "dropout": 0.0,
            "attention_dropout": 0.0,
            "pad_token_id": None,
        },
        seed=704,
        weight_std=0.3,
        seq_len=20,
        teeth=({"activation": "relu"}, {"n_heads": 2}),
        zero_gradients=("k_lin.bias",),
    ),
    "modernbert": Case(
        architecture="ModernBertModel",
        config={
            "vocab_size": 61,
            "max_position_embeddings": 64,
            "hidden_size": 32,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "intermediate_size": 52,
            "norm_eps": 1e-3,
            "local_attention": 8,
            "global_attn_every_n_layers": 2,
            "global_rope_theta": 500.0,
            "local_rope_theta": 50.0,
            "attention_dropout": 0.0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "cls_token_id": 1,
            "sep_token_id": 2,
            "pad_token_id": None,
        },
        seed=705,
        weight_std=0.2,
        teeth=(
            {"norm_eps": 1e-5},
            {"local_attention": 10},
            {"hidden_activation": "silu"},
            {"global_attn_every_n_layers": 3},
            {"global_rope_theta": 5000.0},
            {"local_rope_theta": 500.0},
        ),
    ),
}


# The heads that predict masked tokens.
def masked(name, architecture, seed, **fields):
    case = CASES[name]
    config = {**case.config, "tie_word_embeddings": True, **fields}
    return replace(case, architecture=architecture, config=config, seed=seed)


CASES |= {
    "bert-mlm": masked("bert", "BertForMaskedLM", 711, hidden_act="gelu_new"),
    "roberta-mlm": masked("roberta", "RobertaForMaskedLM", 712),
    "mpnet-mlm": masked("mpnet", "MPNetForMaskedLM", 715),
    "distilbert-mlm": masked("distilbert", "DistilBertForMaskedLM", 713),
    "modernbert-mlm": masked("modernbert", "ModernBertForMaskedLM", 714, classifier_bias=True),
}


# Norms of queries and keys, limits of queries, keys and values, and other rows that came late.
HALF_ROTATED = {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5}
LAYER_NORMED = {**SMALL, "num_attention_heads": 2, "layer_norm_eps": 1e-3}
SHARP = {"q_norm": 1.6, "k_norm": 1.6, "q_layernorm": 1.6, "k_layernorm": 1.6}
CASES |= {
    "solar-open": Case(
        "SolarOpenForCausalLM",
        {
            # No layer has an MLP without experts.
            **{key: value for key, value in MIXTURE.items() if key != "intermediate_size"},
            "num_hidden_layers": 3,
            "head_dim": 12,
            "moe_intermediate_size": 12,
            "num_experts_per_tok": 3,
            "rms_norm_eps": 1e-3,
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 1.5,
            "n_routed_experts": 8,
            "n_shared_experts": 2,
            "attention_bias": True,
        },
        seed=721,
        weight_std=0.4,
        teeth=(
            {"rms_norm_eps": 1e-5},
            {"num_experts_per_tok": 2},
            {"topk_group": 3},
            {"norm_topk_prob": False},
            {"routed_scaling_factor": 1.0},
        ),
    ),
    # Each head has weights of its own.
    "cohere-qk-norm": Case(
        "CohereForCausalLM",
        {
            **LAYER_NORMED,
            "num_key_value_heads": 1,
            "use_qk_norm": True,
            "logit_scale": 0.7,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        },
        seed=723,
        weight_std=0.5,
        std_of={"q_norm": 2.0, "k_norm": 2.0},
        teeth=({"layer_norm_eps": 1e-5},),
    ),
    "stablelm-qk-norm": Case(
        "StableLmForCausalLM",
        {**LAYER_NORMED, "num_key_value_heads": 1, "qk_layernorm": True, "rope_parameters": HALF_ROTATED},
        seed=724,
        weight_std=0.5,
        mean_of=SHARP,
        teeth=({"layer_norm_eps": 1e-5},),
    ),
    # These norms have biases.
    "phi-qk-norm": Case(
        "PhiForCausalLM",
        {**LAYER_NORMED, "num_key_value_heads": 1, "qk_layernorm": True, "rope_parameters": HALF_ROTATED},
        seed=725,
        weight_std=0.5,
        mean_of=SHARP,
        teeth=({"layer_norm_eps": 1e-5},),
    ),
    "persimmon": Case(
        "PersimmonForCausalLM",
        {**LAYER_NORMED, "rope_parameters": HALF_ROTATED},
        seed=726,
        weight_std=0.4,
        mean_of=SHARP,
        teeth=({"layer_norm_eps": 1e-5}, {"hidden_act": "gelu"}),
    ),
    "olmo-clip": Case(
        "OlmoForCausalLM",
        {**SMALL_ROPE, "clip_qkv": 3.0},
        seed=727,
        weight_std=0.7,
        teeth=({"clip_qkv": None}, {"clip_qkv": 2.5}),
    ),
    "mpt": Case(
        "MptForCausalLM",
        {
            "vocab_size": 37,
            "max_seq_len": 40,
            "d_model": 16,
            "n_layers": 2,
            "n_heads": 4,
            "layer_norm_epsilon": 1e-3,
            "attn_config": {"clip_qkv": 2.0, "softmax_scale": 0.7},
            **IDS,
        },
        seed=728,
        weight_std=0.5,
        teeth=(
            {"layer_norm_epsilon": 1e-5},
            {"attn_config": {"clip_qkv": None, "softmax_scale": 0.7}},
            {"attn_config": {"clip_qkv": 2.0}},
        ),
    ),
    # Queries, values and keys of four parts of the model behind each other.
    "codegen": Case(
        "CodeGenForCausalLM",
        {
            "vocab_size": 37,
            "n_positions": 40,
            "n_embd": 16,
            "n_layer": 2,
            "n_head": 2,
            "n_inner": 28,
            "rotary_dim": 4,
            "layer_norm_epsilon": 1e-3,
            **IDS,
        },
        seed=729,
        weight_std=0.5,
        teeth=({"layer_norm_epsilon": 1e-5}, {"activation_function": "relu"}, {"rotary_dim": 8}),
    ),
}


class Float64(TorchFunctionMode):
    """Lifts what a model pins to float32 to float64, while a float64 copy of it runs."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        def lift(value):
            return torch.float64 if value is torch.float32 else value

        if func is torch.Tensor.float:
            func = torch.Tensor.double
        return func(*map(lift, args), **{name: lift(value) for name, value in (kwargs or {}).items()})


class MuseGlimmerForCausalLM(modeling_muse_glimmer.MuseGlimmerPreTrainedModel):
    """The text part of Muse Glimmer with the output matrix. Transformers has it only beside the vision part."""

    config: transformers.MuseGlimmerTextConfig

    def __init__(self, config):
        super().__init__(config)
        self.model = modeling_muse_glimmer.MuseGlimmerTextModel(config)
        self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(self, input_ids, **options):
        output = self.model(input_ids=input_ids, **options)
        cap = self.config.final_logit_softcapping
        logits = self.lm_head(output.last_hidden_state) * self.config.output_multiplier
        return CausalLMOutput(logits=torch.tanh(logits / cap) * cap, attentions=output.attentions)


OWN_CLASSES = {"MuseGlimmerForCausalLM": MuseGlimmerForCausalLM}


def model_class(architecture):
    return OWN_CLASSES.get(architecture) or getattr(transformers, architecture)


def make_config(architecture, fields, config_class=""):
    config_class = getattr(transformers, config_class) if config_class else model_class(architecture).config_class
    return config_class(**copy.deepcopy(fields))


def make_model(architecture, config):
    """An untrained model in evaluation mode, in float32, with eager attention."""
    eager = {"attn_implementation": "eager", "experts_implementation": "eager", **without_pooler(architecture)}
    return model_class(architecture)._from_config(config, **eager, dtype=torch.float32).eval()


def is_encoder(architecture):
    """Whether it is a class without a head. Some with one end alike."""
    return architecture.endswith("Model") and not architecture.endswith("LMHeadModel")


def without_pooler(architecture):
    """What leaves out the head for the first token, which some encoders have."""
    has_pooler = "add_pooling_layer" in inspect.signature(model_class(architecture).__init__).parameters
    return {"add_pooling_layer": False} if has_pooler else {}


def logits_of(model, input_ids, **options):
    """The output of the model, with logits."""
    if type(model).__name__.endswith("ForMaskedLM"):
        return model(input_ids=input_ids, **options)
    if not is_encoder(type(model).__name__):
        return model(input_ids=input_ids, use_cache=False, **options)
    output = model(input_ids=input_ids, **options)
    output.logits = output.last_hidden_state @ model.get_input_embeddings().weight.T
    return output


def draw_weights(model, case):
    """Overwrites every parameter with random numbers: norm weights about `norm_mean`, the rest about 0."""
    generator = torch.Generator().manual_seed(case.seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim >= 2:
                std = next((std for part, std in case.std_of.items() if part in name), case.weight_std)
                parameter.copy_(std * noise)
            elif name.endswith("bias"):
                parameter.copy_(0.3 * noise)
            else:
                mean = next((mean for part, mean in case.mean_of.items() if part in name), case.norm_mean)
                parameter.copy_(mean + 0.3 * noise)
        # Biases that only choose experts are not learned by gradients, nor are factors of blocks.
        for name, buffer in model.named_buffers():
            if name.endswith("bias"):
                buffer.copy_(0.3 * torch.randn(buffer.shape, generator=generator))
            elif name.endswith("layer_scalar"):
                buffer.copy_(0.8 + 0.2 * torch.randn(buffer.shape, generator=generator))


def draw_input_ids(case):
    generator = torch.Generator().manual_seed(case.seed + 1_000_000)
    return torch.randint(case.first_id, case.config["vocab_size"], (2, case.seq_len), generator=generator)


def loss_of(logits, input_ids):
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), input_ids[:, 1:].flatten())


def run(model, input_ids, dtype):
    """Logits, attention probabilities, loss and gradients by name, of a copy of `model` in `dtype`."""
    model = copy.deepcopy(model).to(dtype)
    with Float64() if dtype == torch.float64 else contextlib.nullcontext():
        output = logits_of(model, input_ids, output_attentions=True)
        loss = loss_of(output.logits, input_ids)
        loss.backward()
    attentions = [layer.detach() for layer in output.attentions if layer is not None]
    assert output.logits.dtype == dtype and attentions[0].dtype == dtype, (output.logits.dtype, dtype)
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.requires_grad}
    missing = [name for name, gradient in gradients.items() if gradient is None]
    assert not missing, f"the loss does not depend on {missing}"
    return output.logits.detach(), attentions, loss.detach(), gradients


ROUTER_LOSS_WEIGHTS = (0.5, 0.3)


def router_losses(model, input_ids):
    """The losses of the routers, over all rows and over some, and the gradients of those over some."""
    model = copy.deepcopy(model).to(torch.float64)
    counted = (torch.rand(input_ids.numel(), generator=torch.Generator().manual_seed(3)) < 0.7).double()
    module = sys.modules[type(model).__module__]
    with Float64():
        output = model(input_ids=input_ids, use_cache=False, output_router_logits=True)
        gates = output.router_logits
        sizes = (gates[0].shape[-1], model.config.num_experts_per_tok)
        balance = module.load_balancing_loss_func(gates, *sizes)
        # One group of all rows, in its shapes.
        z = router_z_loss_func(torch.cat(gates)[None])
        balance_counted = module.load_balancing_loss_func(gates, *sizes, counted)
        z_counted = (torch.cat(gates).logsumexp(-1) ** 2 * counted.repeat(len(gates))).sum() / counted.sum() / len(gates)
        (ROUTER_LOSS_WEIGHTS[0] * balance_counted + ROUTER_LOSS_WEIGHTS[1] * z_counted).backward()
    gradients = {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for name, parameter in model.named_parameters()
    }
    gradients = revert_weight_conversion(model, gradients)
    numbers = {"balance": balance, "z": z, "balance_counted": balance_counted, "z_counted": z_counted}
    return {
        "counted": counted,
        **{name: number.detach().reshape(1) for name, number in numbers.items()},
        **{f"grad.{name}": gradient for name, gradient in gradients.items()},
    }


def of_spread(difference, logits):
    """The largest difference in units of the logits' standard deviation."""
    return (difference.abs().max() / logits.std()).item()


def check_not_gentle(attentions, logits):
    """Mean of each row's largest attention weight, over rows that see at least eight keys."""
    peaks = []
    uniform = []
    for probabilities in attentions:
        visible = (probabilities > 0).sum(-1)
        rows = visible >= min(8, int(visible.max()))  # fewer where the window is smaller
        peaks.append(probabilities.max(-1).values[rows])
        uniform.append(1 / visible[rows])
    peak = torch.cat(peaks).mean().item()
    uniform = torch.cat(uniform).mean().item()
    assert peak > 3 * uniform or peak > 0.6, f"attention is too even: {peak:.3f}, uniform would be {uniform:.3f}"
    assert peak < 0.95, f"attention is saturated: {peak:.3f}"
    spread = logits.std().item()
    assert 1 < spread < 30, f"logits have standard deviation {spread:.3f}"
    return {"attention_peak": peak, "attention_uniform": uniform, "logits_std": spread}


def check_precision(single, double):
    """float32 against float64: logits by spread, gradients by norm."""
    logits = of_spread(single[0] - double[0], double[0])
    assert logits < MAX_LOGIT_DISAGREEMENT, f"float32 is {logits:.1e} of the spread away from float64"
    worst = 0.0
    for name, gradient in double[3].items():
        if gradient.norm() > 1e-9:
            error = ((single[3][name] - gradient).norm() / gradient.norm()).item()
            assert error < MAX_GRADIENT_DISAGREEMENT, f"gradient of {name}: {error:.1e} away from float64"
            worst = max(worst, error)
    return {"logits_f32_error": logits, "gradients_f32_error": worst}


def check_gradients(gradients, zero_gradients):
    """Every parameter matters, and those said not to do not."""
    for name, gradient in gradients.items():
        norm = gradient.norm().item()
        if any(part in name for part in zero_gradients):
            assert norm < 1e-12, f"gradient of {name} is {norm:.1e}, expected zero"
        else:
            assert norm > 1e-4, f"gradient of {name} is only {norm:.1e}"
    return {"smallest_gradient_norm": min(g.norm().item() for g in gradients.values() if g.norm() > 1e-12)}


def check_teeth(case, state, input_ids, logits):
    """How far each change of the configuration moves the logits, in units of their spread."""
    moved = {}
    for change in case.teeth:
        other = make_model(case.architecture, make_config(case.architecture, {**case.config, **change}, case.config_class))
        other.load_state_dict(state)
        label = ", ".join(f"{name}={value}" for name, value in change.items())
        difference = of_spread(run(other, input_ids, torch.float64)[0] - logits, logits)
        assert difference > MIN_TOOTH, f"{label} moves the logits by only {difference:.1e} of their spread"
        moved[label] = difference
    return {"teeth": moved}


def check_reopens(folder, architecture, input_ids, expected):
    """The saved folder is a model that transformers opens: same class, all keys, same float32 logits."""
    auto = transformers.AutoModel if is_encoder(architecture) else transformers.AutoModelForCausalLM
    auto = transformers.AutoModelForMaskedLM if architecture.endswith("ForMaskedLM") else auto
    auto = OWN_CLASSES.get(architecture, auto)
    model, info = auto.from_pretrained(
        folder,
        **without_pooler(architecture),
        dtype=torch.float32,
        attn_implementation="eager",
        experts_implementation="eager",
        output_loading_info=True,
    )
    assert not any(info.values()), info
    assert type(model).__name__ == architecture, type(model)
    with torch.no_grad():
        logits = logits_of(model.eval(), input_ids).logits
    assert torch.equal(logits, expected), "the folder gives other logits when opened again"


def rounded(numbers):
    """For versions.json: enough digits to read, few enough not to change with the machine."""
    if isinstance(numbers, dict):
        return {name: rounded(value) for name, value in numbers.items()}
    return float(f"{numbers:.2g}")


def make(name):
    """Makes the folder of one case. Returns what versions.json says about it."""
    entry = CASES[name]
    case = CASES[entry.storage_of] if isinstance(entry, Stored) else entry
    model = make_model(case.architecture, make_config(case.architecture, case.config, case.config_class))
    draw_weights(model, case)
    stored = copy.deepcopy(model)
    if isinstance(entry, Stored):
        stored.to(entry.dtype)
        model.load_state_dict(stored.state_dict())  # the rounded weights, in float32
    input_ids = draw_input_ids(case)
    single = run(model, input_ids, torch.float32)
    double = run(model, input_ids, torch.float64)
    logits, attentions, loss, gradients = double
    numbers = {
        **check_not_gentle(attentions, logits),
        **check_precision(single, double),
        **check_gradients(gradients, case.zero_gradients),
    }
    if not isinstance(entry, Stored):
        numbers |= check_teeth(case, model.state_dict(), input_ids, logits)

    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    stored.config.dtype = next(stored.parameters()).dtype
    sharding = {"max_shard_size": entry.max_shard_size} if isinstance(entry, Stored) else {}
    stored.save_pretrained(folder, **sharding)
    check_reopens(folder, case.architecture, input_ids, single[0])
    oracle = {
        "input_ids": input_ids.to(torch.int32),
        "logits": logits.to(torch.float32),
        "loss": loss.reshape(1).to(torch.float32),
    }
    if not isinstance(entry, Stored):
        gradients = {case.saved_as.get(name, name): gradient for name, gradient in gradients.items()}
        # As `save_pretrained` stores experts: one by one, in some classes.
        gradients = revert_weight_conversion(model, gradients)
        saved = {key: list(tensor.shape) for key, tensor in load_file(folder / "model.safetensors").items()}
        # What is saved and does not train.
        kept = [name for name, _ in model.named_buffers() if name in saved and not name.endswith(SELECTION_BIASES)]
        buffers = {name: model.get_buffer(name) for name in kept}
        gradients |= {name: torch.zeros_like(buffer) for name, buffer in buffers.items()}
        computed = {key: list(gradient.shape) for key, gradient in gradients.items()}
        saved = {key: shape for key, shape in saved.items() if not key.endswith(SELECTION_BIASES)}
        assert saved == computed, f"gradients and saved tensors differ: {sorted(saved.keys() ^ computed.keys())}"
        oracle |= {f"grad.{key}": gradient.to(torch.float32) for key, gradient in gradients.items()}
    if case.alone_len and not isinstance(entry, Stored):
        alone = run(model, input_ids[:, : case.alone_len], torch.float64)[0]
        difference = of_spread(alone - logits[:, : case.alone_len], logits)
        assert difference > MIN_TOOTH, f"the start alone differs by only {difference:.1e} of the logits' spread"
        oracle["logits_alone"] = alone.to(torch.float32)
    save_file({key: tensor.contiguous() for key, tensor in oracle.items()}, folder / "oracle.safetensors")

    if not isinstance(entry, Stored) and case.router_losses:
        losses = {key: tensor.float().contiguous() for key, tensor in router_losses(model, input_ids).items()}
        save_file(losses, folder / "router_losses.safetensors")

    if not isinstance(entry, Stored) and case.published_as:
        kept = [*SMALL, "num_key_value_heads", "rms_norm_eps", "tie_word_embeddings"]
        fields = {key: case.config[key] for key in kept} | case.published_as
        fields = {key: value for key, value in fields.items() if value is not None}
        (folder / "config.json").write_text(json.dumps(fields, indent=2) + "\n")
    for file in folder.iterdir():
        file.chmod(0o644)  # safetensors writes files for the owner alone
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(
        f"{name}: {size / 1024:.0f} KiB, loss {loss.item():.3f}, logits std {numbers['logits_std']:.2f}, attention"
        f" peak {numbers['attention_peak']:.2f} (uniform {numbers['attention_uniform']:.2f}), f32 error"
        f" {numbers['logits_f32_error']:.1e} logits {numbers['gradients_f32_error']:.1e} gradients",
        flush=True,
    )
    for label, moved in numbers.get("teeth", {}).items():
        print(f"    {label}: moves the logits by {moved:.2g} of their spread")
    return {"architecture": case.architecture, "seed": case.seed, **rounded(numbers)}


def versions():
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "safetensors": safetensors.__version__,
    }


def main():
    parser = argparse.ArgumentParser(description="Makes the golden references of the model crate.")
    parser.add_argument("case", nargs="*", help="cases to make (default: all)")
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(CASES))
        return
    unknown = [name for name in arguments.case if name not in CASES]
    if unknown:
        sys.exit(f"no case named {', '.join(unknown)}; there are {', '.join(CASES)}")

    torch.set_num_threads(2)
    torch.use_deterministic_algorithms(True)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    record = {"versions": versions(), "cases": {}}
    if arguments.case and VERSIONS_FILE.exists():
        record = json.loads(VERSIONS_FILE.read_text())
        if record["versions"] != versions():
            sys.exit(f"versions.json says {record['versions']}, here are {versions()}\nhint: remake all cases")
    for name in arguments.case or CASES:
        try:
            record["cases"][name] = make(name)
        except AssertionError as error:
            sys.exit(f"{name}: {error}")
    record["cases"] = {name: record["cases"][name] for name in CASES if name in record["cases"]}
    VERSIONS_FILE.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
