"""What the peers of benchmarks share."""
import time


def best_of(call):
    """Seconds of the best of the calls that fit into half a second."""
    call()
    best = float("inf")
    until = time.perf_counter() + 0.5
    while time.perf_counter() < until:
        started = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - started)
    return best
