#!/usr/bin/python3
"""What monitoring reads: the text format, that its figures are right, and that no scraper harms trainers."""

import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import time

from faults import Raw, small_world
from world import ROOT, Skip, main

RULES = os.path.join(ROOT, "deploy/prometheus/ballast.rules.yml")
DASHBOARD = os.path.join(ROOT, "deploy/grafana/ballast.json")
NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
SAMPLE = re.compile(rf'({NAME})(?:\{{((?:{NAME}="(?:[^"\\\n]|\\["\\n])*",?)*)\}})? (-?[0-9.]+(?:e[-+]?[0-9]+)?)')
LABEL = re.compile(rf'({NAME})="((?:[^"\\\n]|\\["\\n])*)"')
WANTED = """
ballast_build_info ballast_ready ballast_io_backend_info ballast_documents_read_total ballast_tokens_served_total
ballast_batches_served_total ballast_read_bytes_total ballast_read_errors_total ballast_read_duration_seconds
ballast_batch_wait_seconds ballast_queue_depth_batches ballast_prefetch_bytes ballast_ring_slots_in_use
ballast_plan_imbalance_ratio ballast_plan_policy_info ballast_plan_padding_ratio ballast_commit_duration_seconds ballast_wal_bytes
ballast_checkpoint_duration_seconds ballast_connections ballast_rejected_connections_total
ballast_frames_invalid_total process_cpu_seconds_total process_resident_memory_bytes process_open_fds
process_max_fds process_start_time_seconds""".split()


class OverUnix(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=30)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(30)
        self.sock.connect(self.path)


def monitored(**sections):
    world = small_world(**sections)
    world.metrics = os.path.join(world.dir, "m.sock")
    with open(world.config_path, "a") as f:
        f.write(f"[metrics]\nlisten = unix:{world.metrics}\n")
    return world


def ask(world, path, method="GET"):
    """(status, headers, body)"""
    connection = OverUnix(world.metrics)
    connection.request(method, path)
    answer = connection.getresponse()
    return answer.status, dict(answer.getheaders()), answer.read().decode()


def check_histogram(name, samples):
    rows = {}
    for sample, labels, value in samples:
        key = tuple(sorted((k, v) for k, v in labels.items() if k != "le"))
        row = rows.setdefault(key, {"buckets": []})
        if sample == name + "_bucket":
            row["buckets"].append((float(labels["le"]), value))
        else:
            assert sample in (name + "_sum", name + "_count"), sample
            row[sample[len(name) + 1 :]] = value
    for key, row in rows.items():
        bounds = [b for b, _ in row["buckets"]]
        counts = [c for _, c in row["buckets"]]
        assert bounds == sorted(set(bounds)) and bounds[-1] == float("inf"), (name, key, bounds)
        assert counts == sorted(counts) and counts[-1] == row["count"] and row["sum"] >= 0, (name, key, row)


def parse(text):
    """{family: (type, [(sample, labels, value)])}, by the rules of text format 0.0.4 and the naming rules."""
    families, name, seen = {}, None, set()
    assert text.endswith("\n") and "\r" not in text and "\n\n" not in text
    lines = text.split("\n")[:-1]
    for i, line in enumerate(lines):
        if line.startswith("# HELP "):
            name, text_of = line[7:].split(" ", 1)
            assert name not in families and text_of.endswith("."), line
            assert lines[i + 1].startswith(f"# TYPE {name} "), lines[i + 1]
        elif line.startswith("# TYPE "):
            kind = line.split(" ")[3]
            assert lines[i - 1].startswith(f"# HELP {name} ") and kind in ("counter", "gauge", "histogram"), line
            assert (kind == "counter") == name.endswith("_total"), f"{name} is a {kind}"
            assert not re.search(r"_(ms|us|ns|kb|mb|gb|percent|milliseconds)(_|$)", name), f"{name}: base units"
            families[name] = (kind, [])
        else:
            match = SAMPLE.fullmatch(line)
            assert match, f"not a sample: {line!r}"
            sample, labels, value = match[1], dict(LABEL.findall(match[2] or "")), float(match[3])
            assert sample == name or (families[name][0] == "histogram" and sample.startswith(name + "_")), line
            key = (sample, tuple(sorted(labels.items())))
            assert key not in seen, f"twice: {line}"
            seen.add(key)
            families[name][1].append((sample, labels, value))
    for family, (kind, samples) in families.items():
        assert samples, f"{family} has no samples"
        if kind == "histogram":
            check_histogram(family, samples)
    return families


def scrape(world):
    status, headers, text = ask(world, "/metrics")
    assert status == 200 and headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8", headers
    return parse(text)


def total(families, name, **labels):
    rows = families[name[:-6] if name.endswith("_count") else name][1]
    return sum(v for s, of, v in rows if s == name and all(of.get(k) == w for k, w in labels.items()))


def promtool(*arguments, **options):
    if shutil.which("promtool") is None:
        raise Skip("no promtool; install the package prometheus")
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=60, **options)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_whole_set_is_there_and_its_figures_are_right():
    with monitored() as world:
        world.start()
        ranks = [world.rank(d, cp=c, steps=30) for d in range(2) for c in range(2)]
        batches = {f"dp{r.place[0]}-pp0-cp{r.place[2]}-tp0": len(r.finish(60)) for r in ranks}
        world.wait_for(lambda: world.live("status")["durable_step"] >= 30, "the steps are durable")
        families, status = scrape(world), world.live("status")
        assert not set(WANTED) - set(families), set(WANTED) - set(families)
        for rank, count in batches.items():
            assert total(families, "ballast_batches_served_total", rank=rank) >= count
            assert 0 < total(families, "ballast_batch_wait_seconds_count", rank=rank) <= total(
                families, "ballast_batches_served_total", rank=rank)
            assert total(families, "ballast_tokens_served_total", rank=rank) > count
        assert total(families, "ballast_committed_step") == status["committed_step"]
        assert total(families, "ballast_planned_step") == status["next_step"]
        assert total(families, "ballast_plan_imbalance_ratio") == status["balance"]["total_ppm"] / 1e6
        assert total(families, "ballast_documents_read_total") > 0 < total(families, "ballast_read_bytes_total")
        assert total(families, "ballast_read_duration_seconds_count") > 0
        assert total(families, "ballast_commit_duration_seconds_count") > 0
        assert total(families, "ballast_ranks_expected") == 4 and total(families, "ballast_ready") == 1
        assert total(families, "process_resident_memory_bytes") > 1 << 20
        assert abs(total(families, "process_start_time_seconds") - time.time()) < 600
        assert os.stat(world.metrics).st_mode & 0o777 == 0o660
        world.stop()
        assert not os.path.exists(world.metrics)


def test_refusals_and_broken_frames_are_counted():
    with monitored(limits={"connections": 2}) as world:
        world.start()
        before = scrape(world)
        held = [Raw(world.socket) for _ in range(2)]
        assert [raw.call(b"Ping")[0] for raw in held] == [0, 0]
        assert Raw(world.socket).call(b"Ping")[0] == 8
        held[0].frame(1, 9, 9, b"nonsense")
        assert held[0].receive() is None or held[0].receive() is None
        families = scrape(world)
        assert total(families, "ballast_rejected_connections_total", reason="full") == 1
        assert total(before, "ballast_frames_invalid_total") == 0
        assert total(families, "ballast_frames_invalid_total") == 1
        world.stop()


def test_health_is_answered_and_nothing_else():
    with monitored() as world:
        world.start()
        assert ask(world, "/healthz")[::2] == (200, "ok\n")
        world.wait_for(lambda: ask(world, "/readyz")[::2] == (200, "ok\n"), "a step is planned")
        assert ask(world, "/metrics?x=1")[0] == 200 and ask(world, "/metrics/")[0] == 404
        assert ask(world, "/")[0] == 404 and ask(world, "/../etc/passwd")[0] == 404
        status, headers, body = ask(world, "/metrics", "HEAD")
        assert status == 200 and body == "" and int(headers["Content-Length"]) > 1000
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            status, headers, _ = ask(world, "/metrics", method)
            assert status == 405 and headers["Allow"] == "GET, HEAD", (method, status)
        world.stop()


def test_a_port_of_this_machine_only():
    with small_world() as world:
        world.start("--set", f"metrics.listen=127.0.0.1:{world.port}")
        connection = http.client.HTTPConnection("127.0.0.1", world.port, timeout=30)
        connection.request("GET", "/metrics")
        assert "ballast_batch_wait_seconds" in parse(connection.getresponse().read().decode())
        world.stop()


def test_hostile_peers_are_bounded_in_number_size_and_time_and_ranks_do_not_notice():
    with monitored() as world:
        world.start()
        rank = world.rank(0, cp=0, steps=100000, think_ms=1)
        world.wait_for(lambda: len(rank.lines()) > 20, "the rank is served")
        descriptors = len(os.listdir(f"/proc/{world.daemon.pid}/fd"))

        def connect():
            peer = socket.socket(socket.AF_UNIX)
            peer.settimeout(60)
            peer.connect(world.metrics)
            return peer

        def gone(peer):
            try:
                while peer.recv(65536):
                    pass
            except OSError:
                pass

        huge = connect()
        try:
            huge.sendall(b"GET /metrics HTTP/1.1\r\n" + b"X: " + b"y" * (1 << 20))
        except OSError:
            pass
        gone(huge)
        body = connect()
        body.sendall(b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999999\r\n\r\n" + b"z" * 4096)
        assert b"405" in body.recv(4096)
        gone(body)
        began, served = time.monotonic(), len(rank.lines())
        slow, silent = connect(), [connect() for _ in range(14)]
        slow.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n")
        try:
            while time.monotonic() - began < 60:
                slow.sendall(b"X-A: b\r\n")
                time.sleep(0.2)
                fds = len(os.listdir(f"/proc/{world.daemon.pid}/fd"))
                assert fds <= descriptors + 10, f"{fds} descriptors, {descriptors} before"
        except OSError:
            pass
        cut = time.monotonic() - began
        assert 2 < cut < 60, f"a slow peer was cut after {cut:.1f} s"
        calls = [time.monotonic()]
        world.live("status")
        calls.append(time.monotonic())
        for peer in silent:
            gone(peer)
        scrape(world)
        assert len(rank.lines()) > served + 20, "the rank stood still"
        world.wait_for(lambda: len(os.listdir(f"/proc/{world.daemon.pid}/fd")) <= descriptors + 2, "all is closed")
        print(f"      slow peer cut after {cut:.1f} s, status in {1000 * (calls[1] - calls[0]):.0f} ms meanwhile")
        world.stop()


def test_promtool_accepts_the_metrics_and_the_alerts():
    with monitored() as world:
        world.start("--set", "dataset.d.domain=web")
        world.rank(0, cp=0, steps=3).finish(60)
        text = ask(world, "/metrics")[2]
        families, web = parse(text), world.live("delays")["domains"][0]
        figures = {"documents_total": web["documents"], "tokens_total": web["tokens"], "delay_max_steps": web["max"],
                   "delayed_tokens_total": web["tokens"] - web["histogram"][0]}
        for name, value in figures.items():
            assert total(families, f"ballast_domain_{name}", domain="web") == value > 0 or name.startswith("delay"), name
        steps = total(families, "ballast_domain_delay_token_steps_total", domain="web")
        assert steps * 1000 // web["tokens"] == web["mean_milli"]
        promtool("check", "metrics", input=text)
        world.stop()
    promtool("check", "rules", RULES)


def expressions():
    """(expression, legend) of the dashboard, and of the alerts, which have no legend."""
    with open(DASHBOARD) as f:
        panels = json.load(f)["panels"]
    with open(RULES) as f:
        alerts = [(line.split("expr:")[1], "") for line in f if line.lstrip().startswith("expr:")]
    return [(t["expr"], t["legendFormat"]) for panel in panels for t in panel.get("targets", [])] + alerts


def test_dashboard_and_alerts_name_metrics_and_labels_that_there_are():
    with monitored() as world:
        world.start()
        world.rank(0, cp=0, steps=3).finish(60)
        families = scrape(world)
        names = {sample for _, samples in families.values() for sample, _, _ in samples}
        assert len(expressions()) > 40
        for expression, legend in expressions():
            used = set(re.findall(r"\b(?:ballast|process)_[a-z_]+", expression))
            assert used <= names, f"{used - names} of {expression}"
            labels = {"instance", "job"}.union(*(of for _, samples in families.values()
                                                 for sample, of, _ in samples if sample in used))
            wanted = set(re.findall(r"{{(\w+)}}", legend))
            for group in re.findall(r"(?:by|on|group_left) \(([^)]*)\)", expression):
                wanted |= set(group.split(", "))
            assert wanted <= labels, f"{wanted - labels} of {expression}, '{legend}'"
        world.stop()


def test_the_dashboard_s_queries_are_valid_to_prometheus():
    groups = [{"record": f"dashboard:{i}", "expr": expression.replace("$__rate_interval", "5m")}
              for i, (expression, _) in enumerate(expressions())]
    with monitored() as world:
        rules = os.path.join(world.dir, "rules.yml")
        with open(rules, "w") as f:  # JSON is YAML
            json.dump({"groups": [{"name": "dashboard", "rules": groups}]}, f)
        promtool("check", "rules", rules)


if __name__ == "__main__":
    main(globals())
