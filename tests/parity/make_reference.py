"""Makes directories of reference results: a model of transformers, and what PyTorch computes with it.

    python tests/parity/make_reference.py [fixture ...]          (torch, transformers and safetensors)
    python tests/parity/make_reference.py --options DIRECTORY [option ...]
    python tests/parity/make_reference.py --model DIRECTORY --out DIRECTORY [--batch 2] [--seq 16]

The first makes the fixtures tests/fixtures/<fixture>/, tiny models with weights of their own; the second makes DIRECTORY/<option>/
of tests/parity/options.json, models of the families with other options (those kept as fixtures lie beside the first); the third
measures any causal language model. `npm run reference -- DIRECTORY` then compares this library with what is in it:
- config.json, model.safetensors: as save_pretrained writes them (legacy_* in the spelling of transformers 4);
- expected.safetensors: input_ids, logits, a gradient for each tensor, ids of six training steps, a batch with right padding
  (mask 0, labels -100), and for some a longer batch; inv_freq where all layers share it;
- expected.json: losses, gradient norms, six clipped AdamW steps, sums of the final weights, `sensitivity`: how much each
  quantity moves when every weight is multiplied by 1 + 6e-8 N(0, 1), a floor for tolerances, and how much final weights do.
"""
import argparse
import json
import re
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.core_model_loading import revert_weight_conversion

HERE = Path(__file__).resolve().parent
FIXTURES = HERE.parent / "fixtures"
OPTIONS = json.loads((HERE / "options.json").read_text())
EAGER = dict(attn_implementation="eager", experts_implementation="eager")
STEPS = 6
OPTIMIZER = dict(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
CLIP = 1.0
NOISE = 6e-8
# Where a first gradient is about zero, its sign is rounding's, and Adam's first step goes the other way: a coin is tossed, and
# all of a few noisy runs may show the one side that the reference shows.
NOISY_RUNS = 10
# Final weights that rounding moves by more are named.
NAMED_CHANGE = 2e-5

LLAMA = dict(model_type="llama", vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, head_dim=8, max_position_embeddings=64, rms_norm_eps=1e-6, use_cache=False,
            bos_token_id=None, eos_token_id=None)

SMALL = dict(vocab_size=40, hidden_size=24, intermediate_size=28, num_hidden_layers=2, num_attention_heads=4,
             max_position_embeddings=64, use_cache=False, bos_token_id=None, eos_token_id=None, pad_token_id=None)

# name: (batch, sequence, configuration[, length of the longer batch])
FIXTURE_MODELS = {
    "llama-tied": (2, 16, LLAMA | dict(tie_word_embeddings=True)),
    "llama-untied": (2, 16, LLAMA | dict(tie_word_embeddings=False)),
    "llama-grouped_bias": (2, 13, LLAMA | dict(
        vocab_size=61, hidden_size=24, intermediate_size=37, num_attention_heads=8, num_key_value_heads=2, head_dim=6,
        attention_bias=True, mlp_bias=True, rms_norm_eps=1e-5, tie_word_embeddings=False)),
    "llama-rope_llama3": (2, 48, LLAMA | dict(
        vocab_size=40, hidden_size=24, intermediate_size=40, num_attention_heads=2, num_key_value_heads=1, head_dim=16,
        max_position_embeddings=256, tie_word_embeddings=True, pad_token_id=5,
        rope_parameters=dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0,
                             high_freq_factor=4.0, original_max_position_embeddings=32))),
    "llama-legacy_rope_linear": (2, 24, LLAMA | dict(
        vocab_size=40, hidden_size=24, intermediate_size=40, head_dim=6, tie_word_embeddings=False,
        rope_parameters=dict(rope_type="linear", rope_theta=5000.0, factor=4.0))),
    "llama-padding": (3, 11, LLAMA | dict(
        vocab_size=33, hidden_size=20, intermediate_size=28, num_attention_heads=5, num_key_value_heads=5, head_dim=4,
        pad_token_id=3, tie_word_embeddings=False)),
    "llama-odd": (1, 7, LLAMA | dict(
        vocab_size=19, hidden_size=9, intermediate_size=11, num_hidden_layers=3, num_attention_heads=1,
        num_key_value_heads=1, head_dim=10, tie_word_embeddings=False)),
    "qwen3-window": (2, 13, SMALL | dict(
        model_type="qwen3", num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2, head_dim=6,
        attention_bias=True, use_sliding_window=True, sliding_window=5, max_window_layers=1, pad_token_id=3,
        rope_parameters=dict(rope_type="linear", rope_theta=5000.0, factor=2.0), tie_word_embeddings=True)),
    "mistral-yarn": (2, 23, SMALL | dict(
        model_type="mistral", num_key_value_heads=1, head_dim=10, sliding_window=4, hidden_act="gelu_pytorch_tanh",
        rope_parameters=dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=16,
                             beta_fast=8.0, beta_slow=2.0, truncate=False), tie_word_embeddings=False)),
    "phi3-longrope": (2, 12, SMALL | dict(
        model_type="phi3", hidden_size=32, num_key_value_heads=2, sliding_window=7, original_max_position_embeddings=16,
        rope_parameters=dict(rope_type="longrope", rope_theta=10000.0, partial_rotary_factor=0.5,
                             short_factor=[1.0, 1.25], long_factor=[1.5, 4.0]), tie_word_embeddings=True), 29),
    "olmo3-yarn": (2, 17, SMALL | dict(
        model_type="olmo3", num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=3, attention_bias=True,
        sliding_window=6, layer_types=["full_attention", "sliding_attention", "full_attention"],
        rope_parameters=dict(
            full_attention=dict(rope_type="yarn", rope_theta=20000.0, factor=8.0, original_max_position_embeddings=8,
                                attention_factor=1.1),
            sliding_attention=dict(rope_type="default", rope_theta=300.0)), tie_word_embeddings=True)),
    "gpt2-scaled": (3, 11, dict(
        model_type="gpt2", vocab_size=37, n_positions=32, n_embd=15, n_layer=3, n_head=5, n_inner=19,
        activation_function="relu", resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, layer_norm_epsilon=1e-4,
        scale_attn_by_inverse_layer_idx=True, use_cache=False, bos_token_id=None, eos_token_id=None,
        tie_word_embeddings=True)),
    "phi-qk_norm": (2, 14, SMALL | dict(
        model_type="phi", hidden_size=40, num_key_value_heads=2, qk_layernorm=True, hidden_act="gelu",
        rope_parameters=dict(rope_type="default", rope_theta=3000.0, partial_rotary_factor=0.4),
        tie_word_embeddings=True)),
    "modernbert-decoder-bias": (2, 15, SMALL | dict(
        model_type="modernbert-decoder", num_hidden_layers=4, num_attention_heads=3, norm_bias=True, attention_bias=True,
        mlp_bias=True, classifier_bias=True, decoder_bias=False, local_attention=7, hidden_activation="silu",
        classifier_activation="gelu_new", cls_token_id=1, sep_token_id=2, pad_token_id=39, bos_token_id=1,
        layer_types=["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
        rope_parameters=dict(full_attention=dict(rope_type="linear", rope_theta=900.0, factor=3.0),
                             sliding_attention=dict(rope_type="default", rope_theta=50.0)), tie_word_embeddings=False)),
    "lfm2-conv_bias": (2, 13, SMALL | dict(
        model_type="lfm2", num_hidden_layers=4, num_attention_heads=6, num_key_value_heads=3, conv_bias=True,
        conv_L_cache=4, block_multiple_of=8, block_ffn_dim_multiplier=1.3, intermediate_size=30, pad_token_id=0,
        layer_types=["full_attention", "conv", "conv", "full_attention"], tie_word_embeddings=False)),
    "mixtral-balanced": (2, 13, SMALL | dict(
        model_type="mixtral", num_key_value_heads=2, num_local_experts=5, num_experts_per_tok=3, intermediate_size=11,
        sliding_window=5, hidden_act="gelu", pad_token_id=2, output_router_logits=True, router_aux_loss_coef=0.3,
        tie_word_embeddings=True)),
    "qwen2_moe-mixed": (2, 13, SMALL | dict(
        model_type="qwen2_moe", num_hidden_layers=4, num_key_value_heads=1, num_experts=6, num_experts_per_tok=4,
        moe_intermediate_size=9, shared_expert_intermediate_size=13, norm_topk_prob=True, qkv_bias=False,
        decoder_sparse_step=2, use_sliding_window=True, sliding_window=4, max_window_layers=3, output_router_logits=True,
        router_aux_loss_coef=0.2, tie_word_embeddings=False)),
    "qwen3_moe-mixed": (2, 13, SMALL | dict(
        model_type="qwen3_moe", num_hidden_layers=3, num_key_value_heads=2, head_dim=10, num_experts=7,
        num_experts_per_tok=3, moe_intermediate_size=10, norm_topk_prob=True, mlp_only_layers=[1], attention_bias=True,
        use_sliding_window=True, sliding_window=6, output_router_logits=True, router_aux_loss_coef=0.1,
        rope_parameters=dict(rope_type="linear", rope_theta=3000.0, factor=2.0), tie_word_embeddings=True)),
    "phimoe-longrope": (2, 10, SMALL | dict(
        model_type="phimoe", num_key_value_heads=2, num_local_experts=6, num_experts_per_tok=2, intermediate_size=13,
        router_jitter_noise=0.2, attention_bias=True, lm_head_bias=True, sliding_window=7, output_router_logits=True,
        rope_parameters=dict(rope_type="longrope", rope_theta=500.0, short_factor=[1.0, 1.1, 1.3],
                             long_factor=[1.0, 2.0, 4.0], short_mscale=1.1, long_mscale=1.3, factor=4.0,
                             original_max_position_embeddings=16), tie_word_embeddings=True), 24),
    "gpt_oss-odd": (2, 13, SMALL | dict(
        model_type="gpt_oss", num_hidden_layers=3, num_key_value_heads=1, head_dim=10, num_local_experts=5,
        num_experts_per_tok=3, intermediate_size=11, sliding_window=4, swiglu_limit=0.4, swiglu_alpha=1.3,
        attention_bias=False, layer_types=["full_attention", "sliding_attention", "sliding_attention"],
        output_router_logits=True, router_aux_loss_coef=0.05,
        rope_parameters=dict(rope_type="default", rope_theta=700.0), tie_word_embeddings=True)),
    "qwen3_next-dense": (2, 9, SMALL | dict(
        model_type="qwen3_next", num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=1, head_dim=8,
        rms_norm_eps=1e-1, linear_conv_kernel_dim=2, linear_key_head_dim=4, linear_value_head_dim=6, linear_num_key_heads=2,
        linear_num_value_heads=4, full_attention_interval=2, mlp_only_layers=[2], num_experts=5, num_experts_per_tok=2,
        moe_intermediate_size=10, shared_expert_intermediate_size=9, norm_topk_prob=False, tie_word_embeddings=True)),
    "deepseek_v2-groups": (2, 19, SMALL | dict(
        model_type="deepseek_v2", num_attention_heads=2, q_lora_rank=10, kv_lora_rank=6, qk_nope_head_dim=6,
        qk_rope_head_dim=4, v_head_dim=13, attention_bias=True, mlp_bias=True, first_k_dense_replace=1, n_routed_experts=6,
        n_shared_experts=2, num_experts_per_tok=3, moe_intermediate_size=8, topk_method="group_limited_greedy", n_group=3,
        topk_group=2, routed_scaling_factor=1.7, tie_word_embeddings=False,
        rope_parameters=dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=16,
                             mscale=0.7, mscale_all_dim=1.1))),
    "glm4_moe_lite-half": (2, 11, SMALL | dict(
        model_type="glm4_moe_lite", num_attention_heads=3, num_key_value_heads=3, q_lora_rank=None, kv_lora_rank=8,
        qk_nope_head_dim=3, qk_rope_head_dim=4, v_head_dim=5, rope_interleave=False, mlp_layer_types=["sparse", "dense"],
        n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=8, n_group=2, topk_group=1, norm_topk_prob=False,
        routed_scaling_factor=0.8, tie_word_embeddings=True)),
    "glm_moe_dsa-few": (2, 14, SMALL | dict(
        model_type="glm_moe_dsa", num_attention_heads=2, num_key_value_heads=2, q_lora_rank=9, kv_lora_rank=8,
        qk_nope_head_dim=5, qk_rope_head_dim=4, v_head_dim=6, mlp_layer_types=["sparse", "dense"], n_routed_experts=4,
        num_experts_per_tok=2, moe_intermediate_size=8, index_topk=4, index_head_dim=7, index_n_heads=9,
        tie_word_embeddings=False)),
    "glm_moe_dsa-shared_few": (2, 17, SMALL | dict(
        model_type="glm_moe_dsa", num_hidden_layers=5, num_attention_heads=3, num_key_value_heads=3, q_lora_rank=7,
        kv_lora_rank=6, qk_nope_head_dim=4, qk_rope_head_dim=6, v_head_dim=5, n_routed_experts=5, num_experts_per_tok=2,
        moe_intermediate_size=7, mlp_layer_types=["dense", "sparse", "dense", "sparse", "sparse"], index_topk=3,
        index_head_dim=9, index_n_heads=12, indexer_types=["full", "shared", "shared", "full", "shared"],
        tie_word_embeddings=True)),
    "qwen3_5-chunks": (1, 70, SMALL | dict(
        model_type="qwen3_5_text", num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=1, head_dim=10,
        attention_bias=True, rms_norm_eps=1e-2, linear_conv_kernel_dim=3, linear_key_head_dim=5, linear_value_head_dim=7,
        linear_num_key_heads=2, linear_num_value_heads=6, max_position_embeddings=128, pad_token_id=3,
        layer_types=["linear_attention", "full_attention", "linear_attention"],
        rope_parameters=dict(rope_type="default", rope_theta=3000.0, partial_rotary_factor=0.6), tie_word_embeddings=True)),
    "qwen2-window": (2, 13, SMALL | dict(
        model_type="qwen2", num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2, use_sliding_window=True,
        sliding_window=5, max_window_layers=1, pad_token_id=3,
        rope_parameters=dict(rope_type="yarn", rope_theta=5000.0, factor=2.0, original_max_position_embeddings=32),
        tie_word_embeddings=True)),
    "smollm3-window": (2, 13, SMALL | dict(
        model_type="smollm3", num_hidden_layers=5, num_attention_heads=6, num_key_value_heads=3, attention_bias=True,
        mlp_bias=True, use_sliding_window=True, sliding_window=4, no_rope_layer_interval=2, hidden_act="gelu",
        rope_parameters=dict(rope_type="linear", rope_theta=700.0, factor=2.0), tie_word_embeddings=False)),
    "olmo2-bias": (2, 17, SMALL | dict(
        model_type="olmo2", num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=3, attention_bias=True,
        pad_token_id=1, rms_norm_eps=1e-3, rope_parameters=dict(rope_type="linear", rope_theta=900.0, factor=3.0),
        tie_word_embeddings=True)),
    "granite-factors": (2, 13, SMALL | dict(
        model_type="granite", num_hidden_layers=3, num_key_value_heads=2, attention_bias=True, mlp_bias=True,
        embedding_multiplier=3.5, attention_multiplier=0.37, residual_multiplier=0.22, logits_scaling=3.0, pad_token_id=2,
        rope_parameters=dict(rope_type="default", rope_theta=400.0), tie_word_embeddings=True)),
    "glm4-quarter": (2, 13, SMALL | dict(
        model_type="glm4", num_hidden_layers=3, num_key_value_heads=2, head_dim=8, attention_bias=False, pad_token_id=4,
        eos_token_id=[39, 1],
        rope_parameters=dict(rope_type="default", rope_theta=800.0, partial_rotary_factor=0.25), tie_word_embeddings=True)),
    "gemma2-bounded": (2, 17, SMALL | dict(
        model_type="gemma2", num_hidden_layers=3, num_key_value_heads=2, head_dim=10, sliding_window=5, attention_bias=True,
        query_pre_attn_scalar=3, attn_logit_softcapping=1.5, final_logit_softcapping=2.5, pad_token_id=0, eos_token_id=None,
        rope_parameters=dict(rope_type="linear", rope_theta=900.0, factor=4.0), tie_word_embeddings=False)),
    "gemma3-pattern": (2, 17, SMALL | dict(
        model_type="gemma3_text", num_hidden_layers=4, num_key_value_heads=2, head_dim=10, sliding_window=5,
        query_pre_attn_scalar=7, attention_bias=True, pad_token_id=0,
        layer_types=["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
        rope_parameters=dict(full_attention=dict(rope_type="linear", rope_theta=900.0, factor=4.0),
                             sliding_attention=dict(rope_type="default", rope_theta=60.0)), tie_word_embeddings=False)),
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
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), **EAGER).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            if "norm" in name or ".ln_" in name:
                p.copy_(noise * 0.1 if name.endswith("bias") else 1 + 0.1 * noise)
            elif name.endswith("bias"):
                p.copy_(0.1 * noise)
            else:
                p.copy_(noise * (0.5 if "embed" in name else 1.0) / p.shape[-1] ** 0.5 * 1.5)
        padding = model.get_input_embeddings().padding_idx
        if padding is not None:
            model.get_input_embeddings().weight[padding] = 0
    return model


def by_file(model, tensors):
    """Tensors by parameter as tensors by the names of files: experts that lie in one parameter are apart there. A text model that was
    inside of another is named as one of its own."""
    converted = revert_weight_conversion(model, {n: t.clone() for n, t in tensors.items()})
    return {n.replace("model.language_model.", "model."): t for n, t in dict(converted).items()}


def measure(model, data):
    """Everything that does not change the weights."""
    result = {}
    with torch.no_grad():
        result["logits"] = model(input_ids=data["input_ids"]).logits
        masked = model(input_ids=data["masked_ids"], attention_mask=data["masked_attention_mask"],
                       labels=data["masked_labels"])
        result["masked_logits"], result["masked_loss"] = masked.logits, masked.loss
        if getattr(model.config, "output_router_logits", False):
            result["aux_loss"], result["masked_aux_loss"] = model(input_ids=data["input_ids"]).aux_loss, masked.aux_loss
        if "long_ids" in data:
            long = model(input_ids=data["long_ids"], labels=data["long_ids"])
            result["long_logits"], result["long_loss"] = long.logits, long.loss
    model.zero_grad()
    loss = model(input_ids=data["input_ids"], labels=data["input_ids"]).loss
    loss.backward()
    result["loss"] = loss.detach()
    result["grads"] = by_file(model, {n: p.grad for n, p in model.named_parameters() if p.grad is not None})
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


def weights(model):
    return by_file(model, {n: p.detach().double() for n, p in model.named_parameters()})


def measured_under_noise(model, start, data, generator, reference):
    """How far each quantity, and each final weight, moves when every weight is off by its last bit."""
    result, losses, norms, final = reference
    moved = dict(grads=0.0, grad_norm_rel=0.0, step_losses=0.0, step_grad_norms=0.0, final_sum=0.0, final_sumsq=0.0)
    scalars = [key for key in result if key != "grads"]
    moved |= {key: 0.0 for key in scalars}
    changes = {n: 0.0 for n in final}
    for _ in range(NOISY_RUNS):
        noisy = {n: t * (1 + NOISE * torch.randn(t.shape, generator=generator)) for n, t in start.items()}
        with torch.no_grad():
            for n, p in model.named_parameters():
                p.copy_(noisy[n])
        other = measure(model, data)
        for key in scalars:
            moved[key] = max(moved[key], largest(other[key], result[key]))
        for n, grad in result["grads"].items():
            norm = grad.double().norm().item()
            if norm == 0:
                continue
            moved["grads"] = max(moved["grads"], largest(other["grads"][n], grad) / grad.abs().max().item())
            moved["grad_norm_rel"] = max(
                moved["grad_norm_rel"], abs(other["grads"][n].double().norm().item() - norm) / norm)
        other_losses, other_norms = train(model, data)
        moved["step_losses"] = max(moved["step_losses"], *(abs(a - b) for a, b in zip(losses, other_losses)))
        moved["step_grad_norms"] = max(moved["step_grad_norms"], *(abs(a - b) for a, b in zip(norms, other_norms)))
        for n, value in weights(model).items():
            changes[n] = max(changes[n], largest(value, final[n]))
            moved["final_sum"] = max(moved["final_sum"], abs(value.sum() - final[n].sum()).item())
            moved["final_sumsq"] = max(
                moved["final_sumsq"], abs(value.square().sum() - final[n].square().sum()).item())
    return moved, {n: change for n, change in changes.items() if change > NAMED_CHANGE}


def write(model, folder, batch, seq, long_seq, generator):
    """Measures a model whose directory is there, and writes what is expected of it."""
    vocab = model.config.vocab_size
    ids = lambda *shape: torch.randint(0, vocab, shape, generator=generator)
    data = dict(input_ids=ids(batch, seq), train_ids=ids(STEPS, batch, seq), masked_ids=ids(batch, seq))
    if long_seq is not None:
        data["long_ids"] = ids(1, long_seq)
    padding = getattr(model.get_input_embeddings(), "padding_idx", None)
    if padding is not None:
        data["input_ids"][:, 2::5] = padding
    mask = torch.ones(batch, seq, dtype=torch.int64)
    mask[-1, seq - seq // 3:] = 0
    data["masked_attention_mask"] = mask
    data["masked_labels"] = torch.where(mask == 1, data["masked_ids"], -100)
    start = {n: p.detach().clone() for n, p in model.named_parameters()}

    result = measure(model, data)
    losses, norms = train(model, data)
    final = weights(model)
    moved, changes = measured_under_noise(model, start, data, generator, (result, losses, norms, final))

    tensors = dict(data)
    tensors |= {key: result[key] for key in ("logits", "masked_logits", "long_logits") if key in result}
    tensors |= {f"grad.{n}": grad for n, grad in result["grads"].items()}
    rotary = getattr(model.base_model, "rotary_emb", None)
    if hasattr(rotary, "inv_freq"):
        tensors["inv_freq"] = rotary.original_inv_freq
    save_file({n: t.contiguous() for n, t in tensors.items()}, folder / "expected.safetensors")
    facts = dict(
        arch=model.config.model_type, batch=batch, seq=seq,
        versions=dict(torch=torch.__version__, transformers=transformers.__version__),
        loss=result["loss"].item(), masked_loss=result["masked_loss"].item(),
        long_loss=result["long_loss"].item() if "long_loss" in result else None,
        aux_loss=result["aux_loss"].item() if "aux_loss" in result else None,
        masked_aux_loss=result["masked_aux_loss"].item() if "masked_aux_loss" in result else None,
        no_grad_params=[n for n in final if n not in result["grads"]],
        grad_norms={n: grad.double().norm().item() for n, grad in result["grads"].items()},
        optimizer=dict(name="AdamW", **OPTIMIZER, clip_grad_norm=CLIP), step_losses=losses, step_grad_norms=norms,
        final_sum={n: value.sum().item() for n, value in final.items()},
        final_sumsq={n: value.square().sum().item() for n, value in final.items()},
        sensitivity=moved, final_max_abs_change_under_ulp_noise=changes)
    (folder / "expected.json").write_text(json.dumps(facts, indent=1) + "\n")


def make_fixture(name):
    batch, seq, config, *rest = FIXTURE_MODELS[name]
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    model = build(config, generator)
    folder = FIXTURES / name
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    if "legacy" in name:
        path = folder / "config.json"
        path.write_text(json.dumps(spell_as_version_4(json.loads(path.read_text())), indent=2) + "\n")
    write(model, folder, batch, seq, rest[0] if rest else None, generator)
    print(name, sum(f.stat().st_size for f in folder.iterdir()), "bytes")


def rewrite(model, folder, option, generator):
    """A directory as others wrote it: keys of the config (null removes one), a config as the text model's inside of another, tensors
    as they are in memory, other names of them, and tensors beside the model's."""
    path = folder / "config.json"
    written = option.get("written", {})
    config = json.loads(path.read_text()) | written
    config = {key: value for key, value in config.items() if value is not None or key not in written}
    if "inside" in option:
        config = dict(model_type=option["inside"], text_config=config, tie_word_embeddings=not config["tie_word_embeddings"])
    path.write_text(json.dumps(config, indent=2) + "\n")
    path = folder / "model.safetensors"
    stored = load_file(path)
    tied = set(model._tied_weights_keys) if model.config.tie_word_embeddings else set()
    in_memory = {name: tensor for name, tensor in model.state_dict().items() if name not in tied}
    tensors = in_memory if option.get("in_memory", False) else stored
    if "rename" in option:
        tensors = {re.sub(*option["rename"], name): tensor for name, tensor in tensors.items()}
    tensors |= {name: torch.randn(shape, generator=generator) for name, shape in option.get("extra", {}).items()}
    save_file(tensors, path, metadata=dict(format="pt"))


def make_option(name, folder):
    option = OPTIONS["options"][name]
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    model = build(OPTIONS["base"] | option["config"], generator)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    rewrite(model, folder, option, generator)
    # What counts is what transformers makes of the directory.
    model, loading = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True, **EAGER)
    wrong = {*loading["missing_keys"], *loading["mismatched_keys"], *loading["unexpected_keys"]} - {*option.get("extra", {})}
    assert not wrong, f"{name}: transformers does not load {wrong}"
    write(model.eval(), folder, option["batch"], option["seq"], option.get("long"), generator)
    print(name, sum(f.stat().st_size for f in folder.iterdir()), "bytes")


def make_of_model(directory, folder, batch, seq):
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, **EAGER).eval()
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    write(model, folder, batch, seq, None, torch.Generator().manual_seed(0))
    print(folder)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fixture", nargs="*", choices=[*FIXTURE_MODELS, *OPTIONS["options"], []])
    parser.add_argument("--options", type=Path)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--seq", type=int, default=16)
    arguments = parser.parse_args()
    if arguments.model is not None and arguments.out is not None:
        make_of_model(arguments.model, arguments.out, arguments.batch, arguments.seq)
    elif arguments.options is not None:
        for name in arguments.fixture or [n for n, option in OPTIONS["options"].items() if "refused" not in option]:
            make_option(name, arguments.options / name)
    else:
        for fixture in arguments.fixture or FIXTURE_MODELS:
            make_fixture(fixture)
