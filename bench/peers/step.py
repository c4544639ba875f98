"""Times optimizer steps of the 7.9 M Llama of transformers under FSDP2 or DDP: the peer of bench/ranks/step.ts."""
import argparse
import time

import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from transformers import LlamaConfig, LlamaForCausalLM

BATCH, SEQ, WARMUP, STEPS = 4, 256, 3, 10

parser = argparse.ArgumentParser()
parser.add_argument("--mode", choices=["fsdp2", "fsdp2-bf16", "ddp"], required=True)
parser.add_argument("--case", required=True)
args = parser.parse_args()
mode = args.mode
dist.init_process_group("gloo")
torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=4096,
    hidden_size=256,
    intermediate_size=688,
    num_hidden_layers=8,
    num_attention_heads=8,
    num_key_value_heads=4,
    max_position_embeddings=SEQ,
    use_cache=False,
)
model = LlamaForCausalLM(config)
if mode == "ddp":
    model = DistributedDataParallel(model)
else:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if mode == "fsdp2-bf16" else MixedPrecisionPolicy()
    for layer in model.model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
ids = (torch.arange(BATCH * SEQ) * 7919 + dist.get_rank() * 104729) % 4096
ids = ids.reshape(BATCH, SEQ)
times = []
for step in range(WARMUP + STEPS):
    dist.barrier()
    started = time.perf_counter()
    optimizer.zero_grad()
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    if step >= WARMUP:
        times.append(time.perf_counter() - started)
if dist.get_rank() == 0:
    print(f"{args.case} {sorted(times)[STEPS // 2] * 1000:.2f}")
dist.destroy_process_group()
