#!/usr/bin/python3
"""The state directory under a daemon: what a person reads in it, what is refused."""

import contextlib
import ctypes
import os
import signal
import sqlite3
import subprocess
import time

from faults import small_world
from service import daemon_output
from world import Skip, in_order, least, main, synthetic_documents, write_corpus

CLONE_NEWNS = 0x20000


def serve(world, steps):
    """Serves four ranks some steps and stops; {step: digest}."""
    world.start()
    ranks = [world.rank(d, cp=c, steps=steps) for d in range(2) for c in range(2)]
    lines = [rank.finish(60) for rank in ranks]
    world.stop()
    return {line["step"]: line["plan_digest"] for line in lines[0]}


def query(world, text):
    with contextlib.closing(sqlite3.connect(f"file:{world.state}/ballast.db?mode=ro", uri=True)) as db:
        return db.execute(text).fetchall()


def test_sqlite3_shows_steps_what_waits_and_delays():
    for policy in ("wlb:level", "wlb:bands", "plain"):
        with small_world(plan={"window": 2048, "micro_batches": 4, "policy": policy}) as world:
            digests = serve(world, 40)
            stored = dict(query(world, "SELECT step, digest FROM plans"))
            assert all(stored[step] == digest for step, digest in digests.items())
            assert query(world, "SELECT count(*) FROM plans WHERE imbalance < 1 OR tokens = 0") == [(0,)]
            newest = query(world, "SELECT value FROM meta WHERE key = 'rows_step'")[0][0]
            assert newest == max(stored)
            waiting = query(world, "SELECT dataset, length, nominal_step, delay FROM waiting_documents")
            assert all(row[0] == "d" and row[3] == max(0, newest - row[2]) for row in waiting)
            assert sum(row[1] for row in waiting) == query(
                world, f"SELECT waiting_tokens FROM plans WHERE step = {newest - 1}")[0][0], policy
            assert waiting or policy != "wlb:bands"
            delays = query(world, "SELECT dataset, delivered_tokens, delay_mean, delay_p50, delay_max FROM dataset_delays")
            assert [row[0] for row in delays] == ["d"] and delays[0][3] <= delays[0][4]
            assert delays[0][1] == query(world, f"SELECT sum(tokens) FROM plans WHERE step < {newest}")[0][0]


def test_a_store_that_is_gone_or_cut_is_refused_with_what_to_do():
    with small_world() as world:
        serve(world, 10)
        db = os.path.join(world.state, "ballast.db")
        os.rename(db, db + ".away")
        code, text = daemon_output(world)
        assert code == 65 and "the store is gone; restore the folder from a backup" in text, (code, text)
        os.rename(db + ".away", db)
        world.start()
        rank = world.rank(0, cp=0)
        world.wait_for(lambda: len(rank.lines()) > 20, "some commits were acknowledged")
        world.kill()
        rank.process.kill()
        os.truncate(db + "-wal", 4096)
        code, text = daemon_output(world)
        assert code == 65 and "has lost commits" in text and "restore" in text, (code, text)


def test_another_corpus_is_named_with_what_of_it_differs():
    with small_world() as world:
        serve(world, 3)
        write_corpus(os.path.join(world.dir, "d"), synthetic_documents(4, 599, 3000))
        code, text = daemon_output(world)
        assert code == 78 and "dataset 'd' has documents 600 there, 599 here" in text, (code, text)
        write_corpus(os.path.join(world.dir, "d"), [d[::-1] for d in synthetic_documents(4, 600, 3000)])
        code, text = daemon_output(world)
        assert code == 78 and "dataset 'd' has as many documents and tokens, but others" in text, (code, text)
        done = world.ctl("--state", world.state, "--config", world.config_path, "status", expect=1)
        assert "dataset 'd' has as many documents and tokens, but others" in done.stderr, done.stderr
        with open(world.config_path) as f:
            config = f.read()
        with open(world.config_path, "w") as f:
            f.write(config.replace("window = 2048", "window = 1024"))
        code, text = daemon_output(world)
        assert code == 78 and "it has 'plan.window = 2048', this config has 'plan.window = 1024'" in text, (code, text)


@contextlib.contextmanager
def small_disk(world, megabytes):
    """A tmpfs of its own for the state directory, in a mount namespace that only this process sees."""
    if os.geteuid() != 0 or ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS) != 0:
        raise Skip("mounting a small tmpfs takes root")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    os.mkdir(world.state)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", world.state], check=True)
    try:
        yield
    finally:
        if world.daemon and world.daemon.poll() is None:
            world.kill()
        subprocess.run(["umount", world.state], check=True)


def fill(world):
    """Takes all that is free on the state's disk."""
    with open(os.path.join(world.state, "filler"), "ab") as f, contextlib.suppress(OSError):  # the daemon takes some too
        free = os.statvfs(world.state)
        if free.f_bavail > 0:
            os.posix_fallocate(f.fileno(), os.fstat(f.fileno()).st_size, free.f_bavail * free.f_frsize)


def free(world):
    os.unlink(os.path.join(world.state, "filler"))


def said(rank):
    """What a running rank wrote to stderr."""
    return os.pread(rank.errors.fileno(), 1 << 20, 0).decode()


def warnings(world):
    return world.live("status")["warnings"]


def is_full(world):
    fill(world)
    return any("is full" in text for text in warnings(world))


def test_a_full_disk_is_said_served_on_and_left_behind_in_5_seconds():
    with small_world() as world, small_disk(world, 96):
        world.start()
        reserve = os.path.join(world.state, "ballast.reserve")
        assert os.path.getsize(reserve) == 16 << 20
        ranks = [world.rank(d, cp=c, think_ms=1) for d in range(2) for c in range(2)]
        world.wait_for(lambda: all(len(r.lines()) > 10 for r in ranks), "all are served")
        world.wait_for(lambda: is_full(world), "the disk is full")
        assert not os.path.exists(reserve)
        world.wait_for(lambda: [fill(world)] and any("directory is full" in said(r) for r in ranks),
                       "a commit is answered that it is not durable")
        durable = world.live("status")["durable_step"]
        committed = world.live("status")["committed_step"]
        assert world.live("plan", durable - 1)["plan"]["step"] == durable - 1
        pid = ranks[-1].process.pid
        ranks.pop().process.kill()
        world.wait_for(lambda: all(r["pid"] != pid for r in world.live("status")["ranks"]), "it is seen to leave")
        patient = world.rank(1, cp=1, commit_every=0, steps=2)
        assert patient.finish(60)[0]["step"] == committed, "what is durable is served"
        ranks.append(world.rank(1, cp=1, think_ms=1))

        def goes_on():
            """Seconds from when there is space again."""
            world.wait_for(lambda: is_full(world), "the disk is full")
            before = world.live("status")["durable_step"]
            free(world)
            started = time.monotonic()
            world.wait_for(lambda: world.live("status")["durable_step"] > before and not warnings(world),
                           "there is space again")
            return time.monotonic() - started

        took = least(goes_on, 5)
        print(f"      {took:.1f} s after space returned", flush=True)
        assert took <= 5
        lines = [len(r.lines()) for r in ranks]
        world.wait_for(lambda: all(len(r.lines()) > n + 10 for r, n in zip(ranks, lines)), "all go on")
        assert os.path.exists(reserve)
        for rank in ranks:
            rank.process.send_signal(signal.SIGTERM)
            in_order(rank.finish(), 2)
        world.stop()


def test_a_daemon_comes_up_on_a_full_disk_or_says_what_to_free():
    with small_world() as world, small_disk(world, 48):
        fill(world)
        code, text = daemon_output(world)
        assert code == 74 and "0 bytes are free, 1048576 are needed; free some" in text, (code, text)
        free(world)
        world.start()
        ranks = [world.rank(d, cp=c, think_ms=1) for d in range(2) for c in range(2)]
        world.wait_for(lambda: is_full(world), "the disk is full")
        world.kill()
        fill(world)
        world.start()
        world.wait_for(lambda: world.live("status")["state"] == "serving", "it serves")
        world.wait_for(lambda: warnings(world) != [], "the disk is still full")
        free(world)
        counts = [len(r.lines()) for r in ranks]
        world.wait_for(lambda: all(len(r.lines()) > n + 10 for r, n in zip(ranks, counts)), "all go on")
        for rank in ranks:
            rank.process.send_signal(signal.SIGTERM)
            in_order(rank.finish(), 2)
        world.stop()


if __name__ == "__main__":
    main(globals())
