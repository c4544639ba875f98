"""Times calls that compute next to nothing: the peer of bench/ranks/dispatch.ts."""
import sys

import torch
from timing import best_of
from torch import nn

torch.set_num_threads(1)
TIMES = 10


def repeated(call):
    def run():
        for _ in range(TIMES):
            call()

    return run


a, b = torch.rand(4), torch.rand(4)
mlp = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4))
x = torch.rand(2, 4)
optimizer = torch.optim.AdamW(mlp.parameters(), lr=1e-3, fused=True)


def forward_backward():
    mlp.zero_grad()
    mlp(x).sum().backward()


def add():
    with torch.no_grad():
        torch.add(a, b)


forward_backward()
calls = {"add-4": add, "mlp-forward-backward": forward_backward, "adamw-4": optimizer.step}
for case in sys.argv[1:]:
    print(f"{case} {best_of(repeated(calls[case])) / TIMES * 1e6:.3f}")
