"""PyTorch's side of the ratios on a card: the peer of bench/gpu/timed.ts, with the same cases, sizes and protocol."""
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

IS_SMALL = sys.argv[1] == "small"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
VOCAB, HIDDEN, INNER, LAYERS, HEADS, KV, SEQ, BATCH = (96, 32, 48, 2, 4, 2, 24, 2) if IS_SMALL else (128256, 2048, 8192, 16, 32, 8, 4096, 1)
CALLS, STEPS = (1, 1) if IS_SMALL else (20, 5)
BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}


def random(*shape, dtype=torch.bfloat16):
    return torch.rand(*shape, device=DEVICE, dtype=dtype) * 2 - 1


def synchronize():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def gemm():
    a, b = random(SEQ * BATCH, HIDDEN), random(INNER, HIDDEN)
    return lambda: a @ b.T


def attention(kind):
    head_dim = HIDDEN // HEADS
    q = random(BATCH, HEADS, SEQ, head_dim)
    k, v = (random(BATCH, HEADS, SEQ, head_dim) for _ in range(2))

    def call():
        with sdpa_kernel(BACKENDS[kind]):
            F.scaled_dot_product_attention(q, k, v, is_causal=True)

    return call


def attention_backward(kind):
    head_dim = HIDDEN // HEADS
    q, k, v = (random(BATCH, HEADS, SEQ, head_dim).requires_grad_() for _ in range(3))
    with sdpa_kernel(BACKENDS[kind]):
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    grad = random(*out.shape)
    return lambda: torch.autograd.grad(out, (q, k, v), grad, retain_graph=True)


def rms_norm():
    x, w = random(SEQ * BATCH, HIDDEN), random(HIDDEN)
    return lambda: F.rms_norm(x, (HIDDEN,), w, 1e-5)


def cross_entropy():
    rows = min(SEQ, 1024)
    logits = random(rows, VOCAB, dtype=torch.float32).requires_grad_()
    labels = torch.arange(rows, device=DEVICE) * 7919 % VOCAB
    # Loss and gradient, which ours makes in one call.
    return lambda: torch.autograd.grad(F.cross_entropy(logits, labels, reduction="sum"), logits)


def adamw():
    param = random(4 * HIDDEN * INNER, dtype=torch.float32).requires_grad_()
    param.grad = torch.rand_like(param)
    return torch.optim.AdamW([param], lr=1e-4, weight_decay=0.1, fused=True).step


def step(is_compiled, kind):
    from transformers import LlamaConfig, LlamaForCausalLM

    if not dist.is_initialized():
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "29517")
        dist.init_process_group("nccl" if DEVICE == "cuda" else "gloo", rank=0, world_size=1)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV,
        max_position_embeddings=SEQ,
        rope_theta=500000.0,
        tie_word_embeddings=True,
        use_cache=False,
        attn_implementation="sdpa",
    )
    with torch.device(DEVICE):
        model = LlamaForCausalLM(config)
    mesh = torch.distributed.device_mesh.init_device_mesh(DEVICE, (1,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.model.layers:
        if is_compiled:
            layer.compile()
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
    ids = ((torch.arange(BATCH * SEQ) * 7919) % VOCAB).reshape(BATCH, SEQ).to(DEVICE)

    def run():
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    def call():
        if kind is None:
            return run()
        with sdpa_kernel(BACKENDS[kind]):
            run()

    return call


MAKE = {
    "gemm": gemm,
    "attention:flash": lambda: attention("flash"),
    "attention:cudnn": lambda: attention("cudnn"),
    "attention-backward:flash": lambda: attention_backward("flash"),
    "attention-backward:cudnn": lambda: attention_backward("cudnn"),
    "rms-norm": rms_norm,
    "cross-entropy": cross_entropy,
    "adamw": adamw,
    "step:eager-flash": lambda: step(False, "flash"),
    "step:eager": lambda: step(False, None),
    "step:compiled": lambda: step(True, None),
}
made = {}
for line in sys.stdin:
    name = line.strip()
    try:
        if name not in made:
            # One model at a time.
            if name.startswith("step"):
                for other in [one for one in made if one.startswith("step")]:
                    del made[other]
                if DEVICE == "cuda":
                    torch.cuda.empty_cache()
            made[name] = MAKE[name]()
            for _ in range(3):
                made[name]()
        times = STEPS if name.startswith("step") else CALLS
        synchronize()
        started = time.perf_counter()
        for _ in range(times):
            made[name]()
        synchronize()
        print(f"{name} {(time.perf_counter() - started) / times * 1000}", flush=True)
    except Exception as error:
        words = str(error).strip().splitlines()
        print(f"{name} cannot: {type(error).__name__}: {words[0] if words else ''}", flush=True)
if dist.is_initialized():
    dist.destroy_process_group()
