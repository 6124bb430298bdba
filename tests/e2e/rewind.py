#!/usr/bin/python3
"""Going back, on, and elsewhere: Seek to retained, older and later steps, generations, checkpoints that
leave the node, several nodes with one config, resuming at the awkward moments."""

import functools
import os
import random
import re
import signal
import subprocess
import time

from determinism import ALL, MICRO_BATCHES, reference, world_with_corpus
from faults import Raw
from world import BIN, BIN_ASAN, FULL, Skip, World, digests, in_order, main, synthetic_documents, write_corpus

PER_REPLICA = MICRO_BATCHES // 2
SOLO = {"dp": 1, "cp": 1, "tp": 1}


def solo(**sections):
    """A job of one rank, so that its commits are the job's."""
    return world_with_corpus(parallel=SOLO, **sections)


@functools.cache
def solo_reference():
    with solo() as world:
        answer = world.ctl_json("--config", world.config_path, "plan", "--steps", "0..199")
        return {s["step"]: s["digest"] for s in answer["steps"]}


def expect(lines, first, last, known=solo_reference, micro_batches=MICRO_BATCHES):
    """The lines are every batch of steps first..last of one rank, as the planner alone has them."""
    in_order(lines, micro_batches)
    assert digests(lines) == {s: known()[s] for s in range(first, last + 1)}, (first, last, sorted(digests(lines)))


def plain(lines):
    return {(l["step"], l["index"]): {k: v for k, v in l.items() if k != "waited_us"} for l in lines}


def run(world, steps, places=((0, 0, 0, 0),), **options):
    """Runs ranks for so many steps; their lines."""
    ranks = [world.rank(*place, steps=steps, **options) for place in places]
    return [rank.finish(60) for rank in ranks]


def committed(world):
    return world.live("status")["committed_step"]


def test_a_rank_goes_back_to_a_retained_step_and_gets_the_same_bytes():
    with solo(daemon={"lease": "1s"}) as world:
        world.start()
        first, = run(world, 40)
        expect(first, 0, 39)
        again, = run(world, 20, seek=10)
        expect(again, 10, 29)
        assert plain(again).items() <= plain(first).items()
        status = world.live("status")
        assert (status["generation"], status["generation_step"], status["committed_step"]) == (1, 10, 30), status
        assert "dp 0" in status["generation_by"]
        world.kill()
        world.start()
        on, = run(world, 20)
        expect(on, 30, 49)
        assert world.live("status")["generation"] == 1
        world.stop()


def test_a_seek_goes_on_ahead_and_nothing_between_is_delivered():
    with solo() as world:
        world.start()
        lines, = run(world, 5, seek=150)
        expect(lines, 150, 154)
        back, = run(world, 3, seek=2)
        expect(back, 2, 4)
        world.kill()
        world.start()
        on, = run(world, 2)
        expect(on, 5, 6)
        world.stop()


def test_a_step_that_is_no_longer_kept_is_planned_again_unless_it_was_exported():
    with solo(limits={"steps_retained": 10}, daemon={"lease": "200ms"}) as world:
        world.start()
        state = os.path.join(world.dir, "s")
        run(world, 30, export=state)
        run(world, 70)
        assert committed(world) == 100
        for step in (30, 95, 17, 0):
            lines, = run(world, 3, seek=step)
            expect(lines, step, step + 2)
        world.stop()


def test_other_streams_end_with_the_step_and_the_rank_and_the_ranks_join():
    with world_with_corpus() as world:
        world.start()
        followers = [world.rank(*place, steps=60, think_ms=3, follow=True) for place in ALL[1:7]]
        stubborn = world.rank(*ALL[7], steps=60, think_ms=3)
        world.wait_for(lambda: all(len(r.lines()) > 40 for r in followers + [stubborn]), "all are served")
        seeker = world.rank(*ALL[0], steps=30, seek=4)
        code, text = stubborn.wait()
        assert code == 1 and "step 4" in text and "dp 0, pp 0, cp 0, tp 0" in text, (code, text)
        expect(seeker.finish(60), 4, 33, reference, MICRO_BATCHES // 2)
        for rank in followers:
            lines = rank.finish(60)
            at = [i for i, line in enumerate(lines) if i and line["step"] < lines[i - 1]["step"]]
            assert len(at) == 1 and lines[at[0]]["step"] == 4, at
            assert set(digests(lines).items()) <= set(reference().items())
        assert world.live("status")["generation"] == 1
        world.stop()


def test_a_rank_that_seeks_elsewhere_is_told_both_steps_and_ranks():
    with world_with_corpus() as world:
        world.start()
        run(world, 10)
        first = world.rank(0, 0, 0, 0, seek=3, think_ms=60000)
        world.wait_for(first.lines, "the first has joined")
        code, text = world.rank(1, 0, 1, 0, seek=5).wait()
        assert code == 1, (code, text)
        for part in ("step 5", "dp 1, pp 0, cp 1, tp 0", "step 3", "dp 0, pp 0, cp 0, tp 0"):
            assert part in text, text
        lines, = run(world, 2, [(1, 0, 1, 0)], seek=3, commit_every=0)
        expect(lines, 3, 4, reference, MICRO_BATCHES // 2)
        assert world.live("status")["generation"] == 1
        world.stop()


def test_beyond_the_end_there_is_nothing_to_seek_and_the_end_itself_is_the_end():
    with World() as world:
        prefix = os.path.join(world.dir, "d")
        write_corpus(prefix, synthetic_documents(4, 60, 3000))
        world.config([("d", prefix, 1)], {"corpus": {"epochs": 1}, "plan": {"window": 2048, "micro_batches": 4},
                                          "daemon": {"lease": "200ms"}})
        end = len(world.plans())
        world.start()
        code, text = world.rank(seek=end + 5).wait()
        assert code == 1 and f"last step is {end - 1}" in text, (code, text)
        rank = world.rank(seek=end)
        assert rank.finish(60) == []
        world.kill()
        world.start()
        assert world.rank().finish(60) == []
        assert len(digests(world.rank(seek=end - 2).finish(60))) == 2
        assert world.live("status")["state"] == "finished"
        world.stop()
        # An error is told from the end.
        code, text = world.rank(connect_timeout_ms=100).wait()
        assert code == 3, (code, text)


def test_kill_9_around_a_seek_leaves_the_old_generation_or_the_new_one():
    rounds = 200 if FULL else 25
    seed = int(os.environ.get("BALLAST_SEED", time.time_ns() % 1000000))
    print(f"      seed {seed} (BALLAST_SEED)", flush=True)
    rng = random.Random(seed)
    old = new = 0
    with solo(daemon={"lease": "200ms"}) as world:
        world.start()
        run(world, 60)
        for _ in range(rounds):
            before = world.live("status")
            target = rng.choice([s for s in (0, 3, 17, 40, 59, 75) if s != before["committed_step"]])
            rank = world.rank(seek=target, steps=1, commit_every=0, connect_timeout_ms=0)
            time.sleep(rng.uniform(0.001, 0.02))
            world.kill()
            rank.wait()
            world.start()
            after = world.live("status")
            at = (after["generation"], after["committed_step"])
            if at == (before["generation"], before["committed_step"]):
                old += 1
            else:
                assert at == (before["generation"] + 1, target) and after["generation_step"] == target, (before, after)
                new += 1
            lines, = run(world, 2)
            expect(lines, after["committed_step"], after["committed_step"] + 1)
        print(f"      {old} old, {new} new", flush=True)
        world.stop()


def test_killed_at_the_points_of_a_seek_it_is_the_old_generation_or_the_new_one():
    if not os.path.exists(os.path.join(BIN_ASAN, "ballastd")):
        raise Skip(f"no sanitizer build in {BIN_ASAN}")
    points = [("rewind_storing", 1), ("rewind_durable", 1), ("group_begin", 1), ("group_commit", 1),
              ("group_durable", 1)]
    with solo() as world:
        world.start()
        run(world, 30)
        world.kill()
        for target, (name, nth) in enumerate(points, 3):
            world.start(bin_dir=BIN_ASAN)
            before = world.live("status")
            world.kill()
            world.start(ready=False, bin_dir=BIN_ASAN, environment={"BALLAST_FAILPOINTS": f"{name}=kill@{nth}"})
            rank = world.rank(seek=target, steps=1, commit_every=0, connect_timeout_ms=3000)
            assert world.daemon.wait(30) == -signal.SIGKILL, name
            rank.process.kill()
            rank.wait()
            world.start()
            after = world.live("status")
            new = (after["generation"], after["committed_step"]) == (before["generation"] + 1, target)
            old = (after["generation"], after["committed_step"]) == (before["generation"], before["committed_step"])
            assert new or old, (name, before, after)
            assert new or name not in ("rewind_durable", "group_durable"), name
            lines, = run(world, 1)
            expect(lines, after["committed_step"], after["committed_step"])
            world.kill()


class Caller:
    """A client that calls without being a rank, and measures."""

    def __init__(self, world):
        self.raw = Raw(world.socket)

    def send(self, method, payload):
        stream = self.raw.stream
        self.raw.stream += 2
        self.raw.frame(stream, 1, 1, Raw.field(1, b"ballast.v1.Loader") + Raw.field(2, method) + Raw.field(3, payload))

    def call(self, method, number):
        """(seconds, bytes of the answer) of a call whose first field is a number."""
        varint = b""
        while number >= 128:
            varint, number = varint + bytes([number & 127 | 128]), number >> 7
        started = time.monotonic()
        self.send(method, b"\x08" + varint + bytes([number]))
        answer = self.raw.receive()
        elapsed = time.monotonic() - started
        assert answer is not None and answer[1] == 2 and answer[3][:1] != b"\x0a", answer
        return elapsed, len(answer[3])


def test_a_seek_that_still_waits_when_another_generation_begins_is_told_which():
    if not os.path.exists(os.path.join(BIN_ASAN, "ballastd")):
        raise Skip(f"no sanitizer build in {BIN_ASAN}")
    with solo() as world:
        world.start()
        run(world, 10)
        Caller(world).call(b"Seek", 5)
        world.kill()
        world.start(bin_dir=BIN_ASAN, environment={"BALLAST_FAILPOINTS": "plan_before=delay:1500"})
        waiting, later = Caller(world), Raw(world.socket)
        waiting.send(b"Seek", b"\x08\x05")  # joins, and waits for the digest of step 5
        assert waiting.raw.call(b"Ping")[0] == 0
        code, _ = later.call(b"Seek", b"\x08\x05\x10\x09")
        assert code == 0, code
        code, text = Raw.response(waiting.raw.receive()[3])
        assert code == 10 and b"generation 9" in text and b"step 5" in text, (code, text)
        world.kill()


def test_who_seeks_what_was_just_given_up_is_told_to_try_again_and_gets_there():
    if not os.path.exists(os.path.join(BIN_ASAN, "ballastd")):
        raise Skip(f"no sanitizer build in {BIN_ASAN}")
    with solo() as world:
        world.start(bin_dir=BIN_ASAN, environment={"BALLAST_FAILPOINTS": "plan_before=delay:1500"})
        first, second = Caller(world), Raw(world.socket)
        first.send(b"Seek", b"\x08\x14")  # step 20; the planner is at one of its own meanwhile
        world.wait_for(lambda: world.live("status")["seeking"], "it is on its way")
        first.raw.socket.close()
        time.sleep(0.3)  # more than a tick, in which it is given up: the planner does not know yet
        codes = [second.call(b"Seek", b"\x08\x14")[0]]
        while codes[-1] == 14:
            codes.append(second.call(b"Seek", b"\x08\x14")[0])
        assert codes[-1] == 0, codes
        world.kill()


def test_a_far_seek_says_how_far_it_is_and_is_given_up_with_its_caller():
    with World() as world:
        prefix = os.path.join(world.dir, "d")
        write_corpus(prefix, synthetic_documents(4, 3000, 3000))
        world.config([("d", prefix, 1)], {"plan": {"window": 2048, "micro_batches": 64}})
        world.start()
        world.rank(steps=3).finish(60)
        caller = Caller(world)
        caller.send(b"Seek", b"\x08\x80\x80\x80\x80\x40")  # 2^34: for ever
        world.wait_for(lambda: (world.live("status")["seeking"] or {}).get("at", 0) > 100, "it is on its way")
        status = world.live("status")
        assert status["state"] == "seeking" and status["seeking"]["step"] == 1 << 34, status["seeking"]
        assert status["generation"] == 0 and status["seeking"]["generation"] == 1
        done = world.ctl("--socket", world.socket, "health", expect=3)
        assert str(1 << 34) in done.stderr, done.stderr
        assert "on its way" not in world.ctl("--socket", world.socket, "status").stderr
        told = world.ctl("--socket", world.socket, "seek", 5, expect=1)
        assert "step 5" in told.stderr and str(1 << 34) in told.stderr, told.stderr
        # The old generation goes on being served meanwhile, from what is planned.
        caller.raw.socket.close()
        world.wait_for(lambda: world.live("status")["seeking"] is None, "it is given up")
        assert world.live("status")["generation"] == 0
        world.rank(steps=3).finish(60)
        told = world.ctl("--socket", world.socket, "--timeout", "1s", "seek", 1 << 34, expect=5)
        world.wait_for(lambda: world.live("status")["seeking"] is None, "it is given up")
        caller = Caller(world)
        caller.send(b"Seek", b"\x08\x80\x80\x80\x80\x40")
        world.wait_for(lambda: world.live("status")["seeking"], "it is on its way")
        world.stop()


def test_ranks_that_follow_random_seeks_over_kills_get_the_reference_from_each_on():
    rounds = 60 if FULL else 10
    seed = int(os.environ.get("BALLAST_SEED", time.time_ns() % 1000000))
    print(f"      seed {seed} (BALLAST_SEED)", flush=True)
    rng = random.Random(seed)
    with world_with_corpus(daemon={"lease": "5s"}, limits={"steps_retained": 20}) as world:
        world.start()
        ranks = [world.rank(*place, follow=True, think_ms=1, connect_timeout_ms=60000) for place in ALL]
        sought = 0
        for _ in range(rounds):
            time.sleep(rng.uniform(0.05, 0.3))
            target = rng.randrange(0, 120)
            killed = rng.random() < 0.5
            seeker = subprocess.Popen([os.path.join(BIN, "ballastctl"), "--socket", world.socket, "seek", str(target)],
                                      stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            if killed:
                time.sleep(rng.uniform(0, 0.02))
                world.kill()
                world.start()
            sought += seeker.wait() == 0
            before = [len(rank.lines()) for rank in ranks]
            world.wait_for(lambda: all(len(r.lines()) > n + 8 for r, n in zip(ranks, before)) or
                           any(r.process.poll() is not None for r in ranks), "all go on")
            ended = [r.wait() for r in ranks if r.process.poll() is not None]
            assert not ended, ended
        for rank in ranks:
            rank.process.send_signal(signal.SIGTERM)
        for rank in ranks:
            code, text = rank.wait()
            assert code == 0, text
            lines, known = rank.lines(), {}
            for line in lines:
                step = line["step"]
                assert line["plan_digest"] == reference().get(step, line["plan_digest"]), step
                assert known.setdefault((step, line["index"]), line["tokens_xxh"]) == line["tokens_xxh"]
            for a, b in zip(lines, lines[1:]):
                following = (a["step"], a["index"] + 1) if a["index"] + 1 < PER_REPLICA else (a["step"] + 1, 0)
                assert (b["step"], b["index"]) == following or b["index"] == 0, (a, b)
        generation = world.live("status")["generation"]
        print(f"      {sought} seeks answered, generation {generation}", flush=True)
        assert generation >= sought > 0
        world.stop()


def epochs_world():
    """(world, first step of each pass): the steps at which passes over a small corpus begin."""
    world = solo(corpus={"epochs": 8})
    plans = world.ctl_json("--config", world.config_path, "plan", "--fragments", "--steps", "0..149")["steps"]
    first = {}
    for plan in plans:
        for mb in plan["micro_batches"]:
            for d in mb["documents"]:
                if d["dataset"] == 0:
                    first.setdefault(d["epoch"], plan["step"])
    return world, first


def test_killed_at_the_end_of_an_epoch_minus_one_at_it_and_plus_one():
    world, first = epochs_world()
    with world:
        assert 1 in first and 2 in first, first
        at = 0
        for epoch in (1, 2):
            for delta in (-1, 0, 1):
                world.start()
                steps = first[epoch] + delta - at
                lines, = run(world, steps)
                expect(lines, at, at + steps - 1)
                at += steps
                world.kill()
        world.start()
        lines, = run(world, 3)
        expect(lines, at, at + 2)
        world.stop()


def test_resumed_three_times_within_an_epoch_on_other_cores_then_three_epochs_more():
    world, first = epochs_world()
    with world:
        at, state = 0, os.path.join(world.dir, "s")
        for resume in range(3):
            world.start()
            lines, = run(world, max(1, first[1] // 4), export=state)
            expect(lines, at, at + len(digests(lines)) - 1)
            at += len(digests(lines))
            world.kill()
            # Each time in a fresh process with nothing but the checkpoint, on one core instead of all.
            world.state = os.path.join(world.dir, f"state{resume}")
            text = open(world.config_path).read()
            with open(world.config_path, "w") as f:
                f.write(re.sub(r"state_dir = .*", f"state_dir = {world.state}", text))
            world.start(preexec_fn=lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}))
            lines, = run(world, 1, **{"import": state})
            expect(lines, at, at)
            at += 1
            world.kill()
        world.start()
        steps = first[4] - at if 4 in first else 60
        lines, = run(world, steps)
        expect(lines, at, at + steps - 1)
        world.stop()


def test_what_was_read_ahead_and_not_delivered_is_not_lost():
    with solo(daemon={"ahead_steps": 16}, slab={"slots": 64}) as world:
        state = os.path.join(world.dir, "s")
        world.start()
        lines, = run(world, 6, credits=8, export=state)
        expect(lines, 0, 5)
        assert world.live("status")["next_step"] > 15
        world.kill()
        world.start()
        lines, = run(world, 4, credits=8)
        expect(lines, 6, 9)
        lines, = run(world, 4, **{"import": state})
        expect(lines, 6, 9)
        world.stop()


if __name__ == "__main__":
    main(globals())
