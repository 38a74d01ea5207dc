"""Writes tuning/: short fine-tuning runs in torch: weights before and after, examples, losses.

Run from this folder with torch, transformers and peft installed: python tuning.py
- full: a tiny GPT-2, all weights, AdamW with decay.
- lora: a tiny Llama, a PEFT adapter of two ranks with rsLoRA, AdamW.
- mtp: a tiny Llama and a prediction head in plain torch (DeepSeek-V3, 2.2), all weights of both, AdamW with decay. The losses in
  the file are the model's.
- dpo: the same model as lora's, all weights, DPO by its definition as TRL has it (`sigmoid` loss, sums over the answer's tokens).

Each step has examples of different lengths of which some tokens are targets. Here each runs alone, and the loss is the sum over
all targets of the step, divided by their number. Hearth packs them into rows and sums over micro-batches.
"""

import json
import math
import os

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

torch.set_num_threads(1)
STEPS, SEQ_LEN, VOCAB, BETA, MTP = 20, 24, 32, 0.3, 0.3
LR = {"full": 0.003, "lora": 0.01, "dpo": 0.003, "mtp": 0.003}


def share(step):
    if step < 4:
        return (step + 1) / 5
    done = (step - 4) / (STEPS - 4)
    return 0.1 + 0.5 * (1 + math.cos(math.pi * done)) * 0.9


def log_probs(model, ids):
    logits = model(torch.tensor([ids[:-1]])).logits[0].float()
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]


def masked_sum(values, trained):
    return (values * torch.tensor(trained[1:], dtype=torch.float32)).sum()


class WithHead(torch.nn.Module):
    """A Llama and a prediction head, whose tensors have Qwen's names."""

    def __init__(self, model):
        super().__init__()
        self.model, self.config = model, model.config
        d, d_ff, dim = self.config.hidden_size, self.config.intermediate_size, self.config.head_dim
        kv = self.config.num_key_value_heads * dim
        shapes = {
            "pre_fc_norm_embedding": [d],
            "pre_fc_norm_hidden": [d],
            "fc": [d, 2 * d],
            "layers.0.input_layernorm": [d],
            "layers.0.self_attn.q_proj": [self.config.num_attention_heads * dim, d],
            "layers.0.self_attn.k_proj": [kv, d],
            "layers.0.self_attn.v_proj": [kv, d],
            "layers.0.self_attn.o_proj": [d, self.config.num_attention_heads * dim],
            "layers.0.post_attention_layernorm": [d],
            "layers.0.mlp.gate_proj": [d_ff, d],
            "layers.0.mlp.up_proj": [d_ff, d],
            "layers.0.mlp.down_proj": [d, d_ff],
            "norm": [d],
        }
        self.names = list(shapes)
        for name, shape in shapes.items():
            self.register_parameter(f"{name}.weight".replace(".", "/"), torch.nn.Parameter(torch.empty(shape)))

    def of(self, name):
        return getattr(self, f"{name}.weight".replace(".", "/"))

    def save_pretrained(self, folder):
        self.model.save_pretrained(folder)
        path = os.path.join(folder, "model.safetensors")
        head = {f"mtp.{name}.weight": self.of(name).detach().contiguous() for name in self.names}
        save_file(load_file(path) | head, path, metadata={"format": "pt"})

    def norm(self, name, x):
        return x * (x.square().mean(-1, keepdim=True) + self.config.rms_norm_eps).rsqrt() * self.of(name)

    def linear(self, name, x):
        return x @ self.of(f"layers.0.{name}").T

    def rotate(self, x):
        """x: [seq, heads, head_dim]."""
        half = x.shape[-1] // 2
        theta = self.config.rope_parameters["rope_theta"]
        angles = torch.arange(x.shape[0])[:, None, None] / theta ** (torch.arange(half) / half)
        a, b = x.chunk(2, -1)
        return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)

    def attend(self, x):
        seq, dim = x.shape[0], self.config.head_dim
        q, k, v = (self.linear(f"self_attn.{name}_proj", x).view(seq, -1, dim) for name in "qkv")
        n_shared = q.shape[1] // k.shape[1]
        q, k, v = self.rotate(q), self.rotate(k).repeat_interleave(n_shared, 1), v.repeat_interleave(n_shared, 1)
        scores = torch.einsum("qhd,khd->hqk", q, k) / dim**0.5
        scores = scores.masked_fill(torch.ones(seq, seq, dtype=torch.bool).triu(1), float("-inf"))
        return self.linear("self_attn.o_proj", torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).reshape(seq, -1))

    def both_sums(self, one):
        """The sums of the log-probabilities of the targets, and of what the head says of those that it predicts."""
        ids = torch.tensor(one["ids"])
        hidden = self.model.model(ids[None, :-1]).last_hidden_state[0]
        embedding = self.model.get_input_embeddings().weight
        trained = torch.tensor(one["trained"], dtype=torch.float32)

        def total(hidden, targets, trained):
            of_targets = torch.log_softmax(hidden @ embedding.T, -1).gather(1, targets[:, None])[:, 0]
            return (of_targets * trained).sum()

        tokens = self.norm("pre_fc_norm_embedding", embedding[ids[1:]])
        x = torch.cat([tokens, self.norm("pre_fc_norm_hidden", hidden)], -1) @ self.of("fc").T
        x = x + self.attend(self.norm("layers.0.input_layernorm", x))
        normed = self.norm("layers.0.post_attention_layernorm", x)
        gate = torch.nn.functional.silu(self.linear("mlp.gate_proj", normed))
        x = x + self.linear("mlp.down_proj", gate * self.linear("mlp.up_proj", normed))
        of_head = self.norm("norm", x)[:-1]
        return total(hidden, ids[1:], trained[1:]), total(of_head, ids[2:], trained[2:])


def examples(generator, n):
    made = []
    for _ in range(n):
        length = int(torch.randint(2, SEQ_LEN + 2, (1,), generator=generator))
        ids = torch.randint(0, VOCAB, (length,), generator=generator).tolist()
        trained = (torch.rand(length, generator=generator) < 0.6).tolist()
        trained[-1] = True
        made.append({"ids": ids, "trained": trained})
    return made


def randomize(model, generator):
    with torch.no_grad():
        for path, p in model.named_parameters():
            noise = 0.1 * torch.randn(p.shape, generator=generator)
            p.copy_(noise + 1 if p.dim() == 1 and path.endswith("weight") else noise)


def run(name, model, adapter=None):
    generator = torch.Generator().manual_seed(len(name) + 20261125)
    randomize(model, generator)
    model.save_pretrained(f"tuning/{name}/start")
    if adapter is not None:
        model = get_peft_model(model, adapter)
        with torch.no_grad():
            for path, p in model.named_parameters():
                if "lora_B" in path:
                    p.copy_(0.1 * torch.randn(p.shape, generator=generator))
        model.save_pretrained(f"tuning/{name}/adapter-start")
    reference = None
    if name == "dpo":
        reference = type(model)(model.config)
        reference.load_state_dict(model.state_dict())
    steps = [examples(generator, 8 if name == "dpo" else 7) for _ in range(STEPS)]
    trained = [p for p in model.parameters() if p.requires_grad]
    decay = 0.0 if adapter is not None else 0.1
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in trained if p.dim() >= 2], "weight_decay": decay},
            {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
        ],
        betas=(0.9, 0.95),
        eps=1e-6,
    )
    losses, norms = [], []
    for step, batch in enumerate(steps):
        if name == "dpo":
            def of(one):
                with torch.no_grad():
                    ref = masked_sum(log_probs(reference, one["ids"]), one["trained"])
                return masked_sum(log_probs(model, one["ids"]), one["trained"]) - ref

            pairs = list(zip(batch[::2], batch[1::2]))
            margins = torch.stack([of(chosen) - of(rejected) for chosen, rejected in pairs])
            loss = shown = -torch.nn.functional.logsigmoid(BETA * margins).mean()
        elif name == "mtp":
            total = sum(sum(one["trained"][1:]) for one in batch)
            of_model, of_head = (-sum(sums) / total for sums in zip(*map(model.both_sums, batch)))
            shown, loss = of_model, of_model + MTP * of_head
        else:
            total = sum(sum(one["trained"][1:]) for one in batch)
            loss = -sum(masked_sum(log_probs(model, one["ids"]), one["trained"]) for one in batch) / total
            shown = loss
        model.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(trained, 1.0)
        for group in optimizer.param_groups:
            group["lr"] = share(step) * LR[name]
        optimizer.step()
        losses.append(shown.item())
        norms.append(norm.item())
    model.save_pretrained(f"tuning/{name}/{'adapter-end' if adapter is not None else 'end'}")
    sets = [
        f"schedule.max_steps={STEPS}",
        "schedule.warmup_steps=4",
        "schedule.min_lr_ratio=0.1",
        "schedule.kind=cosine",
        f"model.max_seq_len={SEQ_LEN}",
        "optim.beta1=0.9",
        "optim.beta2=0.95",
        "optim.eps=1e-6",
        f"optim.weight_decay={decay}",
        f"optim.lr={LR[name]}",
        "optim.clip=1.0",
        f"objective.beta={BETA}",
    ]
    if name == "mtp":
        sets += ["model.arch=llama", f"objective.mtp={MTP}"]
    with open(f"tuning/{name}/run.json", "w") as file:
        json.dump({"torch": torch.__version__, "sets": sets, "losses": losses, "norms": norms, "steps": steps}, file)
        file.write("\n")
    print(name, losses[0], losses[-1], min(norms), max(norms))


gpt2 = GPT2Config(vocab_size=VOCAB, n_positions=SEQ_LEN, n_embd=16, n_layer=2, n_head=2, embd_pdrop=0, resid_pdrop=0, attn_pdrop=0)
llama = LlamaConfig(
    vocab_size=VOCAB,
    max_position_embeddings=SEQ_LEN,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    tie_word_embeddings=True,
)
run("full", GPT2LMHeadModel(gpt2))
run(
    "lora",
    LlamaForCausalLM(llama),
    LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=6, use_rslora=True, target_modules="all-linear", rank_pattern={"q_proj": 2}),
)
run("dpo", LlamaForCausalLM(llama))
run("mtp", WithHead(LlamaForCausalLM(llama)))
