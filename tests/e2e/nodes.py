#!/usr/bin/python3
"""Several nodes: daemons with one config and a state each, serving their own replicas, never talking; and
checkpoints that carry a job from one to another. As root each daemon is in a network of its own."""

import json
import os
import shutil
import struct
import subprocess

import xxhash

from world import BIN, World, digests, in_order, main, synthetic_documents, write_corpus

NODES = 4
MICRO_BATCHES = 8
NETWORK = ["unshare", "--net"] if os.geteuid() == 0 and shutil.which("unshare") else []


class Node(World):
    """One daemon of the job; `corpus` is where this node has its copy."""

    def __init__(self, number, corpus, **sections):
        super().__init__()
        self.number = number
        sections = {k: dict(v) for k, v in sections.items()}
        self.config([(name, os.path.join(corpus, name), weight) for name, weight in (("a", 2), ("b", 1))], {
            "job": {"seed": 5},
            "plan": {"window": 2048, "micro_batches": MICRO_BATCHES, **sections.pop("plan", {})},
            "parallel": {"dp": NODES},
            "node": {"replicas": number},
            **sections,
        })

    def begin(self):
        if not NETWORK:
            return self.start()
        done = subprocess.run([*NETWORK, "true"], capture_output=True)
        if done.returncode != 0:
            NETWORK.clear()
            return self.start()
        wrapper = os.path.join(self.dir, "ballastd")
        with open(wrapper, "w") as f:
            f.write(f"#!/bin/sh\nexec {' '.join(NETWORK)} {os.path.join(BIN, 'ballastd')} \"$@\"\n")
        os.chmod(wrapper, 0o755)
        return self.start(bin_dir=self.dir)

    def run(self, steps, **options):
        return self.rank(self.number, steps=steps, **options).finish(60)


def corpus_in(folder):
    for seed, name in ((1, "a"), (2, "b")):
        write_corpus(os.path.join(folder, name), synthetic_documents(seed, 400, 6000))
    return folder


def test_nodes_that_never_talk_plan_the_same_and_a_lost_one_is_replaced_from_a_blob():
    with World() as home:
        corpus = corpus_in(home.dir)
        elsewhere = os.path.join(home.dir, "elsewhere")
        os.mkdir(elsewhere)
        corpus_in(elsewhere)
        nodes = [Node(n, corpus) for n in range(NODES)]
        try:
            for node in nodes:
                node.begin()
            state = os.path.join(home.dir, "checkpoint")
            logs = [node.run(20, export=state) for node in nodes]
            more = [node.run(10) for node in nodes]
            for lines in logs + more:
                in_order(lines, MICRO_BATCHES // NODES)
            known = digests(logs[0] + more[0])
            assert len(known) == 30
            assert all(digests(a + b) == known for a, b in zip(logs, more))
            # Node 2 burns down; another takes its place, with its corpus in another place.
            nodes[2].kill()
            nodes[2].__exit__(None, None, None)
            nodes[2] = Node(2, elsewhere)
            nodes[2].begin()
            again = [nodes[2].run(15, **{"import": state})]
            again += [nodes[n].run(15, seek=20) for n in (0, 1, 3)]
            expected = {s: d for s, d in digests(again[1]).items()}
            assert all(digests(lines) == expected for lines in again) and sorted(expected) == list(range(20, 35))
            assert all(known.get(s, d) == d for s, d in expected.items())
            assert {node.live("status")["generation"] for node in nodes} == {1}
            bytes_before = {(l["step"], l["index"]): l["tokens_xxh"] for l in more[2]}
            for line in again[0]:
                assert bytes_before.get((line["step"], line["index"]), line["tokens_xxh"]) == line["tokens_xxh"]
            # Killed right after, it still stands there.
            nodes[2].kill()
            nodes[2].begin()
            assert nodes[2].live("status")["committed_step"] == 35
        finally:
            for node in nodes:
                node.__exit__(None, None, None)


def test_ranks_of_all_nodes_agree_before_each_step_and_a_node_of_another_history_is_named():
    with World() as home:
        corpus = corpus_in(home.dir)
        shared = os.path.join(home.dir, "agree")
        os.mkdir(shared)
        nodes = [Node(n, corpus) for n in range(NODES)]
        try:
            for node in nodes:
                with open(node.config_path, "a") as f:
                    f.write(f"[from 6]\nplan.micro_batches = {8 if node.number == 2 else 12}\n")
                node.begin()
            ranks = [node.rank(node.number, steps=20, agree=shared) for node in nodes]
            for rank in ranks:
                code, text = rank.wait(60)
                assert code == 1 and "rank 2 of 4 differs from the majority: rank 2 has generation 0, step 6" in text, text
            logs = [rank.lines() for rank in ranks]
            assert all(digests(lines) == digests(logs[0]) for lines in logs) and sorted(digests(logs[0])) == list(range(6))
            assert len(os.listdir(shared)) == NODES
        finally:
            for node in nodes:
                node.__exit__(None, None, None)


def test_nodes_in_different_generations_are_brought_together_by_number():
    with World() as home:
        corpus = corpus_in(home.dir)
        with Node(0, corpus) as a, Node(1, corpus) as b:
            a.begin()
            b.begin()
            a.run(5)
            a.run(1, seek=2)
            a.run(1, seek=1)
            a.run(3, seek=3, generation=7)
            b.run(3, seek=3, generation=7)
            assert [n.live("status")["generation"] for n in (a, b)] == [7, 7]


def test_a_blob_of_another_corpus_job_or_version_is_refused_by_name_and_changes_nothing():
    with World() as home:
        corpus = corpus_in(home.dir)
        other = os.path.join(home.dir, "other")
        os.mkdir(other)
        corpus_in(other)
        write_corpus(os.path.join(other, "b"), synthetic_documents(9, 400, 6000))
        state = os.path.join(home.dir, "s")
        with Node(0, corpus) as node:
            node.begin()
            node.run(12, export=state)
            blob = open(state, "rb").read()

            def refused(world, content, *words):
                path = os.path.join(home.dir, "t")
                with open(path, "wb") as f:
                    f.write(content)
                before = world.live("status")
                done = world.ctl("--socket", world.socket, "state", "import", path, expect=1)
                assert all(word in done.stderr for word in words), done.stderr
                after = world.live("status")
                assert (before["generation"], before["committed_step"]) == (after["generation"], after["committed_step"])

            refused(node, blob[:-1], "checkpoint")
            refused(node, blob[:200] + bytes([blob[200] ^ 1]) + blob[201:], "hash")
            refused(node, blob[:4] + struct.pack("<I", 2) + blob[8:], "format 2")
            newer = bytearray(blob[:-8] + struct.pack("<HHI", 99, 1, 1) + b"x")
            newer[8:12] = struct.pack("<I", len(newer) + 8)
            refused(node, bytes(newer) + xxhash.xxh3_64(bytes(newer)).digest(), "field 99")
        with Node(0, other) as node:
            node.begin()
            refused(node, blob, "'b'", "fingerprint")
        with Node(0, corpus, plan={"tokens_max": 2200}) as node:
            node.begin()
            refused(node, blob, "tokens_max")


def test_the_command_line_exports_shows_compares_imports_and_seeks():
    with World() as home:
        corpus = corpus_in(home.dir)
        bands = {"policy": "wlb:bands"}
        with Node(0, corpus, plan=bands) as node, Node(1, corpus, plan=bands) as other:
            node.begin()
            other.begin()
            node.run(20)
            at = ["--socket", node.socket]
            first, second = (os.path.join(home.dir, name) for name in ("first", "second"))
            node.ctl(*at, "state", "export", first, "--step", 10)
            node.ctl(*at, "state", "export", second, "--step", 12)
            shown = json.loads(node.ctl("--json", "state", "show", first).stdout)
            assert shown["step"] == 10 and shown["plan_digest"] == node.plan(10)["digest"], shown
            assert [d["name"] for d in shown["datasets"]] == ["a", "b"]
            assert shown["bytes"] < 65536 and "plan.window = 2048" in shown["settings"]
            assert "step     10" in node.ctl("state", "show", first).stdout
            assert node.ctl("state", "diff", first, first).stdout == ""
            told = node.ctl("state", "diff", first, second, expect=1)
            assert "step" in told.stdout and "waiting[" in told.stdout, told.stdout
            differing = json.loads(node.ctl("--json", "state", "diff", first, second, expect=1).stdout)
            assert {"step", "arrived of a"} <= {d["what"] for d in differing["differences"]}
            done = json.loads(node.ctl("--json", "--socket", other.socket, "state", "import", first).stdout)
            assert (done["next_step"], done["generation"]) == (10, 1)
            assert done["plan_digest"] == shown["plan_digest"]
            # state(load(state)) is the state.
            third = os.path.join(home.dir, "third")
            other.ctl("--socket", other.socket, "state", "export", third, "--step", 10)
            assert {d["what"] for d in json.loads(node.ctl("--json", "state", "diff", first, third, expect=1).stdout)
                    ["differences"]} == {"generation"}
            lines = other.run(3)
            assert sorted(digests(lines)) == [10, 11, 12]
            done = json.loads(node.ctl("--json", *at, "seek", 4).stdout)
            assert (done["next_step"], done["plan_digest"]) == (4, node.plan(4)["digest"]), done
            assert "an administrator" in node.live("status")["generation_by"]
            assert sorted(digests(node.run(2))) == [4, 5]
            node.ctl(*at, "state", "export", first, "--step", 4000, expect=1)
            # What a running daemon exports and what is read from its store when it is stopped are one.
            node.ctl(*at, "state", "export", first)
            store = ["--state", node.state, "--config", node.config_path]
            refused = node.ctl(*store, "state", "export", second, expect=1)
            assert "a daemon is running" in refused.stderr, refused.stderr
            node.stop()
            node.ctl(*store, "state", "export", second)
            assert node.ctl("state", "diff", first, second).stdout == ""
            node.ctl("state", "show", os.path.join(home.dir, "nothing"), expect=4)
            node.ctl("state", "burn", first, expect=2)


if __name__ == "__main__":
    main(globals())
