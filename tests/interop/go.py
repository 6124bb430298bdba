#!/usr/bin/python3
"""The wire against an independent ttrpc client: containerd's Go package (Debian's golang-go and
golang-github-containerd-ttrpc-dev), unary calls of both services, many at once, and refusals. Not part of tests/run:
compiling the Go packages takes a minute. Messages are packed and unpacked by protoc. Exits 77 where one is missing."""

import os
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "e2e"))
from world import ROOT, Skip, World, main, synthetic_documents, write_corpus  # noqa: E402

GOPATH = "/usr/share/gocode"
PROGRAM = os.path.join(ROOT, "build", "interop-go-client")


def build():
    for program, package in (("go", "golang-go"), ("protoc", "protobuf-compiler")):
        if shutil.which(program) is None:
            raise Skip(f"no {program} ({package})")
    if not os.path.isdir(os.path.join(GOPATH, "src/github.com/containerd/ttrpc")):
        raise Skip("no ttrpc for Go (golang-github-containerd-ttrpc-dev)")
    environment = {**os.environ, "GO111MODULE": "off", "GOPATH": GOPATH, "GOFLAGS": "-p=2",
                   "GOCACHE": os.path.join(ROOT, "build", "interop-go-cache")}
    done = subprocess.run(["go", "build", "-o", PROGRAM, os.path.join(HERE, "client.go")],
                          env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


def protoc(mode, message, data):
    done = subprocess.run(["protoc", f"--{mode}=ballast.v1.{message}", "-I", os.path.join(ROOT, "proto"),
                           "ballast.proto"], input=data, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def call(world, *calls):
    """calls (service, method, request as text[, how many at once]); [answer as text, or (code, sentence)]."""
    lines, names = [], []
    for service, method, request, *together in calls:
        count = together[0] if together else 1
        packed = protoc("encode", method + "Request", request.encode()).hex()
        lines += [f"together {count}", f"ballast.v1.{service} {method} {packed}"]
        names += [method] * count
    done = subprocess.run([PROGRAM, world.socket], input="\n".join(lines), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    answers = []
    for name, line in zip(names, done.stdout.splitlines(), strict=True):
        if line.startswith("ok"):
            answers.append(protoc("decode", name + "Response", bytes.fromhex(line[3:])).decode())
        else:
            _, code, sentence = line.split(" ", 2)
            answers.append((int(code), sentence))
    return answers


def world_started():
    world = World()
    write_corpus(os.path.join(world.dir, "d"), synthetic_documents(3, 300, 3000))
    world.config([("d", os.path.join(world.dir, "d"), 1)], {"plan": {"window": 1024, "micro_batches": 4}})
    world.start()
    return world


HELLO = 'protocol_min: 1 protocol_max: 1 rank { } parts: [PART_TOKENS, PART_LABELS, PART_PLAN] client: "go/1"'


def test_unary_calls_are_answered_as_ballastctl_reads_them():
    build()
    with world_started() as world:
        hello, ping, status, plan, corpus, delays, config, queues = call(
            world, ("Loader", "Hello", HELLO), ("Loader", "Ping", ""), ("Admin", "Status", ""),
            ("Admin", "Plan", "step: 0"), ("Admin", "Corpus", ""), ("Admin", "Delays", ""), ("Admin", "Config", ""),
            ("Admin", "Queues", ""))
        assert "micro_batches: 4" in hello and "job_digest" in hello, hello
        assert ping == "", ping
        assert "datasets" in status and "datasets" in corpus and config and isinstance(queues, str), status
        assert isinstance(delays, str), delays
        shown = world.live("plan", "--step", 0)["plan"]
        documents = sum(len(mb["documents"]) for mb in shown["micro_batches"])
        assert plan.count("nominal_step") <= documents and plan.count("  documents {") == documents, plan[:400]
        world.stop()


def test_many_calls_at_once_share_a_connection():
    with world_started() as world:
        answers = call(world, ("Loader", "Ping", "", 200), ("Admin", "Status", "", 20))
        assert answers[:200] == [""] * 200
        assert all("datasets" in a for a in answers[200:]) and len(answers) == 220
        world.stop()


def test_refusals_carry_code_and_sentence():
    with world_started() as world:
        commit, hello, again, step = call(
            world, ("Loader", "Commit", "step: 0"), ("Loader", "Hello", HELLO.replace("rank { }", "rank { dp: 7 }")),
            ("Loader", "Hello", HELLO.replace("protocol_min: 1 protocol_max: 1", "protocol_min: 9 protocol_max: 9")),
            ("Admin", "Plan", "step: 18446744073709551615"))
        assert commit == (9, "say Hello first"), commit
        for refused in (hello, again, step):
            assert isinstance(refused, tuple) and refused[0] > 0 and len(refused[1]) > 10, refused
        world.stop()


if __name__ == "__main__":
    main(globals())
