"""Writes orders of PyTorch's ScheduleInterleaved1F1B, for `pipeline_order_test.ts`.

    python tests/axes/make_pipeline.py > tests/fixtures/pipeline_orders.json

Needs torch 2.15.
"""

import json

from torch.distributed.pipelining import schedules

SIZES = [(ranks, stages, count) for ranks in (2, 3, 4) for stages in (2, 3) for count in (2, 3, 4, 6, 8, 10)]


def order(rank: int, ranks: int, stages: int, count: int, per_round: int) -> str:
    warm_up = schedules._get_warmup_ops(rank, stages, per_round, ranks, count, multiply_factor=2)
    both = stages * count - warm_up
    actions = schedules._get_1f1b_rank_ops(
        stages,
        ranks,
        warm_up,
        both,
        stages * count - both,
        rank,
        lambda step: (step // per_round % stages) * ranks + rank,
        lambda step: (stages - 1 - (step - warm_up) // per_round % stages) * ranks + rank,
    )
    return " ".join(
        f"{'F' if one.computation_type == schedules.FORWARD else 'B'}{one.stage_index}.{one.microbatch_index}"
        for one in actions
        if one is not None
    )


def main() -> None:
    cases = []
    for ranks, stages, count in SIZES:
        rounds = max(1, count // ranks)
        if count % rounds != 0:
            continue
        orders = [order(rank, ranks, stages, count, count // rounds) for rank in range(ranks)]
        cases.append({"ranks": ranks, "stagesPerRank": stages, "microBatches": count, "orders": orders})
    print("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]")


main()
