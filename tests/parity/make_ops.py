"""Makes tests/fixtures/ops: what torch's tensor operations compute, forward and backward.

    python tests/parity/make_ops.py     (torch and safetensors)

`<case>.in.<i>` are the inputs, `<case>.out` the result, `<case>.seed` the gradient that the backward starts from, and
`<case>.grad.<i>` the gradients of inputs that have one. Cases whose name ends with `_bf16` or `_f16` are computed in that
dtype and stored widened; integers and masks are stored as int64.
"""
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

FOLDER = Path(__file__).resolve().parent.parent / "fixtures" / "ops"
generator = torch.Generator().manual_seed(11)


def rand(*shape, low=-2.0, high=2.0):
    return torch.rand(shape, generator=generator) * (high - low) + low


def ints(*values):
    return torch.tensor(values)


X, Y = rand(2, 3), rand(2, 3)
POSITIVE = rand(2, 3, low=0.2)
# Equal elements, a zero, and signs.
FEW = torch.tensor([[1.0, 0.0, -2.0], [3.0, 0.0, 3.0]])
OTHER = torch.tensor([[1.0, 2.0, -2.0], [0.0, 0.0, -3.0]])
CUBE = rand(2, 3, 4)
MASK = ints(1, 0, 1)

# name: (inputs, function); gradients are taken of all float inputs where the result has any.
CASES = {
    "pow": ([POSITIVE, rand(3)], torch.pow),
    "pow_at_zero": ([torch.tensor([0.0, 0.0, 2.0]), torch.tensor([0.0, 2.0, 0.0])], torch.pow),
    "pow_number": ([POSITIVE], lambda x: x.pow(-1.5)),
    "pow_2": ([X], lambda x: x.pow(2)),
    "pow_3": ([FEW], lambda x: x.pow(3)),
    "pow_0": ([FEW], lambda x: x.pow(0)),
    "reciprocal": ([POSITIVE], torch.reciprocal),
    "softplus": ([X * 20], F.softplus),
    "maximum_number": ([X], lambda x: torch.maximum(x, torch.tensor(0.25))),
    "clamp_low": ([X], lambda x: x.clamp(min=-0.5)),
    "clamp_high": ([X], lambda x: x.clamp(max=0.5)),
    "eq": ([FEW, OTHER], torch.eq),
    "ne": ([FEW, OTHER], torch.ne),
    "lt": ([FEW, OTHER[1]], torch.lt),
    "le": ([FEW, OTHER[1]], torch.le),
    "gt": ([FEW[:, :1], OTHER], torch.gt),
    "ge": ([FEW, OTHER], torch.ge),
    "gt_number": ([FEW], lambda x: x.gt(0.5)),
    "eq_int": ([ints(1, 2, 3), ints(3, 2, 1)], torch.eq),
    "logical_and": ([FEW, OTHER], torch.logical_and),
    "logical_or": ([FEW, OTHER], torch.logical_or),
    "logical_not": ([FEW], torch.logical_not),
    "where": ([MASK, X, Y], lambda m, x, y: torch.where(m != 0, x, y)),
    "where_broadcast": ([MASK, X, rand(2, 1)], lambda m, x, y: torch.where(m != 0, x, y)),
    "where_number": ([MASK, X], lambda m, x: torch.where(m != 0, x, 0.5)),
    "where_int": ([MASK, ints(4, 5, 6), ints(7, 8, 9)], lambda m, x, y: torch.where(m != 0, x, y)),
    "masked_fill": ([MASK, X], lambda m, x: x.masked_fill(m != 0, -3.0)),
    "min": ([FEW], lambda x: x.amin()),
    "min_dim": ([CUBE], lambda x: x.amin(1)),
    "var": ([X], lambda x: x.var()),
    "var_dims": ([CUBE], lambda x: x.var((0, 2), keepdim=True)),
    "var_biased": ([CUBE], lambda x: x.var(-1, correction=0)),
    "std": ([CUBE], lambda x: x.std(1)),
    "std_of_equals": ([torch.ones(2, 3)], lambda x: x.std(1)),
    "cumsum": ([CUBE], lambda x: x.cumsum(-1)),
    "cumsum_dim": ([CUBE], lambda x: x.cumsum(1)),
    "softmax_dim": ([CUBE], lambda x: x.softmax(1)),
    "log_softmax": ([X * 30], lambda x: x.log_softmax(-1)),
    "log_softmax_dim": ([CUBE], lambda x: x.log_softmax(0)),
    "argmax_dim": ([CUBE], lambda x: x.argmax(1)),
    "tril": ([CUBE], lambda x: x.tril()),
    "tril_above": ([X], lambda x: x.tril(1)),
    "triu": ([CUBE], lambda x: x.triu(-1)),
    "cat": ([X, rand(1, 3), Y], lambda *x: torch.cat(x)),
    "cat_dim": ([X, rand(2, 0), rand(2, 2)], lambda *x: torch.cat(x, -1)),
    "cat_int": ([ints(1, 2), ints(3)], lambda *x: torch.cat(x)),
    "stack": ([X, Y], lambda *x: torch.stack(x)),
    "stack_dim": ([X, Y], lambda *x: torch.stack(x, -1)),
    "split": ([CUBE], lambda x: x.split(3, -1)[1]),
    "split_sizes": ([CUBE], lambda x: x.split([1, 0, 2], 1)[2]),
    "chunk": ([CUBE], lambda x: x.chunk(3, 2)[1]),
    "select": ([CUBE], lambda x: x.select(1, -2)),
    "squeeze": ([rand(1, 3, 1, 2)], lambda x: x.squeeze()),
    "squeeze_dim": ([rand(1, 3, 1)], lambda x: x.squeeze(-1)),
    "unsqueeze": ([X], lambda x: x.unsqueeze(1)),
    "unsqueeze_last": ([X], lambda x: x.unsqueeze(-1)),
    "flatten": ([CUBE], lambda x: x.flatten()),
    "flatten_dims": ([rand(2, 3, 2, 2)], lambda x: x.flatten(1, -2)),
    "expand": ([rand(2, 1)], lambda x: x.expand(3, -1, 4)),
    "clone": ([X], lambda x: x.clone()),
    "to_int": ([X], lambda x: x.to(torch.int32)),
    "to_float": ([MASK], lambda x: x.to(torch.float32)),
    "gather": ([CUBE, torch.tensor([[[2, 0, 0, 1]], [[1, 1, 2, 0]]])], lambda x, i: x.gather(1, i)),
    "gather_last": ([X, torch.tensor([[2], [0]])], lambda x, i: x.gather(-1, i)),
    "index_select": ([CUBE, ints(2, 0, 2)], lambda x, i: x.index_select(1, i)),
    "index_select_rows": ([X, ints(1, 1, 0)], lambda x, i: x.index_select(0, i)),
    "scatter_add": ([X, torch.tensor([[1, 1], [0, 2]]), rand(2, 2)], lambda x, i, s: x.scatter_add(1, i, s)),
    "index_add": ([CUBE, ints(2, 0, 2), rand(2, 3, 4)], lambda x, i, s: x.index_add(1, i, s)),
    "mse_loss": ([X, Y], F.mse_loss),
    "mse_loss_sum": ([X, Y], lambda x, y: F.mse_loss(x, y, reduction="sum")),
    "mse_loss_none": ([X, Y], lambda x, y: F.mse_loss(x, y, reduction="none")),
    "l1_loss": ([X, Y], F.l1_loss),
    "bce_with_logits": ([X * 20, rand(2, 3, low=0.0, high=1.0)], F.binary_cross_entropy_with_logits),
}
NARROW = ["pow_number", "softplus", "where_broadcast", "masked_fill", "min_dim", "var", "cumsum_dim", "log_softmax_dim",
               "cat", "gather", "index_select", "index_add", "mse_loss", "lt"]


def store(tensors, name, value):
    value = value.detach()
    tensors[name] = (value.to(torch.float32) if value.is_floating_point() else value.to(torch.int64)).contiguous().clone()


def run(tensors, name, inputs, function, dtype):
    inputs = [x.to(dtype).requires_grad_() if x.is_floating_point() else x for x in (x.clone() for x in inputs)]
    out = function(*inputs)
    for i, x in enumerate(inputs):
        store(tensors, f"{name}.in.{i}", x)
    store(tensors, f"{name}.out", out)
    if not out.requires_grad:
        return
    seed = rand(*out.shape, low=0.25, high=1.0).to(dtype)
    store(tensors, f"{name}.seed", seed)
    out.backward(seed)
    for i, x in enumerate(inputs):
        if x.grad is not None:
            store(tensors, f"{name}.grad.{i}", x.grad)


def main():
    torch.set_num_threads(1)
    tensors = {}
    for name, (inputs, function) in CASES.items():
        run(tensors, name, inputs, function, torch.float32)
    for suffix, dtype in [("bf16", torch.bfloat16), ("f16", torch.float16)]:
        for name in NARROW:
            run(tensors, f"{name}_{suffix}", *CASES[name], dtype)
    FOLDER.mkdir(parents=True, exist_ok=True)
    save_file(tensors, FOLDER / "expected.safetensors", metadata={"torch": torch.__version__})


if __name__ == "__main__":
    main()
