"""Times products of two float32 matrices on one core: the peer of bench/ranks/gemm.ts."""
import sys

import torch
from timing import best_of

rates = {}
for case in sys.argv[1:]:
    shape = case.split("-")[-1]
    if shape not in rates:
        m, n, k = map(int, shape.split("x"))
        a, b = torch.randn(m, k), torch.randn(k, n)
        rates[shape] = 2 * m * n * k / best_of(lambda: a @ b) / 1e9
    print(f"{case} {rates[shape]:.2f}")
