"""Makes tests/fixtures/float16: what PyTorch's FSDP2 (`fully_shard`) trains in float16 with a GradScaler.

    python tests/parity/make_float16.py     (torch and safetensors)

One rank on the CPU: parameters are gathered in float16, gradients reduced in float32. The first scales overflow, so that steps are
skipped, and later ones grow. `init.<name>`, `x`, `y` and `final.<name>` are in expected.safetensors; expected.json has the
settings and, of each step, loss, norm after unscaling (null where it overflowed), and the scale after the update.
"""
import json
import math
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

FOLDER = Path(__file__).resolve().parent.parent / "fixtures" / "float16"
SIZES = [(16, 6), (8, 16)]
ROWS, STEPS, MAX_NORM, LEARNING_RATE = 5, 12, 0.75, 0.05
# Scales so far apart that they overflow, or do not, in whatever dtype a gradient is produced.
SCALER = dict(init_scale=2.0**24, growth_factor=2.0**10, backoff_factor=2.0**-10, growth_interval=3)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(5)
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    model = torch.nn.Sequential()
    for i, (rows, cols) in enumerate(SIZES):
        model.add_module(f"linear{i}", torch.nn.Linear(cols, rows))
        if i + 1 < len(SIZES):
            model.add_module(f"tanh{i}", torch.nn.Tanh())
    tensors = {f"init.{name}": p.detach().clone() for name, p in model.named_parameters()}
    tensors["x"], tensors["y"] = torch.randn(ROWS, SIZES[0][1]), torch.randn(ROWS, SIZES[-1][0])
    fully_shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.float16, reduce_dtype=torch.float32))
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    scaler = torch.amp.GradScaler("cpu", **SCALER)
    steps = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = (model(tensors["x"]).float() - tensors["y"]).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM).full_tensor().item()
        scaler.step(optimizer)
        scaler.update()
        steps.append(dict(loss=loss.item(), norm=norm if math.isfinite(norm) else None, scale=scaler.get_scale()))
    tensors |= {f"final.{name}": p.full_tensor().detach().clone() for name, p in model.named_parameters()}
    dist.destroy_process_group()
    FOLDER.mkdir(parents=True, exist_ok=True)
    save_file({name: t.contiguous() for name, t in tensors.items()}, FOLDER / "expected.safetensors")
    (FOLDER / "expected.json").write_text(json.dumps(dict(
        torch=torch.__version__, max_norm=MAX_NORM, learning_rate=LEARNING_RATE, scaler=SCALER, steps=steps)) + "\n")


if __name__ == "__main__":
    main()
