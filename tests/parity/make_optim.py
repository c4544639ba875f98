"""Makes tests/fixtures/optim: what torch.optim, clip_grad_norm_ and transformers' schedules compute.

    python tests/parity/make_optim.py     (torch, transformers and safetensors)

- expected.safetensors: `init.<p>`, `grad.<step>.<p>` (left out where parameter p has none in that step), `<case>.<step>.<p>`
  the weights after each step, `clip.<max norm>.<p>` the gradients of step 1, times 40, after clipping, and
  `clip.<norm type>-norm.<p>` after clipping to 3 by that norm;
- expected.json: the cases' options, the norms, and learning rates by schedule.
"""
import json
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

FOLDER = Path(__file__).resolve().parent.parent / "fixtures" / "optim"
SHAPES = [(5, 7), (13,), (2, 3, 4)]
STEPS = 8
# Parameter 2 has no gradient in these steps, so that its own count of steps falls behind.
ABSENT = {0, 3, 4}

# Options by case; `groups` gives parameter 0 options of its own, `rates` a learning rate to each step.
CASES = {
    "adamw": ("AdamW", {}),
    "adamw_options": ("AdamW", dict(lr=0.02, betas=(0.8, 0.95), eps=1e-5, weight_decay=0.3)),
    "adamw_no_decay": ("AdamW", dict(lr=0.01, weight_decay=0.0, rates=[0.0, 0.005, 0.01, 0.01, 0.02, 0.01, 0.003, 0.0])),
    "adamw_groups": ("AdamW", dict(lr=0.01, weight_decay=0.1, groups=dict(lr=0.05, weight_decay=0.0))),
    "sgd": ("SGD", dict(lr=0.1)),
    "sgd_decay": ("SGD", dict(lr=0.1, weight_decay=0.2)),
    "sgd_momentum": ("SGD", dict(lr=0.05, momentum=0.9)),
    "sgd_dampening": ("SGD", dict(lr=0.05, momentum=0.9, dampening=0.3, weight_decay=0.1)),
    "sgd_nesterov": ("SGD", dict(lr=0.05, momentum=0.8, nesterov=True, weight_decay=0.05)),
    "sgd_groups": ("SGD", dict(lr=0.05, momentum=0.8, groups=dict(lr=0.2, weight_decay=0.5))),
}
CLIPS = [0.5, 3.0, 1000.0]
NORM_TYPES = [1.0, 2.0, 3.0, float("inf")]
SCHEDULES = [(10, 40), (0, 25), (5, 5), (7, 100)]


def run(kind, options, init, grads):
    options = dict(options)
    groups, rates = options.pop("groups", None), options.pop("rates", None)
    parameters = [torch.nn.Parameter(t.clone()) for t in init]
    given = parameters if groups is None else [dict(params=parameters[:1], **groups), dict(params=parameters[1:])]
    optimizer = getattr(torch.optim, kind)(given, foreach=False, **options)
    after = []
    for step, row in enumerate(grads):
        for p, grad in zip(parameters, row):
            p.grad = None if grad is None else grad.clone()
        if rates is not None:
            for group in optimizer.param_groups:
                group["lr"] = rates[step]
        optimizer.step()
        after.append([p.detach().clone() for p in parameters])
    return after


def main():
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(7)
    init = [torch.randn(shape, generator=generator) for shape in SHAPES]
    grads = [[None if i == 2 and step in ABSENT else torch.randn(shape, generator=generator) * 10.0 ** (step % 4 - 2)
              for i, shape in enumerate(SHAPES)] for step in range(STEPS)]
    tensors = {f"init.{i}": t for i, t in enumerate(init)}
    tensors |= {f"grad.{s}.{i}": g for s, row in enumerate(grads) for i, g in enumerate(row) if g is not None}
    for name, (kind, options) in CASES.items():
        for step, row in enumerate(run(kind, options, init, grads)):
            tensors |= {f"{name}.{step}.{i}": t for i, t in enumerate(row)}
    norms = {}
    for limit in CLIPS:
        parameters = [torch.nn.Parameter(t.clone()) for t in init]
        for p, grad in zip(parameters, grads[1]):
            p.grad = grad.clone() * 40
        norms[str(limit)] = torch.nn.utils.clip_grad_norm_(parameters, limit).item()
        tensors |= {f"clip.{limit}.{i}": p.grad for i, p in enumerate(parameters)}
    types = {}
    for norm_type in NORM_TYPES:
        parameters = [torch.nn.Parameter(t.clone()) for t in init]
        for p, grad in zip(parameters, grads[1]):
            p.grad = grad.clone() * 40
        types[str(norm_type)] = torch.nn.utils.clip_grad_norm_(parameters, 3.0, norm_type=norm_type).item()
        tensors |= {f"clip.{norm_type}-norm.{i}": p.grad for i, p in enumerate(parameters)}
    schedules = []
    make = {
        "cosine": transformers.get_cosine_schedule_with_warmup,
        "linear": transformers.get_linear_schedule_with_warmup,
        "constant": lambda optimizer, warmup, _: transformers.get_constant_schedule_with_warmup(optimizer, warmup),
        "cosine_with_restarts": lambda optimizer, warmup, total: (
            transformers.get_cosine_with_hard_restarts_schedule_with_warmup(optimizer, warmup, total, num_cycles=3)),
        "polynomial": lambda optimizer, warmup, total: (
            transformers.get_polynomial_decay_schedule_with_warmup(optimizer, warmup, total, lr_end=0.03, power=2.0)),
        "inverse_sqrt": lambda optimizer, warmup, _: transformers.get_inverse_sqrt_schedule(optimizer, warmup),
        "warmup_stable_decay": lambda optimizer, warmup, total: (
            transformers.get_wsd_schedule(optimizer, warmup, total // 4 if warmup < total else 0, total)),
    }
    for name, get in make.items():
        for warmup, total in SCHEDULES:
            optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3)
            factor = get(optimizer, warmup, total).lr_lambdas[0]
            rates = [0.3 * factor(step) for step in range(total)]
            schedules.append(dict(schedule=name, warmup=warmup, total=total, rates=rates))
    FOLDER.mkdir(parents=True, exist_ok=True)
    save_file({n: t.contiguous() for n, t in tensors.items()}, FOLDER / "expected.safetensors")
    (FOLDER / "expected.json").write_text(json.dumps(dict(
        versions=dict(torch=torch.__version__, transformers=transformers.__version__), steps=STEPS,
        cases={name: dict(kind=kind, **options) for name, (kind, options) in CASES.items()},
        clip_norms=norms, norm_types=types, schedules=schedules)) + "\n")


if __name__ == "__main__":
    main()
