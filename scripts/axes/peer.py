"""The trainings of transformers_peer.ts by transformers, each over a mesh of its DistributedConfig with gloo, and one in float64.

    python scripts/axes/peer.py FOLDER

FOLDER holds Hugging Face folders and `training.json` (names of these, batches, settings, and the runs: dtype, ranks, and the fields of
a DistributedConfig). Writes `<number of the run>.json`: losses, norms, gradients of the first batches and last weights by name, for
each model, or an error. Each rank is a process that is forked after the imports.
"""

import json
import multiprocessing
import os
import sys
import traceback

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM
from transformers.distributed import DistributedConfig
from transformers.utils import logging

SECONDS_OF_A_MODEL = 30


def compute_in_float64():
    """Has modules that compute in float32, whatever their inputs are, compute in float64; for models that have been read."""
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def values_of(tensors):
    return {name: whole(tensor).detach().double().flatten().tolist() for name, tensor in tensors}


def read_model(path, run):
    mesh = {} if run["ranks"] == 1 else {"distributed_config": DistributedConfig(**run["mesh"])}
    # Grouped products of experts are not computed in float64.
    experts = {"experts_implementation": "eager"} if run["dtype"] == "float64" else {}
    return AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, run["dtype"]), **experts, **mesh).train()


class Training:
    def __init__(self, model, training, run, rank):
        self.model = model
        # Ranks of a tensor axis, the innermost one, read the same rows.
        tensor = run["mesh"].get("tp_size", 1)
        self.parts, self.part = run["ranks"] // tensor, rank // tensor
        self.training = training

    def backward(self, batch):
        """The mean loss over all ranks, and gradients of it."""
        ids, labels = (torch.tensor(batch[name]).chunk(self.parts)[self.part] for name in ("ids", "labels"))
        ignored = self.training["ignored"]
        tokens = sum(label != ignored for row in batch["labels"] for label in row)
        logits = self.model(input_ids=ids, use_cache=False).logits
        loss = cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=ignored, reduction="sum")
        # FSDP2 averages over the ranks that read other rows.
        (loss * (self.parts / tokens)).backward()
        total = loss.detach() / tokens
        if self.parts > 1:
            dist.all_reduce(total)
            total *= self.parts / dist.get_world_size()
        return total.item()

    def clip(self, limit):
        """Clips gradients, of whole ones: torch.nn.utils.clip_grad_norm_ takes tensors of one mesh."""
        gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
        norm = torch.stack([torch.linalg.vector_norm(whole(gradient)) for gradient in gradients]).norm()
        for gradient in gradients:
            gradient.mul_(torch.clamp(limit / (norm + 1e-6), max=1.0).item())
        return norm.item()

    def train(self):
        named = list(self.model.named_parameters())
        gradients = {name: [] for name, _ in named}
        for batch in self.training["firsts"]:
            self.model.zero_grad()
            self.backward(batch)
            for name, parameter in named:
                # A parameter that only chooses, such as an indexer's, has no gradient.
                gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                gradients[name] += values_of([(name, gradient)])[name]
        parameters = [parameter for _, parameter in named]
        settings = self.training["optimizer"]
        losses, norms = [], []
        optimizer = torch.optim.AdamW(parameters, lr=settings["lr"], weight_decay=settings["weightDecay"], eps=settings["eps"], foreach=False)
        for batch in self.training["steps"]:
            optimizer.zero_grad()
            losses.append(self.backward(batch))
            norms.append(self.clip(settings["clip"]))
            optimizer.step()
        # Buffers that are saved count as weights that stay.
        saved = self.model.state_dict()
        buffers = [(name, buffer) for name, buffer in self.model.named_buffers() if name in saved]
        still = {name: [0.0] * (buffer.numel() * len(self.training["firsts"])) for name, buffer in buffers}
        return {"losses": losses, "norms": norms, "gradients": gradients | still, "weights": values_of(named + buffers)}


def rank_main(folder, training, number, run, rank):
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    path = os.path.join(folder, f"{number}.json")
    try:
        if run["ranks"] > 1:
            store = f"file://{os.path.abspath(folder)}/store-{number}"
            dist.init_process_group("gloo", init_method=store, rank=rank, world_size=run["ranks"])
        models = [read_model(os.path.join(folder, name), run) for name in training["models"]]
        if run["dtype"] == "float64":
            compute_in_float64()
        found = [Training(model, training, run, rank).train() for model in models]
    except Exception as error:  # whatever a model or a style throws is what is told of the mesh
        traceback.print_exc()
        found = {"error": f"{type(error).__name__}: {error}"}
    if rank == 0 or "error" in found:
        with open(f"{path}.{rank}", "w") as file:
            json.dump(found, file)
        os.replace(f"{path}.{rank}", path)
    sys.stdout.flush()
    os._exit(0)


def main(folder):
    with open(os.path.join(folder, "training.json")) as file:
        training = json.load(file)
    fork = multiprocessing.get_context("fork")
    for number, run in enumerate(training["runs"]):
        ranks = [fork.Process(target=rank_main, args=(folder, training, number, run, rank)) for rank in range(run["ranks"])]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(SECONDS_OF_A_MODEL * len(training["models"]))
        for process in ranks:
            process.kill()


if __name__ == "__main__":
    main(sys.argv[1])
