#!/usr/bin/python3
"""Balance on the real corpora: level release, banded queues and plain packing, three seeds, 100 steps."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../e2e"))
from world import World, main, shared_corpus  # noqa: E402


BOUNDS = {  # mean and worst imbalance of total work, mean delay in thousandths of a step
    "wlb:bands": (1_040_000, 1_300_000, 850),
    "wlb:level": (1_010_000, 1_150_000, 450),
}


def test_queues_balance_the_real_corpora_and_plain_packing_does_not():
    with World() as world:
        world.config(shared_corpus(), {
            "plan": {"window": 131072, "micro_batches": 8, "tokens_max": "1.25w"},
            "parallel": {"dp": 2, "cp": 2},
            "model": {"cost": "L2/24576"},
        })
        seeds = [argument for seed in (1, 2, 3) for argument in ("--seed", seed)]
        rows = world.ctl_json("--config", world.config_path, "simulate", "--policies",
                              "plain,wlb:bands,wlb:level", "--steps", 100, "--warm-up", 0, *seeds)["rows"]
        assert len(rows) == 9
        for s in rows:
            print(f"      {s['policy']} seed {s['seed']}: total mean {s['total_ppm'] / 1e6:.4f}, worst "
                  f"{s['worst_ppm'] / 1e6:.4f}, delay {s['delay_mean_milli'] / 1e3:.3f}", flush=True)
            assert s["steps"] == 100
            if s["policy"] == "plain":
                assert 1_600_000 <= s["total_ppm"] <= 1_800_000
            else:
                mean, worst, delay = BOUNDS[s["policy"]]
                assert s["total_ppm"] <= mean
                assert s["worst_ppm"] <= worst
                assert s["delay_mean_milli"] <= delay


if __name__ == "__main__":
    main(globals())
