#!/usr/bin/python3
"""Seek and Export in milliseconds: what the daemon computes for one, and how long the quickest take.

A call waits its turn as often as others use the cores, whose business that is: medians are printed. What a call costs
does not depend on them, and what it waits for besides is in the quickest ones, too."""

import os
import random

import numpy

from rewind import Caller
from world import World, least, main, write_corpus

CALLS = 60
TRIES = 5


def computed_seconds(pid):
    """By all its threads."""
    folder = f"/proc/{pid}/task"
    return sum(int(open(f"{folder}/{thread}/schedstat").read().split()[0]) for thread in os.listdir(folder)) / 1e9


def cost_ms(world, name, call):
    """The larger of what a call computes and of what the quickest of 20 takes; `call` returns its seconds."""
    before = computed_seconds(world.daemon.pid)
    taken = sorted(1e3 * call(i) for i in range(CALLS))
    computed = 1e3 * (computed_seconds(world.daemon.pid) - before) / CALLS
    print(f"      {name}: computes {computed:.2f} ms; takes {taken[CALLS // 20]:.2f} ms at best, p50 {taken[CALLS // 2]:.2f} "
          f"ms, p99 {taken[CALLS * 99 // 100]:.2f} ms", flush=True)
    return max(computed, taken[CALLS // 20])


def test_a_seek_takes_20_ms_and_an_export_2_ms_with_1000_documents_waiting():
    with World() as world:
        prefix = os.path.join(world.dir, "d")
        rng = numpy.random.default_rng(3)
        write_corpus(prefix, [numpy.zeros(n, int) for n in numpy.clip(rng.lognormal(5.5, 1.6, 60000), 1, 4096)
                              .astype(int)])
        world.config([("d", prefix, 1)], {
            "plan": {"window": 4096, "micro_batches": 1024, "policy": "wlb:bands", "tokens_max": "2w"},
            "daemon": {"ahead_steps": 2}, "slab": {"slots": 64}})
        world.start()
        world.rank(steps=25, parts="plan").finish()
        world.wait_for(lambda: world.live("status")["committed_step"] >= 25, "all is committed")
        waiting = sum(q["documents"] for q in world.live("queues")["queues"])
        caller = Caller(world)
        assert waiting >= 900, waiting
        dice = random.Random(3)
        largest = 0

        def export(i):
            nonlocal largest
            seconds, size = caller.call(b"Export", 5 + i % 15)
            largest = max(largest, size)
            return seconds

        seek = least(lambda: cost_ms(world, "Seek", lambda i: caller.call(b"Seek", dice.randrange(25))[0]), 20, TRIES)
        caller.call(b"Seek", 20)
        exported = least(lambda: cost_ms(world, "Export", export), 2, TRIES)
        print(f"      {waiting} documents wait: at most {largest} bytes", flush=True)
        assert seek <= 20 and exported <= 2 and largest < 65536
        world.stop()


if __name__ == "__main__":
    main(globals())
