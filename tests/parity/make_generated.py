"""Makes tests/fixtures/<model>/generated.json: what transformers' `generate` continues a prompt with, greedily.

    python tests/parity/make_generated.py [fixture ...]     (torch, transformers and safetensors; after make_reference.py)

`margin` is the least distance of the two best scores on the way: how far rounding is from changing a token.
"""
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
MOST_TOKENS = 32
PROMPT = 6

for folder in [FIXTURES / name for name in sys.argv[1:]] or sorted(path.parent for path in FIXTURES.glob("*/config.json")):
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", experts_implementation="eager").eval()
    prompt = load_file(folder / "expected.safetensors")["input_ids"][:1, :PROMPT]
    new_tokens = min(MOST_TOKENS, model.config.max_position_embeddings - PROMPT)
    out = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=new_tokens, do_sample=False,
                         pad_token_id=0, use_cache=True, output_logits=True, return_dict_in_generate=True)
    best = torch.stack(out.logits).squeeze(1).topk(2).values
    facts = dict(prompt=prompt[0].tolist(), tokens=out.sequences[0, prompt.shape[1]:].tolist(),
                 margin=float((best[:, 0] - best[:, 1]).min()))
    (folder / "generated.json").write_text(json.dumps(facts) + "\n")
    print(folder.name, facts)
