#!/usr/bin/python3
"""What meets at the borders of a config's sections: seeks over them, checkpoints from around them, kills
while the mesh changes, full disks, the end of the data. The stream is the planner's, or it is refused."""

import os
import random
import shutil
import signal
import struct
import time

import xxhash

from elastic import append, check_batches, committed, finished, planned, sections
from state import fill, free, is_full, small_disk, warnings
from world import BIN_ASAN, FULL, Skip, World, main, synthetic_documents, write_corpus

MESHES = [(0, 1), (4, 2), (9, 1)]  # first step, dp
BORDERS = [
    (4, {"parallel.dp": 2}),
    (6, {"plan.micro_batches": 8, "dataset.b.weight": 1}),
    (9, {"parallel.dp": 1, "plan.micro_batches": 2, "dataset.new.path": "new", "dataset.new.weight": 3}),
]


def border_world(*parts, documents=3000, **others):
    """Two datasets of two bytes a token; a third of four to append."""
    world = World()
    for seed, (name, code) in enumerate((("a", 8), ("b", 8), ("new", 4))):
        write_corpus(os.path.join(world.dir, name), synthetic_documents(seed, documents, 3000), code)
    settings = {"plan": {"window": 1024, "micro_batches": 4}, "parallel": {"dp": 1}, "daemon": {"lease": "1s"}}
    for section, values in others.items():
        settings[section] = {**settings.get(section, {}), **values}
    world.config([(n, os.path.join(world.dir, n), i + 1) for i, n in enumerate(("a", "b"))], settings)
    append(world, sections(*(parts or BORDERS)))
    return world


def wait_committed(world, step):
    world.wait_for(lambda: committed(world) == step, f"the job stands at step {step}")


def work(world, first, end, meshes=MESHES, **options):
    """Ranks of each mesh in turn take and commit the steps first..end-1; their logs."""
    logs = []
    while first < end:
        dp = [dp for step, dp in meshes if step <= first][-1]
        until = min([step for step, _ in meshes if step > first] + [end])
        wait_committed(world, first)
        ranks = [world.rank(d, steps=until - first, **options) for d in range(dp)]
        logs += [(d, rank.finish(60)) for d, rank in enumerate(ranks)]
        assert all({line["step"] for line in lines} == set(range(first, until)) for _, lines in logs[-dp:])
        first = until
    wait_committed(world, end)
    return logs


def seek(world, step):
    world.ctl("--socket", world.socket, "seek", step)
    wait_committed(world, step)


def test_seeks_over_borders_both_ways_give_the_stream():
    with border_world() as world:
        plans = planned(world, 40)
        world.start()
        logs = work(world, 0, 11)
        for step, end in ((3, 5), (8, 10), (35, 37), (5, 7), (9, 10), (4, 5), (0, 1), (20, 21)):
            seek(world, step)
            logs += work(world, step, end)
        check_batches(world, plans, logs)
        world.stop()


def test_each_step_is_planned_as_far_ahead_as_its_section_says():
    """64 slots hold 27 steps of 2 micro-batches; of 16 they hold 3, and 4 are the least."""
    parts = ((8, {"plan.micro_batches": 2}), (20, {"plan.micro_batches": 16}))
    with border_world(*parts, plan={"micro_batches": 16}, slab={"slots": 64}) as world:
        settings = world.ctl_json("--config", world.config_path, "config")["settings"]
        shown = [(int(s.get("from", 0)), s["value"]) for s in settings if s["name"] == "daemon.ahead_steps"]
        assert shown == [(0, "4"), (8, "27"), (20, "4")], shown

        def planned_end():
            return int(world.live("status")["next_step"])

        world.start()
        done = 0
        for step, end in ((0, 5), (2, 7), (3, 20), (9, 20), (22, 27)):
            work(world, done, step, [(0, 1)])
            done = step
            world.wait_for(lambda: planned_end() >= end, f"step {end - 1} is planned")
            time.sleep(0.1)
            assert planned_end() == end, (step, planned_end())
        world.stop()


def test_checkpoints_from_around_each_border_go_on_a_fresh_node():
    with border_world() as world:
        plans = planned(world, 13)
        world.start()
        blobs = {}
        for step in range(12):
            wait_committed(world, step)
            blobs[step] = os.path.join(world.dir, f"blob{step}")
            world.ctl("--socket", world.socket, "state", "export", blobs[step], "--step", step)
            work(world, step, step + 1)
        world.stop()
        for step in (3, 4, 5, 6, 9, 10, 11):
            world.state = os.path.join(world.dir, f"state{step}")
            world.start("--state-dir", world.state)
            world.ctl("--socket", world.socket, "state", "import", blobs[step])
            logs = work(world, step, step + 2)
            again = os.path.join(world.dir, "again")
            world.ctl("--socket", world.socket, "state", "export", again, "--step", step + 1)
            done = world.ctl("state", "diff", blobs[step + 1] if step < 11 else again, again, expect=None)
            assert {line.split()[0] for line in done.stdout.splitlines()} <= {"NAME", "generation"}, done.stdout
            check_batches(world, plans, logs)
            world.stop()


def test_kill_9_while_the_mesh_changes_leaves_one_of_the_two():
    seed = int(os.environ.get("BALLAST_SEED", time.time_ns() % 1000000))
    print(f"      seed {seed} (BALLAST_SEED)", flush=True)
    dice = random.Random(seed)
    steps = 60 if FULL else 16
    parts = [(step, {"parallel.dp": 1 + step % 2, "node.replicas": "0"}) for step in range(1, steps)]
    with border_world(*parts) as world:
        plans = planned(world, steps)
        logs = []
        world.start()
        for step in range(steps):
            wait_committed(world, step)
            rank = world.rank(steps=1)
            world.wait_for(lambda: len(rank.lines()) == 4 // (1 + step % 2), "all is delivered")
            time.sleep(dice.uniform(0, 0.03))
            world.kill()
            world.start()
            logs.append((0, finished(rank, True)))
        wait_committed(world, steps)
        given = check_batches(world, plans, logs)
        assert {at[0] for at in given} == set(range(steps)) and set(given.values()) == {1}
        world.stop()


def test_a_full_disk_at_a_change_of_mesh_is_waited_for():
    with border_world() as world, small_disk(world, 48):
        plans = planned(world, 12)
        world.start()
        logs = work(world, 0, 3)
        fill(world)
        last = world.rank(0, steps=1)
        world.wait_for(lambda: is_full(world), "the disk is full")
        world.wait_for(lambda: committed(world) == 4, "the last step of the mesh is committed")
        assert "durable" in world.ctl("--socket", world.socket, "seek", 8, expect=1).stderr
        code, text = world.rank(1, connect_timeout_ms=2000).wait()
        assert code != 0 and "another mesh" in text, text
        free(world)
        logs.append((0, finished(last, True)))
        fill(world)  # the next mesh opens on a full disk, and comes back on one
        ranks = [world.rank(d, steps=5) for d in range(2)]
        world.wait_for(lambda: [fill(world)] and all(rank.lines() for rank in ranks), "they are served")
        world.kill()
        fill(world)
        world.start()
        free(world)
        logs += [(d, finished(rank, True)) for d, rank in enumerate(ranks)]
        logs += work(world, 9, 11)
        check_batches(world, plans, logs)
        world.stop()


def test_a_section_for_steps_that_are_not_durable_yet_is_a_new_generation():
    if not os.path.exists(os.path.join(BIN_ASAN, "ballastd")):
        raise Skip(f"no sanitizer build in {BIN_ASAN}")
    with border_world((50, {"plan.micro_batches": 8})) as world:
        world.start(bin_dir=BIN_ASAN, environment={"BALLAST_FAILPOINTS": "group_commit=delay:100000"})
        rank = world.rank(commit_every=0, think_ms=1)
        world.wait_for(lambda: any(line["step"] >= 3 for line in rank.lines()), "steps are delivered")
        world.kill()
        with open(world.config_path) as f:
            text = f.read()
        with open(world.config_path, "w") as f:
            f.write(text.replace("[from 50]", "[from 2]"))
        world.start()
        code, said = rank.wait(60)
        assert code == 1 and "the config's section from step 2" in said, (code, said)
        check_batches(world, planned(world, 6), work(world, 0, 6, [(0, 1)]))
        world.stop()


def test_a_section_from_the_only_step_whose_state_is_stored():
    with border_world((90, {"plan.micro_batches": 8}), limits={"steps_retained": 2}) as world:
        world.start()
        seek(world, 40)
        work(world, 40, 44, [(0, 1)])  # all that was before is pruned
        seek(world, 40)
        world.kill()
        with open(world.config_path) as f:
            text = f.read()
        with open(world.config_path, "w") as f:
            f.write(text.replace("[from 90]", "[from 40]"))
        world.start()
        check_batches(world, planned(world, 44), work(world, 40, 43, [(0, 1)]))
        world.stop()


def forged(good, dice):
    """A checkpoint with one to three bytes changed, half the time of its state, and every hash made good."""
    bad = bytearray(good[:-8])
    state = bad.index(b"BLPS")
    state_end = state + struct.unpack_from("<I", bad, state - 4)[0] - 8
    first, end = (state + 4, state_end) if dice.random() < 0.5 else (12, len(bad))
    for _ in range(dice.randint(1, 3)):
        at = dice.randrange(first, end)
        bad[at] = dice.choice((0, 1, 127, 128, 255, bad[at] ^ 1 << dice.randrange(8)))
    if bad[state:state + 4] == b"BLPS":
        bad[state_end:state_end + 8] = xxhash.xxh3_64(bytes(bad[state:state_end])).digest()
    return bytes(bad) + xxhash.xxh3_64(bytes(bad)).digest()


def test_forged_checkpoints_are_refused_or_taken_whole():
    seed = int(os.environ.get("BALLAST_SEED", time.time_ns() % 1000000))
    print(f"      seed {seed} (BALLAST_SEED)", flush=True)
    dice = random.Random(seed)
    with border_world(BORDERS[1]) as world:
        plans = planned(world, 20)
        world.start(bin_dir=BIN_ASAN if os.path.exists(os.path.join(BIN_ASAN, "ballastd")) else None)
        work(world, 0, 11, [(0, 1)])
        path = os.path.join(world.dir, "blob")
        world.ctl("--socket", world.socket, "state", "export", path, "--step", 8)
        with open(path, "rb") as f:
            good = f.read()
        said = set()
        for _ in range(1000 if FULL else 100):
            with open(path, "wb") as f:
                f.write(forged(good, dice))
            done = world.ctl("--socket", world.socket, "--timeout", "2s", "state", "import", path, expect=None)
            assert world.daemon.poll() is None, world.daemon.returncode
            assert done.returncode in (0, 1, 5) and done.returncode == (0 if done.stderr == "" else done.returncode), done
            assert done.returncode != 1 or len(done.stderr) > 60, done
            said.add(done.stderr)
        print(f"      {len(said)} different answers", flush=True)
        seek(world, 8)
        check_batches(world, plans, work(world, 8, 11, [(0, 1)]))
        world.stop()


def test_sighup_with_sections_refuses_by_name_and_takes_what_it_may():
    with border_world() as world:
        plans = planned(world, 12)
        world.start()
        logs = work(world, 0, 5)
        with open(world.config_path) as f:
            text = f.read()
        for old, new, words in (("[from 9]", "[from 8]", "restart"), ("dataset.new.weight = 3", "dataset.new.weight = 2",
                                "dataset.new.weight"), ("[from 4]", "[from x]", "from x")):
            with open(world.config_path, "w") as f:
                f.write(text.replace(old, new))
            world.daemon.send_signal(signal.SIGHUP)
            world.wait_for(lambda: any(words in w for w in warnings(world)), f"it is refused: {words}")
        with open(world.config_path, "w") as f:
            f.write(text)
        ranks = [world.rank(d, steps=4) for d in range(2)]
        until = None
        while until is None or time.monotonic() < until:  # into the change of mesh
            assert world.daemon.poll() is None, world.daemon.returncode
            world.daemon.send_signal(signal.SIGHUP)
            time.sleep(0.002)
            if until is None and all(rank.process.poll() is not None for rank in ranks):
                until = time.monotonic() + 0.5
        logs += [(d, rank.finish()) for d, rank in enumerate(ranks)]
        wait_committed(world, 9)
        with open(world.config_path, "w") as f:
            f.write(text.replace("[from 9]", "[from 8]"))
        world.daemon.send_signal(signal.SIGHUP)
        world.wait_for(lambda: warnings(world) != [], "it is refused")
        seek(world, 5)  # to another mesh, where it is still so
        assert any("restart" in w for w in warnings(world))
        seek(world, 9)
        logs += work(world, 9, 11)
        check_batches(world, plans, logs)
        world.stop()


def test_the_end_of_the_data_within_sections_and_at_their_border():
    with border_world((3, {"plan.micro_batches": 6}), documents=150, corpus={"epochs": 1}) as world:
        end = len(world.plans())
    parts = [(step, {"plan.micro_batches": 2 + 2 * (step % 3)}) for step in range(end - 6, end + 3)]
    for extra in ([], [(end - 1, {"parallel.dp": 2, "plan.micro_batches": 4})], "last"):
        with border_world((3, {"plan.micro_batches": 6}), *([] if extra == "last" else parts if not extra else
                          parts[:5] + extra), documents=150, corpus={"epochs": 1}) as world:
            plans = world.plans()
            last = len(plans)
            if extra == "last":
                append(world, sections((last, {"parallel.dp": 2})))
                assert [p["digest"] for p in world.plans()] == [p["digest"] for p in plans]
            plans = {p["step"]: p for p in plans}
            meshes = [(0, 1)] + ([] if not extra else [(last, 2)] if extra == "last" else [(end - 1, 2)])
            print(f"      {last} steps, meshes {meshes}", flush=True)
            world.start()
            given = check_batches(world, plans, work(world, 0, last, meshes))
            assert set(given) == {(s, m["dp"], m["index"]) for s, p in plans.items() for m in p["micro_batches"]}
            parts_given = [(d["dataset"], d["epoch"], d["document"], d["offset"], d["length"]) for p in plans.values()
                           for m in p["micro_batches"] for d in m["documents"]]
            assert len(set(parts_given)) == len(parts_given)
            for d in range(meshes[-1][1]):
                assert world.rank(d).finish(30) == []
            world.wait_for(lambda: world.live("status")["state"] == "finished", "it says so", 10)
            world.stop()


def test_a_node_with_another_section_file_has_other_digests_from_that_step_on():
    with border_world() as one, border_world(BORDERS[0], (7, BORDERS[1][1]), BORDERS[2]) as other:
        for world in (one, other):
            world.start()
        logs = [work(world, 0, 11) for world in (one, other)]
        digest = [{line["step"]: line["plan_digest"] for _, lines in log for line in lines} for log in logs]
        assert [s for s in range(11) if digest[0][s] != digest[1][s]][0] == 6
        blob = os.path.join(one.dir, "blob")
        one.ctl("--socket", one.socket, "state", "export", blob, "--step", 9)
        told = other.ctl("--socket", other.socket, "state", "import", blob, expect=1).stderr
        assert "'[from 6]'" in told and "'[from 7]'" in told, told
        one.ctl("--socket", one.socket, "state", "export", blob, "--step", 6)
        other.ctl("--socket", other.socket, "state", "import", blob)
        check_batches(other, planned(other, 12), work(other, 6, 8))
        for world in (one, other):
            world.stop()


def test_a_node_joins_at_a_border_and_another_leaves_there():
    leaving = [(4, {"parallel.dp": 1, "plan.micro_batches": 2, "node.replicas": "0"})]
    joining = [(4, {"parallel.dp": 2, "node.replicas": "1"})]
    with border_world(*leaving, parallel={"dp": 2}, node={"replicas": 1}) as world:
        plans = planned(world, 6)
        world.start()
        check_batches(world, plans, [(1, world.rank(1, steps=4).finish())])
        wait_committed(world, 4)
        world.stop()
    with border_world((4, {"parallel.dp": 2})) as old, border_world(*joining, node={"replicas": 0}) as new:
        blob = os.path.join(old.dir, "blob")
        old.start()
        logs = work(old, 0, 4)
        old.ctl("--socket", old.socket, "state", "export", blob, "--step", 4)
        new.start()
        new.ctl("--socket", new.socket, "state", "import", blob)
        wait_committed(new, 4)
        ranks = [old.rank(0, steps=2), new.rank(1, steps=2)]
        logs += [(d, rank.finish()) for d, rank in enumerate(ranks)]
        given = check_batches(new, planned(new, 6), logs)
        assert len(given) == 6 * 4 and set(given.values()) == {1}
        old.stop()
        new.stop()


class Walk:
    """A job of one local rank that is moved, killed and given other sections at random; what it is given is
    compared with what the planner computes alone by the sections of that moment."""

    END = 70

    def __init__(self, world, dice):
        self.world, self.dice, self.sections, self.batches = world, dice, [], 0
        with open(world.config_path) as f:
            self.base = f.read().split("[from")[0]
        self.write()

    def write(self):
        with open(self.world.config_path, "w") as f:
            f.write(self.base + sections(*self.sections))
        self.plans = planned(self.world, self.END + 12)

    def mesh(self, step):
        return [(1, 0)] + [(s["parallel.dp"], s["node.replicas"]) for first, s in self.sections if first <= step]

    def restart(self):
        self.world.kill() if self.dice.random() < 0.5 else self.world.stop()
        self.world.start()

    def run(self, at):
        until = min([s for s, _ in self.sections if s > at] + [at + self.dice.randint(1, 6)])
        dp = self.mesh(at)[-1][1]
        rank = self.world.rank(dp, steps=until - at)
        if self.dice.random() < 0.4:
            time.sleep(self.dice.uniform(0, 0.08))
            self.restart()
        self.batches += len(check_batches(self.world, self.plans, [(dp, finished(rank, True))]))
        wait_committed(self.world, until)

    def go_elsewhere(self, at):
        step = self.dice.randrange(self.END)
        if step != at:
            seek(self.world, step)

    def export_and_lose_the_node(self, at):
        blob = os.path.join(self.world.dir, "blob")
        self.world.ctl("--socket", self.world.socket, "state", "export", blob, "--step", at)
        self.world.kill()
        shutil.rmtree(self.world.state)
        self.world.start()
        wait_committed(self.world, 0)
        self.world.ctl("--socket", self.world.socket, "state", "import", blob, expect=None if at == 0 else 0)
        wait_committed(self.world, at)

    def section(self, at):
        """Takes what lies ahead away, and mostly puts something else there."""
        step = max(1, at + self.dice.randint(0, 10))
        dp = self.dice.randint(1, 3)
        self.sections = [section for section in self.sections if section[0] < step]
        if self.dice.random() < 0.7:
            self.sections.append((step, {"parallel.dp": dp, "node.replicas": self.dice.randrange(dp),
                                         "plan.micro_batches": 6 * self.dice.randint(1, 3),
                                         "dataset.a.weight": self.dice.randint(1, 4),
                                         "plan.tokens_max": self.dice.choice(("1.25w", "1.5w", "2w"))}))
            if not any("dataset.new.path" in section for _, section in self.sections):
                self.sections[-1][1]["dataset.new.path"] = "new"
        before = self.plans
        self.write()
        assert all(self.plans[s]["digest"] == before[s]["digest"] for s in range(step)), "the past has changed"
        self.restart()
        wait_committed(self.world, at)

    def step(self):
        at = committed(self.world)
        while at is None:  # the mesh is changing
            at = committed(self.world)
        ways = [self.run, self.run, self.go_elsewhere, self.export_and_lose_the_node, self.section, self.section]
        self.dice.choice(ways if at < self.END else [self.go_elsewhere])(at)


def test_a_job_that_is_moved_killed_resized_and_restored_at_random():
    seed = int(os.environ.get("BALLAST_SEED", time.time_ns() % 1000000))
    print(f"      seed {seed} (BALLAST_SEED)", flush=True)
    dice = random.Random(seed)
    plan = {"policy": dice.choice(("wlb:level", "wlb:bands", "plain", "wlb:none")), "micro_batches": 6}
    with border_world(plan=plan, node={"replicas": 0}, limits={"steps_retained": 12}) as world:
        walk = Walk(world, dice)
        world.start()
        for _ in range(1000 if FULL else 25):
            walk.step()
        print(f"      {walk.batches} batches, {plan['policy']}", flush=True)
        world.stop()


if __name__ == "__main__":
    main(globals())
