#!/usr/bin/python3
"""Opening: health is answered meanwhile, with percent; an index of very many documents takes little memory
(5 million; 100 million with BALLAST_TEST_FULL=1), and one that changes while in use is noticed."""

import json
import os
import signal
import socket
import struct
import subprocess
import time

import numpy

from faults import Raw
from machine import PRELOAD
from metrics import ask
from world import BIN, FULL, World, main

DOCUMENTS = 100_000_000 if FULL else 5_000_000
MEMORY_MB = 64


def write_sparse_corpus(prefix, documents):
    """So many documents, 0 to 1300 tokens long; tokens are zeros that take no space. Their lengths."""
    lengths = (numpy.arange(documents, dtype="<u8") * 2654435761 >> 5).astype("<u4") % 1301
    pointers = numpy.concatenate([[0], numpy.cumsum(lengths, dtype="<i8")])
    with open(prefix + ".bin", "wb") as f:
        f.truncate(int(pointers[-1]) * 2)
    with open(prefix + ".idx", "wb") as f:
        f.write(struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, documents, documents + 1))
        lengths.astype("<i4").tofile(f)
        (pointers[:-1] * 2).astype("<i8").tofile(f)
        numpy.arange(documents + 1, dtype="<i8").tofile(f)
    return lengths


def large_world(documents, **corpus):
    world = World()
    world.metrics = os.path.join(world.dir, "m.sock")
    prefix = os.path.join(world.dir, "d")
    world.lengths = write_sparse_corpus(prefix, documents)
    world.config([("d", prefix, 1)], {"plan": {"window": 2048, "micro_batches": 4, "policy": "wlb:bands"},
                                      "corpus": corpus, "metrics": {"listen": f"unix:{world.metrics}"}})
    return world


def start_gated(world, reads):
    """Starts the daemon; after so many large reads of its index it stands still until the gate opens."""
    world.gate = os.path.join(world.dir, "gate")
    with open(world.gate, "w") as f:
        f.write(str(reads))
    world.start(ready=False, environment={"LD_PRELOAD": PRELOAD, "BALLAST_TEST_MACHINE": world.dir,
                                          "NOTIFY_SOCKET": getattr(world, "notify", "")})
    world.wait_for(lambda: os.path.exists(world.socket), "it listens")


def percent(world):
    done = world.ctl("--socket", world.socket, "status", "--json", expect=None)
    if done.returncode != 0:
        return -1
    status = json.loads(done.stdout)
    return status["warming_percent"] if status["state"] == "warming" else 100


def test_health_is_answered_while_warming_with_percent():
    with large_world(600_000) as world, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        world.notify = os.path.join(world.dir, "n.sock")
        notify.bind(world.notify)
        notify.settimeout(60)
        start_gated(world, 100)
        world.wait_for(lambda: 10 < percent(world) < 90, "it stands in the middle")
        stands = percent(world)
        for command in ("health", "corpus", "plan 0"):
            done = world.ctl("--socket", world.socket, *command.split(), expect=3)
            assert f"warming up: {stands} %" in done.stderr, done.stderr
        assert f"warming  {stands} %" in world.ctl("--socket", world.socket, "status").stdout
        code, text = Raw(world.socket).call(b"Hello")
        assert code == 14 and b"warming up" in text, (code, text)
        assert ask(world, "/healthz")[0] == 200 and ask(world, "/readyz")[::2] == (503, "warming\n")
        assert "ballast_ready 0\n" in ask(world, "/metrics")[2]
        heard = b""
        while b"EXTEND_TIMEOUT_USEC=" not in heard:
            heard += notify.recv(65536)
        assert b"READY=1" not in heard and f"STATUS=warming, {stands} %".encode() in heard, heard
        rank = world.rank(0, cp=0, steps=3)
        world.daemon.send_signal(signal.SIGHUP)
        os.unlink(world.gate)
        while b"READY=1" not in heard:
            heard += notify.recv(65536)
        rank.finish(60)
        world.wait_for(lambda: ask(world, "/readyz")[0] == 200, "it is ready")
        world.wait_for(lambda: "config: reloaded" in open(world.daemon_log).read(), "the reload was not lost")
        world.stop()


def test_it_stops_while_warming():
    with large_world(600_000) as world:
        start_gated(world, 100)
        world.wait_for(lambda: 10 < percent(world) < 90, "it stands in the middle")
        world.daemon.send_signal(signal.SIGTERM)
        os.unlink(world.gate)
        assert world.daemon.wait(60) == 0
        assert not os.path.exists(world.socket) and not os.path.exists(world.metrics)
        world.start()
        world.stop()


def test_what_is_wrong_with_the_corpus_is_still_an_exit_code():
    with large_world(1000) as world:
        with open(os.path.join(world.dir, "d.idx"), "r+b") as f:
            f.seek(34 + 4 * 500)
            f.write(b"\xff\xff\xff\xff")
        done = subprocess.run([os.path.join(BIN, "ballastd"), "--config", world.config_path],
                              capture_output=True, text=True, timeout=30)
        assert done.returncode == 65 and "length of document 500" in done.stderr, done.stderr
        assert not os.path.exists(world.socket)


def high_water_mb(world):
    with open(f"/proc/{world.daemon.pid}/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmHWM")) / 1024


def test_very_many_documents_take_little_memory_and_a_changed_index_is_noticed():
    with large_world(1000) as world:
        world.start()
        world.rank(0, cp=0, steps=20).finish(60)
        base = high_water_mb(world)
        world.stop()
    with large_world(DOCUMENTS, shuffle="none") as world:
        began = time.monotonic()
        world.start(timeout=300)
        took = time.monotonic() - began
        world.rank(0, cp=0, steps=20).finish(60)
        grown = high_water_mb(world) - base
        seen = 0
        for step in range(20):
            for batch in world.live("plan", step)["plan"]["micro_batches"]:
                for document in batch["documents"]:
                    assert document["document_length"] == world.lengths[document["document"]]
                    seen += 1
        print(f"      {DOCUMENTS} documents: ready in {took:.2f} s, {grown:.0f} MB more than with 1000")
        assert seen > 20 and grown <= MEMORY_MB, grown
        with open(os.path.join(world.dir, "d.idx"), "r+b") as f:
            f.seek(34 + 4 * 3000)
            f.write(b"\x07\0\0\0" * 100_000)
        rank = world.rank(0, cp=0, steps=100000)
        assert world.daemon.wait(60) == 65
        rank.process.kill()
        with open(world.daemon_log) as f:
            text = f.read()
        assert "d.idx: the index at offset" in text and "has changed since it was opened" in text, text[-2000:]


if __name__ == "__main__":
    main(globals())
