"""Runs the references of optimizers and of quantized weights again, and tells how far they are from the committed fixtures.

    python scripts/adapt/live.py <empty folder>     (torch, and what there is of bitsandbytes and lion-pytorch)

Prints one JSON object: for each subject the largest difference of any number, relative to the largest of its tensor, and `lacks`, the packages
that are not there.
"""
import importlib.util
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests" / "fixtures"
sys.path.insert(0, str(ROOT / "tests" / "parity"))


def difference(own, kept):
    """The largest difference of two tensors; infinite where one is not there."""
    if own is None or own.shape != kept.shape or own.dtype != kept.dtype:
        return float("inf")
    if not kept.is_floating_point():
        return 0.0 if torch.equal(own, kept) else float("inf")
    return ((own - kept).abs().max() / kept.abs().max().clamp_min(1e-30)).item() if kept.numel() else 0.0


def subjects(own, kept, subject_of):
    found = {}
    for name, tensor in kept.items():
        subject = subject_of(name)
        found[subject] = max(found.get(subject, 0.0), difference(own.get(name), tensor))
    return found


def optimizers(folder):
    import make_optimizers as reference
    reference.FOLDER = folder
    reference.main()
    kept = load_file(FIXTURES / "optimizers" / "expected.safetensors")
    return subjects(load_file(folder / "expected.safetensors"), kept, lambda name: name.split(".")[0].split("_")[0])


def lion():
    """The same steps by lion-pytorch, whose weights are compared."""
    import lion_pytorch
    import make_optimizers as reference
    kept = load_file(FIXTURES / "optimizers" / "expected.safetensors")
    largest = 0.0
    for name in ("lion", "lion_options"):
        kind, shapes, options = reference.CASES[name]
        parameters = [torch.nn.Parameter(reference.value(shape, 1000 + i)) for i, shape in enumerate(shapes)]
        optimizer = lion_pytorch.Lion(parameters, **options)
        for step in range(1, reference.STEPS + 1):
            for i, parameter in enumerate(parameters):
                parameter.grad = reference.value(parameter.shape, 10 * step + i) * 10.0 ** (step % 4 - 2)
            optimizer.step()
            if step in reference.KEPT:
                for i, parameter in enumerate(parameters):
                    largest = max(largest, difference(parameter.data, kept[f"{name}.{step}.{i}"]))
    return largest


def quantized(folder):
    import make_quantized as reference
    reference.OUT = folder
    reference.weights()
    kept = load_file(FIXTURES / "quantized" / "expected.safetensors")
    # Processors sum products in different orders.
    subject_of = lambda name: "nf4_products" if name.endswith((".y", ".dx")) else "nf4"
    return subjects(load_file(folder / "expected.safetensors"), kept, subject_of)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    lacks = [name for name in ("bitsandbytes", "lion_pytorch") if importlib.util.find_spec(name) is None]
    found = {}
    if "bitsandbytes" not in lacks:
        found |= optimizers(folder) | quantized(folder)
    if not lacks:
        found["lion_pytorch"] = lion()
    print(json.dumps(dict(lacks=lacks, found=found)))
