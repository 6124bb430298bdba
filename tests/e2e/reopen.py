#!/usr/bin/python3
"""From kill -9 to the first batch, with many documents in the index: 10 million with BALLAST_TEST_FULL=1."""

import os
import signal
import struct
import time

import numpy

from world import FULL, World, least, main

DOCUMENTS = 10_000_000 if FULL else 1_000_000
LIMIT_MS = 300


def write_sparse_corpus(prefix, documents):
    """An index of so many documents of lognormal length; tokens are zeros that take no space."""
    lengths = numpy.clip(numpy.random.default_rng(5).lognormal(6.5, 1.3, documents), 10, 65536).astype("<i4")
    pointers = numpy.concatenate([[0], numpy.cumsum(lengths, dtype="<i8")])
    with open(prefix + ".bin", "wb") as f:
        f.truncate(int(pointers[-1]) * 2)
    with open(prefix + ".idx", "wb") as f:
        f.write(struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, documents, documents + 1))
        f.write(lengths.tobytes())
        f.write((pointers[:-1] * 2).astype("<i8").tobytes())
        f.write(numpy.arange(documents + 1, dtype="<i8").tobytes())


def test_the_first_batch_comes_300_ms_after_kill_9():
    with World() as world:
        prefix = os.path.join(world.dir, "d")
        write_sparse_corpus(prefix, DOCUMENTS)
        world.config([("d", prefix, 1)], {"plan": {"window": 131072, "micro_batches": 8}})

        def comes_ms():
            world.start()
            rank = world.rank(0, cp=0, think_ms=1)
            world.wait_for(lambda: len(rank.lines()) > 20, "the rank is served")
            world.kill()
            rank.process.kill()
            rank.wait()
            started = time.monotonic()
            world.start(ready=False)
            rank = world.rank(0, cp=0, steps=1)
            while not rank.lines():
                assert time.monotonic() < started + 60, "no batch"
                time.sleep(0.002)
            took = (time.monotonic() - started) * 1000
            print(f"      {DOCUMENTS} documents: {took:.0f} ms", flush=True)
            rank.process.kill()
            rank.wait()
            world.kill()
            return took

        assert least(comes_ms, LIMIT_MS, 8) <= LIMIT_MS


if __name__ == "__main__":
    main(globals())
