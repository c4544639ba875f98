"""Makes the Llama fixtures: tiny Hugging Face models, and what PyTorch computes with them.

    python tests/parity/make_llama.py [variant ...]     (torch, transformers and safetensors)

Each variant becomes tests/fixtures/llama-<variant>/:
- config.json, model.safetensors: as save_pretrained writes them (legacy_* in the spelling of transformers 4);
- expected.safetensors: input_ids, logits, inv_freq, a gradient for each tensor, ids of six training steps, and a
  batch with right padding (mask 0, labels -100);
- expected.json: losses, gradient norms, six clipped AdamW steps, sums of the final weights, and `sensitivity`: how much
  each quantity moves when every weight is multiplied by 1 + 6e-8 N(0, 1), a floor for tolerances.
"""
import json
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
STEPS = 6
OPTIMIZER = dict(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
CLIP = 1.0
NOISE = 6e-8

BASE = dict(vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, head_dim=8, max_position_embeddings=64, rms_norm_eps=1e-6, use_cache=False,
            bos_token_id=None, eos_token_id=None)

# name: (batch, sequence, configuration)
VARIANTS = {
    "tied": (2, 16, BASE | dict(tie_word_embeddings=True)),
    "untied": (2, 16, BASE | dict(tie_word_embeddings=False)),
    "grouped_bias": (2, 13, BASE | dict(
        vocab_size=61, hidden_size=24, intermediate_size=37, num_attention_heads=8, num_key_value_heads=2, head_dim=6,
        attention_bias=True, mlp_bias=True, rms_norm_eps=1e-5, tie_word_embeddings=False)),
    "rope_llama3": (2, 48, BASE | dict(
        vocab_size=40, hidden_size=24, intermediate_size=40, num_attention_heads=2, num_key_value_heads=1, head_dim=16,
        max_position_embeddings=256, tie_word_embeddings=True, pad_token_id=5,
        rope_parameters=dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0,
                             high_freq_factor=4.0, original_max_position_embeddings=32))),
    "legacy_rope_linear": (2, 24, BASE | dict(
        vocab_size=40, hidden_size=24, intermediate_size=40, head_dim=6, tie_word_embeddings=False,
        rope_parameters=dict(rope_type="linear", rope_theta=5000.0, factor=4.0))),
    "padding": (3, 11, BASE | dict(
        vocab_size=33, hidden_size=20, intermediate_size=28, num_attention_heads=5, num_key_value_heads=5, head_dim=4,
        pad_token_id=3, tie_word_embeddings=False)),
    "odd": (1, 7, BASE | dict(
        vocab_size=19, hidden_size=9, intermediate_size=11, num_hidden_layers=3, num_attention_heads=1,
        num_key_value_heads=1, head_dim=10, tie_word_embeddings=False)),
}


def spell_as_version_4(config):
    """rope_theta and rope_scaling of their own, no head_dim, torch_dtype instead of dtype."""
    rope = dict(config.pop("rope_parameters"))
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = dict(type=rope.pop("rope_type"), **rope)
    config["torch_dtype"] = config.pop("dtype")
    config.pop("head_dim")
    return config


def build(config, generator):
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**config)).eval()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            if "norm" in name:
                p.copy_(1 + 0.1 * noise)
            elif name.endswith("bias"):
                p.copy_(0.1 * noise)
            else:
                p.copy_(noise * (0.5 if "embed" in name else 1.0) / p.shape[-1] ** 0.5 * 1.5)
        pad = model.config.pad_token_id
        if pad is not None:
            model.model.embed_tokens.weight[pad] = 0
    return model


def measure(model, data):
    """Everything that does not change the weights."""
    result = {}
    with torch.no_grad():
        result["logits"] = model(input_ids=data["input_ids"]).logits
        result["masked_logits"] = model(
            input_ids=data["masked_ids"], attention_mask=data["masked_attention_mask"]).logits
        result["masked_loss"] = model(
            input_ids=data["masked_ids"], attention_mask=data["masked_attention_mask"],
            labels=data["masked_labels"]).loss
    model.zero_grad()
    loss = model(input_ids=data["input_ids"], labels=data["input_ids"]).loss
    loss.backward()
    result["loss"] = loss.detach()
    result["grads"] = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return result


def train(model, data):
    parameters = [p for p in model.parameters()]
    optimizer = torch.optim.AdamW(parameters, **OPTIMIZER)
    losses, norms = [], []
    for ids in data["train_ids"]:
        optimizer.zero_grad()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(parameters, CLIP).item())
        optimizer.step()
        losses.append(loss.item())
    return losses, norms


def largest(a, b):
    return (a.double() - b.double()).abs().max().item()


def sums(model):
    named = list(model.named_parameters())
    return ({n: p.detach().double().sum().item() for n, p in named},
            {n: p.detach().double().square().sum().item() for n, p in named})


def make(name):
    batch, seq, config = VARIANTS[name]
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    model = build(config, generator)
    vocab = config["vocab_size"]
    ids = lambda *shape: torch.randint(0, vocab, shape, generator=generator)
    data = dict(input_ids=ids(batch, seq), train_ids=ids(STEPS, batch, seq), masked_ids=ids(batch, seq))
    if config.get("pad_token_id") is not None:
        data["input_ids"][:, 2::5] = config["pad_token_id"]
    mask = torch.ones(batch, seq, dtype=torch.int64)
    mask[-1, seq - seq // 3:] = 0
    data["masked_attention_mask"] = mask
    data["masked_labels"] = torch.where(mask == 1, data["masked_ids"], -100)

    folder = FIXTURES / f"llama-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    for extra in folder.glob("generation_config.json"):
        extra.unlink()
    if name.startswith("legacy"):
        path = folder / "config.json"
        path.write_text(json.dumps(spell_as_version_4(json.loads(path.read_text())), indent=2) + "\n")
    start = {n: t.clone() for n, t in model.state_dict().items()}

    result = measure(model, data)
    losses, norms = train(model, data)
    final_sum, final_sumsq = sums(model)

    moved = dict(logits=0.0, masked_logits=0.0, loss=0.0, masked_loss=0.0, grads=0.0, grad_norm_rel=0.0,
                 step_losses=0.0, step_grad_norms=0.0, final_sum=0.0, final_sumsq=0.0)
    for _ in range(3):
        noisy = {n: t * (1 + NOISE * torch.randn(t.shape, generator=generator)) for n, t in start.items()}
        if config["tie_word_embeddings"]:
            noisy["lm_head.weight"] = noisy["model.embed_tokens.weight"]
        model.load_state_dict(noisy)
        other = measure(model, data)
        for key in ("logits", "masked_logits", "loss", "masked_loss"):
            moved[key] = max(moved[key], largest(other[key], result[key]))
        for n, grad in result["grads"].items():
            moved["grads"] = max(moved["grads"], largest(other["grads"][n], grad) / grad.abs().max().item())
            norm = grad.double().norm().item()
            moved["grad_norm_rel"] = max(
                moved["grad_norm_rel"], abs(other["grads"][n].double().norm().item() - norm) / norm)
        other_losses, other_norms = train(model, data)
        moved["step_losses"] = max(moved["step_losses"], *(abs(a - b) for a, b in zip(losses, other_losses)))
        moved["step_grad_norms"] = max(moved["step_grad_norms"], *(abs(a - b) for a, b in zip(norms, other_norms)))
        for key, before, after in zip(("final_sum", "final_sumsq"), (final_sum, final_sumsq), sums(model)):
            moved[key] = max(moved[key], *(abs(before[n] - after[n]) for n in before))

    tensors = dict(data, logits=result["logits"], masked_logits=result["masked_logits"],
                   inv_freq=model.model.rotary_emb.inv_freq)
    tensors |= {f"grad.{n}": grad for n, grad in result["grads"].items()}
    save_file({n: t.contiguous() for n, t in tensors.items()}, folder / "expected.safetensors")
    (folder / "expected.json").write_text(json.dumps(dict(
        batch=batch, seq=seq, versions=dict(torch=torch.__version__, transformers=transformers.__version__),
        loss=result["loss"].item(), masked_loss=result["masked_loss"].item(),
        grad_norms={n: grad.double().norm().item() for n, grad in result["grads"].items()},
        optimizer=dict(name="AdamW", **OPTIMIZER, clip_grad_norm=CLIP), step_losses=losses, step_grad_norms=norms,
        final_sum=final_sum, final_sumsq=final_sumsq, sensitivity=moved), indent=1) + "\n")
    print(name, sum(f.stat().st_size for f in folder.iterdir()), "bytes")


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    for variant in sys.argv[1:] or VARIANTS:
        make(variant)
