"""Times one collective of gloo: the peer of bench/ranks/collectives.ts."""
import sys
import time

import torch
import torch.distributed as dist

torch.set_num_threads(1)
dist.init_process_group("gloo")
case, ranks = sys.argv[1], dist.get_world_size()
what, text = case.rsplit("-", 1)
size = 8 if text == "8B" else int(text[:-3]) * {"KiB": 2**10, "MiB": 2**20}[text[-3:]]
whole, part = torch.ones(size // 4), torch.ones(max(1, size // 4 // ranks))
call = {
    "all-reduce": lambda: dist.all_reduce(whole),
    "reduce-scatter": lambda: dist.reduce_scatter_tensor(part, whole),
    "gather": lambda: dist.all_gather_into_tensor(whole, part),
}[what]
times = max(1, min(100, 2**23 // size))
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
