"""Writes tests/fixtures/ops/casts.json: what PyTorch's `to` makes of numbers, for every pair of dtypes that the library casts.

An int32 of a float beyond its range or of NaN is left out, and so is a uint8 of one: PyTorch's depends on the processor there.

    python tests/parity/make_casts.py
"""

import json
import math
import pathlib

import torch

FLOATS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
DTYPES = {**FLOATS, "int32": torch.int32, "uint8": torch.uint8}
NUMBERS = {
    "float": [0.0, -0.0, 0.4, 0.5, 1.5, 1.7, -1.7, 2.5, 127.5, 255.0, 255.9, 256.0, 300.0, -1.0, -0.9, -129.0, 1000.3, 65504.0,
              65519.0, 65520.0, 7e4, 1e9, -2147483648.0, 2147483520.0, 1e-7, 1e-40, 3.4e38, math.inf, -math.inf, math.nan],
    "int32": [0, 1, -1, 127, 128, 255, 256, 257, 300, -128, -129, 2049, 65504, 65519, 65520, 16777217, 16777219,
              2147483647, 2147483520, -2147483648],
    "uint8": [0, 1, 2, 127, 128, 254, 255],
}


def plain(value):
    return value if isinstance(value, int) or math.isfinite(value) else str(value)


cases = []
for src, src_dtype in DTYPES.items():
    x = torch.tensor(NUMBERS["float" if src in FLOATS else src], dtype=src_dtype)
    for dst, dst_dtype in DTYPES.items():
        own = x
        if src in FLOATS and dst not in FLOATS:
            own = x[torch.isfinite(x) & (x.double() >= -(2.0**31)) & (x.double() < 2.0**31)]
        values = [[plain(v) for v in t.tolist()] for t in (own, own.to(dst_dtype))]
        cases.append({"src": src, "dst": dst, "from": values[0], "to": values[1]})

path = pathlib.Path(__file__).parent.parent / "fixtures" / "ops" / "casts.json"
path.write_text(json.dumps({"torch": torch.__version__.split("+")[0], "cases": cases}, indent=1) + "\n")
