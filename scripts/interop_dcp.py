"""Reads with PyTorch what `interop_write.ts` wrote: the sharded checkpoint of three ranks by torch.distributed.checkpoint
on one process, and the Hugging Face directories by transformers; compares bits with the files that it began from.

Usage: python scripts/interop_dcp.py <Hugging Face directory that was read> <output directory of interop_write.ts>
"""
import sys

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM


def loss_of(directory, ids):
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.no_grad():
        return model(input_ids=ids, labels=ids).loss.item()


def main(source, written):
    expected = load_file(f"{source}/model.safetensors")
    checkpoint = f"{written}/checkpoints/checkpoint-1"
    reader = dcp.HuggingFaceStorageReader(checkpoint)
    metadata = reader.read_metadata().state_dict_metadata
    print(f"DCP sees {len(metadata)} tensors, {sum(len(m.chunks) for m in metadata.values())} chunks")
    for name, tensor in expected.items():
        assert metadata[name].size == tensor.shape, (name, metadata[name].size, tensor.shape)
        assert metadata[f"{name}.exp_avg"].size == tensor.shape, name
    state = {name: torch.full_like(tensor, torch.nan, dtype=torch.float32) for name, tensor in expected.items()}
    dcp.load(state, storage_reader=dcp.HuggingFaceStorageReader(checkpoint), no_dist=True)
    unequal = [name for name in expected if not torch.equal(state[name], expected[name].float())]
    print(f"DCP loaded {len(state)} tensors of 3 ranks, {len(unequal)} unequal {unequal}")
    whole = load_file(f"{written}/hf/model.safetensors")
    assert set(whole) == set(expected), set(whole) ^ set(expected)
    unequal += [name for name in expected if not torch.equal(whole[name], expected[name].float())]
    print(f"Hugging Face directory: {len(whole)} tensors, {len(unequal)} unequal {unequal}")
    torch.manual_seed(0)
    ids = torch.randint(0, expected["model.embed_tokens.weight"].shape[0], (2, 16))
    losses = [loss_of(directory, ids) for directory in (source, f"{written}/hf", f"{written}/hf-sharded")]
    print(f"losses by transformers: {losses}")
    assert not unequal and len(set(losses)) == 1
    print("equal")


if __name__ == "__main__":
    main(*sys.argv[1:])
