"""Checkpoints between this library and PyTorch, both ways, bit by bit.

Ours to PyTorch: the sharded checkpoint of four ranks is loaded by torch.distributed.checkpoint into a fully_shard model on two
ranks, and on one process; the Hugging Face directories by transformers. PyTorch's to ours: four ranks of a fully_shard model
save with HuggingFaceStorageWriter(save_distributed=True), and two ranks of this library load that.

    python scripts/interop_dcp.py tests/fixtures/llama-tied /tmp/interop [--runtime bun]

Needs torch, transformers and safetensors. Not run by the gate, which has no Python.
"""

import argparse
import os
import pathlib
import subprocess

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing
from safetensors.torch import load_file
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
from transformers import AutoConfig, AutoModelForCausalLM

ROOT = pathlib.Path(__file__).resolve().parent.parent


def ours(runtime, what, directory, config, to):
    deno = ["run", "-A", "--no-check"] if runtime == "deno" else []
    script = str(ROOT / "scripts/interop_ranks.ts")
    command = ["node", str(ROOT / "scripts/runtime.mjs"), runtime, *deno, script, what, directory, config, to]
    subprocess.run([str(part) for part in command], check=True)


def sharded(source, seed):
    """A model of the source's config with other values, each layer a unit."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(source), dtype=torch.float32)
    for layer in model.model.layers:
        fully_shard(layer)
    return fully_shard(model)


def rank_of_torch(rank, world, port, source, what, directory):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    model = sharded(source, 1)
    state = model.state_dict()
    tied = [name for name in state if name == "lm_head.weight" and model.config.tie_word_embeddings]
    for name in tied:
        del state[name]
    expected = load_file(f"{source}/model.safetensors")
    if what == "load":
        dcp.load(state, storage_reader=dcp.HuggingFaceStorageReader(directory))
        full = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
        unequal = [name for name in expected if not torch.equal(full[name], expected[name].float())]
        assert not unequal, unequal
    else:
        for name, tensor in state.items():
            whole = torch.distributed.tensor.distribute_tensor(expected[name].float(), tensor.device_mesh, tensor.placements)
            tensor.copy_(whole)
        dcp.save(state, storage_writer=dcp.HuggingFaceStorageWriter(directory, save_distributed=True))
    dist.destroy_process_group()


def run_torch(world, port, *rest):
    torch.multiprocessing.spawn(rank_of_torch, (world, port, *rest), nprocs=world)


def loss_of(directory, ids):
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.no_grad():
        return model(input_ids=ids, labels=ids).loss.item()


def require_equal(expected, directory):
    found = load_file(f"{directory}/model.safetensors")
    assert set(found) == set(expected), set(found) ^ set(expected)
    unequal = [name for name in expected if not torch.equal(found[name], expected[name].float())]
    assert not unequal, unequal
    print(f"{directory}: {len(found)} tensors, equal")


def to_torch(source, work, expected):
    checkpoint = f"{work}/checkpoints/checkpoint-1"
    metadata = dcp.HuggingFaceStorageReader(checkpoint).read_metadata().state_dict_metadata
    print(f"DCP sees {len(metadata)} tensors, {sum(len(m.chunks) for m in metadata.values())} chunks")
    for name, tensor in expected.items():
        assert metadata[name].size == tensor.shape, (name, metadata[name].size, tensor.shape)
        assert metadata[f"{name}.exp_avg"].size == tensor.shape, name
    state = {name: torch.full_like(tensor, torch.nan, dtype=torch.float32) for name, tensor in expected.items()}
    dcp.load(state, storage_reader=dcp.HuggingFaceStorageReader(checkpoint), no_dist=True)
    unequal = [name for name in expected if not torch.equal(state[name], expected[name].float())]
    assert not unequal, unequal
    print(f"4 ranks of ours, 1 process of PyTorch: {len(state)} tensors, equal")
    run_torch(2, 29511, source, "load", checkpoint)
    print(f"4 ranks of ours, 2 ranks of fully_shard: {len(expected)} tensors, equal")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", help="a Hugging Face directory of a Llama, with model.safetensors")
    parser.add_argument("work", help="a directory to write into")
    parser.add_argument("--runtime", choices=["bun", "deno"], default="bun")
    args = parser.parse_args()
    expected = load_file(f"{args.source}/model.safetensors")
    ours(args.runtime, "write", args.source, args.source, args.work)
    to_torch(args.source, args.work, expected)
    require_equal(expected, f"{args.work}/hf")
    torch.manual_seed(0)
    ids = torch.randint(0, expected["model.embed_tokens.weight"].shape[0], (2, 16))
    losses = [loss_of(directory, ids) for directory in (args.source, f"{args.work}/hf", f"{args.work}/hf-sharded")]
    print(f"losses by transformers: {losses}")
    assert len(set(losses)) == 1
    run_torch(4, 29512, args.source, "save", f"{args.work}/torch")
    print(f"PyTorch wrote {sorted(os.listdir(f'{args.work}/torch'))}")
    ours(args.runtime, "read", f"{args.work}/torch", args.source, args.work)
    for name in ("back", "back-from-rank-0"):
        require_equal(expected, f"{args.work}/{name}")
    print("equal both ways")


if __name__ == "__main__":
    main()
