"""A rank that joins, does one all-reduce and exits: the peer of bench/ranks/all_reduce.ts."""
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
x = torch.ones(1)
dist.all_reduce(x)
assert x.item() == dist.get_world_size()
dist.destroy_process_group()
