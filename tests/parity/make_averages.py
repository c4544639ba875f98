"""Makes tests/fixtures/averages.json: averages of weights by torch's AveragedModel with get_ema_multi_avg_fn, updated after each step.

    python tests/parity/make_averages.py     (torch)

The weights of parameter p are cos(7 p + i), its gradients sin(step + 3 p + i); in step 2 the last parameter has none. `start` steps are
taken before the first update.
"""
import json
from pathlib import Path

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

FILE = Path(__file__).resolve().parent.parent / "fixtures" / "averages.json"
SHAPES = [(5, 7), (13,)]
STEPS = 6
CASES = [dict(kind="AdamW", decay=0.9, start=0), dict(kind="SGD", decay=0.3, start=0), dict(kind="AdamW", decay=0.5, start=2),
         dict(kind="SGD", decay=0.0, start=0)]


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = torch.nn.ParameterList(
            [torch.cos(7 * p + torch.arange(torch.Size(shape).numel(), dtype=torch.float64)).float().reshape(shape)
             for p, shape in enumerate(SHAPES)])


def run(kind, decay, start):
    model = Model()
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.1, foreach=False)
    after = []
    for step in range(STEPS):
        for p, weight in enumerate(model.weights):
            places = torch.arange(weight.numel(), dtype=torch.float64)
            skipped = step == 2 and p == len(SHAPES) - 1
            weight.grad = None if skipped else torch.sin(step + 3 * p + places).float().reshape(weight.shape)
        optimizer.step()
        if step >= start:
            averaged.update_parameters(model)
        of = averaged.module if step >= start else model
        after.append([weight.detach().flatten().tolist() for weight in of.weights])
    return after


if __name__ == "__main__":
    cases = [dict(case, averages=run(**case)) for case in CASES]
    FILE.write_text(json.dumps(dict(shapes=SHAPES, steps=STEPS, cases=cases), separators=(",", ":")) + "\n")
