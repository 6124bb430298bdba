#!/usr/bin/python3
"""Clients that are slow, stuck, dead, many, malformed or not allowed: what each of them costs the others.

Short by default; with BALLAST_TEST_FULL=1 as long as the figures are meant: 10 million frames, 30 s of connects,
10 minutes within a memory cap. Waits are those that ranks log."""

import contextlib
import itertools
import os
import pwd
import random
import re
import resource
import signal
import struct
import subprocess
import sys
import time

from faults import Raw, closed, small_world
from machine import PRELOAD, write
from metrics import ask, monitored
from service import cpu_share, hello, log, memory, rewrite
from world import BIN, FULL, Skip, World, digests, in_order, least, main, plan_digest, synthetic_documents, write_corpus

MEMORY_KB = 64 * 1024  # beside the slab
LEASE_S = 2 if FULL else 1
LONG_S = 60  # a lease that ends in no test
ROUNDS = 8
TICK_MS = 5  # of a scheduler that lets a thread finish its time: what a wait of nobody's making comes to
LOADER = Raw.field(1, b"ballast.v1.Loader")
PING = LOADER + Raw.field(2, b"Ping")
READERS = ("io_uring", "pread")


def percentile(values, percent):
    return sorted(values)[(len(values) - 1) * percent // 100]


def waits_ms(rank, since=8):
    return [line["waited_us"] / 1000 for line in rank.lines()[since:]]


def stop(ranks):
    for rank in ranks:
        rank.process.send_signal(signal.SIGTERM)
    for rank in ranks:
        rank.wait()
        in_order(rank.lines(), 2)


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def streaming(world, dp, cp, credits):
    """A client made of bytes that streams and then does nothing more."""
    raw = Raw(world.socket)
    hello(raw, dp, cp)
    raw.frame(raw.stream, 1, 2, LOADER + Raw.field(2, b"Stream"))
    raw.frame(raw.stream, 3, 0, bytes([8, credits]))
    raw.stream += 2
    return raw


def patient(world):
    """A connection, once the daemon's backlog has room for it."""
    while True:
        with contextlib.suppress(BlockingIOError):
            return Raw(world.socket)
        time.sleep(0.005)


def bad_ranks(world):
    """One that is stopped, one that takes 1 KB a second, one that acknowledges nothing but stays alive."""
    stuck = world.rank(0, cp=1, think_ms=2)
    world.wait_for(lambda: len(stuck.lines()) > 4, "the rank is served")
    stuck.process.send_signal(signal.SIGSTOP)
    return stuck, streaming(world, 0, 2, 8), streaming(world, 0, 3, 8)


def end_bad_ranks(stuck, slow, silent):
    stuck.process.kill()
    stuck.process.wait()
    for raw in (slow, silent):
        raw.socket.close()


def served_waits_ms(world, meanwhile=lambda: None):
    """What the ranks of the other replica wait."""
    ranks = [world.rank(1, cp=c, think_ms=2, steps=400 if FULL else 40) for c in range(4)]
    while any(rank.process.poll() is None for rank in ranks):
        meanwhile()
        time.sleep(0.02)
    return [line["waited_us"] / 1000 for rank in ranks for line in rank.finish()]


def test_slow_stuck_and_silent_clients_do_not_delay_those_of_other_replicas():
    """Who waited for one of them would wait for its lease. The rest is compared with the same load alone, in the best of
    some rounds: a delay that they cause is there in all."""
    for backend in READERS:
        with small_world(daemon={"lease": f"{LONG_S}s"}, slab={"slots": 24}, parallel={"dp": 2, "cp": 4},
                         limits={"lead_steps": 100000}, reader={"backend": backend}) as world:
            world.start()
            alone, most = [], 0

            def beside(backend=backend, world=world, alone=alone):
                """The p99 beside them in parts of what it may be."""
                nonlocal most
                alone.append(percentile(served_waits_ms(world), 99))
                stuck, slow, silent = bad_ranks(world)

                def keep_bad():
                    nonlocal most
                    with contextlib.suppress(OSError):
                        slow.socket.recv(50)
                        silent.frame(silent.stream, 1, 1, PING)
                        silent.stream += 2
                    most = max(most, memory(world.daemon.pid))

                waits = served_waits_ms(world, keep_bad)
                assert max(waits) < 1000 * LONG_S / 2, "they wait for another replica's rank"
                end_bad_ranks(stuck, slow, silent)
                after = percentile(waits, 99)
                print(f"      {backend}: wait p99 {alone[-1]:.2f} ms alone, {after:.2f} ms beside them; {most} KB", flush=True)
                return after / max(2 * percentile(alone, 50), TICK_MS)

            assert least(beside, 1, ROUNDS) <= 1
            assert most < MEMORY_KB
            world.stop()


def test_a_replica_goes_on_after_the_leases_of_its_slow_stuck_and_silent_ranks():
    for backend in READERS:
        with small_world(daemon={"lease": f"{LEASE_S}s"}, slab={"slots": 24}, parallel={"dp": 2, "cp": 4},
                         reader={"backend": backend}) as world:
            world.start()
            stuck, slow, silent = bad_ranks(world)
            sibling = world.rank(0, cp=0, think_ms=1)
            world.wait_for(lambda r=sibling: len(r.lines()) > 40, "their replica goes on after the lease")
            stuck.process.send_signal(signal.SIGCONT)
            count = len(stuck.lines())
            for raw in (slow, silent):
                raw.socket.close()
            world.wait_for(lambda s=stuck, n=count: len(s.lines()) > n + 8, "the stuck one gets its batches again")
            stop([sibling, stuck])
            world.stop()


def goes_on_after(world, rank, act, batches=40):
    """Seconds until a rank has so many more batches."""
    count = len(rank.lines())
    started = time.monotonic()
    act()
    world.wait_for(lambda: len(rank.lines()) >= count + batches, "the other goes on", LONG_S / 2)
    return time.monotonic() - started


def test_slots_of_a_killed_rank_come_back_at_once_and_of_a_stopped_one_within_its_lease():
    ways = ((signal.SIGKILL, LONG_S), (signal.SIGSTOP, LEASE_S))
    for backend, (sign, lease_s) in itertools.product(READERS, ways) if FULL else zip(READERS, ways):
        with small_world(daemon={"lease": f"{lease_s}s"}, slab={"slots": 24}, reader={"backend": backend}) as world:
            world.start()
            rank, other = world.rank(0, cp=0, think_ms=1), world.rank(0, cp=1, think_ms=1, credits=8)
            world.wait_for(lambda o=other: len(o.lines()) > 20, "both are served")
            took = goes_on_after(world, rank, lambda o=other, s=sign: o.process.send_signal(s))
            print(f"      {backend}, {sign.name}: 40 more batches after {took:.2f} s", flush=True)
            other.process.kill()
            other.process.wait()
            stop([rank])
            world.stop()


LEAD = 12


def wait_of(world, dp):
    """(the replica that this one's rank waits for, by how many steps), None when it does not wait."""
    for rank in world.live("status")["ranks"]:
        if rank["rank"]["dp"] == dp and rank["waits_for"] is not None:
            return rank["waits_for"]["dp"], int(rank["steps_behind"])
    return None


def furthest(world):
    return next(int(s["high_water"]) for s in world.live("config")["settings"] if s["name"] == "limits.lead_steps")


def test_a_replica_waits_for_the_slowest_one_and_says_for_whom():
    with monitored(limits={"lead_steps": LEAD}, parallel={"dp": 2, "cp": 1}) as world:
        world.start()
        slow, fast = world.rank(1, think_ms=1), world.rank(0, steps=100)
        world.wait_for(lambda: len(slow.lines()) > 4, "the slow one is served")
        slow.process.send_signal(signal.SIGSTOP)
        world.wait_for(lambda: wait_of(world, 0) is not None, "the fast one waits")
        assert wait_of(world, 0) == (1, LEAD), wait_of(world, 0)
        reason = f"waits for dp1 pp0 cp0 tp0, {LEAD} steps behind"
        for command in ("top", "status"):
            world.wait_for(lambda c=command: reason in world.ctl("--socket", world.socket, c).stdout, "it says so")
        figures = ask(world, "/metrics")[2]
        assert f"ballast_lead_steps {LEAD}" in figures and "ballast_ranks_leading 1" in figures, figures
        world.wait_for(lambda: "limits.lead_steps" in str(world.live("status")["warnings"]), "there is a warning")
        stood = fast.lines()[-1]["step"]
        slow.process.send_signal(signal.SIGCONT)
        lines = fast.finish(60)
        assert len(in_order(lines, 2)) == 100 * 2
        assert furthest(world) == LEAD
        led = float(re.search(r"ballast_lead_wait_seconds_total ([0-9.]+)", ask(world, "/metrics")[2])[1])
        print(f"      stood at step {stood} for {led:.1f} s", flush=True)
        assert led > 1
        known = digests(lines)
        for step in (0, stood, 99):
            assert known[step] == plan_digest(world.plan(step))
        stop([slow])
        world.stop()


def test_a_silent_replica_is_cut_after_its_lease_and_the_others_go_on():
    with small_world(limits={"lead_steps": LEAD}, parallel={"dp": 2, "cp": 1}, daemon={"lease": f"{LEASE_S}s"}) as world:
        world.start()
        slow, fast = world.rank(1, think_ms=1), world.rank(0, steps=100)
        world.wait_for(lambda: len(slow.lines()) > 4, "the slow one is served")
        slow.process.send_signal(signal.SIGSTOP)
        assert len(in_order(fast.finish(60), 2)) == 100 * 2
        assert "rank cut: silent for its lease while others wait for it dp=1" in log(world)
        slow.process.send_signal(signal.SIGCONT)
        world.wait_for(lambda: slow.lines()[-1]["step"] > 100, "the slow one goes on where it was")
        stop([slow])
        world.stop()


def test_a_rank_that_commits_too_seldom_is_told_so_and_goes_on_after_a_reload():
    with small_world(limits={"lead_steps": LEAD}, parallel={"dp": 1, "cp": 1}) as world:
        world.start()
        rank = world.rank(commit_every=0, steps=2 * LEAD)
        world.wait_for(lambda: "commit more often" in str(world.live("status")["warnings"]), "there is a warning")
        assert rank.lines()[-1]["step"] == LEAD - 1, rank.lines()[-1]
        rewrite(world, f"lead_steps = {LEAD}", f"lead_steps = {3 * LEAD}")
        world.daemon.send_signal(signal.SIGHUP)
        assert rank.finish(60)[-1]["step"] == 2 * LEAD - 1
        world.stop()


def served_after(world):
    """Seconds until a newcomer is served, who is told to come again meanwhile."""
    started = time.monotonic()
    while True:
        with contextlib.suppress(OSError, AssertionError):
            raw = Raw(world.socket)
            with contextlib.closing(raw.socket):
                if raw.call(b"Ping")[0] == 0:
                    return time.monotonic() - started
        assert time.monotonic() - started < LONG_S, "newcomers are not served"
        time.sleep(0.01)


def test_without_descriptors_newcomers_are_told_and_those_who_are_there_go_on():
    with small_world(parallel={"dp": 2, "cp": 4}) as world:
        world.start(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)))
        pid = world.daemon.pid
        ranks = [world.rank(d, cp=c, think_ms=2) for d in range(2) for c in range(4)]
        world.wait_for(lambda: all(len(r.lines()) > 4 for r in ranks), "all are served")
        began = time.monotonic()
        crowd = [Raw(world.socket) for _ in range(150)]
        world.wait_for(lambda: descriptors(pid) >= 60, "descriptors run out")
        stream, kind, _, data = crowd[-1].receive()
        code, text = Raw.response(data)
        assert (stream, kind, code) == (1, 2, 14) and b"descriptor" in text, (code, text)
        assert closed(crowd[-1])
        told = world.ctl("--socket", world.socket, "status", expect=None)
        assert told.returncode == 3 and "descriptor" in told.stderr, told.stderr
        counts = [len(r.lines()) for r in ranks]
        idle = [world.rank(0, cp=0)]  # an identity that is taken: it waits or is refused, the others do not care
        for rank in ranks:
            rank.process.send_signal(signal.SIGSTOP)
        share = least(lambda: cpu_share(pid, 1.5 if FULL else 0.6), 0.05)
        for rank in ranks:
            rank.process.send_signal(signal.SIGCONT)
        world.wait_for(lambda: all(len(r.lines()) > n + 8 for r, n in zip(ranks, counts)), "all go on")
        for raw in crowd:
            raw.socket.close()
        print(f"      CPU {100 * share:.1f} % while paused; a newcomer is served {served_after(world):.2f} s "
              "after descriptors are free", flush=True)
        assert share <= 0.05
        assert log(world).count("accepting pauses") <= 1 + (time.monotonic() - began) / 10, "it is said every 10 s"
        for rank in idle:
            rank.process.kill()
        stop(ranks)
        world.stop()


def many_datasets(backend, count=40):
    world = World()
    datasets = []
    for i in range(count):
        prefix = os.path.join(world.dir, f"d{i}")
        write_corpus(prefix, synthetic_documents(i, 20 if i else 3000, 400))
        datasets.append((f"d{i}", prefix, 1))
    world.config(datasets, {"plan": {"window": 2048, "micro_batches": 4}, "parallel": {"dp": 2},
                            "reader": {"backend": backend, "queue_depth": 4, "threads": 4}})
    return world


def test_without_descriptors_files_are_opened_all_the_same():
    """A quarter of 64 descriptors serves 40 files, and no crowd of connections gets at it, though it is there first."""
    for backend in READERS:
        with many_datasets(backend) as world:
            write(world.dir, "gate", "0")  # the corpus is not opened before the crowd is there
            world.start(ready=False, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)),
                        environment={"LD_PRELOAD": PRELOAD, "BALLAST_TEST_MACHINE": world.dir})
            world.wait_for(lambda w=world: os.path.exists(w.socket), "it listens")
            first = [Raw(world.socket) for _ in range(120)]
            world.wait_for(lambda w=world: "accepting pauses" in log(w), "descriptors run out")
            os.unlink(os.path.join(world.dir, "gate"))
            world.wait_for(lambda w=world: "serving socket=" in log(w) or w.daemon.poll() is not None, "it serves", 20)
            assert world.daemon.poll() is None, "it cannot start beside a crowd"
            for raw in first:
                raw.socket.close()
            ranks = [world.rank(d, think_ms=1) for d in range(2)]
            world.wait_for(lambda r=ranks: all(len(rank.lines()) > 4 for rank in r), "all are served")
            crowd = []
            for _ in range(3):
                crowd += [Raw(world.socket) for _ in range(60)]
                counts = [len(rank.lines()) for rank in ranks]
                world.wait_for(lambda r=ranks, c=counts: all(len(rank.lines()) > n + 20 for rank, n in zip(r, c)),
                               "all go on")
                for raw in crowd[:20]:  # so that descriptors change hands
                    raw.socket.close()
                del crowd[:20]
            assert "accepting pauses" in log(world) and "cannot be read" not in log(world)
            for raw in crowd:
                raw.socket.close()
            print(f"      {backend}: a newcomer is served {served_after(world):.2f} s after descriptors are free", flush=True)
            stop(ranks)
            world.stop()


class Cap:
    """A control group with a bound on memory, of either version; Skip where none can be made."""

    def __init__(self, megabytes):
        name = f"ballast-test-{os.getpid()}"
        for base, bound in (("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")):
            self.path = os.path.join(base, name)
            with contextlib.suppress(OSError):
                os.mkdir(self.path)
                with open(os.path.join(self.path, bound), "w") as f:
                    f.write(str(megabytes << 20))
                return
            with contextlib.suppress(OSError):
                os.rmdir(self.path)
        raise Skip("no control group can be made here")

    def enter(self):
        with open(os.path.join(self.path, "cgroup.procs"), "w") as f:
            f.write(str(os.getpid()))

    def close(self):
        with contextlib.suppress(OSError):
            os.rmdir(self.path)


def slab_megabytes(world):
    return int(log(world).split("slab_bytes=")[1].split()[0]) >> 20


def test_mixed_load_stays_within_the_slab_and_64_megabytes():
    for backend in READERS if FULL else READERS[1:]:
        mixed_load(backend)


def mixed_load(backend):
    with small_world(slab={"slots": 20, "slot_size": 8 << 20}, reader={"backend": backend}) as world:
        world.start()
        slab = slab_megabytes(world)
        assert slab >= 128, "a slab of a real size"
        world.stop()
        cap = Cap(slab + 64)
        try:
            world.start(preexec_fn=cap.enter)
            ranks = [world.rank(d, cp=c, think_ms=1) for d in range(2) for c in range(2)]
            world.wait_for(lambda: all(len(r.lines()) > 4 for r in ranks), "all are served")
            plan = Raw.field(1, b"ballast.v1.Admin") + Raw.field(2, b"Plan") + Raw.field(3, b"\x08\x01\x10\x01")
            large = Raw.field(2, b"Hello") + Raw.field(3, b"\x0a\x00" * 60)
            deadline, refused = time.monotonic() + (600 if FULL else 1.5), 0
            while time.monotonic() < deadline or refused == 0:
                assert time.monotonic() < deadline + LONG_S, "nobody was refused"
                crowd = [patient(world) for _ in range(255)]
                for i, raw in enumerate(crowd):
                    with contextlib.suppress(OSError):
                        raw.frame(1, 1, 1, plan if i % 2 else LOADER + large)
                with contextlib.suppress(OSError, AssertionError):
                    refused += crowd[-1].call(b"Ping")[0] == 8
                for raw in crowd:
                    raw.socket.close()
                assert world.daemon.poll() is None, "killed"
            count = [len(r.lines()) for r in ranks]
            world.wait_for(lambda: all(len(r.lines()) > n + 8 for r, n in zip(ranks, count)), "all go on")
            print(f"      {backend}: {memory(world.daemon.pid)} KB beside a slab of {slab} MB; {refused} times RESOURCE_EXHAUSTED")
            stop(ranks)
            world.stop()
        finally:
            cap.close()


def random_frames(rng, count):
    """Frames that may be answered, and at the end one that may not."""
    data = bytearray()
    for i in range(count - 1):
        stream = 2 * i + 1
        body = rng.choice((PING, LOADER + Raw.field(2, b"None"), Raw.field(1, b"x") + Raw.field(2, b"y"),
                           rng.randbytes(rng.randrange(1, 40)), LOADER + Raw.field(2, b"Commit") + rng.randbytes(6)))
        data += struct.pack(">IIBB", len(body), stream, 1, 1) + body
    length = rng.choice((0, 5, 2**32 - 1, (4 << 20) + 1))
    return bytes(data + struct.pack(">IIBB", length, rng.choice((0, 2, 1)), rng.randrange(0, 256), rng.randrange(8, 256)))


def test_malformed_frames_cost_their_own_connection_and_nobody_else():
    rng = random.Random(5)
    frames, each = 10_000_000 if FULL else 60_000, 256
    with small_world() as world:
        world.start()
        pid = world.daemon.pid
        rank = world.rank(0, cp=0, think_ms=2)
        world.wait_for(lambda: len(rank.lines()) > 4, "the rank is served")
        samples = [random_frames(rng, each) for _ in range(64)]
        times, most = [], 0
        for i in range(frames // each):
            raw = Raw(world.socket)
            with contextlib.suppress(OSError):
                raw.send(samples[i % len(samples)])
            started = time.monotonic()
            assert closed(raw), "the connection stays open"
            times.append(time.monotonic() - started)
            raw.socket.close()
            most = max(most, memory(pid)) if i % 16 == 0 else most
        print(f"      {frames} frames: closed within {1000 * percentile(times, 50):.1f} ms, p99 "
              f"{1000 * percentile(times, 99):.1f} ms; {most} KB", flush=True)
        assert percentile(times, 50) <= 0.1 and most < MEMORY_KB
        stop([rank])
        world.stop()


def test_a_bad_header_is_refused_before_its_data_comes():
    headers = [struct.pack(">IIBB", length, stream, kind, flags) for length, stream, kind, flags in (
        (2**32 - 1, 1, 1, 1), ((4 << 20) + 1, 1, 1, 1), (0, 1, 1, 1), (20, 1, 9, 0), (20, 1, 1, 64), (20, 2, 1, 1),
        (2**31, 3, 3, 1))]
    with small_world() as world:
        world.start()
        Raw(world.socket).call(b"Ping")
        before, times = memory(world.daemon.pid), []
        for i in range(3 * len(headers)):
            raw = Raw(world.socket)
            header = headers[i % len(headers)]
            data = PING.ljust(20, b"\0") if header[:4] == b"\0\0\0\x14" and header[7] % 2 == 0 else b""
            raw.send(header + data)
            started = time.monotonic()
            assert closed(raw), header
            times.append(time.monotonic() - started)
        grown = memory(world.daemon.pid) - before
        print(f"      closed within {1000 * percentile(times, 50):.1f} ms; grown by {grown} KB", flush=True)
        assert percentile(times, 50) <= 0.1 and grown < 1024
        world.stop()


CONNECTS = """
import socket, sys, time
path, seconds = sys.argv[1], float(sys.argv[2])
count, deadline = 0, time.monotonic() + seconds
while time.monotonic() < deadline:
    for _ in range(50):
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(path)
        count += 1
print(count)
"""


def test_connects_by_the_thousand_and_many_idle_ones_fail_no_trainer():
    seconds, idle = (30, 5000) if FULL else (0.8, 1000)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit[1], limit[1]))
    if limit[1] < idle + 200:
        raise Skip(f"needs {idle + 200} descriptors, {limit[1]} are possible")
    with small_world(parallel={"dp": 2, "cp": 4}, limits={"connections": idle + 100}) as world:
        world.start()
        pid = world.daemon.pid
        ranks = [world.rank(d, cp=c, think_ms=5) for d in range(2) for c in range(4)]
        world.wait_for(lambda: all(len(r.lines()) > 8 for r in ranks), "all are served")
        done = subprocess.run([sys.executable, "-c", CONNECTS, world.socket, str(seconds)], capture_output=True,
                              text=True, check=True)
        rate = int(done.stdout) / seconds
        base = memory(pid)
        crowd = [patient(world) for _ in range(idle)]
        world.wait_for(lambda: descriptors(pid) > idle, "all are accepted")
        each = (memory(pid) - base) / idle
        counts = [len(r.lines()) for r in ranks]
        world.wait_for(lambda: all(len(r.lines()) > n + 8 for r, n in zip(ranks, counts)), "all go on")
        for raw in crowd:
            raw.socket.close()
        world.wait_for(lambda: descriptors(pid) < 100, "all are gone")
        world.wait_for(lambda: memory(pid) - base < 1024, "their memory is back")
        left = memory(pid) - base
        print(f"      {rate:.0f} connects/s, {each:.1f} KB for an idle one, {left} KB left of {idle}; "
              f"wait p99 {percentile([w for r in ranks for w in waits_ms(r)], 99):.2f} ms", flush=True)
        assert each <= 16
        assert all(r.process.poll() is None for r in ranks), "a trainer failed"
        stop(ranks)
        world.stop()


def as_stranger(world, prefix=(), **identity):
    return subprocess.run([*prefix, os.path.join(BIN, "ballastctl"), "--socket", world.socket, "status"],
                          capture_output=True, text=True, **identity)


def test_strangers_are_refused_also_from_a_user_namespace_and_logged_once_a_second():
    if os.geteuid() != 0:
        raise Skip("needs root to be somebody else")
    nobody = pwd.getpwnam("nobody").pw_uid
    with small_world() as world:
        world.start()
        os.chmod(world.dir, 0o755)
        for path in (world.socket, world.socket + ".data"):
            os.chmod(path, 0o666)
        started = time.monotonic()
        for identity in [{"user": nobody}, {"user": nobody, "group": 0}, {"user": 12345, "group": 12345}] * 4:
            done = as_stranger(world, **identity)
            assert done.returncode == 1 and "allow" in done.stderr, (identity, done.stderr)
        spaced = as_stranger(world, ["unshare", "--user", "--map-root-user"], user=nobody)
        if "unshare" not in spaced.stderr:
            assert spaced.returncode == 1 and "allow" in spaced.stderr, spaced.stderr
        lines = log(world).count("connection refused")
        assert 1 <= lines <= time.monotonic() - started + 1, lines
        in_order(world.rank(0, cp=0, steps=5).finish(60), 2)
        world.stop()


if __name__ == "__main__":
    main(globals())
