"""The training of precision.ts by PyTorch: fully_shard with MixedPrecisionPolicy on two ranks, from the same weights on the same data.

    python scripts/parity/precision.py folder...

A folder holds `training.json` (config, micro-batches by step and rank, pairs of dtypes) and `initial.bin` (float32 parameters
in order of name). Writes `<paramDtype>-<reduceDtype>.json` with losses and norms, and `.bin` with the final parameters.
"""

import json
import os
import pathlib
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModelForCausalLM

PORT = "29617"
RANKS = 2

def whole(parameter):
    return parameter.full_tensor() if isinstance(parameter, DTensor) else parameter


def open_model(training, initial, precision):
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**training["config"]), dtype=torch.float32)
    param_dtype, reduce_dtype = (getattr(torch, name) for name in precision)
    policy = MixedPrecisionPolicy(param_dtype=param_dtype, reduce_dtype=reduce_dtype)
    for layer in model.model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    at = 0
    for name, parameter in sorted(model.named_parameters()):
        values = initial[at : at + parameter.numel()].view(parameter.shape)
        at += parameter.numel()
        with torch.no_grad():
            parameter.copy_(distribute_tensor(values, parameter.device_mesh, parameter.placements))
    assert at == initial.numel(), f"{at} parameters, and {initial.numel()} values"
    return model


def train(training, initial, precision, rank, world):
    model = open_model(training, initial, precision)
    optimizer = torch.optim.AdamW(model.parameters(), lr=training["learning_rate"])
    losses, norms = [], []
    for ranks in training["micro_batches"]:
        shape = (training["batch"], training["seq"])
        tokens = sum(label != training["ignore_index"] for one in ranks for label in one["labels"])
        ids, labels = (torch.tensor(ranks[rank][name]).view(shape) for name in ("input_ids", "labels"))
        optimizer.zero_grad()
        logits = model(input_ids=ids, use_cache=False).logits.float()
        loss = cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=training["ignore_index"], reduction="sum")
        # fully_shard averages over ranks.
        (loss * (world / tokens)).backward()
        total = (loss.detach() / tokens).clone()
        dist.all_reduce(total)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), training["max_grad_norm"])
        optimizer.step()
        losses.append(total.item())
        norms.append(whole(norm).item())
    final = torch.cat([whole(parameter).detach().flatten() for _, parameter in sorted(model.named_parameters())])
    return losses, norms, final


def train_folder(folder, rank, world):
    training = json.loads((folder / "training.json").read_text())
    initial = torch.frombuffer(bytearray((folder / "initial.bin").read_bytes()), dtype=torch.float32)
    for precision in training["precisions"]:
        losses, norms, final = train(training, initial, precision, rank, world)
        if rank == 0:
            name = "-".join(precision)
            facts = {"losses": losses, "gradNorms": norms}
            (folder / f"{name}.json").write_text(json.dumps(facts))
            (folder / f"{name}.bin").write_bytes(final.float().numpy().tobytes())


def rank_main(rank, folders, world):
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": PORT}
    dist.init_process_group("gloo", rank=rank, world_size=world)
    for folder in folders:
        train_folder(pathlib.Path(folder), rank, world)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(rank_main, (sys.argv[1:], RANKS), nprocs=RANKS)
    print(torch.__version__)
