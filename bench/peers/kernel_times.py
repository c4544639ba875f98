"""Times operations of PyTorch on one core: the peer of bench/ranks/kernels.ts. Transformers would import a file `kernels.py`."""
import sys

import torch
from timing import best_of
from torch.nn import functional as F

torch.set_num_threads(1)
ROWS, COLS, INNER, VOCAB, N = 1024, 256, 688, 4096, 2**20


def backward(make, *inputs):
    """What runs the backward of `make(*inputs)` alone."""
    y = make(*inputs)
    grad = torch.randn_like(y)
    return lambda: torch.autograd.grad(y, inputs, grad, retain_graph=True)


def random(*shape):
    return torch.rand(*shape, requires_grad=True)


def no_grad(call):
    def run():
        with torch.no_grad():
            call()

    return run


def swiglu(gate, up):
    return F.silu(gate) * up


def norm(x, w):
    return F.rms_norm(x, (COLS,), w, 1e-6)


def cross_entropy():
    logits, labels = random(ROWS, VOCAB), torch.arange(ROWS) * 7919 % VOCAB
    # Loss and gradient, which ours makes in one call.
    return lambda: torch.autograd.grad(F.cross_entropy(logits, labels, reduction="sum"), logits)


def adamw():
    parameter = torch.nn.Parameter(torch.rand(N))
    parameter.grad = torch.rand(N)
    return torch.optim.AdamW([parameter], lr=1e-3, fused=True).step


def cases():
    a, b, out = torch.rand(N), torch.rand(N), torch.empty(N)
    x, w = random(ROWS, COLS), random(COLS)
    gate, up = random(ROWS, INNER), random(ROWS, INNER)
    yield "add", lambda: torch.add(a, b, out=out)
    yield "gelu", lambda: F.gelu(a)
    yield "softmax", no_grad(lambda: torch.softmax(x, -1))
    yield "rms-norm", no_grad(lambda: norm(x, w))
    yield "rms-norm-backward", backward(norm, x, w)
    yield "swiglu", no_grad(lambda: swiglu(gate, up))
    yield "swiglu-backward", backward(swiglu, gate, up)
    yield "cross-entropy", cross_entropy()
    yield "adamw", adamw()


times = {name: best_of(call) for name, call in cases()}
for case in sys.argv[1:]:
    print(f"{case} {times[case.removeprefix('native-').removeprefix('wasm-relaxed-')] * 1e6:.2f}")
