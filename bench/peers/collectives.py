"""Times one collective of gloo: the peer of bench/ranks/collectives.ts."""
import sys
import time

import torch
import torch.distributed as dist

torch.set_num_threads(1)
dist.init_process_group("gloo")
case, size = sys.argv[1], dist.get_world_size()
MIB = 2**20 // 4
word, whole, part = torch.ones(2), torch.ones(MIB), torch.ones(MIB // size)
shard, gathered = torch.ones(64 * MIB // size), torch.empty(64 * MIB)
calls = {
    "all-reduce-8B": (100, lambda: dist.all_reduce(word)),
    "reduce-scatter-1MiB": (10, lambda: dist.reduce_scatter_tensor(part, whole)),
    "gather-64MiB": (1, lambda: dist.all_gather_into_tensor(gathered, shard)),
}
times, call = calls[case]
best = float("inf")
for _ in range(60):
    dist.barrier()
    started = time.perf_counter()
    for _ in range(times):
        call()
    best = min(best, (time.perf_counter() - started) / times)
if dist.get_rank() == 0:
    print(f"{case} {best * 1e6:.2f}")
dist.destroy_process_group()
