"""Times one collective of MPI: the peer of bench/ranks/collectives.ts. Memory is Python's own, so that numpy is not needed."""
import sys
from array import array

from mpi4py import MPI

UNITS = {"KiB": 2**10, "MiB": 2**20}
ROUNDS = 60

world, case = MPI.COMM_WORLD, sys.argv[1]
what, text = case.rsplit("-", 1)
size = 8 if text == "8B" else int(text[:-3]) * UNITS[text[-3:]]
whole = array("f", [1.0]) * (size // 4)
part = array("f", [1.0]) * max(1, size // 4 // world.size)


def all_reduce():
    world.Allreduce(MPI.IN_PLACE, [whole, MPI.FLOAT])


def reduce_scatter():
    world.Reduce_scatter_block([whole, MPI.FLOAT], [part, MPI.FLOAT])


def gather():
    world.Allgather([part, MPI.FLOAT], [whole, MPI.FLOAT])


call = {"all-reduce": all_reduce, "reduce-scatter": reduce_scatter, "gather": gather}[what]
times = max(1, min(100, 2**23 // size))
best = float("inf")
for _ in range(ROUNDS):
    world.Barrier()
    started = MPI.Wtime()
    for _ in range(times):
        call()
    best = min(best, (MPI.Wtime() - started) / times)
    if what == "all-reduce":
        whole[0] = whole[1] = 1.0  # or it would grow beyond what a float32 holds
if world.rank == 0:
    name, version = MPI.get_vendor()
    print("library", name, ".".join(map(str, version)))
    print(f"{case} {best * 1e6:.2f}")
