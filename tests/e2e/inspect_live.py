#!/usr/bin/python3
"""What an operator sees, while ranks are served and with the daemon down; and what memory is used."""

import json
import os
import pty
import re
import signal
import subprocess

import numpy

from world import BIN, ROOT, World, main, of_threads, slab_bytes, synthetic_documents, write_corpus


def small_world(slots="auto", **plan):
    world = World()
    prefix = os.path.join(world.dir, "d")
    write_corpus(prefix, synthetic_documents(6, 2000, 9000))
    world.config([("d", prefix, 1)], {
        "plan": {"window": 8192, "micro_batches": 8, **plan},
        "parallel": {"dp": 2, "cp": 2},
        "slab": {"slots": slots},
    })
    return world


QUEUES = {"wlb:level": ["level", "short", "leftover"], "wlb:bands": ["band 0", "band 1", "leftover"]}


def check_queues(answer, policy):
    assert [q["name"] for q in answer["queues"]] == QUEUES[policy]
    waiting = 0
    for queue in answer["queues"]:
        assert len(queue["waiting"]) == queue["documents"]
        assert sum(d["length"] for d in queue["waiting"]) == queue["tokens"]
        if queue["name"] != "leftover":
            longest = queue["length_max"] or 8192  # 0: no limit but the part limit
            assert all(queue["length_min"] <= d["length"] <= longest for d in queue["waiting"])
        if queue["waiting"]:
            assert queue["oldest_step"] == min(d["nominal_step"] for d in queue["waiting"])
        waiting += queue["documents"]
    return waiting


def check_limits(world):
    """Every limit that is in use shows it, within its bound."""
    limits = {s["name"]: s for s in world.live("config")["settings"] if s["high_water"] > 0}
    assert set(limits) >= {"slab.slots", "limits.connections", "queues.waiting_max", "plan.documents_max",
                           "daemon.ahead_steps"}, set(limits)
    for name, limit in limits.items():
        assert limit["used"] <= limit["high_water"] <= int(limit["value"]), (name, limit)


def settled(world):
    """The status once all that may be planned is planned and durable."""
    seen = {}

    def quiet():
        before = dict(seen)
        seen.update(world.live("status"))
        return before.get("next_step") == seen["next_step"] == seen["durable_step"]

    world.wait_for(quiet, "planning has caught up")
    return seen


def expert_skew(loads):
    """Over [[tokens of experts] of a rank], the same in every micro-batch: largest to mean."""
    every = [tokens for rank in loads for tokens in rank]
    return max(every) * len(every) * 1000000 // sum(every)


def input_skew(plan):
    """Of the replicas' micro-batches of one index the largest, summed, to the mean."""
    by_index = {}
    for mb in plan["micro_batches"]:
        by_index.setdefault(mb["index"], []).append(mb["tokens"])
    replicas = len(by_index[0])
    return sum(max(tokens) for tokens in by_index.values()) * replicas * 1000000 \
        // sum(sum(tokens) for tokens in by_index.values())


def test_what_ranks_report_stands_beside_what_was_planned():
    """The next step has long been sent when one is committed."""
    loads = {(d, c): [100 + 10 * d, 50 * (c + 1)] for d in range(2) for c in range(2)}
    with small_world() as world:
        world.start()
        for (d, c), tokens in loads.items():
            world.rank(d, cp=c, steps=3, credits=8, think_ms=5, measured=True,
                       total_ns=[[20, 10], [45, 60]][d][c] * 10 ** 6, expert_tokens=",".join(map(str, tokens)))
        for rank in world.ranks:
            rank.finish(60)
        status = world.live("status")
        measured = status["measured"]
        assert measured["step"] == status["committed_step"] - 1 == 2, measured
        assert measured["total_ppm"] == 1500000, measured  # 60 over the mean of 20 and 60
        assert measured["attention_ppm"] == 0, "ranks without attention"
        assert measured["expert_ppm"] == expert_skew(loads.values()), measured
        plan = world.live("plan", 2)["plan"]
        alone = world.plan(2)
        assert measured["input_ppm"] == input_skew(alone) > 1000000
        assert measured["balance"] == alone["balance"] == plan["balance"]
        assert plan["measured"] == {**measured, "balance": None} and alone["measured"] is None
        newest = world.live("plan", status["next_step"] - 1)["plan"]
        assert newest["measured"] is None, "it is not committed"
        assert (status["balance"], status["release"]) == (newest["balance"], newest["release"])

        def shown(ppm):
            return f"{ppm // 1000000}.{ppm % 1000000 // 1000:03}"

        text = world.ctl("--socket", world.socket, "status").stdout
        expected = [f"balance  total {shown(newest['balance']['total_ppm'])}, predicted "
                    f"{shown(newest['balance']['predicted_ppm'])}",
                    f"measured step 2: total {shown(measured['total_ppm'])}, attention -; planned "
                    f"{shown(alone['balance']['total_ppm'])}",
                    f"experts  tokens {shown(measured['expert_ppm'])}, of the input {shown(measured['input_ppm'])}",
                    "release  allowance ", ", urgency ", f", {newest['release']['forced']} forced"]
        for one in expected:
            assert one in text, (one, text)
        assert all(len(line) <= 80 for line in text.splitlines()), text
        text = world.ctl("--socket", world.socket, "plan", 2).stdout
        for one in ("predicted ", "measured step 2: total ", "experts  tokens ", "release  allowance "):
            assert one in text, (one, text)
        world.stop()


def test_a_rank_measures_how_long_it_holds_batches():
    """As long as it thinks or longer: if it said less than 5 ms, 1333333 would come of what the others say."""
    with small_world() as world:
        world.start()
        world.rank(0, cp=0, steps=1, measured=True, think_ms=40)
        for d, c, total_ns in ((0, 1, 5000000), (1, 0, 10000000), (1, 1, 10000000)):
            world.rank(d, cp=c, steps=1, measured=True, total_ns=total_ns)
        for rank in world.ranks:
            rank.finish(60)
        measured = world.live("status")["measured"]
        assert measured["step"] == 0 and measured["total_ppm"] >= 1600000, measured  # 40 over the mean of 10 and 40
        world.stop()


def delays_of(plans, documents_of):
    """{dataset: [tokens by delay]} of plans."""
    delays = {}
    for plan in plans:
        for mb in plan["micro_batches"]:
            for d in mb["documents"]:
                delay = max(0, plan["step"] - d["nominal_step"])
                counts = delays.setdefault(documents_of[d["dataset"]], [0] * 65)
                counts[min(delay, 64)] += d["length"]
    return delays


def test_delays_are_counted_by_dataset():
    with World() as world:
        datasets = []
        for name, longest, seed in (("long", 8000, 6), ("short", 700, 7)):
            prefix = os.path.join(world.dir, name)
            write_corpus(prefix, synthetic_documents(seed, 1200, longest))
            datasets.append((name, prefix, 1))
        world.config(datasets, {"plan": {"window": 8192, "micro_batches": 8}, "parallel": {"dp": 2}})
        world.start()
        for d in range(2):
            world.rank(d, steps=12)
        for rank in world.ranks:
            rank.finish(60)
        steps = settled(world)["next_step"]
        delays = world.live("delays")["datasets"]
        done = world.ctl("--json", "--config", world.config_path, "plan", "--steps", f"0..{steps - 1}").stdout
        expected = delays_of(json.loads(done)["steps"], ["long", "short"])
        assert [d["name"] for d in delays] == ["long", "short"]
        for dataset in delays:
            counts = expected[dataset["name"]]
            assert dataset["histogram"] == counts, (dataset, counts)
            total = sum(counts)
            assert dataset["mean_milli"] == sum(i * n for i, n in enumerate(counts)) * 1000 // total
            assert dataset["max"] == max(i for i, n in enumerate(counts) if n > 0)
            for percent in (50, 99):
                at = next(i for i in range(65) if sum(counts[: i + 1]) * 100 >= total * percent)
                assert dataset[f"p{percent}"] == at, (dataset, percent)
        assert delays[0]["mean_milli"] > delays[1]["mean_milli"], "long documents wait"
        text = world.ctl("--socket", world.socket, "delays").stdout
        rows = [line.split() for line in text.split("\n\n")[1].splitlines()]
        assert rows[0] == ["NAME", "DELAY", "TOKENS", "SHARE", "-"] or rows[0] == ["NAME", "DELAY", "TOKENS", "SHARE"]
        assert {row[0] for row in rows[1:]} == {"long", "short"} and rows[1][1] == "0"
        assert all(len(line) <= 80 for line in text.splitlines()), text
        world.stop()


def domains_of(plans, domain_of):
    """{domain: [documents, tokens, tokens by delay]} of plans."""
    counts = {}
    for plan in plans:
        for mb in plan["micro_batches"]:
            for d in mb["documents"]:
                row = counts.setdefault(domain_of(d["dataset"], d["document"]), [0, 0, [0] * 65])
                row[0] += d["offset"] == 0
                row[1] += d["length"]
                row[2][min(max(0, plan["step"] - d["nominal_step"]), 64)] += d["length"]
    return counts


def check_domains(shown, plans, domain_of):
    expected = domains_of(plans, domain_of)
    tokens = sum(row[1] for row in expected.values())
    assert {d["name"] for d in shown} == set(expected)
    for d in shown:
        row = expected[d["name"]]
        assert [d["documents"], d["tokens"], d["histogram"]] == row, d["name"]
        assert d["share_ppm"] == row[1] * 1000000 // tokens
        assert d["mean_milli"] == sum(i * n for i, n in enumerate(row[2])) * 1000 // row[1]


def planned(world, steps):
    plans = world.ctl_json("--config", world.config_path, "plan", "--steps", f"0..{steps - 1}")["steps"]
    return [{**plan, "plan_ns": 0} for plan in plans]


def stopped(world, *arguments):
    return world.ctl_json("--state", world.state, "--config", world.config_path, *arguments)


def test_shares_and_delays_are_counted_by_domain_and_plans_do_not_know_of_it():
    rng = numpy.random.default_rng(8)
    tags = rng.integers(0, 3, 1200).astype("u1")
    names = ["web", "code", "short"]

    def domain_of(dataset, document):
        return names[tags[document]] if dataset == 0 else "short"

    with World() as world:
        path = os.path.join(world.dir, "long.u1")
        tags.tofile(path)
        for name, longest, seed in (("long", 8000, 6), ("short", 700, 7)):
            write_corpus(os.path.join(world.dir, name), synthetic_documents(seed, 1200, longest))
        datasets = [(name, os.path.join(world.dir, name), 1) for name in ("long", "short")]
        world.config(datasets, {"plan": {"window": 8192, "micro_batches": 4}})
        plans = planned(world, 60)
        with open(world.config_path, "a") as f:
            f.write("[dataset long]\ndomain_file = long.u1\ndomain_names = web, code,short\n")
        assert planned(world, 60) == plans, "plans know of domains"
        world.start()
        world.rank(steps=5).finish(60)
        newest = settled(world)["next_step"]
        delays = world.live("delays")
        assert delays["domains_since"] == 0
        check_domains(delays["domains"], plans[:newest], domain_of)
        text = world.ctl("--socket", world.socket, "delays").stdout
        assert "by domain, since step 0" in text and all(len(line) <= 80 for line in text.splitlines()), text
        world.stop()
        assert stopped(world, "delays")["domains"] == [], "what was counted is gone with the daemon"
        world.start()
        world.rank(steps=2).finish(60)
        newest = settled(world)["next_step"]
        delays = world.live("delays")
        since = delays["domains_since"]
        assert 0 < since <= 5, "counted anew from where it went on"
        check_domains(delays["domains"], plans[since:newest], domain_of)
        world.ctl("--socket", world.socket, "seek", 3)
        world.wait_for(lambda: world.live("delays")["domains_since"] == 3, "counted anew from the step that was sought")
        os.truncate(path, 1000)
        world.rank(steps=30).finish(60)
        warning, = world.live("status")["warnings"]
        assert warning.startswith("domains are counted up to step ") and "long.u1: " in warning, warning
        still = int(warning.split()[6])
        check_domains(world.live("delays")["domains"], plans[3:still], domain_of)
        world.stop()
        done = world.ctl("--config", world.config_path, "corpus", expect=1)
        assert "domains of 'long': " in done.stderr and "1000 bytes, and " in done.stderr, done.stderr


def test_domains_of_whole_datasets_are_known_since_step_0_and_simulated():
    with small_world() as world:
        with open(world.config_path, "a") as f:
            f.write("[dataset d]\ndomain = web\n")
        world.start()
        for d in range(2):
            for c in range(2):
                world.rank(d, cp=c, steps=4)
        for rank in world.ranks:
            rank.finish(60)
        world.stop()
        world.start()
        world.wait_for(lambda: world.live("delays")["domains"], "a step is planned")
        delays = world.live("delays")
        web, = delays["domains"]
        assert delays["domains_since"] == 0 and {**web, "name": "d"} == delays["datasets"][0]
        world.ctl("--socket", world.socket, "seek", 2)

        def planned_again():
            answer = world.live("delays")
            same = [{**web, "name": "d"} for web in answer["domains"]] in ([], answer["datasets"])
            assert same, "figures of steps that are not there any more"
            return answer["domains"]

        world.wait_for(planned_again, "a step is planned again")
        world.stop()
        web, = stopped(world, "delays")["domains"]
        assert web["name"] == "web" and web["tokens"] > 0
        done = world.ctl("--json", "--config", world.config_path, "simulate", "--policies", "plain,wlb:level",
                         "--steps", 5, "--warm-up", 3)
        for row in json.loads(done.stdout)["rows"]:
            web, = row["domains"]
            assert (web["name"], web["tokens"], web["share_ppm"]) == ("web", row["tokens"], 1000000)
            assert web["delay_mean_milli"] == row["delay_mean_milli"] and web["delay_max"] == row["delay_max"]


def test_time_that_ranks_wait_is_reported():
    with small_world(slots=20) as world:
        world.start()
        for cp, think_ms in ((0, 0), (1, 20)):
            world.rank(0, cp=cp, steps=10, think_ms=think_ms)
        waits_us = {line["waited_us"] for rank in world.ranks for line in rank.finish(60)}
        waited = world.live("status")["wait_ns_p99"]
        assert waited > 10e6, f"{waited} ns, where one rank waits for the slots of a slow one"
        assert waited // 1000 in waits_us, (waited, waits_us)
        world.stop()


def on_a_terminal(*command):
    """What a program writes to a terminal."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, stdin=subprocess.DEVNULL) as process:
        os.close(theirs)
        text = b""
        try:
            while piece := os.read(ours, 65536):
                text += piece
        except OSError:  # the other side is closed
            pass
        assert process.wait() == 0, text
    os.close(ours)
    return text.decode().replace("\r\n", "\n")


def test_a_long_value_is_cut_on_a_terminal_and_whole_in_a_pipe():
    with small_world() as world:
        long = world.state + "/" + "x" * 80
        command = ("--config", world.config_path, "config")
        with open(world.config_path, "a") as f:
            f.write(f"[corpus]\nderived = {long}\n")
        whole = world.ctl(*command).stdout
        assert re.search(rf"^corpus.derived +{re.escape(long)} +file$", whole, re.M) and "..." not in whole, whole
        cut = on_a_terminal(os.path.join(BIN, "ballastctl"), *command)
        assert long not in cut and "..." in cut and all(len(line) <= 80 for line in cut.splitlines()), cut


def thread_name(pid, thread):
    with open(f"/proc/{pid}/task/{thread}/comm") as f:
        return f.read().strip()


def test_config_says_what_every_auto_came_to():
    with small_world() as world:
        with open(world.config_path, "a") as f:
            f.write("[reader]\nbackend = pread\n")
        world.start()
        settings = {s["name"]: s for s in world.live("config")["settings"]}
        told = {"daemon.ahead_steps": ("32", ""), "reader.direct": ("auto", "")}
        for name, (value, in_use) in told.items():
            setting = settings[name]
            assert (setting["value"], setting["in_use"], setting["automatic"]) == (value, in_use, True), setting
        assert not settings["plan.window"]["automatic"] and not settings["reader.backend"]["automatic"]
        threads, slot = (settings[name] for name in ("reader.threads", "slab.slot_size"))
        for setting in threads, slot:
            assert setting["automatic"] and setting["value"] == "auto", setting
        slab = slab_bytes(world.daemon.pid)
        assert slab == int(slot["in_use"]) * int(settings["slab.slots"]["value"]), (slab, slot)
        tasks = of_threads(world.daemon.pid, lambda thread: thread_name(world.daemon.pid, thread))
        assert tasks.count("ballast-pread") == int(threads["in_use"]) > 0, (tasks, threads)
        text = world.ctl("--socket", world.socket, "config").stdout
        for line in ("daemon.ahead_steps +32 \\(auto\\) +default", f"reader.threads +{threads['in_use']} \\(auto\\) +default",
                     f"slab.slot_size +{slot['in_use']} \\(auto\\) +default", "reader.direct +auto +default",
                     "reader.backend +pread +file"):
            assert re.search("^" + line, text, re.M), (line, text)
        world.stop()


def test_what_was_planned_for_ranks_that_are_gone_is_within_the_limit():
    with small_world() as world:
        world.start()
        slow, fast = ([world.rank(d, cp=c, steps=steps, think_ms=1) for c in range(2)]
                      for d, steps in ((1, 1000), (0, 40)))
        world.wait_for(lambda: all(len(r.lines()) > 4 for r in slow), "the slow ones are served")
        for rank in slow:
            rank.process.send_signal(signal.SIGSTOP)
        for rank in fast:
            rank.finish(60)
        world.wait_for(lambda: not any(r["pid"] for r in world.live("status")["ranks"] if r["rank"]["dp"] == 0),
                       "the fast ones are gone")
        status = world.live("status")
        assert status["next_step"] > 40 > status["committed_step"] + 10, status
        check_limits(world)
        for rank in slow:
            rank.process.send_signal(signal.SIGCONT)
        world.stop()


def inspect_live_and_down(policy):
    with small_world(policy=policy) as world:
        world.start()
        ranks = [world.rank(d, cp=c, steps=100000, think_ms=3) for d in range(2) for c in range(2)]
        world.wait_for(lambda: all(len(r.lines()) > 100 for r in ranks), "steps go by")
        world.wait_for(lambda: check_queues(world.live("queues", "--documents"), policy) > 0, "documents wait")
        table = world.ctl("--socket", world.socket, "queues").stdout
        assert QUEUES[policy][0] in table and all(len(line) <= 80 for line in table.splitlines()), table
        status = world.live("status")
        assert status["state"] == "serving" and len(status["ranks"]) == status["ranks_expected"] == 4
        assert status["plan_ns_p99"] >= status["plan_ns_p50"] > 0
        assert status["measured"] is None, "nobody measured"
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
        check_limits(world)
        for rank in ranks:
            rank.process.send_signal(signal.SIGTERM)
        for rank in ranks:
            rank.wait()
        last = settled(world)
        questions = (("queues", "--documents"), ("delays",), ("corpus",))
        answers = [world.live(*question) for question in questions]
        world.stop()
        world.ctl("--socket", world.socket, "health", expect=3)

        def down(*question):
            return world.ctl_json("--config", world.config_path, "--state", world.state, *question)

        assert answers == [down(*question) for question in questions]
        assert check_queues(answers[0], policy) > 0 or policy == "wlb:level", "level may hold nothing"
        stored = down("status")
        assert stored["state"] == "stopped" and stored["committed_step"] > 0
        for name in ("job_digest", "next_step", "committed_step", "durable_step", "generation", "profile",
                     "datasets", "balance", "release", "ranks_expected"):
            assert stored[name] == last[name], name
        again = down("plan", stored["committed_step"])["plan"]
        assert again["digest"] == world.plan(stored["committed_step"])["digest"]


def test_queues_plans_delays_and_corpus_live_and_with_the_daemon_down():
    inspect_live_and_down("wlb:level")


def test_banded_queues_live_and_with_the_daemon_down():
    inspect_live_and_down("wlb:bands")


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


def proto_types():
    """(messages, enums) of ballast.proto: {message: [(field, type, repeated)]}, {enum: {value names}}."""
    with open(os.path.join(ROOT, "proto/ballast.proto")) as f:
        text = re.sub(r"//.*", "", f.read())
    messages = {name: [(field, kind, bool(repeated)) for repeated, kind, field
                       in re.findall(r"(repeated\s+)?(\w+)\s+(\w+)\s*=\s*\d+;", body)]
                for name, body in re.findall(r"message (\w+) \{([^}]*)\}", text)}
    enums = {name: set(re.findall(r"(\w+)\s*=", body)) for name, body in re.findall(r"enum (\w+) \{([^}]*)\}", text)}
    return messages, enums


def check_json(value, kind, types, where):
    """Whether the value is a message, enum or scalar of ballast.proto, printed as promised."""
    messages, enums = types
    if kind in messages:
        if value is None:
            return
        assert list(value) == [field for field, _, _ in messages[kind]], (where, list(value))
        for field, inner, repeated in messages[kind]:
            for one in value[field] if repeated else [value[field]]:
                check_json(one, inner, types, f"{where}.{field}")
    elif kind in enums:
        assert value in enums[kind], (where, value)
    elif kind == "bytes":
        assert re.fullmatch("([0-9a-f]{2})*", value), (where, value)
    elif kind == "bool":
        assert isinstance(value, bool), (where, value)
    elif kind == "string":
        assert isinstance(value, str), (where, value)
    else:
        assert kind in ("uint32", "uint64") and isinstance(value, int), (where, kind, value)


ANSWERS = {"status": "StatusResponse", "queues": "QueuesResponse", "delays": "DelaysResponse",
           "corpus": "CorpusResponse", "config": "ConfigResponse", "plan": "PlanResponse"}


def test_json_is_the_wire_message_with_every_field_of_the_proto():
    types = proto_types()
    assert len(types[0]) > 50 and types[0]["RankShard"][0] == ("fragments", "Fragment", True)
    with small_world() as world:
        world.start()
        rank = world.rank(0, cp=0, steps=100000, think_ms=3)
        world.wait_for(lambda: len(rank.lines()) > 20, "steps go by")
        arguments = {"queues": ["--documents"], "plan": [2]}
        for command, message in ANSWERS.items():
            check_json(world.live(command, *arguments.get(command, [])), message, types, command)
        plan = world.live("plan", 2)
        assert plan["next"] == 0 and plan["plan"]["balance"] and plan["plan"]["release"]
        assert all(shard["fragments"] for mb in plan["plan"]["micro_batches"]
                   for shard in mb["sharding"]["ranks"])
        check_json(world.live("drain"), "DrainResponse", types, "drain")
        world.kill()
        for command in ("status", "queues", "delays", "corpus", "config", "plan"):
            answer = world.ctl_json("--config", world.config_path, "--state", world.state, command,
                                    *arguments.get(command, []))
            check_json(answer, ANSWERS[command], types, command)


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
        slab = slab_bytes(world.daemon.pid)
        anonymous, shared = memory_kb(world.daemon.pid)
        print(f"      slab {slab >> 20} MB, resident {anonymous >> 10} MB + {shared >> 10} MB of it",
              flush=True)
        assert slab > 0 and shared * 1024 <= slab and anonymous < 64 * 1024
        world.stop()


if __name__ == "__main__":
    main(globals())
