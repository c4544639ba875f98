"""Makes tests/fixtures/neftune.json: what transformers computes with NEFTune when it is given this library's random numbers.

    python tests/parity/make_neftune.py     (torch, transformers and numpy)

Models are those of fixtures that are there, in train() mode, with transformers' own hook on the input embeddings; in place of PyTorch's
generator stand numbers of Philox 4x32-10 (`make_dropout.py`). Of each: the mean loss, and of each tensor's gradient its norm and its
product with cos(0), cos(1), ...
"""
import json
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM
from transformers.integrations.neftune import activate_neftune

from make_dropout import FIRST_SAMPLE, SEED, uniform

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
ALPHA, BATCH, SEQ = 5, 3, 9
# Embeddings by the names that this library gives them. Gemma's factor lies within transformers' embedding, Granite's behind it.
MODELS = {"llama-tied": "model.embed_tokens", "gpt2-hub": "transformer.wte", "gemma2-bounded": "model.embed_tokens",
          "granite-factors": "model.embed_tokens"}


def measured(name, embedding):
    model = AutoModelForCausalLM.from_pretrained(FIXTURES / name, attn_implementation="eager", dtype=torch.float32).train()
    activate_neftune(model, ALPHA)
    ids = torch.tensor([[(7 * i * i + 3 * i + row) % model.config.vocab_size for i in range(SEQ)] for row in range(BATCH)])
    drawn = []

    def uniform_(tensor, low=0, high=1):
        drawn.append(tuple(tensor.shape))
        return tensor.copy_((uniform(f"{embedding} embedding noise", tuple(tensor.shape)) * 2 - 1) * high)

    own = torch.Tensor.uniform_
    torch.Tensor.uniform_ = uniform_
    try:
        loss = model(input_ids=ids, labels=ids).loss
    finally:
        torch.Tensor.uniform_ = own
    assert len(drawn) == 1, drawn
    loss.backward()
    quiet = model.eval()(input_ids=ids, labels=ids).loss.item()
    gradients = {}
    for key, parameter in model.named_parameters():
        flat = parameter.grad.double().flatten()
        gradients[key] = [flat.norm().item(), (flat * torch.cos(torch.arange(flat.numel()).double())).sum().item()]
    return dict(ids=ids.tolist(), loss=loss.item(), quiet=quiet, gradients=gradients)


if __name__ == "__main__":
    found = {name: measured(name, embedding) for name, embedding in MODELS.items()}
    facts = dict(alpha=ALPHA, seed=SEED, first_sample=FIRST_SAMPLE, models=found)
    (FIXTURES / "neftune.json").write_text(json.dumps(facts, separators=(",", ":")) + "\n")
    print({name: (one["loss"], one["quiet"]) for name, one in found.items()})
