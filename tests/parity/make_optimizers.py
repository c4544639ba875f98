"""Makes tests/fixtures/optimizers: what Lion, Muon, Adafactor and AdamW with 8-bit states compute in 10 steps.

    python tests/parity/make_optimizers.py     (torch, bitsandbytes and safetensors)

- expected.safetensors: `<case>.<step>.<p>`, the weights of parameter p after steps 1, 5 and 10, and `<case>.state.<name>.<p>`,
  the states after the last;
- expected.json: the cases' options and the parameters' shapes. Weights and gradients are numbers of `value`, which
  tests/optim/families_test.ts computes as well.

Muon and Adafactor are torch.optim's. Lion and AdamW with 8-bit states are bitsandbytes', whose CPU path computes them. Its CPU
library quantizes by a table that does not always give the nearest value of the map (1.5e-6 becomes 1.6e-5, though 2.1e-6 is in the map);
its CUDA kernels and its default backend give the nearest. So `nearest` quantizes here, as the default backend does.
"""
import json
from pathlib import Path

import bitsandbytes
import bitsandbytes.backends.cpu.ops as cpu_ops
import torch
from safetensors.torch import save_file

FOLDER = Path(__file__).resolve().parent.parent / "fixtures" / "optimizers"
STEPS = 10
KEPT = {1, 5, 10}
MATRICES = [[24, 40], [56, 16], [20, 20]]
MIXED = [[24, 40], [3, 10, 14], [13]]
LARGE = [[70, 90], [40, 10]]

# Class, shapes, options by torch's or bitsandbytes' names.
CASES = {
    "lion": ("Lion", MIXED, dict(lr=1e-2)),
    "lion_options": ("Lion", MIXED, dict(lr=3e-2, betas=(0.8, 0.95), weight_decay=0.3)),
    "muon": ("Muon", MATRICES, dict(lr=2e-2)),
    "muon_options": ("Muon", MATRICES, dict(lr=1e-2, momentum=0.8, nesterov=False, weight_decay=0.3, adjust_lr_fn="match_rms_adamw")),
    "muon_spectral": ("Muon", MATRICES, dict(lr=2e-2, ns_steps=3, adjust_lr_fn="spectral_unclamped")),
    "adafactor": ("Adafactor", MIXED, dict()),
    "adafactor_options": ("Adafactor", MIXED, dict(lr=0.5, beta2_decay=-0.5, eps=(1e-6, 1e-2), d=1.5, weight_decay=0.1)),
    "adamw8bit": ("AdamW8bit", LARGE, dict(lr=1e-2)),
    "adamw8bit_options": ("AdamW8bit", LARGE, dict(lr=2e-2, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.2)),
}


def value(shape, seed):
    """Numbers from -0.5 to 0.5, exact in float32."""
    n = torch.Size(shape).numel()
    i = torch.arange(1, n + 1, dtype=torch.int64)
    return (((i * 7919 + seed * 104729) * 48271 % 65521) / 65536 - 0.5).to(torch.float32).reshape(shape)


def nearest(values, code, absmax_out, out, blocksize):
    """The nearest value of a map for each value over the largest magnitude of its block."""
    blocks = torch.nn.functional.pad(values.reshape(-1), (0, -values.numel() % blocksize)).view(-1, blocksize)
    largest = blocks.abs().amax(dim=1)
    scaled = torch.where(largest[:, None] > 0, blocks / largest[:, None], torch.zeros_like(blocks))
    codes = torch.bucketize(scaled, (code[:-1] + code[1:]) / 2)
    out.copy_(codes.reshape(-1)[: values.numel()].view_as(out))
    absmax_out.copy_(largest)


cpu_ops._quant_blockwise_fp32_direct = nearest


def run(kind, shapes, options):
    parameters = [torch.nn.Parameter(value(shape, 1000 + i)) for i, shape in enumerate(shapes)]
    module = torch.optim if hasattr(torch.optim, kind) else bitsandbytes.optim
    optimizer = getattr(module, kind)(parameters, **options)
    for step in range(1, STEPS + 1):
        for i, parameter in enumerate(parameters):
            parameter.grad = value(parameter.shape, 10 * step + i) * 10.0 ** (step % 4 - 2)
        optimizer.step()
        if step in KEPT:
            yield step, parameters, optimizer


def main():
    torch.set_num_threads(1)
    tensors = {}
    for name, (kind, shapes, options) in CASES.items():
        for step, parameters, optimizer in run(kind, shapes, options):
            for i, parameter in enumerate(parameters):
                tensors[f"{name}.{step}.{i}"] = parameter.detach().clone()
                for state, held in optimizer.state[parameter].items():
                    if step == STEPS and torch.is_tensor(held) and state not in ("step", "qmap1", "qmap2"):
                        tensors[f"{name}.state.{state}.{i}"] = held.detach().clone()
    FOLDER.mkdir(parents=True, exist_ok=True)
    save_file({n: t.to(torch.float32).contiguous() for n, t in tensors.items()}, FOLDER / "expected.safetensors")
    (FOLDER / "expected.json").write_text(json.dumps(dict(
        versions=dict(torch=torch.__version__, bitsandbytes=bitsandbytes.__version__), steps=STEPS, kept=sorted(KEPT),
        cases={n: dict(kind=k, shapes=s, options=o) for n, (k, s, o) in CASES.items()})) + "\n")


if __name__ == "__main__":
    main()
