"""Makes fixtures of distillation: losses and figures of a small Llama that learns from another one, in PyTorch.

    python tests/parity/make_distillation.py          (torch, transformers, trl and safetensors; after make_preference.py)

tests/fixtures/distillation/teacher is the teacher; expected.json has rows, and losses of steps that each take all rows. The divergence of all
tokens is that of TRL's GKDTrainer, and the bucket of other tokens is added as TRL's server distillation does.
"""
import json
from pathlib import Path

import torch
import torch.nn.functional as F
from make_preference import base_model, tokenizer_of
from transformers import LlamaConfig, LlamaForCausalLM
from trl.experimental.gkd import GKDTrainer

HERE = Path(__file__).parents[1] / "fixtures" / "distillation"
ROWS = [dict(prompt=f"Count {i}: ", completion=" ".join(str((i * k) % 7) for k in range(1, 3 + i))) for i in range(8)]
LENGTH = 48


def teacher_of(vocab_size):
    torch.manual_seed(3)
    config = LlamaConfig(vocab_size=vocab_size, hidden_size=24, intermediate_size=40, num_hidden_layers=1, num_attention_heads=2,
                         num_key_value_heads=1, max_position_embeddings=128, initializer_range=0.4, tie_word_embeddings=False)
    return LlamaForCausalLM(config)


def batch_of(tokenizer):
    made = []
    for row in ROWS:
        prompt = tokenizer(row["prompt"])["input_ids"]
        ids = tokenizer(row["prompt"] + row["completion"])["input_ids"] + [tokenizer.eos_token_id]
        own = next((i for i, (a, b) in enumerate(zip(prompt, ids)) if a != b), len(prompt))  # where a merge reaches over the border
        made.append((ids[:LENGTH], ([-100] * own + ids[own:])[:LENGTH]))
    longest = max(len(ids) for ids, _ in made)
    pad = lambda rows, value: torch.tensor([row + [value] * (longest - len(row)) for row in rows])
    return pad([ids for ids, _ in made], 0), pad([labels for _, labels in made], -100), pad([[1] * len(ids) for ids, _ in made], 0)


def with_tail(log_probs):
    total = torch.clamp(torch.logsumexp(log_probs, -1, keepdim=True), max=-1e-7)
    return torch.cat([log_probs, torch.log(-torch.expm1(total))], -1)


def divergence(student, teacher, top_k, beta, temperature):
    if top_k >= student.shape[-1]:
        # The trainer divides by the number of tokens, as a sum over one of them is not divided.
        return GKDTrainer.generalized_jsd_loss(student[None], teacher[None], torch.zeros(1, len(student)).long(), beta, temperature,
                                               reduction="sum") / len(student)
    s, t = F.log_softmax(student / temperature, -1), F.log_softmax(teacher / temperature, -1)
    ids = t.topk(top_k, -1).indices
    s, t = with_tail(s.gather(-1, ids)), with_tail(t.gather(-1, ids))
    if beta == 0:
        kl = t.exp() * (t - s)
    elif beta == 1:
        kl = s.exp() * (s - t)
    else:
        m = torch.log((1 - beta) * s.exp() + beta * t.exp())
        kl = beta * t.exp() * (t - m) + (1 - beta) * s.exp() * (s - m)
    return kl.sum(-1).mean()


def run(teacher, ids, labels, mask, steps, learning_rate, top_k=64, beta=0.0, temperature=1.0, alpha=0.0):
    model = base_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    places = labels[:, 1:] != -100
    with torch.no_grad():
        targets = teacher(input_ids=ids, attention_mask=mask).logits[:, :-1][places]
    found = dict(losses=[], distill_loss=[], hard_loss=[])
    for _ in range(steps):
        scores = model(input_ids=ids, attention_mask=mask).logits[:, :-1][places]
        soft = divergence(scores, targets, top_k, beta, temperature)
        hard = F.cross_entropy(scores, labels[:, 1:][places])
        loss = (1 - alpha) * soft + alpha * hard
        for name, value in zip(found, (loss, soft, hard)):
            found[name].append(value.item())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return found


if __name__ == "__main__":
    tokenizer = tokenizer_of("bytes", None)
    vocab_size = base_model().config.vocab_size
    teacher = teacher_of(vocab_size).eval()
    teacher.save_pretrained(HERE / "teacher")
    (HERE / "teacher" / "generation_config.json").unlink(missing_ok=True)
    batch = batch_of(tokenizer)
    cases = {
        "forward": dict(top_k=8),
        "reverse": dict(top_k=8, beta=1.0),
        "jensen-shannon of all, with the data's own loss": dict(top_k=vocab_size, beta=0.5, temperature=2.0, alpha=0.3),
        "jensen-shannon": dict(top_k=5, beta=0.3, temperature=1.5),
    }
    runs = {name: dict(options=options, **run(teacher, *batch, steps=8, learning_rate=1e-2, **options)) for name, options in cases.items()}
    (HERE / "expected.json").write_text(json.dumps(dict(rows=ROWS, runs=runs), separators=(",", ":")) + "\n")
