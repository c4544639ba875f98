"""Has this library load and write Hugging Face folders of reference results, and loads what it wrote in transformers.

Fails where a key is missing, unexpected or mismatched, a weight changed, or the losses differ by more than 1e-5 of their value.

    python scripts/check_exports.py tests/fixtures/llama-tied ... [--runtime bun]

Needs torch and transformers. Not run by the gate, which has no Python.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file

ROOT = pathlib.Path(__file__).resolve().parent.parent


def problem_of(folder: pathlib.Path, written: str, loss: float) -> str | None:
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        written, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager", output_loading_info=True)
    found = {name: sorted(keys) for name, keys in info.items() if keys}
    if found:
        return f"keys do not fit: {found}"
    before, after = load_file(folder / "model.safetensors"), load_file(pathlib.Path(written) / "model.safetensors")
    if before.keys() != after.keys() or any(not torch.equal(before[name], after[name]) for name in before):
        return "weights changed"
    ids = load_file(folder / "expected.safetensors")["input_ids"]
    with torch.no_grad():
        theirs = model.eval()(ids, labels=ids).loss.item()
    return None if abs(theirs - loss) <= 1e-5 * abs(theirs) else f"loss {loss}, transformers {theirs}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", type=pathlib.Path, nargs="+")
    parser.add_argument("--runtime", choices=["bun", "deno"], default="bun")
    args = parser.parse_args()
    folders = [str(folder.resolve()) for folder in args.folders]
    permissions = ["run", "-A", "--no-check"] if args.runtime == "deno" else []
    failed = 0
    with tempfile.TemporaryDirectory() as into:
        command = ["node", "scripts/runtime.mjs", args.runtime, *permissions, "scripts/export_reference.ts", into]
        printed = subprocess.run([*command, *folders], cwd=ROOT, check=True, capture_output=True, text=True).stdout
        for line in printed.splitlines():
            facts = json.loads(line)
            folder = pathlib.Path(facts["folder"])
            problem = problem_of(folder, facts["written"], facts["loss"])
            failed += problem is not None
            print(f"{'ok  ' if problem is None else 'FAIL'} {folder.name}{'' if problem is None else ': ' + problem}")
    print(f"{len(folders) - failed} passed, {failed} failed")
    return 0 if failed == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
