"""Makes fixtures of quantized weights: what bitsandbytes stores, and what PyTorch computes with it.

    python tests/parity/make_quantized.py          (torch, transformers, peft, safetensors and bitsandbytes; on the CPU)

tests/fixtures/quantized/expected.safetensors has for each weight `<name>` of a few shapes, float32: `<name>.packed` and
`<name>.absmax` as bitsandbytes' NF4 has them, `<name>.values` dequantized; with compressed statistics `<name>.nested`,
`<name>.nested_absmax`, `<name>.offset` and `<name>.nested_values`; an input `<name>.x`, and the output `<name>.y` and the input's
gradient `<name>.dx` for an output gradient of `<name>.dy` with the dequantized weight.

tests/fixtures/quantized/expected.json has, for 4 bits, the losses of five steps of AdamW with the LoRA adapter of
tests/fixtures/lora/llama beside that model, whose linear layers but the head have the values that NF4 stands for.
"""
import json
from pathlib import Path

import bitsandbytes.functional as bnb
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
OUT = FIXTURES / "quantized"
# The first is one group of compressed statistics, the second ends in a block that is not full.
SHAPES = {"square": (128, 128), "odd": (20, 33), "wide": (24, 200)}
STEPS = 5
OPTIMIZER = dict(lr=1e-2, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)


def decoded(packed: torch.Tensor, absmax: torch.Tensor, shape) -> torch.Tensor:
    """What the bytes stand for, by the table. bitsandbytes 0.50's kernel for the CPU gives other values for rows of 48 elements."""
    codes = torch.stack([packed.flatten() >> 4, packed.flatten() & 15], 1).flatten().long()
    numel = shape[0] * shape[1]
    values = bnb.get_4bit_type("nf4", device="cpu")[codes][:numel]
    return (values * absmax.repeat_interleave(64)[:numel]).reshape(shape)


def weights() -> None:
    generator = torch.Generator().manual_seed(5)
    tensors = {}
    for name, shape in SHAPES.items():
        weight = torch.randn(shape, generator=generator) * 0.05
        packed, state = bnb.quantize_4bit(weight, blocksize=64, quant_type="nf4")
        values = bnb.dequantize_4bit(packed, state).reshape(shape)
        assert torch.equal(values, decoded(packed, state.absmax, shape))
        codes, nested = bnb.quantize_4bit(weight, blocksize=64, quant_type="nf4", compress_statistics=True)
        assert torch.equal(codes, packed)
        x = torch.randn((5, shape[1]), generator=generator, requires_grad=True)
        dy = torch.randn((5, shape[0]), generator=generator)
        y = x @ values.T
        y.backward(dy)
        tensors |= {
            f"{name}.weight": weight, f"{name}.packed": packed.flatten(), f"{name}.absmax": state.absmax, f"{name}.values": values,
            f"{name}.nested": nested.absmax, f"{name}.nested_absmax": nested.state2.absmax, f"{name}.offset": nested.offset.reshape(1),
            f"{name}.nested_values": bnb.dequantize_4bit(codes, nested).reshape(shape),
            f"{name}.x": x.detach(), f"{name}.y": y.detach(), f"{name}.dy": dy, f"{name}.dx": x.grad,
        }
    save_file({name: value.contiguous() for name, value in tensors.items()}, OUT / "expected.safetensors")


def training() -> None:
    adapter = FIXTURES / "lora" / "llama"
    facts = json.loads((adapter / "expected.json").read_text())
    model = AutoModelForCausalLM.from_pretrained(FIXTURES / facts["base"], dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        for name, module in model.named_modules():
            if isinstance(module, torch.nn.Linear) and name != "lm_head":
                packed, state = bnb.quantize_4bit(module.weight.data, blocksize=64, quant_type="nf4")
                module.weight.copy_(decoded(packed, state.absmax, module.weight.shape))
    model = PeftModel.from_pretrained(model, adapter, is_trainable=True).eval()
    ids = load_file(adapter / "expected.safetensors")["input_ids"]
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], **OPTIMIZER)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    (OUT / "expected.json").write_text(json.dumps(dict(base=facts["base"], losses=losses)) + "\n")


if __name__ == "__main__":
    OUT.mkdir(exist_ok=True)
    weights()
    training()
