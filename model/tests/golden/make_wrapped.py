#!/usr/bin/env python3
"""Makes the references for classes that wrap a text class, whose text part Hearth opens.

Usage:
    python make_wrapped.py [CASE...]

Each case becomes a folder `wrapped/<case>/`: a tiny model with its vision part (config.json, model.safetensors, as
transformers saves them) and `oracle.safetensors` with `input_ids`, and `logits` and `loss` of texts without
images, in float64.
The versions are those of `versions.json`.
"""

import json
import shutil
import sys
from pathlib import Path

import make_golden
import torch
import transformers
from make_golden import DELTA_NET, DELTA_NET_MEANS, DELTA_NET_MIXTURE, GEMMA4, GEMMA4_MEANS, HERE, SMALL_ROPE, Case
from safetensors.torch import load_file, save_file

TEXT = {**SMALL_ROPE, "num_attention_heads": 2, "head_dim": 12}
SECTIONED = {"rope_type": "default", "rope_theta": 500.0, "mrope_section": [1, 2, 1]}
QWEN_TEXT = {**SMALL_ROPE, "rope_parameters": SECTIONED}
SIGLIP = {"model_type": "siglip_vision_model", "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
          "num_attention_heads": 1, "image_size": 4, "patch_size": 2}
PIXTRAL = {"model_type": "pixtral", "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
           "num_attention_heads": 1, "head_dim": 8, "image_size": 4, "patch_size": 2}
QWEN_VISION = {"depth": 1, "num_heads": 1, "patch_size": 2, "temporal_patch_size": 1, "spatial_merge_size": 1}
IDS = {name: 30 + n for n, name in enumerate(
    ["image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id", "image_token_index",
     "boi_token_index", "eoi_token_index"])}


def case(architecture, text, vision, seed, **changes):
    return Case(architecture, {"text_config": text, "vision_config": vision, **IDS, **changes}, seed=seed, weight_std=0.5)


def recurrent_case(architecture, text, seed):
    sectioned = {**DELTA_NET["rope_parameters"], "mrope_section": [1, 1, 1], "mrope_interleaved": True}
    vision = {**QWEN_VISION, "hidden_size": 8, "intermediate_size": 8, "out_hidden_size": 16, "num_position_embeddings": 4}
    return Case(architecture, {"text_config": {**text, "rope_parameters": sectioned}, "vision_config": vision, **IDS},
                seed=seed, weight_std=0.4, norm_mean=0.0, mean_of=DELTA_NET_MEANS)


def gemma4_case(architecture, text, vision, seed):
    text = {"num_hidden_layers": 3, "attention_k_eq_v": True, "use_bidirectional_attention": "vision", "pad_token_id": 0, **text}
    config = {"text_config": {**GEMMA4, **text}, "vision_config": vision, **IDS, "audio_token_id": 36}
    return Case(architecture, config, seed=seed, weight_std=0.4, mean_of=GEMMA4_MEANS)


WRAPPED_MIXTURE = {key: value for key, value in DELTA_NET_MIXTURE.items() if key != "intermediate_size"}

CASES = {
    "gemma3": case(
        "Gemma3ForConditionalGeneration",
        {**TEXT, "model_type": "gemma3_text", "num_hidden_layers": 3, "sliding_window": 6, "query_pre_attn_scalar": 7,
         "layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "tie_word_embeddings": True,
         "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0},
                             "sliding_attention": {"rope_type": "default", "rope_theta": 100.0}}},
        SIGLIP, 501, mm_tokens_per_image=4),
    "mistral3": case(
        "Mistral3ForConditionalGeneration", {**TEXT, "model_type": "mistral", "sliding_window": None}, PIXTRAL, 502,
        tie_word_embeddings=False),
    "qwen2-vl": case(
        "Qwen2VLForConditionalGeneration", QWEN_TEXT, {**QWEN_VISION, "embed_dim": 8, "hidden_size": 16, "mlp_ratio": 1}, 503),
    "qwen2-5-vl": case(
        "Qwen2_5_VLForConditionalGeneration", {**QWEN_TEXT, "tie_word_embeddings": True},
        {**QWEN_VISION, "hidden_size": 8, "intermediate_size": 8, "out_hidden_size": 16, "fullatt_block_indexes": [0]}, 504,
        tie_word_embeddings=True),
    "qwen3-vl": case(
        "Qwen3VLForConditionalGeneration",
        {**TEXT, "rope_parameters": {**SECTIONED, "mrope_section": [2, 2, 2], "mrope_interleaved": True}},
        {**QWEN_VISION, "hidden_size": 8, "intermediate_size": 8, "out_hidden_size": 16, "num_position_embeddings": 4,
         "deepstack_visual_indexes": [0]}, 505),
    # Experts of a layer in one tensor, which released files have transposed.
    "qwen3-vl-moe": case(
        "Qwen3VLMoeForConditionalGeneration",
        {**TEXT, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "mlp_only_layers": [1],
         "rope_parameters": {**SECTIONED, "mrope_section": [2, 2, 2], "mrope_interleaved": True}},
        {**QWEN_VISION, "hidden_size": 8, "intermediate_size": 8, "out_hidden_size": 16, "num_position_embeddings": 4,
         "deepstack_visual_indexes": [0]}, 511),
    "qwen3_5": recurrent_case("Qwen3_5ForConditionalGeneration", DELTA_NET, 506),
    "gemma4": gemma4_case(
        "Gemma4ForConditionalGeneration",
        {"model_type": "gemma4_text", "hidden_size_per_layer_input": 4, "vocab_size_per_layer_input": 37,
         "enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 6},
        {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1,
         "num_key_value_heads": 1, "head_dim": 8, "patch_size": 2, "position_embedding_size": 4,
         "pooling_kernel_size": 1}, 509),
    "gemma4-unified": gemma4_case(
        "Gemma4UnifiedForConditionalGeneration", {"model_type": "gemma4_unified_text"},
        {"patch_size": 2, "pooling_kernel_size": 1, "mm_embed_dim": 8, "mm_posemb_size": 4, "output_proj_dims": 16}, 508),
    "muse-glimmer": Case(
        "MuseGlimmerForConditionalGeneration",
        {"text_config": {**TEXT, "num_hidden_layers": 4, "sliding_window": 6, "qk_scale_factor": 3.1,
                         "output_multiplier": 0.7, "final_logit_softcapping": 5.0},
         "vision_config": {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1,
                           "patch_size": 2, "pos_emb_height": 2, "pos_emb_width": 2, "patch_temporal": 1, "merge_size": 1},
         **IDS, "out_hidden_size": 8, "projector_hidden_size": 8},
        seed=510, weight_std=0.5, mean_of={"layernorm": 0.0}),
    "qwen3_5-moe": recurrent_case("Qwen3_5MoeForConditionalGeneration", WRAPPED_MIXTURE, 507),
}


def make(name):
    case = CASES[name]
    model = make_golden.make_model(case.architecture, make_golden.make_config(case.architecture, case.config))
    make_golden.draw_weights(model, case)
    text = case.config["text_config"]
    generator = torch.Generator().manual_seed(case.seed + 1_000_000)
    # The ids above are those of images.
    ids = torch.randint(0, 30, (2, case.seq_len), generator=generator)
    double = model.double()
    with torch.no_grad(), make_golden.Float64():
        output = double(input_ids=ids, use_cache=False, output_attentions=True)
    make_golden.check_not_gentle([layer for layer in output.attentions if layer is not None], output.logits)
    folder = HERE / "wrapped" / name
    shutil.rmtree(folder, ignore_errors=True)
    model.float().save_pretrained(folder)
    loss = make_golden.loss_of(output.logits, ids).reshape(1)
    oracle = {"input_ids": ids.to(torch.int32), "logits": output.logits.float().contiguous(), "loss": loss.float()}
    save_file(oracle, folder / "oracle.safetensors")
    (folder / "generation_config.json").unlink(missing_ok=True)
    for file in folder.iterdir():
        file.chmod(0o644)
    names = sorted(load_file(folder / "model.safetensors"))
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{name}: {size / 1024:.0f} KiB, vocabulary {text['vocab_size']}, {names[0]} ... {names[-1]}")


def main():
    record = json.loads(make_golden.VERSIONS_FILE.read_text())
    if record["versions"] != make_golden.versions():
        sys.exit(f"versions.json says {record['versions']}, here are {make_golden.versions()}")
    torch.set_num_threads(2)
    torch.use_deterministic_algorithms(True)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    for name in sys.argv[1:] or CASES:
        make(name)


if __name__ == "__main__":
    main()
