"""Saves or loads a sharded checkpoint with DCP: the peer of bench/ranks/checkpoint.ts."""
import os
import shutil
import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

torch.set_num_threads(1)
dist.init_process_group("gloo")
case = sys.argv[1]
what, size = case.rsplit("-", 1)
rows = round(int(size[:-2]) * 1e6 / 4 / 16 / 2000) * 2
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
state = {f"matrices.{i}": distribute_tensor(torch.rand(rows, 1000), mesh, [Shard(0)]) for i in range(16)}
place = [tempfile.mkdtemp(prefix="dcp-bench-") if dist.get_rank() == 0 else None]
dist.broadcast_object_list(place)
path = os.path.join(place[0], "checkpoint")


def remove():
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(place[0], ignore_errors=True)
        os.mkdir(place[0])
    dist.barrier()


def save():
    remove()
    started = time.perf_counter()
    dcp.save(state, checkpoint_id=path)
    return time.perf_counter() - started


def load():
    dist.barrier()
    started = time.perf_counter()
    dcp.load(state, checkpoint_id=path)
    return time.perf_counter() - started


def async_save():
    remove()
    started = time.perf_counter()
    future = dcp.async_save(state, checkpoint_id=path)
    blocked = time.perf_counter() - started
    future.result()
    return blocked


if what == "load":
    dcp.save(state, checkpoint_id=path)
call = {"save": save, "load": load, "async-save": async_save}[what]
times = [call() for _ in range(6)][1:]
dist.barrier()
if dist.get_rank() == 0:
    shutil.rmtree(place[0], ignore_errors=True)
    print(f"{case} {statistics.median(times) * 1e3:.2f}")
dist.destroy_process_group()
