#!/usr/bin/python3
"""The daemon dies, fails, stutters at each of its failpoints while eight ranks work; the stream is as if
it had not. Runs the sanitizer build's daemon, which alone has failpoints; the ranks are the release's."""

import os
import random
import signal
import subprocess
import time

from determinism import ALL, MICRO_BATCHES, reference, run, world_with_corpus
from world import BIN_ASAN, FULL, Oracle, Skip, digests, in_order, main

SEEDS = 20 if FULL else 2
FREQUENT = 12  # a point on the daily path is hit at one of its first so many times
# What must happen for a point to be reached; the others are reached by serving.
AT_START = {"lock", "store_opened", "unlink", "listen"}
AT_REST = {"checkpoint_before", "checkpoint_after"}  # of the ranks, when the log has grown
AT_FIRST_START = {"create_rename"}
BY_AN_OLD_PLAN = {"fetch", "replay"}
BY_SIGTERM = {"stop"}
BY_A_SEEK = {"rewind_storing", "rewind_durable"}  # rewind.py dies there


def failpoints():
    """{name: what it can beside kill and delay}, from the program itself."""
    if not os.path.exists(os.path.join(BIN_ASAN, "ballastd")):
        raise Skip(f"no sanitizer build in {BIN_ASAN}")
    done = subprocess.run([os.path.join(BIN_ASAN, "ballastd"), "--failpoints"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    points = dict(line.split()[:2] for line in done.stdout.splitlines())
    return {name: can for name, can in points.items() if name not in BY_A_SEEK}


def chosen_seed():
    seed = int(os.environ.get("BALLAST_SEED", time.time_ns() % 1000000))
    print(f"      seed {seed} (BALLAST_SEED)", flush=True)
    return random.Random(seed)


class Ranks:
    """All eight ranks; one that ended is begun again, as a scheduler would."""

    def __init__(self, world, **options):
        self.world, self.options = world, {"think_ms": 3, "connect_timeout_ms": 60000, **options}
        self.lives = {place: [] for place in ALL}
        self.revive()

    def revive(self):
        for place, lives in self.lives.items():
            if not lives or lives[-1].process.poll() is not None:
                lives.append(self.world.rank(*place, **self.options))

    def acknowledged(self):
        """Every rank has had its commits of all steps before this one acknowledged."""
        return min(max((line["step"] for life in lives for line in life.lines()), default=0)
                   for lives in self.lives.values())

    def finish(self):
        """Lets them work on a little, ends them and checks all they saw."""
        self.revive()
        goal = self.acknowledged() + 5
        self.world.wait_for(lambda: self.acknowledged() >= goal, "all ranks go on")
        for lives in self.lives.values():
            lives[-1].process.send_signal(signal.SIGTERM)
        for lives in self.lives.values():
            lives[-1].finish()
        self.check()

    def check(self):
        oracle = Oracle([prefix for _, prefix, _ in self.world.datasets])
        known, steps = {}, 0
        for place, lives in self.lives.items():
            last = -1
            for lines in (life.lines() for life in lives):
                in_order(lines, MICRO_BATCHES // 2)
                assert not lines or lines[0]["index"] == 0 and lines[0]["step"] <= last + 1, "a step is missing"
                last = max([last] + [line["step"] for line in lines])
                for step, digest in digests(lines).items():
                    assert known.setdefault(step, digest) == digest, f"step {step} differs between ranks"
            steps = max(steps, last + 1)
        answer = self.world.ctl_json("--config", self.world.config_path, "plan", "--fragments",
                                     "--steps", f"0..{steps - 1}")
        batches = {}
        for plan in answer["steps"]:
            assert known.get(plan["step"], plan["digest"]) == plan["digest"], f"step {plan['step']} differs"
            for mb in plan["micro_batches"] if plan["step"] % 7 == 0 else []:
                batches[plan["step"], mb["dp"], mb["index"]] = mb
        for place, lives in self.lives.items():
            for line in (line for life in lives for line in life.lines()):
                mb = batches.get((line["step"], place[0], line["index"]))
                assert mb is None or line["tokens_xxh"] == oracle.hash(mb, place[2]), line
        return steps


def provoke(world, name):
    if name in BY_SIGTERM:
        world.daemon.send_signal(signal.SIGTERM)
    elif name in AT_REST:
        time.sleep(0.7)
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for rank in world.ranks:
                rank.process.send_signal(number)
            time.sleep(0.15)
    elif name in BY_AN_OLD_PLAN:
        subprocess.run([os.path.join(os.environ.get("BALLAST_BIN", ""), "ballastctl"), "--socket", world.socket,
                        "--timeout", "2s", "plan", "0"], capture_output=True)


def die_at(world, name, nth):
    """Starts the daemon, which dies at the nth hit of a point."""
    order = f"{name}=kill@{nth}"
    world.start(ready=name in BY_SIGTERM | BY_AN_OLD_PLAN, bin_dir=BIN_ASAN,
                environment={"BALLAST_FAILPOINTS": order})
    deadline = time.monotonic() + 60
    while world.daemon.poll() is None:
        provoke(world, name)
        assert time.monotonic() < deadline, f"{order} is never reached"
        time.sleep(0.005)
    assert world.daemon.returncode == -signal.SIGKILL, f"{order}: exited {world.daemon.returncode}"


def hits_of(name, rng):
    once = AT_START | AT_REST | AT_FIRST_START | BY_AN_OLD_PLAN | BY_SIGTERM
    return rng.randint(1, 8 if name in ("hello", "descriptor") else 1 if name in once else FREQUENT)


def test_killed_at_every_failpoint_nothing_is_lost_reordered_or_changed():
    points = failpoints()
    rng = chosen_seed()
    died = 0
    with world_with_corpus(daemon={"ahead_steps": 2}) as world:
        for name in AT_FIRST_START:
            die_at(world, name, 1)
            died += 1
        world.start(bin_dir=BIN_ASAN)
        ranks = Ranks(world)
        world.wait_for(lambda: ranks.acknowledged() > 3, "all ranks are served")
        world.kill()
        order = [name for name in points if name not in AT_FIRST_START] * SEEDS
        rng.shuffle(order)
        for name in order:
            die_at(world, name, hits_of(name, rng))
            died += 1
            if rng.random() < 0.2 or died == len(order):
                acknowledged = ranks.acknowledged()
                world.start(bin_dir=BIN_ASAN)
                durable = world.live("status")["durable_step"]
                assert durable >= acknowledged, f"{name}: acknowledged {acknowledged}, kept {durable}"
                world.kill()
        world.start(bin_dir=BIN_ASAN)
        ranks.finish()
        world.stop()
        steps = ranks.check()
    print(f"      {died} deaths at {len(points)} failpoints, {steps} steps: lost 0, reordered 0, changed 0", flush=True)


def test_an_error_at_every_failpoint_changes_nothing():
    points = failpoints()
    rng = chosen_seed()
    errors = ("EIO", "ENOSPC", "ENOMEM") if FULL else ("EIO",)
    exits = {}
    with world_with_corpus(daemon={"ahead_steps": 2}) as world:
        world.start(bin_dir=BIN_ASAN)
        ranks = Ranks(world)
        for name, code in [(n, e) for n, can in points.items() if can == "error" for e in errors]:
            if name in AT_FIRST_START:
                continue
            world.wait_for(lambda: ranks.acknowledged() > 3, "all ranks are served")
            world.kill()
            acknowledged = ranks.acknowledged()
            world.start(ready=False, bin_dir=BIN_ASAN,
                        environment={"BALLAST_FAILPOINTS": f"{name}={code}@{hits_of(name, rng)}"})
            ended = time.monotonic() + (0.3 if name in ("read_begin", "read_done", "descriptor", "replay") else 1.5)
            while world.daemon.poll() is None and time.monotonic() < ended and ranks.acknowledged() < acknowledged + 8:
                provoke(world, name)
                time.sleep(0.02)
            exits[name] = world.daemon.poll()
            assert exits[name] in (None, 65, 74, 78), f"{name}={code}: exited {exits[name]}"
            if exits[name] is None:
                world.kill()
            world.start(bin_dir=BIN_ASAN)
            ranks.revive()
        ranks.finish()
        world.stop()
    print("      exits: " + ", ".join(f"{n} {'none' if e is None else e}" for n, e in exits.items()), flush=True)


def test_short_reads_and_writes_of_sockets_and_slow_threads_change_nothing():
    failpoints()
    os.environ["BALLAST_FAILPOINTS"] = \
        "conn_read=short,conn_write=short,plan_after=delay:3,group_durable=delay:20,batch_after=delay:1"
    try:
        found, _ = run([(0, 0, 0, 0), (1, 0, 1, 1)], bin_dir=BIN_ASAN)
    finally:
        del os.environ["BALLAST_FAILPOINTS"]
    assert all(one == reference() for one in found)


def test_an_unknown_failpoint_is_refused():
    failpoints()
    for text in ("nowhere=kill", "plan_after", "plan_after=EIO", "plan_before=short", "plan_before=kill@0"):
        done = subprocess.run([os.path.join(BIN_ASAN, "ballastd")], capture_output=True, text=True,
                              env={**os.environ, "BALLAST_FAILPOINTS": text})
        assert done.returncode == 2 and text in done.stderr, (text, done)


if __name__ == "__main__":
    main(globals())
