#!/usr/bin/python3
"""Loads that go to the limits: memory, answers that nobody reads, plans as large as they get."""

import os
import shutil
import signal
import socket
import time

import numpy

from faults import Raw, small_world
from service import field, hello, log, memory
from world import World, main, write_corpus

MEMORY_KB = 64 * 1024  # beside the slab


def world_of_tiny_documents():
    """Some 45,000 documents a step: plans of 3 MB, pages of a plan of 0.8 MB."""
    world = World()
    rng = numpy.random.default_rng(3)
    lengths = rng.integers(8, 40, 400000)
    tokens = rng.integers(0, 200, int(lengths.sum())).astype("<u2")
    prefix = os.path.join(world.dir, "d")
    write_corpus(prefix, numpy.split(tokens, numpy.cumsum(lengths)[:-1]))
    world.config([("d", prefix, 1)], {
        "plan": {"window": 131072, "micro_batches": 8},
        "parallel": {"cp": 4},
    })
    return world


def data_connection(world, token):
    data = socket.socket(socket.AF_UNIX)
    data.settimeout(5)
    data.connect(world.socket + ".data")
    data.sendall(token)
    return data


def most_memory(world, seconds, until=lambda: False):
    most = 0
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not until():
        most = max(most, memory(world.daemon.pid))
        time.sleep(0.05)
    return most


def test_answers_that_nobody_reads_stay_within_the_memory():
    with world_of_tiny_documents() as world:
        world.start()
        world.rank(0, cp=0, steps=2).finish()
        plan = Raw.field(1, b"ballast.v1.Admin") + Raw.field(2, b"Plan") + Raw.field(3, b"\x08\x01\x10\x01")
        crowd = [Raw(world.socket) for _ in range(200)]
        for raw in crowd:
            raw.frame(1, 1, 1, plan)
        most = most_memory(world, 6)
        print(f"      {most} KB")
        assert most < MEMORY_KB
        assert world.live("status")["state"] == "serving"
        for raw in crowd:
            raw.socket.close()
        world.wait_for(lambda: world.live("plan", 1)["plan"]["step"] == 1, "plans are answered again")
        world.stop()


def test_a_rank_far_behind_does_not_fill_the_memory_with_plans():
    with world_of_tiny_documents() as world:
        world.start()
        fast = world.rank(0, cp=0, parts="plan", commit_every=0)
        slow = world.rank(0, cp=1, parts="tokens", commit_every=0, think_ms=200)
        most = most_memory(world, 60, lambda: len(fast.lines()) > 40 * 8)
        world.wait_for(lambda: len(slow.lines()) > 8, "the slow one goes on", 30)
        print(f"      {most} KB")
        assert len(fast.lines()) > 40 * 8 and most < MEMORY_KB
        world.kill()


def test_the_slab_is_handed_to_many_ranks_at_once_and_past_those_who_keep_tokens_back():
    with small_world(parallel={"dp": 2, "cp": 100}) as world:
        world.start()
        ranks = [Raw(world.socket) for _ in range(199)]
        tokens = [field(hello(raw, i % 2, i // 2), 9) for i, raw in enumerate(ranks)]
        world.daemon.send_signal(signal.SIGSTOP)
        burst = [data_connection(world, token) for token in tokens]
        world.daemon.send_signal(signal.SIGCONT)
        assert all(data.recv(1) for data in burst), "a rank was turned away"
        for raw in ranks:
            raw.socket.close()
        keepers = [data_connection(world, b"x") for _ in range(64)]
        started = time.monotonic()
        world.rank(0, cp=0, steps=1).finish(30)
        assert time.monotonic() - started < 2, "who keeps tokens back keeps ranks out"
        for data in keepers:
            data.close()
        world.stop()


def test_nothing_is_acknowledged_once_the_state_was_removed():
    with small_world() as world:
        world.start()
        ranks = [world.rank(d, cp=c, think_ms=1) for d in range(2) for c in range(2)]
        world.wait_for(lambda: all(len(r.lines()) > 4 for r in ranks), "all are served")
        shutil.rmtree(world.state)
        assert world.daemon.wait(10) == 74
        assert "ballast.db was removed or replaced" in log(world)


if __name__ == "__main__":
    main(globals())
