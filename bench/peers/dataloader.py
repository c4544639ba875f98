"""Times batches of PyTorch's DataLoader over packed tokens: the peer of bench/ranks/dataloader.ts.

Of no worker processes and two of them, the better counts.
"""
import hashlib
import os
import sys
import tempfile
import time

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

END_OF_TEXT = 256
torch.set_num_threads(1)


def files_in(folders):
    found = [os.path.join(at, name) for folder in folders for at, _, names in os.walk(folder) for name in names]
    return sorted(found, key=lambda path: path.encode("utf-16-be"))


def pack(path, folders):
    """As src/data/token_stream.ts does: bytes as ids, an end of text after each file, uint16."""
    with open(path, "wb") as out:
        for file in files_in(folders):
            with open(file, "rb") as text:
                ids = np.frombuffer(text.read(), np.uint8).astype("<u2")
            out.write(ids.tobytes() + np.uint16(END_OF_TEXT).tobytes())


class Samples(Dataset):
    def __init__(self, path, seq):
        self.tokens, self.seq = np.memmap(path, "<u2", "r"), seq

    def __len__(self):
        return (len(self.tokens) - 1) // self.seq

    def __getitem__(self, sample):
        window = self.tokens[sample * self.seq : (sample + 1) * self.seq + 1]
        ids = torch.from_numpy(window.astype(np.int64))
        return ids[:-1], ids[1:]


def time_batches(path, batch, seq, workers):
    loader = DataLoader(Samples(path, seq), batch, shuffle=True, drop_last=True, num_workers=workers)
    best, until = float("inf"), time.perf_counter() + 0.5
    while True:
        batches = iter(loader)
        next(batches)  # starts the workers
        started = time.perf_counter()
        for count, _ in enumerate(batches, 1):
            now = time.perf_counter()
            # What workers have ready costs nothing: batches count by tens.
            if workers == 0 or count % 10 == 0:
                best = min(best, (now - started) / (1 if workers == 0 else 10))
                started = now
            if now > until and best < float("inf"):
                return best
        if time.perf_counter() > until + 10:
            return best


with tempfile.TemporaryDirectory(prefix="fullyshard-bench-") as directory:
    path = os.path.join(directory, "tokens")
    pack(path, sys.argv[1].split(","))
    with open(path, "rb") as tokens:
        print("tokens", hashlib.sha256(tokens.read()).hexdigest())
    for case in sys.argv[2:]:
        batch, seq = map(int, case.split("x"))
        print(f"{case} {min(time_batches(path, batch, seq, workers) for workers in (0, 2)) * 1e6:.2f}")
