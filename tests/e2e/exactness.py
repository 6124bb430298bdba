#!/usr/bin/python3
"""Every part exactly once, every row of every rank equal to an independent computation."""

import collections
import os
import re

import numpy

from world import (Oracle, World, main, plan_digest, shared_corpus, synthetic_documents,
                   write_corpus)


def check_run(world, datasets, mesh, epochs, dump_steps=()):
    """Runs all ranks of the mesh to the end of data and checks every batch against the oracle."""
    dp_size, cp_size = mesh
    oracle = Oracle([prefix for _, prefix, _ in datasets])
    world.start()
    dump = os.path.join(world.dir, "dump")
    os.mkdir(dump)
    options = {"dump": dump} if dump_steps else {}
    ranks = {(d, c): world.rank(d, cp=c, **options) for d in range(dp_size) for c in range(cp_size)}
    logs = {place: rank.finish(300) for place, rank in ranks.items()}
    world.stop()

    covered = collections.defaultdict(list)
    batches = 0
    for plan in world.plans():
        assert plan["digest"] == plan_digest(plan), plan["step"]
        per_replica = len(plan["micro_batches"]) // dp_size
        for mb in plan["micro_batches"]:
            for d in mb["documents"]:
                covered[d["dataset"], d["epoch"], d["document"]].append((d["offset"], d["length"]))
            for cp in range(cp_size):
                line = logs[mb["dp"], cp][plan["step"] * per_replica + mb["index"]]
                assert (line["step"], line["index"]) == (plan["step"], mb["index"])
                assert line["plan_digest"] == plan["digest"]
                tokens, labels, positions = oracle.columns(mb, cp)
                assert line["tokens_xxh"] == oracle.hash(mb, cp), (plan["step"], mb["index"], cp)
                assert line["rows"] == len(tokens)
                batches += 1
                if plan["step"] in dump_steps:
                    name = os.path.join(dump, f"{plan['step']}.{mb['dp']}.0.{cp}.0.{mb['index']}.")
                    for column, kind in ((tokens, "tokens"), (labels, "labels"), (positions, "positions")):
                        got = numpy.fromfile(name + kind, "<i4")
                        assert numpy.array_equal(got, column), (name + kind)
    assert batches == sum(len(lines) for lines in logs.values()), "a rank got batches no plan has"
    for i, corpus in enumerate(oracle.corpora):
        for epoch in range(epochs):
            for document, length in enumerate(corpus.lengths):
                parts = sorted(covered.pop((i, epoch, document), []))
                end = 0
                for offset, part in parts:
                    assert offset == end, f"dataset {i} epoch {epoch} document {document} at {end}"
                    end = offset + part
                assert end == length, f"dataset {i} epoch {epoch} document {document} ends at {end}"
    assert not covered, "parts of documents that do not exist"


def corpus_run(datasets, cp, layouts, dump_steps=(), **plan):
    with World() as world:
        world.config(datasets, {
            "corpus": {"epochs": 3},
            "plan": {"policy": "wlb:level", **plan},
            "parallel": {"dp": 2 if cp < 8 else 1, "cp": cp},
            "sharding": {"layouts": layouts},
            "model": {"cost": "L2/24576"},
        })
        check_run(world, datasets, (2 if cp < 8 else 1, cp), 3, dump_steps)


def test_three_epochs_of_the_real_corpora_with_the_chosen_layout():
    datasets = shared_corpus()
    for cp in (1, 2, 3, 4, 8):
        corpus_run(datasets, cp, "per-sequence,per-document,variable-degree,hybrid", window=131072, micro_batches=8)


def test_three_epochs_of_the_real_corpora_with_each_layout_forced():
    datasets = shared_corpus()
    for cp, each in ((2, ("per-sequence", "variable-degree")), (3, ("per-document", "hybrid")),
                     (4, ("per-sequence", "hybrid")), (8, ("per-document", "variable-degree"))):
        for layouts in each:
            corpus_run(datasets, cp, layouts, window=65536, micro_batches=8)


def test_three_epochs_of_the_real_corpora_in_banded_queues():
    corpus_run(shared_corpus(), 2, "per-sequence,per-document", window=131072, micro_batches=8, policy="wlb:bands")


def synthetic(folder):
    write_corpus(os.path.join(folder, "a"), synthetic_documents(1, 700, 3000))
    write_corpus(os.path.join(folder, "b"), synthetic_documents(2, 300, 9000, 200000), code=4)
    write_corpus(os.path.join(folder, "c"), synthetic_documents(3, 90, 15, 250), code=1)
    return [("a", os.path.join(folder, "a"), 2), ("b", os.path.join(folder, "b"), 1),
            ("c", os.path.join(folder, "c"), "0.25")]


def test_tiny_documents_every_width_and_column_at_every_context_parallel_size():
    for cp, each in ((1, ("per-sequence", "hybrid", None)), (2, ("per-document", "variable-degree", "ulysses")),
                     (3, ("variable-degree", "hybrid", None)), (4, ("per-sequence", "ulysses", None)),
                     (8, ("per-document", "variable-degree", "hybrid"))):
        for layouts in each:
            with World() as world:
                datasets = synthetic(world.dir)
                world.config(datasets, {
                    "corpus": {"epochs": 2},
                    "plan": {"window": 4080, "micro_batches": 4,
                             "policy": "wlb:bands" if cp == 3 else "wlb:level"},
                    "parallel": {"dp": 2, "cp": cp},
                    "sharding": {"layouts": layouts} if layouts else {},
                })
                check_run(world, datasets, (2, cp), 2, dump_steps=range(0, 1000, 9))


def test_plain_packing_delivers_the_same_documents():
    with World() as world:
        datasets = synthetic(world.dir)
        world.config(datasets, {
            "corpus": {"epochs": 1},
            "plan": {"window": 4080, "micro_batches": 4, "policy": "plain"},
            "parallel": {"dp": 2, "cp": 2},
        })
        check_run(world, datasets, (2, 2), 1, dump_steps=range(0, 1000, 5))


def test_every_rank_gets_the_keys_it_needs_and_no_others():
    with World() as world:
        datasets = synthetic(world.dir)
        world.config(datasets, {
            "plan": {"window": 4080, "micro_batches": 4},
            "parallel": {"dp": 2, "cp": 3},
            "sharding": {"exchange": "needed-only"},
        })
        world.start()
        ranks = [world.rank(dp, cp=cp, steps=6, verify=True) for dp in range(2) for cp in range(3)]
        logs = [rank.finish() for rank in ranks]
        world.stop()
        for log in logs:
            assert len(log) == 12 and all(line["verified"] > 0 for line in log)
        # What the CLI lists by pair of ranks adds up to what the plan says that each rank receives.
        table = world.ctl("--config", world.config_path, "plan", "1", "--exchange").stdout.split("\n\n")[-1]
        received = {}
        for name, kind, _, to, rows in (line.split() for line in table.splitlines()[1:]):
            assert kind == "needed-only", kind
            received[name, to] = received.get((name, to), 0) + int(rows)
        plan = world.ctl_json("--config", world.config_path, "plan", "1")["plan"]
        for batch in plan["micro_batches"]:
            for rank, shard in enumerate(batch["sharding"]["ranks"]):
                name = f"dp{batch['dp']}/{batch['index']}"
                assert received.get((name, f"cp{rank}"), 0) == shard["kv_rows_in"], (name, rank)
        assert received


def test_every_rank_of_a_pool_holds_its_part_of_the_plan():
    with World() as world:
        prefix = os.path.join(world.dir, "a")
        write_corpus(prefix, synthetic_documents(7, 300, 9000))
        for policy, pools in (("wlb:level+pool:4", {"block_tokens": 256}),
                              ("pool:2", {"block_tokens": 1024, "chain": "on"}),
                              ("pool:4", {"block_tokens": 4096, "head_shards": 1})):
            world.state = os.path.join(world.dir, policy)
            world.config([("a", prefix, 1)], {
                "plan": {"policy": policy, "window": 32768, "micro_batches": 4},
                "parallel": {"dp": 4, "cp": 2},
                "pools": pools,
                "model": {"cost": "L2/24576"},
            })
            world.start()
            ranks = [world.rank(dp, cp=cp, steps=6, verify=True) for dp in range(4) for cp in range(2)]
            logs = [rank.finish() for rank in ranks]
            world.stop()
            for log in logs:
                assert len(log) == 6 and all(line["verified"] > 0 for line in log), policy
                assert [line["plan_digest"] for line in log] == [line["plan_digest"] for line in logs[0]]
            # The CLI lists the pairs of workers that have transfers, and no others.
            table = world.ctl("--config", world.config_path, "plan", "1", "--exchange").stdout.split("\n\n")[-1]
            listed = re.findall(r"^(dp\d+/\d+ cp\d+) +(dp\d+/\d+ cp\d+) ", table, re.MULTILINE)
            moved = set()
            for pool in world.ctl_json("--config", world.config_path, "plan", "1")["plan"]["pools"]:
                names = [f"dp{dp}/{pool['ga_index']} cp{cp}" for dp in pool["dp"] for cp in range(2)]
                moved |= {(names[t["source"]], names[t["worker"]]) for t in pool["transfers"]}
            assert len(listed) == len(set(listed)) and set(listed) == moved, (policy, listed)


if __name__ == "__main__":
    main(globals())
