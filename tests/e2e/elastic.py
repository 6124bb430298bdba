#!/usr/bin/python3
"""A job whose config changes on the way: its mesh, micro-batches, weights and corpus. The stream is
the one that the planner computes alone, over kills and on every node."""

import collections
import json
import os
import random
import subprocess

from state import query
from world import BIN, ROOT, Oracle, World, digests, main, plan_digest, synthetic_documents, write_corpus

MESHES = [(0, 8), (6, 4), (12, 6), (18, 8)]  # first step, dp; N = 24
STEPS = 26
PROFILE = os.path.join(ROOT, "deploy/profiles/e9e8c858cb3b322d.json")  # the analytic model


def sections(*parts):
    return "".join(f"[from {step}]\n" + "".join(f"{k} = {v}\n" for k, v in lines.items())
                   for step, lines in parts)


def elastic_world(text="", policy="wlb:level", documents=6000, datasets=("a", "b"), **plan):
    world = World()
    for seed, name in enumerate(("a", "b", "new")):
        write_corpus(os.path.join(world.dir, name), synthetic_documents(seed, documents, 4000))
    world.config([(n, os.path.join(world.dir, n), i + 1) for i, n in enumerate(datasets)],
                 {"plan": {"policy": policy, "window": 2048, "micro_batches": 24, **plan},
                  "parallel": {"dp": 8, "cp": 1}, "daemon": {"lease": "2s"}})
    append(world, text)
    return world


def append(world, text):
    with open(world.config_path, "a") as f:
        f.write(text)


def resized():
    return sections(*((step, {"parallel.dp": dp}) for step, dp in MESHES[1:]))


def check_batches(world, plans, logs):
    """Every batch that a rank was given is the plan's, byte for byte; {(step, dp, index)} of all."""
    oracle = Oracle([os.path.join(world.dir, n) for n in ("a", "b", "new")])
    given = collections.Counter()
    for dp, lines in logs:
        for line in lines:
            plan = plans[line["step"]]
            mb = next(m for m in plan["micro_batches"] if (m["dp"], m["index"]) == (dp, line["index"]))
            assert line["plan_digest"] == plan["digest"]
            assert line["tokens_xxh"] == oracle.hash(mb, 0), (line["step"], dp, line["index"])
            given[line["step"], dp, line["index"]] += 1
    return given


def planned(world, steps):
    done = world.ctl_json("--config", world.config_path, "plan", "--fragments", "--steps", f"0..{steps - 1}")
    plans = {p["step"]: p for p in done["steps"]}
    assert all(p["digest"] == plan_digest(p) for p in plans.values())
    return plans


def committed(world):
    """Also while the daemon goes on with another mesh, when it does not answer."""
    done = world.ctl("--json", "--socket", world.socket, "status", expect=None)
    return json.loads(done.stdout)["committed_step"] if done.returncode == 0 else None


def finished(rank, killed):
    """A rank whose last commit was durable and not answered finds the next mesh when it asks again."""
    code, text = rank.wait(120)
    assert code == 0 or (killed and ("mesh is not the one" in text or "outside the mesh" in text)), text
    return rank.lines()


def run_phases(world, kills):
    """Ranks of each mesh in turn, while the daemon is killed now and then; their logs."""
    logs = []
    dice = random.Random(7)
    world.start()
    for (first, dp), (last, _) in zip(MESHES, MESHES[1:] + [(STEPS, 0)]):
        ranks = [world.rank(d, steps=last - first, commit_every=1) for d in range(dp)]
        for _ in range(kills):
            until = first + dice.randrange(last - first)
            world.wait_for(lambda: any(line["step"] >= until for r in ranks for line in r.lines()[-1:]),
                           f"step {until}")
            world.kill()
            world.start()
        logs += [(d, finished(rank, kills > 0)) for d, rank in enumerate(ranks)]
        world.wait_for(lambda: committed(world) == last, f"all have committed step {last - 1}")
        assert {line["step"] for _, lines in logs[-dp:] for line in lines} == set(range(first, last))
    return logs


def resize(kills, policy):
    with elastic_world(resized(), policy) as world:
        plans = planned(world, STEPS)
        for step, plan in plans.items():
            dp = [d for first, d in MESHES if first <= step][-1]
            assert len(plan["micro_batches"]) == 24
            assert {m["dp"] for m in plan["micro_batches"]} == set(range(dp))
        given = check_batches(world, plans, run_phases(world, kills))
        assert set(given) == {(s, m["dp"], m["index"]) for s, p in plans.items() for m in p["micro_batches"]}
        if kills == 0:
            assert set(given.values()) == {1}
        world.stop()


def test_dp_8_to_4_to_6_to_8_with_24_micro_batches_is_one_stream():
    resize(0, "wlb:level")


def test_so_it_is_when_the_daemon_is_killed_meanwhile():
    resize(2, "wlb:level")


def test_and_with_banded_queues():
    resize(1, "wlb:bands")


def test_a_mesh_that_ends_says_so_and_the_next_one_is_served():
    with elastic_world(sections((3, {"parallel.dp": 2}))) as world:
        world.start()
        ranks = [world.rank(d, commit_every=1) for d in range(8)]
        for rank in ranks:
            code, text = rank.wait(60)
            assert code == 1 and "from step 3 on the mesh is another" in text, text
            assert [line["step"] for line in rank.lines()] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
        world.wait_for(lambda: "going on with another mesh" in open(world.daemon_log).read(), "the next mesh")
        code, text = world.rank(2, steps=1).wait(60)
        assert code != 0 and "dp 2" in text, text
        for rank in [world.rank(d, steps=2, commit_every=1) for d in range(2)]:
            assert [line["step"] for line in rank.finish()] == [3] * 12 + [4] * 12
        world.stop()


def test_other_micro_batches_need_no_new_connection():
    text = sections((2, {"plan.micro_batches": 8}), (4, {"plan.micro_batches": 40, "plan.tokens_max": "2w"}),
                    (6, {"plan.micro_batches": 16}))
    with elastic_world(text) as world:
        plans = planned(world, 8)
        world.start()
        ranks = [world.rank(d, steps=8, commit_every=1, measured=True) for d in range(8)]
        given = check_batches(world, plans, [(d, rank.finish()) for d, rank in enumerate(ranks)])
        assert set(given.values()) == {1}
        counts = collections.Counter(step for step, _, _ in given)
        assert [counts[s] for s in range(8)] == [24, 24, 8, 8, 40, 40, 16, 16]
        world.stop()


def test_a_section_that_is_added_later_changes_what_is_not_committed():
    with elastic_world() as world:
        before = planned(world, 8)
        world.start()
        for rank in [world.rank(d, steps=3, commit_every=1) for d in range(8)]:
            rank.finish()
        world.wait_for(lambda: committed(world) == 3, "step 3")
        world.stop()
        append(world, sections((4, {"dataset.new.path": "new", "dataset.new.weight": 3,
                                    "dataset.a.weight": 2})))
        plans = planned(world, 12)
        assert all(plans[s]["digest"] == before[s]["digest"] for s in range(4))
        assert plans[7]["digest"] != before[7]["digest"]
        world.start()
        assert world.live("status")["generation"] == 1
        settings = [s for s in world.live("config")["settings"] if s["from"] == 4]
        assert [(s["name"], s["value"]) for s in settings][:1] == [("dataset.a.weight", "2")]
        ranks = [world.rank(d, steps=9, commit_every=1) for d in range(8)]
        given = check_batches(world, plans, [(d, rank.finish()) for d, rank in enumerate(ranks)])
        assert {step for step, _, _ in given} == set(range(3, 12))
        datasets = {d["dataset"] for p in plans.values() for m in p["micro_batches"] for d in m["documents"]}
        assert datasets == {0, 1, 2}
        world.stop()
        named = {name for name, in query(world, "SELECT dataset FROM dataset_delays UNION "
                                         "SELECT dataset FROM waiting_documents")}
        assert named == {"a", "b", "new"}, named
        world.start()  # the same config again: nothing is planned anew
        assert world.live("status")["generation"] == 1
        world.stop()


def test_ranks_that_were_given_what_is_planned_anew_are_told():
    with elastic_world() as world:
        world.start()
        ranks = [world.rank(d, think_ms=150) for d in range(8)]
        world.wait_for(lambda: world.live("status")["next_step"] >= 4 and all(rank.lines() for rank in ranks),
                       "step 3 is planned and all are served")
        world.stop()
        append(world, sections((2, {"plan.micro_batches": 16})))
        world.start()
        for rank in ranks:
            code, text = rank.wait(60)
            assert code == 1 and "generation" in text and "the config's section from step 2" in text, text
        plans = planned(world, 4)
        logs = [(d, rank.finish()) for d, rank in enumerate([world.rank(d, steps=4, commit_every=1) for d in range(8)])]
        assert {step for step, _, _ in check_batches(world, plans, logs)} == {0, 1, 2, 3}
        world.stop()


def test_seeking_a_step_of_another_mesh_goes_back_to_that_mesh():
    with elastic_world(sections((3, {"parallel.dp": 2}))) as world:
        plans = planned(world, 6)
        world.start()
        logs = [(d, rank.finish()) for d, rank in enumerate(
            [world.rank(d, steps=3, commit_every=1) for d in range(8)])]
        world.wait_for(lambda: committed(world) == 3, "step 3")
        logs += [(d, rank.finish()) for d, rank in enumerate(
            [world.rank(d, steps=2, commit_every=1) for d in range(2)])]
        world.wait_for(lambda: committed(world) == 5, "step 5")
        world.ctl("--socket", world.socket, "seek", "1")
        world.wait_for(lambda: committed(world) == 1, "step 1")
        again = [(d, rank.finish()) for d, rank in enumerate(
            [world.rank(d, steps=2, commit_every=1) for d in range(8)])]
        assert {line["step"] for _, lines in again for line in lines} == {1, 2}
        check_batches(world, plans, logs + again)
        world.wait_for(lambda: committed(world) == 3, "step 3")
        world.ctl("--socket", world.socket, "seek", "4")
        world.wait_for(lambda: committed(world) == 4, "step 4")
        assert {line["step"] for line in world.rank(1, steps=1).finish()} == {4}
        assert world.live("status")["generation"] == 2
        world.stop()


def test_a_checkpoint_goes_on_a_fresh_node_under_the_mesh_of_its_step():
    with elastic_world(sections((2, {"parallel.dp": 2}), (4, {"dataset.new.path": "new"}))) as world:
        plans = planned(world, 8)
        world.start()
        for rank in [world.rank(d, steps=2, commit_every=1) for d in range(8)]:
            rank.finish()
        world.wait_for(lambda: committed(world) == 2, "step 2")
        for rank in [world.rank(d, steps=3, commit_every=1) for d in range(2)]:
            rank.finish()
        world.wait_for(lambda: committed(world) == 5, "step 5")
        blob = os.path.join(world.dir, "blob")
        world.ctl("--socket", world.socket, "state", "export", blob)
        world.stop()
        os.rename(world.state, world.state + ".lost")
        world.start()
        assert committed(world) == 0
        world.ctl("--socket", world.socket, "state", "import", blob)
        world.wait_for(lambda: committed(world) == 5, "step 5")
        logs = [(d, rank.finish()) for d, rank in enumerate(
            [world.rank(d, steps=3, commit_every=1) for d in range(2)])]
        assert {step for step, _, _ in check_batches(world, plans, logs)} == {5, 6, 7}
        world.stop()


def profile_hash():
    shown = subprocess.run([os.path.join(BIN, "ballastctl"), "profile", "show", "--json", PROFILE],
                           check=True, capture_output=True)
    return json.loads(shown.stdout)["hash"]


def refused(world, sentence):
    world.start(ready=False)
    assert world.daemon.wait(60) == 78
    with open(world.daemon_log) as f:
        last = f.read().splitlines()[-1]
    assert sentence in last, last


def test_a_past_that_changes_is_refused_by_name():
    with elastic_world(sections((2, {"parallel.pp": 2, "plan.tokens_max": "1.5w"}))) as world:
        with open(world.config_path) as f:
            text = f.read()
        world.start()
        for rank in [world.rank(d, steps=2, commit_every=1) for d in range(8)]:
            rank.finish()
        world.wait_for(lambda: "going on with another mesh" in open(world.daemon_log).read(), "the next mesh")
        for rank in [world.rank(d, pp=p, steps=2, commit_every=1) for d in range(8) for p in range(2)]:
            rank.finish()
        world.wait_for(lambda: committed(world) == 4, "step 4")
        world.stop()
        for old, new, sentence in (
                ("[from 2]", "[from 1]", "it has '[from 2]', this config has '[from 1]'"),
                ("1.5w", "2w", "[from 2] plan.tokens_max = 3072', this config has '[from 2] plan.tokens_max = 4096'"),
                ("parallel.pp = 2\n", "", "it has '[from 2] parallel.pp = 2'"),
                ("[from 2]", "[from 1]\nparallel.pp = 4\n[from 2]", "from step 1 on its history differs"),
                ("", "[from 3]\nplan.micro_batches = 48\n",
                 "has committed the steps before 4, and from step 3 on its history differs"),
                ("window = 2048", "window = 1024", "holds another job: it has 'plan.window = 2048'"),
                ("[plan]\n", f"[model]\nprofile = {PROFILE}\n[plan]\n",
                 f"it has 'model.profile = analytic', this config has 'model.profile = {profile_hash()}'")):
            with open(world.config_path, "w") as f:
                f.write(text.replace(old, new) if old else text + new)
            refused(world, sentence)
        with open(world.config_path, "w") as f:
            f.write(text + f"[from 4]\nplan.micro_batches = 48\nmodel.profile = {PROFILE}\n")
        world.start()
        world.stop()


def test_nodes_that_never_talk_plan_the_same_over_all_sections():
    text = resized() + sections((20, {"dataset.new.path": "new", "dataset.b.weight": 5}))
    with elastic_world(text) as world:
        seen = {}
        plans = planned(world, STEPS)
        for node in range(2):
            state = os.path.join(world.dir, f"state{node}")
            with open(world.config_path) as f:
                config = f.read()
            local = config.replace("[parallel]", f"[node]\nreplicas = {node}\n[parallel]")
            local = local.replace(world.state, state)
            with open(world.config_path, "w") as f:
                f.write(local)
            world.start()
            for (first, _), (last, _) in zip(MESHES, MESHES[1:] + [(STEPS, 0)]):
                world.wait_for(lambda: committed(world) == first, f"all have committed step {first - 1}")
                lines = world.rank(node, steps=last - first, commit_every=1).finish()
                for step, digest in digests(lines).items():
                    assert digest == plans[step]["digest"]
                    seen.setdefault(step, []).append(digest)
            world.stop()
            with open(world.config_path, "w") as f:
                f.write(config)
        assert sorted(seen) == list(range(STEPS)) and all(len(d) == 2 for d in seen.values())


if __name__ == "__main__":
    main(globals())
