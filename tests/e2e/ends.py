#!/usr/bin/python3
"""The end of data: corpora smaller than a step, restarts after the end, draining."""

import os

import numpy

from service import cpu_share, daemon_output
from world import World, digests, in_order, least, main, write_corpus

MICRO_BATCHES = 4
PLACES = [(d, c) for d in range(2) for c in range(2)]


def world_of(lengths, policy="wlb:bands", weight=1):
    world = World()
    prefix = os.path.join(world.dir, "d")
    rng = numpy.random.default_rng(1)
    write_corpus(prefix, [rng.integers(1, 200, n) for n in lengths])
    world.config([("d", prefix, weight)], {
        "corpus": {"epochs": 1},
        "plan": {"window": 256, "micro_batches": MICRO_BATCHES, "policy": policy},
        "parallel": {"dp": 2, "cp": 2},
        "daemon": {"lease": "2s"},
    })
    return world


def run_ranks(world):
    ranks = [world.rank(d, cp=c) for d, c in PLACES]
    return [rank.finish(60) for rank in ranks]


def test_every_rank_gets_as_many_micro_batches_and_then_the_end():
    for lengths, steps in (([10], 1), ([1], 1), ([5, 6, 7], 1), ([5000], 5), ([0, 0, 3, 0], 1)):
        for policy in ("wlb:bands", "wlb:none", "plain"):
            with world_of(lengths, policy) as world:
                world.start()
                logs = run_ranks(world)
                for lines in logs:
                    in_order(lines, MICRO_BATCHES // 2)
                    assert digests(lines) == digests(logs[0])
                assert {len(lines) for lines in logs} == {steps * MICRO_BATCHES // 2}, (lengths, policy)
                world.wait_for(lambda: world.live("status")["state"] == "finished", "all is done")
                # After the end, whoever comes is told so at once; also after a crash, also drained.
                world.kill()
                world.start()
                assert run_ranks(world) == [[]] * 4
                world.ctl("--socket", world.socket, "drain")
                assert run_ranks(world) == [[]] * 4
                world.stop()


def test_a_corpus_without_a_token_is_refused():
    for lengths in ([], [0, 0, 0]):
        with world_of(lengths) as world:
            code, text = daemon_output(world)
            assert code == 78 and "corpus 'd'" in text, (code, text)


def test_nothing_turns_where_nothing_is_to_be_done():
    with world_of([100] * 400) as world:
        def expect_rest(when):
            share = least(lambda: cpu_share(world.daemon.pid, 1), 0.03)
            assert share <= 0.03, f"{share:.2f} of a core {when}"

        world.start()
        expect_rest("without ranks")
        ranks = [world.rank(d, cp=c, think_ms=600000) for d, c in PLACES]
        world.wait_for(lambda: all(rank.lines() for rank in ranks), "all are served")
        expect_rest("while ranks think")
        for rank in ranks:
            rank.process.kill()
            rank.process.wait()
        expect_rest("after ranks died")
        run_ranks(world)
        expect_rest("after the end")
        world.ctl("--socket", world.socket, "drain")
        expect_rest("after draining")
        world.stop()


if __name__ == "__main__":
    main(globals())
