#!/usr/bin/python3
"""Loads that go to the limits: memory, answers that nobody reads, plans as large as they get."""

import contextlib
import os
import random
import shutil
import signal
import socket
import time

import numpy

from faults import Raw, small_world
from service import field, hello, log, memory
from world import World, in_order, least, main, write_corpus

MEMORY_KB = 64 * 1024  # beside the slab


def world_of_tiny_documents():
    """Some 28,000 documents a step: plans of 2 MB, pages of a plan of 0.5 MB."""
    world = World()
    rng = numpy.random.default_rng(3)
    lengths = rng.integers(12, 64, 300000)
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
    data.settimeout(30)
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
        most = most_memory(world, 60, lambda: len(fast.lines()) > 24 * 8)
        world.wait_for(lambda: len(slow.lines()) > 8, "the slow one goes on")
        print(f"      {most} KB")
        assert len(fast.lines()) > 24 * 8 and most < MEMORY_KB
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

        def served():
            """Seconds until a rank is."""
            started = time.monotonic()
            world.rank(0, cp=0, steps=1).finish(60)
            return time.monotonic() - started

        assert least(served, 2) <= 2, "who keeps tokens back keeps ranks out"
        for data in keepers:
            data.close()
        world.stop()


def number(field_number, value):
    """A varint field of a protobuf message."""
    out = bytearray([field_number << 3])
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes(out + bytes([value]))


def nested(field_number, data):
    return bytes([field_number << 3 | 2]) + number(0, len(data))[1:] + data


def hostile_messages():
    """What a field may hold that no client would send; the large ones just fit a frame."""
    deep = b""
    while len(deep) < 60000:
        deep = nested(3, deep)
    return [
        b"\x0a\x00" * 2000000,            # two million empty parts
        b"\x12\x00" * 2000000,            # ... or released batches
        b"\x28\x03" * 2000000,            # ... or enums
        nested(5, b"\x03" * 4000000),     # ... packed
        deep,
        b"\x0b" * 100000,                 # groups that never end
        b"\x0f",                          # no wire type
        b"\xff" * 4000000,                # a varint that never ends
        number(1, 2**64 - 1) + number(2, 2**64 - 1),
        nested(3, number(1, 2**63) + number(3, 2**40)),
        nested(2, number(1, 1) + b"\x12\x00" * 1000) * 500,
        b"\x08",                          # cut off
    ]


def test_hostile_messages_are_answered_and_leave_nothing_behind():
    rng = random.Random(11)
    with small_world(limits={"connections": 400}) as world:
        world.start()
        pid = world.daemon.pid
        rank = world.rank(0, cp=0, think_ms=2)
        world.wait_for(lambda: len(rank.lines()) > 4, "the rank is served")
        world.live("status")
        descriptors = len(os.listdir(f"/proc/{pid}/fd"))
        threads = len(os.listdir(f"/proc/{pid}/task"))
        most = 0
        for service, methods in ((b"ballast.v1.Loader", (b"Hello", b"Stream", b"Commit", b"Seek")),
                                 (b"ballast.v1.Admin", (b"Queues", b"Plan"))):
            for method in methods:
                for message in hostile_messages():
                    raw = Raw(world.socket)
                    body = nested(1, service) + nested(2, method) + nested(3, message)
                    raw.frame(1, 1, 1, body[: 4 << 20])
                    assert raw.receive() is not None, (method, message[:8])
                    raw.socket.close()
                    most = max(most, memory(pid))
        for _ in range(500):
            raw = Raw(world.socket)
            with contextlib.suppress(OSError):
                for _ in range(3):
                    raw.frame(rng.choice((0, 1, 2, 3, 2**32 - 1)), rng.randrange(5), rng.randrange(8),
                              rng.randbytes(rng.randrange(64)))
            raw.socket.close()
        print(f"      {most} KB")
        assert most < MEMORY_KB
        world.wait_for(lambda: len(os.listdir(f"/proc/{pid}/fd")) <= descriptors, "descriptors are closed")
        assert len(os.listdir(f"/proc/{pid}/task")) == threads
        rank.process.send_signal(signal.SIGTERM)
        code, text = rank.wait()  # some of them are a Seek
        assert code == 0 or "seek that step too" in text, (code, text)
        in_order(rank.lines(), 2)
        world.rank(0, cp=0, steps=2).finish()
        world.stop()


def test_a_rank_that_comes_late_catches_up_with_the_fewest_slots():
    with small_world(slab={"slots": 20}) as world:
        for credits in (1, 8):
            world.start()
            first = world.live("status")["committed_step"]
            ahead = [world.rank(0, cp=0, credits=credits, parts="tokens", steps=200),
                     world.rank(0, cp=1, credits=credits, parts="plan", steps=200),
                     world.rank(1, cp=0, credits=credits, parts="labels", steps=200)]
            world.wait_for(lambda: len(ahead[0].lines()) > 100, "it is far ahead")
            late = world.rank(1, cp=1, credits=credits, commit_every=5, steps=200)
            for rank in ahead + [late]:
                lines = rank.finish(60)
                in_order(lines, 2)
                assert lines[0]["step"] == first and len(lines) == 400
            world.stop()


def test_nothing_is_acknowledged_once_the_state_was_removed():
    with small_world() as world:
        world.start()
        ranks = [world.rank(d, cp=c, think_ms=1) for d in range(2) for c in range(2)]
        world.wait_for(lambda: all(len(r.lines()) > 4 for r in ranks), "all are served")
        shutil.rmtree(world.state)
        assert world.daemon.wait(60) == 74
        assert "ballast.db or its -wal was removed or replaced" in log(world)


if __name__ == "__main__":
    main(globals())
