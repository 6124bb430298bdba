#!/usr/bin/python3
"""What an operator sees, while ranks are served and with the daemon down; and what memory is used."""

import os
import signal

from world import World, main, synthetic_documents, write_corpus


def small_world(**plan):
    world = World()
    prefix = os.path.join(world.dir, "d")
    write_corpus(prefix, synthetic_documents(6, 2000, 9000))
    world.config([("d", prefix, 1)], {
        "plan": {"window": 8192, "micro_batches": 8, "policy": "wlb:bands", **plan},
        "parallel": {"dp": 2, "cp": 2},
    })
    return world


def check_queues(answer):
    names = [q["name"] for q in answer["queues"]]
    assert names[:2] == ["band 0", "band 1"] and "leftover" in names, names
    waiting = 0
    for queue in answer["queues"]:
        assert len(queue["waiting"]) == queue["documents"]
        assert sum(d["length"] for d in queue["waiting"]) == queue["tokens"]
        if queue["name"].startswith("band"):
            longest = queue["length_max"] or 8192  # 0: no limit but the part limit
            assert all(queue["length_min"] <= d["length"] <= longest for d in queue["waiting"])
        if queue["waiting"]:
            assert queue["oldest_step"] == min(d["nominal_step"] for d in queue["waiting"])
        waiting += queue["documents"]
    return waiting


def test_queues_plans_delays_and_corpus_live_and_with_the_daemon_down():
    with small_world() as world:
        world.start()
        ranks = [world.rank(d, cp=c, steps=100000, think_ms=3) for d in range(2) for c in range(2)]
        world.wait_for(lambda: all(len(r.lines()) > 100 for r in ranks), "steps go by")
        assert check_queues(world.live("queues", "--documents")) > 0
        table = world.ctl("--socket", world.socket, "queues").stdout
        assert "band 0" in table and all(len(line) <= 80 for line in table.splitlines()), table
        status = world.live("status")
        assert status["state"] == "serving" and len(status["ranks"]) == 4
        assert status["io_backend"] in ("io_uring", "pread")
        world.ctl("--socket", world.socket, "health")
        corpus = world.live("corpus")["datasets"][0]
        assert corpus["arrived_tokens"] == corpus["delivered_tokens"] + corpus["waiting_tokens"] \
            + corpus["dropped_tokens"]
        live = world.live("plan", 3)["plan"]
        assert live["digest"] == world.plan(3)["digest"]
        assert world.live("delays")["datasets"][0]["name"] == "d"
        assert any(s["name"] == "plan.window" and s["value"] == "8192"
                   for s in world.live("config")["settings"])
        for rank in ranks:
            rank.process.send_signal(signal.SIGTERM)
        for rank in ranks:
            rank.wait()
        world.stop()
        world.ctl("--socket", world.socket, "health", expect=3)
        down = world.ctl_json("--config", world.config_path, "--state", world.state, "queues", "--documents")
        check_queues(down)
        step = world.ctl_json("--config", world.config_path, "--state", world.state, "status")["committed_step"]
        assert step > 0
        again = world.ctl_json("--config", world.config_path, "--state", world.state, "plan", step)["plan"]
        assert again["digest"] == world.plan(step)["digest"]


def test_drain_ends_the_stream_for_every_rank_at_the_same_step_and_a_restart_goes_on():
    with small_world() as world:
        world.start()
        ranks = [world.rank(d, cp=c, think_ms=2) for d in range(2) for c in range(2)]
        world.wait_for(lambda: all(len(r.lines()) > 20 for r in ranks), "steps go by")
        last = world.live("drain")["last_step"]
        for rank in ranks:
            assert rank.finish(60)[-1]["step"] == last
        world.stop()
        world.start()
        lines = world.rank(0, cp=0, steps=2).finish(60)
        assert lines[0]["step"] == last + 1
        world.stop()


def memory_kb(pid):
    with open(f"/proc/{pid}/status") as f:
        fields = dict(line.split(":", 1) for line in f)
    return int(fields["RssAnon"].split()[0]), int(fields["RssShmem"].split()[0])


def test_memory_stays_within_the_slab_and_64_megabytes():
    with small_world(window=32768) as world:
        world.start()
        ranks = [world.rank(d, cp=c, steps=150) for d in range(2) for c in range(2)]
        for rank in ranks:
            rank.finish(120)
        slab = sum(os.stat(f"/proc/{world.daemon.pid}/fd/{fd}").st_size
                   for fd in os.listdir(f"/proc/{world.daemon.pid}/fd")
                   if "memfd:" in os.readlink(f"/proc/{world.daemon.pid}/fd/{fd}"))
        anonymous, shared = memory_kb(world.daemon.pid)
        print(f"      slab {slab >> 20} MB, resident {anonymous >> 10} MB + {shared >> 10} MB of it",
              flush=True)
        assert slab > 0 and shared * 1024 <= slab and anonymous < 64 * 1024
        world.stop()


if __name__ == "__main__":
    main(globals())
