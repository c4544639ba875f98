"""What transformers computes of a row of several documents, by a mask of blocks and positions from 0 in each: tests/fixtures/documents.json.

    python tests/parity/make_documents.py     (torch and transformers)

Models are those of fixtures that are there. Of each: loss (the sum over labels), some scores of each token, and of each tensor's
gradient its norm and its product with cos(0), cos(1), ...
"""
import json
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
LENGTHS = [5, 1, 9, 6]
MODELS = ["llama-untied", "mistral-window_2"]
CLASSES = 7


def measured(name):
    model = AutoModelForCausalLM.from_pretrained(FIXTURES / name, attn_implementation="eager", dtype=torch.float32)
    vocab, window = model.config.vocab_size, getattr(model.config, "sliding_window", None)
    ids = [(7 * i * i + 3 * i + 1) % vocab for i in range(sum(LENGTHS))]
    document = torch.tensor([d for d, length in enumerate(LENGTHS) for _ in range(length)])
    places = torch.arange(len(ids))
    seen = (document[:, None] == document[None, :]) & (places[None, :] <= places[:, None])
    if window is not None:
        seen &= places[None, :] > places[:, None] - window
    mask = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)[None, None]
    positions = torch.tensor([i for length in LENGTHS for i in range(length)])[None]
    labels = [ids[i + 1] if i + 1 < len(ids) and document[i] == document[i + 1] else -100 for i in range(len(ids))]
    logits = model(input_ids=torch.tensor([ids]), attention_mask=mask, position_ids=positions).logits
    loss = torch.nn.functional.cross_entropy(logits[0], torch.tensor(labels), ignore_index=-100, reduction="sum")
    loss.backward()
    gradients = {}
    for key, parameter in model.named_parameters():
        flat = parameter.grad.double().flatten()
        gradients[key] = [flat.norm().item(), (flat * torch.cos(torch.arange(flat.numel()).double())).sum().item()]
    return {
        "ids": ids,
        "labels": labels,
        "lengths": LENGTHS,
        "loss": loss.item(),
        "logits": [[round(x, 8) for x in row] for row in logits[0, :, :CLASSES].tolist()],
        "gradients": gradients,
    }


if __name__ == "__main__":
    found = {name: measured(name) for name in MODELS}
    (FIXTURES / "documents.json").write_text(json.dumps(found, separators=(",", ":")) + "\n")
