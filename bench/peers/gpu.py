"""PyTorch's side of the ratios on a card: the peer of bench/gpu/timed.ts, with the same cases, sizes and protocol.

Names of cases come from the input, a line each. The answer is `<case> <JSON>` with the milliseconds of a call and what else was
seen, or `<case> cannot: <why>`. What a case needs is made and warmed up, compiled too, when it is first asked for.
"""
import argparse
import gc
import json
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cuda, or cpu to try the cases where there is no card: its times say nothing of one")
parser.add_argument("--size", choices=["1b", "small"], default="1b", help="sizes of models and kernels: Llama 3.2 1B at 4096 tokens, or a few elements")
args = parser.parse_args()
IS_SMALL = args.size == "small"
DEVICE = args.device
VOCAB, HIDDEN, INNER, LAYERS, HEADS, KV, SEQ, BATCH = (96, 32, 48, 2, 4, 2, 24, 2) if IS_SMALL else (128256, 2048, 8192, 16, 32, 8, 4096, 1)
CALLS, STEPS, WARMUP = (1, 1, 3) if IS_SMALL else (20, 5, 5)
BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}


def random(*shape, dtype=torch.bfloat16):
    return torch.rand(*shape, device=DEVICE, dtype=dtype) * 2 - 1


def synchronize():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def gemm():
    a, b = random(SEQ * BATCH, HIDDEN), random(INNER, HIDDEN)
    return lambda: a @ b.T


def gemm_input_gradient():
    a, b = random(SEQ * BATCH, INNER), random(INNER, HIDDEN)
    return lambda: a @ b


def gemm_weight_gradient():
    a, b = random(SEQ * BATCH, INNER), random(SEQ * BATCH, HIDDEN)
    return lambda: a.T @ b


def attention_inputs(kind):
    """Queries, keys and values with the heads that this kind takes, and the arguments of a call."""
    if kind == "cudnn" and DEVICE != "cuda":
        raise RuntimeError("attention of cuDNN needs CUDA")
    head_dim = HIDDEN // HEADS
    q = random(BATCH, HEADS, SEQ, head_dim).requires_grad_()
    k, v = (random(BATCH, KV, SEQ, head_dim).requires_grad_() for _ in range(2))
    options = {"is_causal": True, "enable_gqa": True}
    try:
        with sdpa_kernel(BACKENDS[kind]):
            F.scaled_dot_product_attention(q, k, v, **options)
        return q, k, v, options
    except RuntimeError:
        # A kind that takes no shared heads gets each as often as it is used, outside of what is timed.
        k, v = (one.detach().repeat_interleave(HEADS // KV, dim=1).requires_grad_() for one in (k, v))
        return q, k, v, {"is_causal": True}


def attention(kind):
    q, k, v, options = attention_inputs(kind)

    def call():
        with torch.no_grad(), sdpa_kernel(BACKENDS[kind]):
            F.scaled_dot_product_attention(q, k, v, **options)

    call.seen = {"kvHeads": k.shape[1]}
    return call


def attention_backward(kind):
    q, k, v, options = attention_inputs(kind)
    with sdpa_kernel(BACKENDS[kind]):
        out = F.scaled_dot_product_attention(q, k, v, **options)
    grad = random(*out.shape)

    def call():
        torch.autograd.grad(out, (q, k, v), grad, retain_graph=True)

    call.seen = {"kvHeads": k.shape[1]}
    return call


def rms_norm():
    x, w = random(SEQ * BATCH, HIDDEN), random(HIDDEN)
    return lambda: F.rms_norm(x, (HIDDEN,), w, 1e-5)


def rms_norm_backward():
    x, w = random(SEQ * BATCH, HIDDEN).requires_grad_(), random(HIDDEN).requires_grad_()
    y = F.rms_norm(x, (HIDDEN,), w, 1e-5)
    grad = random(*y.shape)
    return lambda: torch.autograd.grad(y, (x, w), grad, retain_graph=True)


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
        dist.init_process_group("nccl" if DEVICE == "cuda" else "gloo", store=dist.HashStore(), rank=0, world_size=1)
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
    parameters = sum(one.numel() for one in model.parameters())
    if is_compiled:
        model.loss_function = torch.compile(model.loss_function)
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

    call.seen = {"parameters": parameters}
    return call


MAKE = {
    "gemm": gemm,
    "gemm:input-gradient": gemm_input_gradient,
    "gemm:weight-gradient": gemm_weight_gradient,
    "attention:flash": lambda: attention("flash"),
    "attention:cudnn": lambda: attention("cudnn"),
    "attention-backward:flash": lambda: attention_backward("flash"),
    "attention-backward:cudnn": lambda: attention_backward("cudnn"),
    "rms-norm": rms_norm,
    "rms-norm-backward": rms_norm_backward,
    "cross-entropy": cross_entropy,
    "adamw": adamw,
    "step:eager-flash": lambda: step(False, "flash"),
    "step:eager": lambda: step(False, None),
    "step:compiled": lambda: step(True, None),
}
made = {}


def make(name):
    if DEVICE == "cuda" and not torch.cuda.is_available():
        raise RuntimeError(f"torch {torch.__version__} sees no card")
    # A step is alone on the card, so that its peak is its own.
    if name.startswith("step"):
        made.clear()
        gc.collect()
        if DEVICE == "cuda":
            torch.cuda.empty_cache()
    call = MAKE[name]()
    for _ in range(WARMUP):
        call()
    synchronize()
    if DEVICE == "cuda":
        torch.cuda.reset_peak_memory_stats()
    return call


def answer(name):
    """What one round of a case saw."""
    if name not in made:
        made[name] = make(name)
    call = made[name]
    times = STEPS if name.startswith("step") else CALLS
    synchronize()
    started = time.perf_counter()
    for _ in range(times):
        call()
    synchronize()
    ms = (time.perf_counter() - started) / times * 1000
    on = torch.cuda.get_device_name() if DEVICE == "cuda" else "the CPU"
    seen = {"ms": ms, "by": f"torch {torch.__version__} on {on}", **getattr(call, "seen", {})}
    if not name.startswith("step"):
        return seen
    if DEVICE != "cuda":
        return {**seen, "noPeak": "peak memory of torch needs CUDA"}
    return {**seen, "peakBytes": torch.cuda.max_memory_allocated(), "reservedBytes": torch.cuda.max_memory_reserved()}


for line in sys.stdin:
    name = line.strip()
    try:
        print(f"{name} {json.dumps(answer(name))}", flush=True)
    except Exception as error:
        words = str(error).strip().splitlines()
        print(f"{name} cannot: {type(error).__name__}: {words[0] if words else ''}", flush=True)
if dist.is_initialized():
    dist.destroy_process_group()
