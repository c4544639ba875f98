"""Makes fixtures of LoRA: adapters that PEFT saved, and what PyTorch computes with them.

    python tests/parity/make_lora.py [case ...]          (torch, transformers, peft and safetensors)
    python tests/parity/make_lora.py --read FOLDER    (as JSON, logits that PEFT gives with the adapters FOLDER/<case>)

tests/fixtures/lora/<case>/ has adapter_config.json and adapter_model.safetensors as save_pretrained writes them, for the model
of another fixture; expected.safetensors: input_ids, logits, gradients by the names in the adapter's file; expected.json: the
base model, the loss, losses of five AdamW steps, sums of the merged weights, `sensitivity`: how far elements of each gradient move
when every weight is multiplied by 1 + 6e-8 N(0, 1). tests/fixtures/lora/all_linear.json has the modules
that PEFT chooses by "all-linear" in each small model of tests/fixtures/zoo, before it takes some names for those of experts.
"""
import copy
import json
import sys
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from peft.tuners.tuners_utils import _maybe_include_all_linear_layers
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
EAGER = dict(attn_implementation="eager", experts_implementation="eager")
STEPS = 5
NOISE = 6e-8
NOISY_RUNS = 4
OPTIMIZER = dict(lr=1e-2, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)

# case: base model, options of LoraConfig
CASES = {
    "llama": ("llama-grouped_bias", dict(r=4, lora_alpha=8, target_modules="all-linear")),
    "llama-pattern": ("llama-untied", dict(
        r=2, lora_alpha=6, target_modules=r".*\.(q|v|down)_proj", exclude_modules=["layers.1.mlp.down_proj"], use_rslora=True,
        rank_pattern={"layers.0.self_attn.q_proj": 3}, alpha_pattern={"v_proj": 5})),
    "llama-head": ("llama-untied", dict(
        r=2, target_modules=["o_proj", "gate_proj"], layers_to_transform=[1], modules_to_save=["lm_head", "norm"])),
    "llama-embedding": ("llama-untied", dict(r=3, target_modules=["embed_tokens", "k_proj"])),
    "gpt2": ("gpt2-hub", dict(r=4, target_modules=["c_attn", "c_proj", "wpe"], fan_in_fan_out=True)),
    "phi3": ("phi3-legacy", dict(r=4, target_modules="all-linear")),
    "qwen2_moe": ("qwen2_moe-mixed", dict(r=2, target_modules="all-linear")),
    "qwen3_next": ("qwen3_next-types", dict(r=2, target_modules=["q_proj", "o_proj", "in_proj_qkvz", "in_proj_ba", "out_proj", "shared_expert_gate"])),
    "deepseek_v2": ("deepseek_v2-groups", dict(r=2, target_modules=["kv_a_proj_with_mqa", "kv_b_proj", "o_proj", "q_a_proj"])),
    "lfm2": ("lfm2-conv_bias", dict(r=2, target_modules="all-linear")),
}


def base_model(name: str):
    return AutoModelForCausalLM.from_pretrained(FIXTURES / name, dtype=torch.float32, **EAGER)


def make(case: str) -> None:
    base, options = CASES[case]
    torch.manual_seed(len(case))
    model = get_peft_model(base_model(base), LoraConfig(task_type="CAUSAL_LM", **options))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_(0, 0.1)
    model.peft_config["default"].base_model_name_or_path = f"tests/fixtures/{base}"
    out = FIXTURES / "lora" / case
    model.save_pretrained(out)
    (out / "README.md").unlink()
    config = json.loads((out / "adapter_config.json").read_text())
    (out / "adapter_config.json").write_text(json.dumps(config | dict(target_modules=in_order(config["target_modules"])), indent=2))
    vocab = model.config.vocab_size
    ids = torch.randint(0, vocab, (2, 12), generator=torch.Generator().manual_seed(1))
    model.eval()
    output = model(input_ids=ids, labels=ids)
    output.loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    saved = get_peft_model_state_dict(model, {name: gradients[name] for name in gradients}, save_embedding_layers=False)
    tensors = {f"grad.{name}": value for name, value in saved.items()}
    save_file({"input_ids": ids, "logits": output.logits.detach().contiguous()}
              | {name: value.contiguous() for name, value in tensors.items()}, out / "expected.safetensors")
    first = output.loss.item()
    sensitivity = {name: 0.0 for name in tensors}
    for run in range(NOISY_RUNS):
        noisy = noisy_copy(model, run)
        noisy(input_ids=ids, labels=ids).loss.backward()
        moved = {name: p.grad for name, p in noisy.named_parameters() if p.grad is not None}
        for name, value in get_peft_model_state_dict(noisy, moved, save_embedding_layers=False).items():
            change = (value - tensors[f"grad.{name}"]).abs().max().item()
            sensitivity[f"grad.{name}"] = max(change, sensitivity[f"grad.{name}"])
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], **OPTIMIZER)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    again = PeftModel.from_pretrained(base_model(base), out).merge_and_unload()
    sums = {name: [value.double().sum().item(), value.double().abs().sum().item()] for name, value in again.state_dict().items()}
    (out / "expected.json").write_text(json.dumps(dict(base=base, loss=first, losses=losses, merged=sums, sensitivity=sensitivity), indent=1) + "\n")


def noisy_copy(model, seed: int):
    """A copy whose weights are all off by about their last bit, without gradients."""
    model = copy.deepcopy(model)
    model.zero_grad()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + NOISE * torch.randn(parameter.shape, generator=generator))
    return model


def in_order(targets):
    return targets if isinstance(targets, str) else sorted(targets)


def all_linear() -> None:
    names = {}
    for file in sorted((FIXTURES / "zoo").glob("*.json")):
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**json.loads(file.read_text())))
            names[file.stem] = sorted(_maybe_include_all_linear_layers(LoraConfig(target_modules="all-linear"), model).target_modules)
    (FIXTURES / "lora" / "all_linear.json").write_text(json.dumps(names, indent=0) + "\n")


def read(folder: str) -> None:
    found = {}
    for case, (base, _) in CASES.items():
        model = PeftModel.from_pretrained(base_model(base), Path(folder) / case).eval()
        ids = load_file(FIXTURES / "lora" / case / "expected.safetensors")["input_ids"]
        with torch.no_grad():
            found[case] = model(input_ids=ids).logits.flatten().tolist()
    print(json.dumps(found))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--read"]:
        read(sys.argv[2])
    else:
        for case in sys.argv[1:] or CASES:
            make(case)
        if len(sys.argv) == 1:
            all_linear()
