"""Compares a Hugging Face folder written by this library with what transformers makes of it.

Loads the folder in transformers, tokenizes a text with its tokenizer.json, and computes the loss of the first tokens; has
scripts/loss_of_model.ts do the same; fails where ids differ or losses differ by more than 1e-5 of their value.

    python scripts/check_hf_export.py runs/train/model README.md [--tokens 256] [--runtime bun] [--math wasm]

Needs torch, transformers and tokenizers. Not run by the gate, which has no Python.
"""

import argparse
import json
import pathlib
import subprocess
import sys

import torch
import tokenizers
import transformers

ROOT = pathlib.Path(__file__).resolve().parent.parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("text", type=pathlib.Path)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--runtime", choices=["bun", "deno"], default="bun")
    args = parser.parse_args()
    folder, text = args.folder.resolve(), args.text.resolve()

    model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    problems = {name: sorted(found) for name, found in info.items() if found}
    if problems:
        print(f"transformers did not load every weight: {problems}")
        return 1
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = tokenizer.encode(text.read_text(encoding="utf-8"), add_special_tokens=False).ids[: args.tokens]
    # The library's own call, and the same in float64, which says how much of a difference is rounding.
    batch = torch.tensor([ids])
    with torch.no_grad():
        theirs = model(batch, labels=batch).loss.item()
        logits = model.double()(batch).logits[0, :-1]
        exact = torch.nn.functional.cross_entropy(logits, batch[0, 1:]).item()

    permissions = ["-A", "--no-check"] if args.runtime == "deno" else []
    command = ["node", "scripts/runtime.mjs", args.runtime, *(["run"] if permissions else []), *permissions]
    script = ["scripts/loss_of_model.ts", str(folder), str(text), str(args.tokens)]
    printed = subprocess.run([*command, *script], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    ours = json.loads(printed)
    if ours["ids"] != ids:
        print("the tokenizers give different ids")
        return 1
    difference = abs(ours["loss"] - theirs) / abs(theirs)
    print(f"{len(ids)} tokens: transformers {theirs:.9f} (float64 {exact:.9f}), fullyshard {ours['loss']:.9f}")
    print(f"relative difference {difference:.2e}, to float64 {abs(ours['loss'] - exact) / exact:.2e}")
    return 0 if difference <= 1e-5 else 1


if __name__ == "__main__":
    sys.exit(main())
