#!/usr/bin/python3
"""The state directory under a daemon: what a person reads in it, what is refused."""

import os
import sqlite3

from faults import small_world
from service import daemon_output
from world import main, synthetic_documents, write_corpus


def serve(world, steps):
    """Serves four ranks some steps and stops; {step: digest}."""
    world.start()
    ranks = [world.rank(d, cp=c, steps=steps) for d in range(2) for c in range(2)]
    lines = [rank.finish(60) for rank in ranks]
    world.stop()
    return {line["step"]: line["plan_digest"] for line in lines[0]}


def query(world, text):
    with sqlite3.connect(f"file:{world.state}/ballast.db?mode=ro", uri=True) as db:
        return db.execute(text).fetchall()


def test_sqlite3_shows_steps_what_waits_and_delays():
    for policy in ("wlb:level", "wlb:bands", "plain"):
        with small_world(plan={"window": 2048, "micro_batches": 4, "policy": policy}) as world:
            digests = serve(world, 40)
            stored = dict(query(world, "SELECT step, digest FROM plans"))
            assert all(stored[step] == digest for step, digest in digests.items())
            assert query(world, "SELECT count(*) FROM plans WHERE imbalance < 1 OR tokens = 0") == [(0,)]
            newest = max(stored)
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
        world.wait_for(lambda: len(rank.lines()) > 4, "the rank is served")
        world.kill()
        rank.process.kill()
        wal = db + "-wal"
        os.truncate(wal, os.path.getsize(wal) // 2)
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
        with open(world.config_path) as f:
            config = f.read()
        with open(world.config_path, "w") as f:
            f.write(config.replace("window = 2048", "window = 1024"))
        code, text = daemon_output(world)
        assert code == 78 and "it has 'plan.window = 2048', this config has 'plan.window = 1024'" in text, (code, text)


if __name__ == "__main__":
    main(globals())
