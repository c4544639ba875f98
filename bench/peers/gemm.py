"""Times products of two square float32 matrices on one core: the peer of bench/ranks/gemm.ts."""
import sys
import time

import torch

torch.set_num_threads(1)
size = int(sys.argv[1])
a, b = torch.randn(size, size), torch.randn(size, size)
best = float("inf")
until = time.perf_counter() + 1.5
while time.perf_counter() < until:
    started = time.perf_counter()
    a @ b
    best = min(best, time.perf_counter() - started)
print(f"gflops {2 * size**3 / best / 1e9:.2f}")
