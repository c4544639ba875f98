"""Makes tests/fixtures/gguf: what llama.cpp's Python package `gguf` writes.

    pip install gguf==0.19.0 && python tests/parity/make_gguf.py     (torch, transformers and tokenizers)

`written.gguf` has metadata of every type that is written, and a tensor in each encoding, whose values are those of `values`.
`<family>.json` has a config, the keys of its architecture, and shape, type and SHA-256 of each tensor of a model whose weights
are those of `weights`: names are looked up in the package's own tables by names of Hugging Face's files, and rows are turned as
llama.cpp's converter says. `tokenizers.json` has small tokenizers and the keys that the package's `SpecialVocab` finds in them.
"""
import hashlib
import json
import tempfile
import zlib
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors import safe_open
import gguf
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers


FOLDER = Path(__file__).resolve().parent.parent / "fixtures" / "gguf"
F32, F16, BF16, Q8_0 = (gguf.GGMLQuantizationType[name] for name in ("F32", "F16", "BF16", "Q8_0"))


def values(count):
    """Numbers of many magnitudes, halves that are rounded away from zero, and a block of zeros."""
    i = np.arange(max(count, 96), dtype=np.int64)
    out = ((i * 7919) % 2003 - 1001).astype(np.float32) * np.float32(2.0) ** ((i // 32) % 23 - 15).astype(np.float32)
    out[32:64] = 0
    out[64:96] = (np.arange(32) - 15.5).astype(np.float32)
    out[64] = 127
    return out[:count]


def write_all_types():
    writer = gguf.GGUFWriter(None, "llama", use_temp_file=False)
    writer.add_uint32("a.uint32", 4294967295)
    writer.add_float32("a.float32", 0.1)
    writer.add_bool("a.true", True)
    writer.add_bool("a.false", False)
    writer.add_string("a.string", "naïve 🚀\n")
    writer.add_array("a.strings", ["", "Ġa", "▁b"])
    writer.add_key_value("a.int32s", [1, -2, 3], gguf.GGUFValueType.ARRAY, sub_type=gguf.GGUFValueType.INT32)
    writer.add_key_value("a.float32s", [0.5, -1e-3], gguf.GGUFValueType.ARRAY, sub_type=gguf.GGUFValueType.FLOAT32)
    for name, shape, kind in [("one", (3,), F32), ("two", (5, 7), F16), ("three", (2, 3, 5), BF16), ("four", (4, 192), Q8_0)]:
        data = values(int(np.prod(shape))).reshape(shape)
        if kind == F16:
            data = np.clip(data, -60000, 60000)
        writer.add_tensor(name, gguf.quants.quantize(data, kind), raw_dtype=kind)
    writer.write_header_to_file(FOLDER / "written.gguf")
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def weights(name, shape):
    """The weights of a tensor of Hugging Face's file: fractions of 2^16 that follow from its name."""
    i = np.arange(int(np.prod(shape)), dtype=np.int64)
    return ((((i * 40503 + zlib.crc32(name.encode())) % 65536) - 32768).astype(np.float32) / np.float32(65536)).reshape(shape)


SIZES = dict(
    vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    max_position_embeddings=128, tie_word_embeddings=False, bos_token_id=None, eos_token_id=None, pad_token_id=None,
)
LLAMA3 = dict(
    rope_type="llama3", rope_theta=500.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
    original_max_position_embeddings=32,
)
LONGROPE = dict(
    rope_type="longrope", rope_theta=10000.0, original_max_position_embeddings=64,
    short_factor=[1 + i / 8 for i in range(8)], long_factor=[2.0 + i for i in range(8)],
)
YARN = dict(rope_type="yarn", rope_theta=1000.0, factor=4.0, original_max_position_embeddings=32)
EXPERTS = dict(num_experts=3, num_experts_per_tok=2, moe_intermediate_size=32)
CONFIGS = {
    "llama": dict(SIZES, attention_bias=True, rope_parameters=LLAMA3, head_dim=16),
    "llama-tied": dict(SIZES, model_type="llama", tie_word_embeddings=True, rope_parameters=YARN),
    "mistral": dict(SIZES, sliding_window=48, rope_parameters=dict(rope_type="linear", rope_theta=900.0, factor=2.0)),
    "mixtral": dict(SIZES, num_local_experts=3, num_experts_per_tok=2),
    "qwen3": dict(SIZES, head_dim=32),
    "qwen3_moe": dict(SIZES, **EXPERTS, head_dim=32, norm_topk_prob=True),
    "qwen2_moe": dict(SIZES, **EXPERTS, shared_expert_intermediate_size=64, norm_topk_prob=False),
    "phi3": dict(SIZES, original_max_position_embeddings=64, rope_parameters=LONGROPE),
    "phi": dict(SIZES, num_key_value_heads=4),
    "qwen2": dict(SIZES, rope_parameters=LLAMA3),
    "smollm3": dict(SIZES, num_hidden_layers=4),
    "granite": dict(SIZES, attention_bias=True, attention_multiplier=0.25, embedding_multiplier=12.0, residual_multiplier=0.22,
                    logits_scaling=8.0),
    "olmo2": dict(SIZES),
    "glm4": dict(SIZES, head_dim=16, eos_token_id=[1]),
    "gemma2": dict(SIZES, tie_word_embeddings=True, head_dim=32, query_pre_attn_scalar=32, sliding_window=16,
                   attn_logit_softcapping=20.0),
    "gemma3_text": dict(SIZES, num_hidden_layers=6, head_dim=32, query_pre_attn_scalar=32, sliding_window=16, rope_parameters=dict(
        full_attention=dict(rope_type="linear", rope_theta=1e6, factor=8.0),
        sliding_attention=dict(rope_type="default", rope_theta=1e4))),
    "gpt2": dict(vocab_size=96, n_embd=64, n_layer=2, n_head=4, n_positions=128, bos_token_id=None, eos_token_id=None),
}
ARCHITECTURES = {"mistral": "llama", "mixtral": "llama", "qwen3_moe": "qwen3moe", "qwen2_moe": "qwen2moe", "phi": "phi2",
                 "gemma3_text": "gemma3"}
# The families whose norms multiply by 1 plus their weight, and whose windows llama.cpp has.
GEMMA = ("gemma2", "gemma3_text")
# The architectures whose code turns neighbouring elements of a head.
PAIRED = ("llama", "granite", "smollm3")


def make_family(label, keys):
    family = keys.get("model_type", label)
    config = transformers.AutoConfig.for_model(family, **{key: value for key, value in keys.items() if key != "model_type"})
    with tempfile.TemporaryDirectory() as folder:
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
        with safe_open(f"{folder}/model.safetensors", "np") as file:
            shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}
        text = json.loads(Path(folder, "config.json").read_text())
    architecture = ARCHITECTURES.get(family, family)
    arch = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    layers = config.num_hidden_layers
    table = gguf.get_tensor_name_map(arch, layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": getattr(config, "num_key_value_heads", None)}
    tensors, experts = {}, {}

    def add(name, data):
        exact = data.ndim == 1 or name.endswith("_norm.weight") or any(
            part in name for part in ("ffn_gate_inp", "position_embd"))
        kind = F32 if exact else Q8_0
        raw = gguf.quants.quantize(data, kind)
        tensors[name] = [kind.name, list(data.shape), hashlib.sha256(raw.tobytes()).hexdigest()]

    for name, shape in shapes.items():
        data = weights(name, shape)
        if family == "gpt2" and name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight")):
            data = np.ascontiguousarray(data.T)
        projection = name.split(".")[-2]
        if architecture in PAIRED and projection in heads:
            count = heads[projection]
            data = data.reshape(count, 2, data.shape[0] // count // 2, *data.shape[1:]).swapaxes(1, 2).reshape(data.shape)
        if family in GEMMA and name.endswith("norm.weight"):
            data = data + np.float32(1)
        if ".experts." in name:
            before, after = name.split(".experts.")
            expert, rest = after.split(".", 1)
            before = before.replace("model.layers", "layers").replace("block_sparse_moe", "feed_forward") \
                if family == "mixtral" else before
            experts.setdefault(f"{before}.experts.{rest}", {})[int(expert)] = data
            continue
        if name.endswith("shared_expert_gate.weight"):
            data = data.reshape(-1)
        add(table.get_name(name, try_suffixes=(".weight", ".bias")), data)
    for name, parts in experts.items():
        add(table.get_name(name, try_suffixes=(".weight",)), np.stack([parts[i] for i in range(len(parts))]))
    rope = rotation(text)
    if rope.get("rope_type") == "llama3":
        add("rope_freqs.weight", llama3_factors(config, rope))
    if rope.get("rope_type") == "longrope":
        add("rope_factors_long.weight", np.float32(rope["long_factor"]))
        add("rope_factors_short.weight", np.float32(rope["short_factor"]))
    result = {"config": text, "metadata": metadata(family, architecture, text), "tensors": tensors}
    (FOLDER / f"{label}.json").write_text(json.dumps(result, separators=(",", ":")) + "\n")


def llama3_factors(config, rope):
    """As `generate_extra_tensors` of the converter computes them."""
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    freqs = 1.0 / (rope["rope_theta"] ** (torch.arange(0, dim, 2, dtype=torch.float64) / dim))
    low, high = (rope["original_max_position_embeddings"] / rope[key] for key in ("low_freq_factor", "high_freq_factor"))
    out = []
    for length in (2 * torch.pi / freqs).tolist():
        smooth = (rope["original_max_position_embeddings"] / length - rope["low_freq_factor"]) / (
            rope["high_freq_factor"] - rope["low_freq_factor"])
        between = 1 / ((1 - smooth) / rope["factor"] + smooth)
        out.append(1.0 if length < high else rope["factor"] if length > low else between)
    return np.float32(out)


def rotation(config):
    """The rotary parameters, or where each type of layers has its own, those of layers without a window."""
    rope = config.get("rope_parameters", {})
    return rope.get("full_attention", rope)


def metadata(family, architecture, config):
    """The keys that llama.cpp's converter writes of the config; a sliding window bounds the context besides."""
    gpt2 = family == "gpt2"
    heads = config["n_head" if gpt2 else "num_attention_heads"]
    hidden = config["n_embd" if gpt2 else "hidden_size"]
    context = config["n_positions" if gpt2 else "max_position_embeddings"]
    keys = {
        "vocab_size": config["vocab_size"],
        "context_length": context if family in GEMMA else min(context, config.get("sliding_window") or context),
        "embedding_length": hidden,
        "block_count": config["n_layer" if gpt2 else "num_hidden_layers"],
        "feed_forward_length": 4 * hidden if gpt2 else config["intermediate_size"],
        "attention.head_count": heads,
        "attention.head_count_kv": heads if gpt2 else config["num_key_value_heads"],
    }
    dim = config.get("head_dim") or hidden // heads
    if "rms_norm_eps" in config:
        keys |= {
            "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
            "attention.key_length": dim,
            "attention.value_length": dim,
        }
    else:
        keys["attention.layer_norm_epsilon"] = config["layer_norm_epsilon" if gpt2 else "layer_norm_eps"]
    experts = config.get("num_local_experts", config.get("num_experts"))
    if experts:
        keys |= {"expert_count": experts, "expert_used_count": config["num_experts_per_tok"]}
    if "moe_intermediate_size" in config:
        keys["expert_feed_forward_length"] = config["moe_intermediate_size"]
    if "shared_expert_intermediate_size" in config:
        keys["expert_shared_feed_forward_length"] = config["shared_expert_intermediate_size"]
    if family == "phi3":
        keys["attention.sliding_window"] = 0
    if family == "gemma2":
        keys |= {key: config[key] for key in ("attn_logit_softcapping", "final_logit_softcapping")}
    if family in GEMMA:
        keys["attention.sliding_window"] = config["sliding_window"]
    if family == "granite":
        keys |= {"attention.scale": config["attention_multiplier"], "embedding_scale": config["embedding_multiplier"],
                 "residual_scale": config["residual_multiplier"], "logit_scale": config["logits_scaling"]}
    rope = rotation(config)
    if rope:
        keys |= {
            "rope.freq_base": rope["rope_theta"],
            "rope.dimension_count": int(dim * rope.get("partial_rotary_factor", 1)),
        }
        if rope["rope_type"] in ("linear", "yarn"):
            keys |= {"rope.scaling.type": rope["rope_type"], "rope.scaling.factor": rope["factor"]}
        if rope["rope_type"] == "yarn":
            keys |= {"rope.scaling.yarn_beta_fast": 32.0, "rope.scaling.yarn_beta_slow": 1.0}
        if rope["rope_type"] in ("yarn", "longrope"):
            keys["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
        if rope["rope_type"] == "longrope":
            scale = context / rope["original_max_position_embeddings"]
            factor = (1 + np.log(scale) / np.log(rope["original_max_position_embeddings"])) ** 0.5
            keys["rope.scaling.attn_factor"] = float(factor)
    return {f"{architecture}.{key}": value for key, value in keys.items()}


CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORDS = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEXT = ["the shard of the mesh, the shards of the meshes", "gather the shard and the mesh", "123 shards gather"] * 3


def byte_level(ignore_merges):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(WORDS), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(TEXT, trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<|begin|>", "<|end|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    ))
    tokenizer.add_tokens(["<tool>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A", pair="<|begin|> $A $B", special_tokens=[("<|begin|>", 0)])
    return tokenizer, ["<|begin|>", "<|end|>"]


def sentence_piece():
    """Scores are ids: every pair that joins to a token is a merge, ranked by the token."""
    joined = ["▁t", "he", "▁the", "sh", "ar", "▁s", "▁sh", "shar", "▁shar"]
    letters = sorted(set("".join(joined)) | set("dmg"))
    vocab = {token: id for id, token in enumerate(
        ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)] + joined + letters)}
    merges = [(token[:i], token[i:]) for token in joined for i in range(1, len(token))
              if token[:i] in vocab and token[i:] in vocab]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)])
    return tokenizer, ["<s>", "</s>"]


def make_tokenizers():
    result = {}
    for name, (tokenizer, (bos, eos)) in {
        "llama-bpe": byte_level(True), "smaug-bpe": byte_level(False), "llama": sentence_piece(),
    }.items():
        text = json.loads(tokenizer.to_str())
        config = {"bos_token": bos, "eos_token": {"content": eos}, "chat_template": "{{ messages }}"}
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "tokenizer.json").write_text(json.dumps(text))
            Path(folder, "tokenizer_config.json").write_text(json.dumps(config))
            special = gguf.SpecialVocab(folder, load_merges=True)
        added = {token["id"]: token for token in text["added_tokens"]}
        tokens = [token for token, _ in sorted(tokenizer.get_vocab().items(), key=lambda pair: pair[1])]
        kind = gguf.TokenType
        kinds = [
            kind.UNKNOWN if token == "<unk>" else
            (kind.CONTROL if added[id]["special"] else kind.USER_DEFINED) if id in added else
            kind.BYTE if name == "llama" and token.startswith("<0x") else kind.NORMAL
            for id, token in enumerate(tokens)
        ]
        result[name] = {
            "tokenizer": text, "config": config, "tokens": tokens, "kinds": [int(one) for one in kinds],
            "merges": special.merges, "ids": special.special_token_ids, "adds": special.add_special_token,
            "template": special.chat_template,
        }
    (FOLDER / "tokenizers.json").write_text(json.dumps(result, ensure_ascii=True, separators=(",", ":")) + "\n")


FOLDER.mkdir(parents=True, exist_ok=True)
write_all_types()
for label, keys in CONFIGS.items():
    make_family(label, keys)
make_tokenizers()
