#!/usr/bin/env python3
"""Makes the GGUF files of this folder, and what they are compared with.

Usage:
    LLAMA_CPP=<checkout with build/bin> python make_gguf.py           everything
    LLAMA_CPP=<checkout> python make_gguf.py CASE...                  the files of these cases

Needs torch, transformers, safetensors and gguf, and llama.cpp's converter (its folder `conversion`, which the source package of
`llama-cpp-python` has in `vendor/llama.cpp`); for everything also its `llama-quantize`.

<case>.gguf
    The dir ../golden/<case>, by llama.cpp's own converter, in f32. The tokenizer is a stand-in: the goldens have none.
    Compared with the oracle of the golden. The same for the dirs ../golden/wrapped/<case>.
<own>.gguf, with <own>/config.json and <own>/oracle.safetensors (`input_ids`, `logits`)
    The same for families whose goldens have what a file cannot say, such as which layers have a window where llama.cpp
    takes a constant: the golden with other figures.
quantized-<type>.gguf
    A random Llama, 256 wide since K-quants need it, by `llama-quantize`; with quantized.safetensors: `input_ids` and, by
    type, the `logits` that transformers computes from the dequantized weights.
split-*.gguf
    The case `qwen2` in several files.
prediction-head.gguf
    The dir ../golden/prediction-heads/qwen3_5-moe, with its head.
fused-qkv.gguf
    The same with queries, keys and values in one tensor.
"""

import dataclasses
import itertools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
LLAMA_CPP = Path(os.environ["LLAMA_CPP"])
sys.path[:0] = [str(LLAMA_CPP), str(LLAMA_CPP / "gguf-py")]

sys.path.append(str(Path(__file__).resolve().parent.parent / "golden"))

import gguf
import make_golden
import numpy as np
import torch
import transformers
from conversion import get_model_class
from conversion.base import ModelBase
from safetensors.torch import load_file, save_file

HERE = Path(__file__).resolve().parent
GOLDEN = HERE.parent / "golden"
CASES = ["gpt2", "llama", "llama-tied-bias", "llama-f16", "llama-bf16", "qwen2", "qwen3", "phi3", "phi3-longrope",
         "stablelm", "gpt-neox-parallel", "gpt-neox-serial", "gemma", "bloom", "rope-linear", "rope-llama3", "rope-yarn",
         "granite", "olmo2", "olmo3", "gpt-bigcode", "cohere", "exaone4", "ernie4-5", "glm4", "seed-oss", "jais2", "apertus",
         "arcee", "nemotron", "minicpm", "granite-moe", "granite-moe-shared", "glm4-moe", "ernie4_5-moe", "bert", "distilbert"]
# Of ../golden/prediction-heads/qwen3_5-moe.
HEAD = "prediction-head"
# Classes that wrap a text class.
WRAPPED = ["mistral3", "qwen2-5-vl", "qwen3-vl", "muse-glimmer"]
# What is other than in the golden.
OWN = {
    # The converter writes a constant.
    "olmoe": {"rms_norm_eps": 1e-5},
    # The converter leaves the window out.
    "mixtral": {"sliding_window": None},
    # The converter has no names for layers without experts.
    "qwen2-moe": {"mlp_only_layers": []},
    "qwen3-moe": {"decoder_sparse_step": 1},
    "gemma2": {"query_pre_attn_scalar": 12},
    "gemma3": {"query_pre_attn_scalar": 12, "num_hidden_layers": 6,
               "layer_types": ["sliding_attention"] * 5 + ["full_attention"]},
    # The converter counts the tokenizer's entries.
    "gemma4": {},
    "gemma4-experts": {},
    "gemma4-per-layer": {},
    "smollm3": {"num_hidden_layers": 4, "no_rope_layers": [1, 1, 1, 0], "use_sliding_window": False,
                "sliding_window": None, "layer_types": ["full_attention"] * 4},
    "phi": {"intermediate_size": 64, "num_key_value_heads": 2},
    "cohere2": {"num_hidden_layers": 4, "layer_types": ["sliding_attention"] * 3 + ["full_attention"]},
    # Transformers writes the number of queries, which the converter takes for that of keys.
    "falcon": {"num_kv_heads": 1},
    "falcon-new": {"ffn_hidden_size": 96, "bias": False},
    "starcoder2": {"sliding_window": None},
    "ministral3": {"rope_parameters": {
        **{key: value for key, value in make_golden.ministral3_rope().items() if key != "attention_factor"},
        "mscale": 1.0, "mscale_all_dim": 0.5}},
    # The converter does not arrange biases.
    "olmo": {"attention_bias": False},
    # The converter has no names for these, or no keys.
    "lfm2": {"conv_bias": False},
    "lfm2-moe": {"tie_word_embeddings": True, "routed_scaling_factor": 1.0},
    "qwen3_5": {"attention_bias": False},
    "qwen3_5-moe": {},
    "granite4-h": {"mamba_proj_bias": False, "time_step_limit": (0.0, float("inf")), "max_position_embeddings": 2**20},
    "granite4-h-moe": {"position_embedding_type": None, "max_position_embeddings": 2**20},
    # The converter wants all values together to be a multiple of 64.
    "nemotron-h": {"use_bias": False, "mamba_num_heads": 16, "mamba_head_dim": 4, "time_step_min": 1e-6, "max_position_embeddings": 2**20},
    # The converter knows no MLP beside experts.
    "nemotron-h-moe": {"layers_block_type": ["linear_attention", "moe", "full_attention", "moe"], "intermediate_size": 12,
                       "mamba_num_heads": 16, "mamba_head_dim": 4,
                       "n_group": 1, "topk_group": 1, "time_step_min": 1e-6, "max_position_embeddings": 2**20},
    "qwen3-next": {"mlp_only_layers": [], "norm_topk_prob": True},
    # llama.cpp has constants for these.
    "gpt-oss": {"swiglu_alpha": 1.702, "swiglu_limit": 7.0},
    # The converter does not arrange biases, and has no keys for the order of rotated dimensions, nor for one of two multipliers.
    "deepseek-v2": {"attention_bias": False},
    "deepseek-v3": {"attention_bias": False, "scoring_func": "sigmoid",
                    "rope_parameters": {**make_golden.LATENT_YARN, "beta_fast": 8, "beta_slow": 1, "mscale": 0.707}},
    "glm4-moe-lite": {"mlp_layer_types": ["dense", "sparse", "sparse"], "n_group": 1},
    "youtu": {"rope_interleave": True},
    # llama.cpp has constants, and values as wide as the model has heads.
    "minicpm3": {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256, "v_head_dim": 8},
    # llama.cpp has constants: the layers without a window, and the rotary base of the others.
    "modernbert": {"global_attn_every_n_layers": 3, "local_rope_theta": 10000.0},
    "embedding-gemma": {"query_pre_attn_scalar": 12, "num_hidden_layers": 6,
                        "layer_types": ["sliding_attention"] * 5 + ["full_attention"]},
    # Files do not name the activation.
    "roberta": {"hidden_act": "gelu"},
    # The converter knows the context lengths of the released models.
    "nomic-bert": {"head_dim": 8, "max_position_embeddings": 2048},
    # The converter knows one context length with `alpha`.
    "hunyuan": {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
}


def older_layer_types(config: dict) -> None:
    names = {"linear_attention": "mamba", "full_attention": "attention"}
    config["layer_types"] = [names[kind] for kind in config["layer_types"]]


def pattern_of_layers(config: dict) -> None:
    letters = {"linear_attention": "M", "full_attention": "*", "mlp": "-", "moe": "E"}
    config["hybrid_override_pattern"] = "".join(letters[kind] for kind in config.pop("layers_block_type"))
    config["num_hidden_layers"] = len(config["hybrid_override_pattern"])
    if "E" not in config["hybrid_override_pattern"]:
        # Their presence tells the converter that there are experts.
        for key in ("num_experts_per_tok", "n_routed_experts", "n_shared_experts", "n_group", "topk_group"):
            config.pop(key)


def nomic_of_2024(config: dict) -> None:
    names = {"hidden_size": "n_embd", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer", "intermediate_size": "n_inner",
             "layer_norm_eps": "layer_norm_epsilon"}
    for name, older in names.items():
        config[older] = config.pop(name)
    config["rotary_emb_base"] = config.pop("rope_parameters")["rope_theta"]
    for name in ("hidden_act", "head_dim", "max_position_embeddings"):
        config.pop(name)
    no = ["causal", "qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias", "prenorm", "rotary_emb_interleaved"]
    config |= {**dict.fromkeys(no, False), "activation_function": "swiglu", "rotary_emb_fraction": 1.0, "rotary_emb_scale_base": None,
               "n_positions": 8192, "max_trained_positions": 2048}


# The configurations of published models, where the converter does not know what transformers 5 writes.
AS_PUBLISHED = {
    "GraniteMoeHybridForCausalLM": older_layer_types,
    "NemotronHForCausalLM": pattern_of_layers,
    "NomicBertModel": nomic_of_2024,
}
TYPES = {"Q4_0": "Q4_0", "Q4_1": "Q4_1", "Q5_0": "Q5_0", "Q5_1": "Q5_1", "Q8_0": "Q8_0", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M",
         "Q6_K": "Q6_K"}
# Committed; the others are covered by their blocks.
KEPT = ["Q4_0", "Q8_0", "Q4_K"]


def convert(source: Path, target: Path, vocab_size: int, ftype: gguf.LlamaFileType, split: int = 0,
            fuse_qkv: bool = False, with_head: bool = False) -> None:
    """Runs the converter, with a vocabulary of single characters in place of the tokenizer's."""
    hparams = ModelBase.load_hparams(source, False)
    model_class = get_model_class(hparams["architectures"][0])
    # The class of Mistral 3 passes everything on to another one.
    model_class = getattr(model_class, "Ministral3Model", model_class)

    def set_vocab(self) -> None:
        letters = [chr(code) for code in [*range(0x21, 0x7F), *range(0xA1, 0xAD)]]
        words = ("".join(word) for length in itertools.count(1) for word in itertools.product(letters, repeat=length))
        # A list of merges that is empty would not be written.
        last = "!" + '"'
        tokens = ["<|endoftext|>", *itertools.islice((word for word in words if word != last), vocab_size - 2), last]
        self.gguf_writer.add_tokenizer_model("gpt2")
        self.gguf_writer.add_tokenizer_pre("gpt-2")
        self.gguf_writer.add_token_list(tokens)
        self.gguf_writer.add_token_types([gguf.TokenType.CONTROL] + [gguf.TokenType.NORMAL] * (vocab_size - 1))
        self.gguf_writer.add_token_merges(['! "'])
        self.gguf_writer.add_bos_token_id(0)
        self.gguf_writer.add_eos_token_id(0)

    def set_gguf_parameters(self) -> None:
        # Names that transformers 5 no longer has.
        rope = self.hparams.get("rope_parameters") or {}
        self.hparams.setdefault("rotary_pct", rope.get("partial_rotary_factor", 1.0))
        self.hparams.setdefault("n_ctx", self.hparams.get("n_positions"))
        # What transformers 5 no longer writes of BLOOM, and the model's own files have.
        if model_class.model_arch == gguf.MODEL_ARCH.BLOOM:
            self.hparams.setdefault("seq_length", 2048)
        model_class.set_gguf_parameters(self)
        base = gguf.Keys.Rope.FREQ_BASE.format(arch=self.gguf_writer.arch)
        if "rope_theta" in rope and base not in self.gguf_writer.kv_data[0]:
            # Those of StableLM, GPT-NeoX and Gemma leave it out: released models have the 10,000 that is then taken.
            self.gguf_writer.add_rope_freq_base(rope["rope_theta"])

    methods = {"set_vocab": set_vocab, "set_gguf_parameters": set_gguf_parameters}
    methods["no_mtp"] = not with_head
    patched = type(model_class.__name__, (model_class,), {**methods, "model_arch": model_class.model_arch})
    # Otherwise read by transformers, with its defaults.
    own = {"hparams": json.loads((source / "config.json").read_text())} if hparams["architectures"][0].startswith(("NemotronH", "NomicBert")) else {}
    with torch.inference_mode():
        patched(source, ftype, target, model_name=target.stem, split_max_tensors=split, fuse_qkv=fuse_qkv, **own).write()


def make_wrapped(cases) -> None:
    for case in cases:
        convert(GOLDEN / "wrapped" / case, HERE / f"{case}.gguf", 37, gguf.LlamaFileType.ALL_F32)


def make_cases(cases) -> None:
    for case in cases:
        hparams = ModelBase.load_hparams(GOLDEN / case, False)
        ftype = {"llama-f16": gguf.LlamaFileType.MOSTLY_F16, "llama-bf16": gguf.LlamaFileType.MOSTLY_BF16}
        convert(GOLDEN / case, HERE / f"{case}.gguf", hparams["vocab_size"], ftype.get(case, gguf.LlamaFileType.ALL_F32))


def make_forms() -> None:
    convert(GOLDEN / "qwen2", HERE / "split.gguf", 37, gguf.LlamaFileType.ALL_F32, split=9)
    convert(GOLDEN / "qwen2", HERE / "fused-qkv.gguf", 37, gguf.LlamaFileType.ALL_F32, fuse_qkv=True)


def make_head() -> None:
    source = GOLDEN / "prediction-heads" / "qwen3_5-moe"
    convert(source, HERE / f"{HEAD}.gguf", 37, gguf.LlamaFileType.ALL_F32, with_head=True)


def make_own(names) -> None:
    for name in names:
        changes = OWN[name]
        case = make_golden.CASES[name]
        case = dataclasses.replace(case, config={**case.config, **changes})
        model = make_golden.make_model(case.architecture, make_golden.make_config(case.architecture, case.config))
        make_golden.draw_weights(model, case)
        ids = make_golden.draw_input_ids(case)
        logits = make_golden.run(model, ids, torch.float64)[0]
        with tempfile.TemporaryDirectory() as scratch:
            source = Path(scratch)
            model.save_pretrained(source)
            # The converter of Gemma 3 counts its entries.
            vocab = {str(id): id for id in range(case.config["vocab_size"])}
            if change := AS_PUBLISHED.get(case.architecture):
                config = json.loads((source / "config.json").read_text())
                change(config)
                (source / "config.json").write_text(json.dumps(config, indent=2) + "\n")
            (source / "tokenizer.json").write_text(json.dumps({"model": {"type": "WordPiece", "vocab": vocab}, "added_tokens": []}))
            convert(source, HERE / f"{name}.gguf", len(vocab), gguf.LlamaFileType.ALL_F32)
            (HERE / name).mkdir(exist_ok=True)
            (HERE / name / "config.json").write_text((source / "config.json").read_text())
        save_file({"input_ids": ids.to(torch.int32), "logits": logits.float().contiguous()},
                  HERE / name / "oracle.safetensors")
        (HERE / name / "oracle.safetensors").chmod(0o644)


def make_quantized() -> None:
    torch.manual_seed(6)
    config = transformers.LlamaConfig(
        vocab_size=96, hidden_size=256, intermediate_size=256, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=True, rope_theta=500.0)
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0 if parameter.ndim == 2 else 1.0, 0.12)
    ids = torch.randint(0, 96, (1, 24))
    oracle = {"input_ids": ids.to(torch.int32)}
    with tempfile.TemporaryDirectory() as scratch:
        source, full = Path(scratch) / "model", Path(scratch) / "full.gguf"
        model.save_pretrained(source)
        convert(source, full, 96, gguf.LlamaFileType.ALL_F32)
        for name, ftype in TYPES.items():
            target = (HERE if name in KEPT else Path(scratch)) / f"quantized-{name}.gguf"
            subprocess.run([LLAMA_CPP / "build/bin/llama-quantize", "--allow-requantize", full, target, ftype], check=True,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            if name in KEPT:
                oracle[f"logits.{name}"] = dequantized_logits(model, target, ids)
    save_file(oracle, HERE / "quantized.safetensors")


def dequantized_logits(model: transformers.LlamaForCausalLM, path: Path, ids: torch.Tensor) -> torch.Tensor:
    """What transformers computes from the file's values, in f64."""
    names = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "attn_norm": "input_layernorm",
             "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
             "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj",
             "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
    state = {}
    for tensor in gguf.GGUFReader(path).tensors:
        values = torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float64))
        parts = tensor.name.removesuffix(".weight").split(".")
        name = names[parts[-1]]
        if parts[-1] in ("attn_q", "attn_k"):
            n_heads = {"attn_q": 4, "attn_k": 2}[parts[-1]]
            values = values.reshape(n_heads, values.shape[0] // n_heads // 2, 2, -1).swapaxes(1, 2).reshape(values.shape)
        state[(f"model.layers.{parts[1]}.{name}" if parts[0] == "blk" else name) + ".weight"] = values
    copy = transformers.LlamaForCausalLM(model.config).double().eval()
    copy.load_state_dict(state, strict=False)
    with torch.inference_mode():
        return copy(ids).logits[0].float().contiguous()


if __name__ == "__main__":
    chosen = sys.argv[1:] or [*CASES, *WRAPPED, *OWN, HEAD]
    unknown = set(chosen) - {*CASES, *WRAPPED, *OWN, HEAD}
    if unknown:
        sys.exit(f"no case named {', '.join(sorted(unknown))}")
    make_cases([case for case in CASES if case in chosen])
    make_wrapped([case for case in WRAPPED if case in chosen])
    make_own([name for name in OWN if name in chosen])
    if HEAD in chosen:
        make_head()
    if not sys.argv[1:]:
        make_forms()
        make_quantized()
