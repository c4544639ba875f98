"""Times optimizer steps of a Llama under transformers' tensor parallelism over gloo: the peer of bench/ranks/tensor.ts.

    torchrun bench/peers/tensor.py CASE MODEL

MODEL is config, batch, seq and steps, as bench/ranks/models.ts has them.
"""
import json
import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.distributed import DistributedConfig

case, sizes = sys.argv[1], json.loads(sys.argv[2])
batch, seq, warm_up, timed = sizes["batch"], sizes["seq"], *sizes["steps"].values()
dist.init_process_group("gloo")
folder = os.path.join(tempfile.gettempdir(), f"tensor-{os.getppid()}")
if dist.get_rank() == 0:
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**sizes["config"])).save_pretrained(folder)
dist.barrier()
mesh = DistributedConfig(tp_size=dist.get_world_size())
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, distributed_config=mesh).train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
ids = ((torch.arange(batch * seq) * 7919) % model.config.vocab_size).reshape(batch, seq)
times = []
for step in range(warm_up + timed):
    dist.barrier()
    started = time.perf_counter()
    optimizer.zero_grad()
    model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    optimizer.step()
    if step >= warm_up:
        times.append(time.perf_counter() - started)
if dist.get_rank() == 0:
    print(f"{case} {batch * seq / sorted(times)[timed // 2]:.1f}")
dist.destroy_process_group()
