#!/usr/bin/python3
"""What a machine does to a daemon: syncs that fail, a clock that is set, a stop of all that runs."""

import contextlib
import os
import signal
import socket
import time

from faults import small_world
from service import log
from world import BIN, BIN_ASAN, FULL, Skip, digests, in_order, least, main

PRELOAD = os.environ.get("BALLAST_FAULTY_MACHINE", os.path.join(BIN, "../tests/e2e/libfaulty_machine.so"))
HOUR, YEAR = 3600, 365 * 86400
READERS = ("io_uring", "pread")


@contextlib.contextmanager
def faulty_machine(world):
    """Programs started inside meet the faults that faulty_machine.c takes from this folder."""
    folder = os.path.join(world.dir, "machine")
    os.mkdir(folder)
    os.environ.update(LD_PRELOAD=PRELOAD, BALLAST_TEST_MACHINE=folder)
    try:
        yield folder
    finally:
        del os.environ["LD_PRELOAD"], os.environ["BALLAST_TEST_MACHINE"]


def write(folder, name, text):
    with open(os.path.join(folder, name + ".new"), "w") as f:
        f.write(text)
    os.rename(os.path.join(folder, name + ".new"), os.path.join(folder, name))


def four_ranks(world, **options):
    ranks = [world.rank(d, cp=c, think_ms=1, **options) for d in range(2) for c in range(2)]
    all_go_on(world, ranks)
    return ranks


def all_go_on(world, ranks, batches=10):
    before = [len(rank.lines()) for rank in ranks]
    world.wait_for(lambda: all(len(r.lines()) > n + batches for r, n in zip(ranks, before)), "all are served")


def finish(ranks):
    for rank in ranks:
        rank.process.send_signal(signal.SIGTERM)
    for rank in ranks:
        in_order(rank.finish(), 2)


def test_a_sync_that_fails_ends_the_daemon_within_a_second_and_nothing_is_acknowledged_after():
    with small_world() as world:
        folder = os.path.join(world.dir, "machine")
        os.mkdir(folder)
        machine = {"LD_PRELOAD": PRELOAD, "BALLAST_TEST_MACHINE": folder}
        world.start(environment=machine)
        ranks = four_ranks(world, connect_timeout_ms=60000)

        def ends():
            """Seconds that it takes; then it is started again."""
            write(folder, "sync", "")
            started = time.monotonic()
            assert world.daemon.wait(60) == 74
            took = time.monotonic() - started
            print(f"      ended after {took:.2f} s", flush=True)
            assert "a restart recovers" in log(world)
            # A rank takes a batch of a step only after its commit of the step before was acknowledged.
            acknowledged = [max(line["step"] for line in rank.lines()) for rank in ranks]
            os.unlink(os.path.join(folder, "sync"))
            world.start(environment=machine)
            status = world.live("status")
            assert status["durable_step"] >= max(acknowledged), (status["durable_step"], acknowledged)
            assert status["committed_step"] >= min(acknowledged), (status["committed_step"], acknowledged)
            all_go_on(world, ranks)
            return took

        assert least(ends, 1) <= 1
        finish(ranks)
        world.stop()


def test_neither_planning_nor_serving_waits_for_the_disk():
    with small_world(daemon={"ahead_steps": 16}) as world:
        with faulty_machine(world) as folder:
            world.start()
        write(folder, "stuck", "")
        rank = world.rank(0, cp=0, commit_every=0)
        world.wait_for(lambda: len(rank.lines()) >= 2 * 40, "40 steps are served while no sync ends")
        assert world.live("status")["durable_step"] < 40
        os.unlink(os.path.join(folder, "stuck"))
        world.wait_for(lambda: world.live("status")["durable_step"] > 40, "the disk has caught up")
        rank.process.send_signal(signal.SIGTERM)
        in_order(rank.finish(), 2)
        world.stop()


def test_setting_the_clock_changes_neither_order_nor_deadlines():
    with small_world(daemon={"lease": "2s"}) as world, faulty_machine(world) as folder:
        world.start()
        ranks = four_ranks(world)
        for seconds in (HOUR, -HOUR, 10 * YEAR, -10 * YEAR, 0):
            write(folder, "clock", str(seconds))
            all_go_on(world, ranks, 30)
        assert world.live("status")["uptime_ms"] < 100000
        assert "rank cut" not in log(world)
        finish(ranks)
        seen = digests(ranks[0].lines())
        for step in list(seen)[:: max(1, len(seen) // 5)]:
            assert world.plan(step)["digest"] == seen[step]
        dead = world.rank(0, cp=0)
        all_go_on(world, [dead], 2)
        killed = time.monotonic()
        dead.process.kill()
        dead.wait()
        write(folder, "clock", str(10 * YEAR))
        world.wait_for(lambda: world.live("status")["ranks"] == [], "the lease of a dead rank ends")
        assert time.monotonic() - killed > 1, "a lease is not of monotonic time"
        world.stop()


def test_a_stop_of_the_daemon_for_longer_than_the_lease_costs_nobody_anything():
    seconds, lease = (60, "10s") if FULL else (4, "2s")
    with small_world(daemon={"lease": lease}) as world, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        path = os.path.join(world.dir, "notify")
        notify.bind(path)
        notify.setblocking(False)

        def pings():
            count = 0
            with contextlib.suppress(BlockingIOError):
                while True:
                    count += b"WATCHDOG=1" in notify.recv(65536)
            return count

        world.start(ready=False, environment={"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "300000"})
        ranks = four_ranks(world, connect_timeout_ms=180000)  # its calls wait so long
        world.wait_for(lambda: pings() > 0, "the watchdog is fed")
        world.daemon.send_signal(signal.SIGSTOP)
        time.sleep(0.2)
        pings()
        time.sleep(seconds)
        assert pings() == 0, "the watchdog is fed by a daemon that stands still"
        world.daemon.send_signal(signal.SIGCONT)
        all_go_on(world, ranks, 30)
        world.wait_for(lambda: pings() > 0, "the watchdog is fed again")
        assert "rank cut" not in log(world) and "rank left" not in log(world)
        assert "stood still" in log(world)
        finish(ranks)
        world.stop()


@contextlib.contextmanager
def watched(world, bin_dir=None, **environment):
    """A daemon that a service manager watches: the socket that it pings, three times in 300 ms."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        path = os.path.join(world.dir, "notify")
        notify.bind(path)
        world.start(bin_dir=bin_dir, ready=False, environment={"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "300000", **environment})
        pings(notify, 1)
        world.wait_for(lambda: "serving socket=" in log(world), "the store is made")
        yield notify


def pings(notify, count, timeout=60):
    """Waits for so many; TimeoutError where they do not come."""
    notify.settimeout(timeout)
    while count > 0:
        count -= b"WATCHDOG=1" in notify.recv(65536)


def drain(notify):
    notify.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            notify.recv(65536)


def starved(world, notify, reason):
    """Waits until the log says that the watchdog is not fed, and why; then it is not, and the loop is fine meanwhile."""
    world.wait_for(lambda: f"watchdog is not fed: {reason}" in log(world), reason)
    drain(notify)
    try:
        pings(notify, 1, 0.5)
        raise AssertionError("it is fed")
    except TimeoutError:
        pass
    assert world.live("status")["state"] == "serving"


def test_the_watchdog_is_fed_only_while_commits_end():
    with small_world() as world, watched(world, LD_PRELOAD=PRELOAD, BALLAST_TEST_MACHINE=world.dir) as notify:
        ranks = four_ranks(world)
        write(world.dir, "stuck", "")
        starved(world, notify, "a commit does not end")
        os.unlink(os.path.join(world.dir, "stuck"))
        pings(notify, 5)
        finish(ranks)
        world.stop()


def test_the_watchdog_is_fed_only_while_reads_come_back():
    for backend in READERS:
        with small_world(reader={"backend": backend}) as world, watched(
                world, LD_PRELOAD=PRELOAD, BALLAST_TEST_MACHINE=world.dir) as notify:
            ranks = four_ranks(world)
            write(world.dir, "hang", "/d.bin")
            starved(world, notify, "no read comes back")
            os.unlink(os.path.join(world.dir, "hang"))
            pings(notify, 5)
            all_go_on(world, ranks)
            finish(ranks)
            world.stop()


def test_the_watchdog_is_fed_only_while_steps_get_planned():
    if not os.path.exists(os.path.join(BIN_ASAN, "ballastd")):
        raise Skip(f"no sanitizer build, which has failpoints, in {BIN_ASAN}")
    with small_world(daemon={"ahead_steps": 4}) as world, watched(  # so that the 30th plan is made with ranks there
            world, BIN_ASAN, BALLAST_FAILPOINTS="plan_before=delay:4000@30") as notify:
        ranks = four_ranks(world)
        starved(world, notify, "planning a step does not end")
        pings(notify, 5)
        all_go_on(world, ranks)
        finish(ranks)
        world.stop()


if __name__ == "__main__":
    main(globals())
