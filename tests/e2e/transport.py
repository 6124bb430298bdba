#!/usr/bin/python3
"""However tokens travel, a rank has the ring's bytes: Fetch on the Unix socket, over TCP, over TLS."""

import os
import random
import shutil
import socket
import struct
import subprocess
import threading
import time

from faults import Raw
from world import Skip, World, in_order, main, synthetic_documents, write_corpus

STEPS = 12
MICRO_BATCHES = 4  # of two replicas


def world_with_corpus(**sections):
    """Micro-batches of half a megabyte: several pieces each."""
    world = World()
    prefix = os.path.join(world.dir, "d")
    write_corpus(prefix, synthetic_documents(5, 4000, 100000))
    world.config([("d", prefix, 1)], {
        "job": {"seed": 3},
        "plan": {"window": 262144, "micro_batches": MICRO_BATCHES},
        "parallel": {"dp": 2, "cp": 2},
        "reader": {"payload_hashes": "true"},
        **sections,
    })
    return world


def content(lines):
    return [{k: v for k, v in line.items() if k != "waited_us"} for line in lines]


def dumped(folder):
    found = {}
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), "rb") as f:
            found[name] = f.read()
    return found


def ring(world):
    """Log and columns of rank (0, 1) as the ring gives them."""
    folder = os.path.join(world.dir, "ring")
    os.makedirs(folder)
    lines = world.rank(cp=1, steps=STEPS, commit_every=0, dump=folder, transport="shared").finish()
    return content(lines), dumped(folder)


def expect_ring(world, expected, **options):
    folder = os.path.join(world.dir, f"dump.{time.monotonic_ns()}")
    os.makedirs(folder)
    lines = world.rank(cp=1, steps=STEPS, commit_every=0, dump=folder, **options).finish()
    assert content(lines) == expected[0]
    assert dumped(folder) == expected[1]


def test_a_rank_that_fetches_has_the_rings_bytes():
    with world_with_corpus() as world:
        world.start()
        expected = ring(world)
        assert len(expected[1]) == 3 * STEPS * MICRO_BATCHES // 2
        expect_ring(world, expected, transport="fetch")
        expect_ring(world, expected, transport="fetch", credits=1)
        os.rename(world.socket + ".data", world.socket + ".away")  # only the control socket is mounted
        expect_ring(world, expected)
        os.rename(world.socket + ".away", world.socket + ".data")
        world.stop()


def test_kill_9_in_the_middle_of_fetches_changes_no_byte():
    seed = int(os.environ.get("BALLAST_SEED", time.time_ns() % 1000000))
    print(f"      seed {seed} (BALLAST_SEED)", flush=True)
    rng = random.Random(seed)
    with world_with_corpus() as world:
        world.start()
        expected = ring(world)[0]
        rank = world.rank(cp=1, transport="fetch", steps=STEPS, commit_every=0, think_ms=20)
        for _ in range(5):
            time.sleep(rng.uniform(0.02, 0.12))
            world.kill()
            world.start()
        known = in_order(rank.finish(), MICRO_BATCHES // 2)
        assert [known[at] for at in sorted(known)] == expected
        world.stop()


class SlowFetcher(Raw):
    """A rank of replica 1 that fetches, and reads a kilobyte now and then."""

    def __init__(self, path):
        super().__init__(path)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        rank = self.field(3, b"\x08\x01")
        assert self.call(b"Hello", b"\x08\x01\x10\x01" + rank + self.field(4, b"\x02"))[0] == 0
        stream = self.stream
        self.stream += 2
        self.frame(stream, 1, 2, self.field(1, b"ballast.v1.Loader") + self.field(2, b"Stream"))
        self.frame(stream, 3, 0, b"\x08\x01")
        self.batch = self.receive()
        assert self.batch[0] == stream and self.batch[1] == 3
        request = self.field(1, b"\x08\x00\x10\x01")
        body = self.field(1, b"ballast.v1.Loader") + self.field(2, b"Fetch") + self.field(3, request)
        self.frame(self.stream, 1, 1, body)


def test_a_slow_fetcher_does_not_delay_the_rings_ranks():
    with world_with_corpus() as world:
        world.start()

        def waits():
            """Medians of milliseconds waited, without the first steps."""
            lines = world.rank(steps=STEPS, commit_every=0, think_ms=5).finish()
            return sorted(line["waited_us"] / 1000 for line in lines[4:])[len(lines) // 2]

        alone = waits()
        slow = [SlowFetcher(world.socket)]
        done = threading.Event()

        def dawdle():
            while not done.wait(0.01):
                slow[0].socket.recv(1024)

        thread = threading.Thread(target=dawdle)
        thread.start()
        try:
            beside = waits()
        finally:
            done.set()
            thread.join()
        assert beside <= 2 * alone + 2, (alone, beside)
        assert world.live("status")["state"] == "serving"
        slow[0].socket.close()
        world.stop()


if __name__ == "__main__":
    main(globals())
