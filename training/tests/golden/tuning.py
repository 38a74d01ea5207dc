"""Writes tuning/: short fine-tuning runs in torch: weights before and after, examples, losses.

Run from this folder with torch, transformers and peft installed: python tuning.py
- full: a tiny GPT-2, all weights, AdamW with decay.
- lora: a tiny Llama, a PEFT adapter of two ranks with rsLoRA, AdamW.
- dpo: the same model, all weights, DPO by its definition as TRL has it (`sigmoid` loss, sums over the answer's tokens).

Each step has examples of different lengths of which some tokens are targets. Here each runs alone, and the loss is the sum over
all targets of the step, divided by their number. Hearth packs them into rows and sums over micro-batches.
"""

import json
import math

import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

torch.set_num_threads(1)
STEPS, SEQ_LEN, VOCAB, BETA = 20, 24, 32, 0.3
LR = {"full": 0.003, "lora": 0.01, "dpo": 0.003}


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
            loss = -torch.nn.functional.logsigmoid(BETA * margins).mean()
        else:
            total = sum(sum(one["trained"][1:]) for one in batch)
            loss = -sum(masked_sum(log_probs(model, one["ids"]), one["trained"]) for one in batch) / total
        model.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(trained, 1.0)
        for group in optimizer.param_groups:
            group["lr"] = share(step) * LR[name]
        optimizer.step()
        losses.append(loss.item())
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
