"""Times causal attention on one core: the peer of bench/ranks/attention.ts."""
import sys

import torch
from timing import best_of
from torch.nn.functional import scaled_dot_product_attention

batch, seq, heads, kv_heads, head_dim = 4, 256, 8, 4, 32
q = torch.randn(batch, heads, seq, head_dim, requires_grad=True)
k, v = (torch.randn(batch, kv_heads, seq, head_dim, requires_grad=True) for _ in range(2))


def attention():
    # As transformers does: keys and values are repeated.
    repeated = (x.repeat_interleave(heads // kv_heads, 1) for x in (k, v))
    return scaled_dot_product_attention(q, *repeated, is_causal=True)


def forward():
    with torch.no_grad():
        attention()


o = attention()
grad = torch.randn_like(o)
times = {"forward": best_of(forward), "backward": best_of(lambda: torch.autograd.grad(o, (q, k, v), grad, retain_graph=True))}
for case in sys.argv[1:]:
    print(f"{case} {times[case.split('-')[-1]] * 1000:.3f}")
