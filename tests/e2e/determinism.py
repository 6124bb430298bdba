#!/usr/bin/python3
"""One stream, whatever carries it: builds, ranks, readers, depth of plan-ahead, kill -9."""

import functools
import os
import random
import signal
import time

from world import (BIN_ASAN, FULL, Oracle, Skip, World, digests, in_order, main, synthetic_documents,
                   write_corpus)

STEPS = 200
MICRO_BATCHES = 8


def world_with_corpus(policy="wlb:level", **daemon):
    world = World()
    datasets = []
    for seed, weight in ((1, 2), (2, 1), (3, 1)):
        prefix = os.path.join(world.dir, f"d{seed}")
        write_corpus(prefix, synthetic_documents(seed, 500, 6000))
        datasets.append((f"d{seed}", prefix, weight))
    world.config(datasets, {
        "job": {"seed": 11},
        "plan": {"window": 2048, "micro_batches": MICRO_BATCHES, "policy": policy},
        "parallel": {"dp": 2, "cp": 2, "tp": 2},
        **{k: v for k, v in daemon.items()},
    })
    world.datasets = datasets
    return world


@functools.cache
def reference(policy="wlb:level"):
    """Digests of the first steps, planned by ballastctl without a daemon."""
    with world_with_corpus(policy) as world:
        answer = world.ctl_json("--config", world.config_path, "plan", "--steps", f"0..{STEPS - 1}")
        digests = {s["step"]: s["digest"] for s in answer["steps"]}
        assert len(digests) == STEPS
        return digests


def run(places, bin_dir=None, policy="wlb:level", **daemon):
    with world_with_corpus(policy, **daemon) as world:
        world.start(bin_dir=bin_dir)
        ranks = [world.rank(*place, bin_dir=bin_dir, steps=STEPS) for place in places]
        logs = [rank.finish(500) for rank in ranks]
        world.stop()
        for lines in logs:
            in_order(lines, MICRO_BATCHES // 2)
        return [digests(lines) for lines in logs], logs


ALL = [(d, 0, c, t) for d in range(2) for c in range(2) for t in range(2)]


def expect(found, policy="wlb:level"):
    for one in found:
        assert one == reference(policy)


def test_one_rank_and_eight_ranks_see_the_digests_that_the_planner_computes_alone():
    expect(run([(0, 0, 0, 0)])[0])
    expect(run(ALL)[0])
    expect(run(ALL, policy="wlb:bands")[0], "wlb:bands")


def test_either_reader_gives_the_same_bytes():
    for place in ((1, 0, 1, 0),):
        hashes = []
        for backend in ("io_uring", "pread"):
            found, logs = run([place], reader={"backend": backend})
            expect(found)
            hashes.append([line["tokens_xxh"] for line in logs[0]])
        assert hashes[0] == hashes[1]


def test_any_depth_of_plan_ahead():
    for depth in (1, 2, 16):
        expect(run([(0, 0, 1, 1)], daemon={"ahead_steps": depth})[0])


def test_the_sanitizer_build_computes_the_same():
    if not os.path.exists(os.path.join(BIN_ASAN, "ballastd")):
        raise Skip(f"no sanitizer build in {BIN_ASAN}")
    expect(run(ALL if FULL else [(0, 0, 0, 0), (1, 0, 1, 1)], bin_dir=BIN_ASAN)[0])


def kill_at_random_moments(policy):
    kills = int(os.environ.get("BALLAST_KILLS", 1000 if FULL else 20))
    seed = int(os.environ.get("BALLAST_SEED", time.time_ns() % 1000000))
    print(f"      seed {seed} (BALLAST_SEED)", flush=True)
    rng = random.Random(seed)
    with world_with_corpus(policy, daemon={"ahead_steps": 4}) as world:
        world.start()
        ranks = [world.rank(*place, think_ms=6, connect_timeout_ms=120000) for place in ALL]
        ready_ms = []
        for kill in range(kills):
            time.sleep(rng.uniform(0.02, 0.35))
            assert all(rank.process.poll() is None for rank in ranks), \
                f"ranks ended after {kill} kills: {[rank.process.poll() for rank in ranks]}"
            world.kill()
            time.sleep(rng.choice((0, 0, 0.05)))
            started = time.monotonic()
            world.start()
            ready_ms.append(1000 * (time.monotonic() - started))
        world.wait_for(lambda: all(r.lines() and r.lines()[-1]["step"] > STEPS for r in ranks), "all have done enough", 500)
        for rank in ranks:
            rank.process.send_signal(signal.SIGTERM)
        logs = [rank.finish() for rank in ranks]
        oracle = Oracle([prefix for _, prefix, _ in world.datasets])
        for lines, rank in zip(logs, ranks):
            known = in_order(lines, MICRO_BATCHES // 2)
            assert min(known) == (0, 0) and len(known) > STEPS * MICRO_BATCHES // 2, f"rank {rank.place} missed batches"
            found = digests(lines)
            assert {step: found[step] for step in range(STEPS)} == reference(policy)
        # The bytes, against the files.
        for step in rng.sample(range(STEPS), 12):
            plan = world.plan(step)
            for mb in plan["micro_batches"]:
                for rank, lines in zip(ranks, logs):
                    if rank.place[0] == mb["dp"]:
                        for line in lines:
                            if (line["step"], line["index"]) == (step, mb["index"]):
                                assert line["tokens_xxh"] == oracle.hash(mb, rank.place[2])
    ready_ms.sort()
    print(f"      {kills} kills, {len(ALL)} ranks, {lines[-1]['step']} steps: lost 0, reordered 0, changed 0; ready again after "
          f"p50 {ready_ms[len(ready_ms) // 2]:.0f} ms, at most {ready_ms[-1]:.0f} ms", flush=True)


def test_kill_9_at_random_moments_changes_nothing():
    kill_at_random_moments("wlb:level")


def test_kill_9_at_random_moments_changes_nothing_for_banded_queues():
    kill_at_random_moments("wlb:bands")


def test_ranks_killed_at_random_moments_resume_at_their_commit():
    rng = random.Random(5)
    with world_with_corpus() as world:
        world.start()
        steady = world.rank(0, 0, 0, 0, steps=60, think_ms=1)
        seen = {}
        for _ in range(6):
            rank = world.rank(0, 0, 1, 0, steps=60, think_ms=1)
            time.sleep(rng.uniform(0.05, 0.3))
            rank.process.send_signal(signal.SIGKILL)
            rank.process.wait()
            for line in rank.lines():
                at = (line["step"], line["index"])
                content = {k: v for k, v in line.items() if k != "waited_us"}
                assert seen.setdefault(at, content) == content
        steady.finish(200)
        world.stop()


def test_kills_during_start_up_and_of_ranks_with_the_daemon_change_nothing():
    kills = 300 if FULL else 15
    seed = int(os.environ.get("BALLAST_SEED", time.time_ns() % 1000000))
    print(f"      seed {seed} (BALLAST_SEED)", flush=True)
    rng = random.Random(seed)
    with world_with_corpus(daemon={"lease": "2s"}) as world:
        lives = {place: [] for place in ALL}

        def connect(place):
            lives[place].append(world.rank(*place, think_ms=rng.choice((0, 2)), credits=rng.choice((1, 8)),
                                           commit_every=rng.choice((1, 3)), connect_timeout_ms=60000))

        world.start()
        for place in ALL:
            connect(place)
        for _ in range(kills):
            time.sleep(rng.uniform(0.05, 0.3))
            world.daemon.send_signal(rng.choice((signal.SIGKILL, signal.SIGSTOP)))
            place = rng.choice(ALL)
            lives[place][-1].process.kill()
            lives[place][-1].process.wait()
            world.kill()
            for _ in range(rng.randrange(3)):
                world.start(ready=False)
                time.sleep(rng.uniform(0, 0.05))
                assert world.daemon.poll() is None, "ballastd left by itself"
                world.kill()
            connect(place)
            world.start()
        before = {place: len(lives[place][-1].lines()) for place in ALL}
        world.wait_for(lambda: all(len(lives[p][-1].lines()) > before[p] + 8 for p in ALL), "all go on")
        for place in ALL:
            lives[place][-1].process.send_signal(signal.SIGTERM)
            lives[place][-1].finish()
        world.stop()
        known = {}
        for place in ALL:
            last = -1
            for rank in lives[place]:
                lines = rank.lines()
                in_order(lines, MICRO_BATCHES // 2)
                assert not lines or lines[0]["index"] == 0 and lines[0]["step"] <= last + 1, "a step is missing"
                last = max([last] + [line["step"] for line in lines])
                for line in lines:
                    for key, value in (((line["step"],), line["plan_digest"]),
                                       ((line["step"], place[0], place[2], line["index"]), line["tokens_xxh"])):
                        assert known.setdefault(key, value) == value, key
        expected = reference()
        assert all(known.get((step,), digest) == digest for step, digest in expected.items())


if __name__ == "__main__":
    main(globals())
