"""Times optimizer steps of a Llama of transformers under FSDP2 or DDP: the peer of bench/ranks/step.ts."""
import argparse
import json
import time

import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from transformers import LlamaConfig, LlamaForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("--mode", choices=["fsdp2", "fsdp2-bf16", "ddp"], required=True)
parser.add_argument("--case", required=True)
parser.add_argument("--model", type=json.loads, required=True, help="config, batch, seq and steps, as bench/ranks/models.ts has them")
args = parser.parse_args()
mode = args.mode
batch, seq, warm_up, timed = args.model["batch"], args.model["seq"], *args.model["steps"].values()
dist.init_process_group("gloo")
torch.manual_seed(0)
config = LlamaConfig(**args.model["config"], use_cache=False)
model = LlamaForCausalLM(config)
if mode == "ddp":
    model = DistributedDataParallel(model)
else:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if mode == "fsdp2-bf16" else MixedPrecisionPolicy()
    for layer in model.model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
ids = (torch.arange(batch * seq) * 7919 + dist.get_rank() * 104729) % config.vocab_size
ids = ids.reshape(batch, seq)
times = []
for step in range(warm_up + timed):
    dist.barrier()
    started = time.perf_counter()
    optimizer.zero_grad()
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    if step >= warm_up:
        times.append(time.perf_counter() - started)
if dist.get_rank() == 0:
    print(f"{args.case} {sorted(times)[timed // 2] * 1000:.2f}")
dist.destroy_process_group()
