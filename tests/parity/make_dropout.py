"""Makes tests/fixtures/dropout/*/: what transformers computes in training when it is given this library's random numbers.

    python tests/parity/make_dropout.py                  (torch, transformers, safetensors and numpy)

Each is a tiny model in train() mode, with eager attention. In place of PyTorch's generator stand masks and noise of Philox 4x32-10,
written here from its definition, each drawn for the layer that asks for it:
- config.json, model.safetensors: as save_pretrained writes them;
- expected.safetensors: input_ids and a gradient for each tensor; expected.json: the loss, the seed and the first sample.
"""
import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from make_reference import SMALL, build, by_file

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures" / "dropout"
SEED, FIRST_SAMPLE = 11, 2**32 - 1
WORD = np.uint64(2**32 - 1)

GPT2 = dict(model_type="gpt2", vocab_size=37, n_positions=32, n_embd=16, n_layer=2, n_head=2, n_inner=19,
            use_cache=False, bos_token_id=None, eos_token_id=None)
MODELS = {
    "gpt2": GPT2 | dict(resid_pdrop=0.2, embd_pdrop=0.15, attn_pdrop=0.3),
    "phi": SMALL | dict(model_type="phi", hidden_size=32, num_key_value_heads=2, resid_pdrop=0.2, embd_pdrop=0.1, attention_dropout=0.25),
    "phi3": SMALL | dict(model_type="phi3", num_key_value_heads=2, resid_pdrop=0.3, embd_pdrop=0.4, attention_dropout=0.1),
    "modernbert-decoder": SMALL | dict(
        model_type="modernbert-decoder", num_attention_heads=3, local_attention=8, embedding_dropout=0.1, mlp_dropout=0.3,
        attention_dropout=0.2, cls_token_id=1, sep_token_id=2, pad_token_id=39, bos_token_id=1),
    "gpt_oss": SMALL | dict(
        model_type="gpt_oss", num_key_value_heads=1, head_dim=10, num_local_experts=4, num_experts_per_tok=2,
        intermediate_size=11, sliding_window=4, attention_dropout=0.3,
        rope_parameters=dict(rope_type="default", rope_theta=700.0)),
    "deepseek_v2": SMALL | dict(
        model_type="deepseek_v2", num_attention_heads=2, q_lora_rank=10, kv_lora_rank=6, qk_nope_head_dim=6,
        qk_rope_head_dim=4, v_head_dim=13, first_k_dense_replace=1, n_routed_experts=4, n_shared_experts=1,
        num_experts_per_tok=2, moe_intermediate_size=8, attention_dropout=0.2),
    "mixtral": SMALL | dict(
        model_type="mixtral", num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2, intermediate_size=11,
        router_jitter_noise=0.2, attention_dropout=0.1),
    "phimoe": SMALL | dict(
        model_type="phimoe", num_key_value_heads=2, num_local_experts=6, num_experts_per_tok=2, intermediate_size=13,
        router_jitter_noise=0.4, input_jitter_noise=0.1, attention_dropout=0.1),
}


def philox(counter, key):
    """Four words of 32 bits for counters of four, all as uint64 arrays."""
    a, b, c, d = counter
    k, l = key
    for _ in range(10):
        x, y = np.uint64(0xD2511F53) * a, np.uint64(0xCD9E8D57) * c
        a, b, c, d = (y >> np.uint64(32)) ^ b ^ k, y & WORD, (x >> np.uint64(32)) ^ d ^ l, x & WORD
        k, l = (k + np.uint64(0x9E3779B9)) & WORD, (l + np.uint64(0xBB67AE85)) & WORD
    return a, b, c, d


def key_of(seed, name):
    """A key for a name: `keyOf` of src/random.ts."""
    text = name.encode()
    state = [np.uint64(v) for v in (seed % 2**32, seed // 2**32, len(text), 0)]
    padded = text + bytes(-len(text) % 8)
    for word in [padded[i:i + 8] for i in range(0, len(padded), 8)] + [(0).to_bytes(4, "little") + (1).to_bytes(4, "little")]:
        key = [np.uint64(int.from_bytes(word[i:i + 4], "little")) for i in (0, 4)]
        state = philox(state, key)
    return (int(state[1]) & 0x1FFFFF) * 2**32 + int(state[0])


def words(name, shape):
    """Words of a layer for [batch, planes, rows, cols]."""
    key = key_of(SEED, name)
    b, p, r, c = np.meshgrid(*[np.arange(n, dtype=np.uint64) for n in shape], indexing="ij")
    sample = np.uint64(FIRST_SAMPLE) + b
    counter = (c // np.uint64(4), r, sample & WORD, (sample >> np.uint64(32)) | (p << np.uint64(21)))
    blocks = np.stack(philox(counter, (np.uint64(key % 2**32), np.uint64(key // 2**32))))
    return np.take_along_axis(blocks, (c % np.uint64(4)).astype(np.int64)[None], 0)[0]


def uniform(name, shape):
    """Numbers in (0, 1) for [batch, rows, cols]."""
    batch, rows, cols = shape
    drawn = (words(name, (batch, 1, rows, cols)) >> np.uint64(9)).astype(np.float64)
    return torch.from_numpy(((drawn + 0.5) / 2**23).astype(np.float32)).reshape(shape)


def mask(name, shape, p):
    """What dropout multiplies [batch, heads, queries, keys] or [batch, rows, cols] by."""
    whole = shape if len(shape) == 4 else (shape[0], 1, *shape[1:])
    kept = words(name, whole) >= np.uint64(int(p * 2**32))
    return torch.from_numpy(np.where(kept, np.float32(1 / (1 - p)), np.float32(0))).reshape(shape)


class Draws:
    """Stands for PyTorch's generator: `asked` names the layers in the order in which a forward asks for their numbers."""

    def __init__(self, asked, batch, seq, experts):
        self.asked = list(asked)
        self.batch, self.seq, self.experts = batch, seq, experts
        self.noise = {}

    def dropout(self, input, p=0.5, training=True, inplace=False):
        assert training
        if p == 0:
            return input
        return input * mask(self.asked.pop(0), tuple(input.shape), p)

    def jitter(self, tensor, low, high):
        if low == 0 and high == 1:
            return tensor.copy_(self.third_order())
        name = self.asked.pop(0)
        drawn = uniform(name, (self.batch, self.seq, tensor.shape[-1]))
        return tensor.copy_((drawn * (np.float32(high) - np.float32(low)) + np.float32(low)).reshape(tensor.shape))

    def routing(self, choice, part):
        """Of a router's noise [tokens, choices, 2, experts]."""
        name = self.asked[0]
        if name not in self.noise:
            shape = (self.batch, self.seq, 2 * 2 * self.experts)
            self.noise[name] = uniform(name, shape).reshape(-1, 2, 2, self.experts)
            self.calls = 0
        return self.noise[name][:, choice, part]

    def exponential(self, tensor):
        choice = 0 if self.asked[0] not in self.noise else 1
        drawn = self.routing(choice, 0).double()
        return tensor.copy_((-drawn.log()).float())

    def rand_like(self, tensor):
        """Of the first choice; that of the second is drawn once more, by uniform_."""
        return self.third_order().clone() if self.calls == 0 else torch.empty_like(tensor)

    def third_order(self):
        choice = self.calls
        drawn = self.routing(choice, 1)[:, :1]
        self.calls += 1
        if self.calls == 2:
            self.asked.pop(0)
        return drawn


def layers_asked(config):
    """The names that this library draws for, in the order of transformers' forward."""
    kind, count = config["model_type"], config.get("num_hidden_layers", config.get("n_layer"))
    for layer in range(count):
        block = f"{'transformer.h' if kind == 'gpt2' else 'model.layers'}.{layer}"
        attn = f"{block}.{'attn' if kind in ('gpt2', 'modernbert-decoder') else 'self_attn'}"
        if layer == 0 and kind in ("gpt2", "phi", "modernbert-decoder"):
            yield ("transformer" if kind == "gpt2" else "model") + ".embed_dropout dropout"
        yield f"{attn} attention dropout"
        if kind in ("gpt2", "phi", "phi3", "modernbert-decoder"):
            yield f"{block}.resid_attn_dropout dropout"
        if kind in ("gpt2", "phi", "phi3"):
            yield f"{block}.resid_mlp_dropout dropout"
        if kind == "modernbert-decoder":
            yield f"{block}.mlp.dropout dropout"
        if kind in ("mixtral", "phimoe"):
            yield f"{block}.mlp input jitter 0"
        if kind == "phimoe":
            yield f"{block}.mlp input jitter 1"
            yield f"{block}.mlp.router routing noise"


def make(name, config, batch=3, seq=11):
    generator = torch.Generator().manual_seed(5)
    model = build(config | dict(tie_word_embeddings=False), generator).train()
    ids = torch.randint(4, model.config.vocab_size, (batch, seq), generator=generator)
    draws = Draws(layers_asked(config), batch, seq, config.get("num_local_experts", 0))
    replaced = {
        (torch.nn.functional, "dropout"): draws.dropout,
        (torch.Tensor, "uniform_"): lambda tensor, low=0, high=1: draws.jitter(tensor, low, high),
        (torch.Tensor, "exponential_"): lambda tensor: draws.exponential(tensor),
        (torch, "rand_like"): draws.rand_like,
    }
    kept = {place: getattr(*place) for place in replaced}
    for (owner, attribute), function in replaced.items():
        setattr(owner, attribute, function)
    try:
        loss = model(input_ids=ids, labels=ids).loss
    finally:
        for (owner, attribute), function in kept.items():
            setattr(owner, attribute, function)
    assert draws.asked == [], draws.asked
    loss.backward()
    grads = by_file(model, {n: p.grad for n, p in model.named_parameters() if p.grad is not None})
    folder = FIXTURES / name
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    tensors = {"input_ids": ids} | {f"grad.{n}": g.contiguous() for n, g in grads.items()}
    save_file(tensors, folder / "expected.safetensors")
    facts = dict(loss=loss.item(), seed=SEED, first_sample=FIRST_SAMPLE)
    (folder / "expected.json").write_text(json.dumps(facts) + "\n")
    print(name, loss.item())


if __name__ == "__main__":
    for name, config in MODELS.items():
        make(name, config)
