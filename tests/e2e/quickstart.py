#!/usr/bin/python3
"""deploy/quickstart as a newcomer runs it: own text, from another folder, wrong words, twice."""

import json
import os
import signal
import subprocess
import tempfile

from world import BIN, ROOT, Skip, main

PROGRAM = os.path.join(ROOT, "deploy", "quickstart")


def quickstart(folder, *arguments, expect=0):
    """Both outputs; a daemon that kept one of them open would keep us waiting."""
    done = subprocess.run([PROGRAM, *arguments], cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == expect, f"quickstart exited {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout, done.stderr


def texts(folder):
    """Forty texts of 10 to 400 kB in `my texts`."""
    made = os.path.join(folder, "my texts")
    os.mkdir(made)
    for i in range(40):
        with open(os.path.join(made, f"{i}.txt"), "w") as f:
            f.write(f"text {i}\n" * (1000 + 997 * i))
    return "my texts"


def test_wrong_words_end_before_anything_is_built():
    for wrong in (["--bogus"], ["--steps"], ["--steps", "0"], ["--policy", "nonsense"]):
        assert quickstart("/", *wrong, expect=2)[0] == ""
    for missing in (["--corpus", "nope=2"], ["--text", "nope"], ["--json", "nope/x.json"]):
        said = quickstart("/", *missing, expect=1)[1]
        assert said.startswith("quickstart: " + missing[0] + ": no ") and "nope" in said, said


def test_own_text_from_another_folder_twice_and_lines_of_80_columns():
    if os.path.realpath(BIN) != os.path.join(ROOT, "build/release/bin"):
        raise Skip("quickstart builds and runs build/release")
    with tempfile.TemporaryDirectory(prefix="ballast-test-") as folder:
        arguments = ["--text", texts(folder), "--steps", "2"]
        said, _ = quickstart(folder, *arguments, "--json", "summary.json")
        assert "total imbalance, mean" in said and all(len(line) <= 80 for line in said.splitlines())
        with open(os.path.join(folder, "summary.json")) as f:
            summary = json.load(f)
        assert summary["steps"] == 2 and summary["plain"] and summary["balanced"]
        said, _ = quickstart(folder, *arguments, "--policy", "pool:2")
        assert "pool:2" in said, said
        for dp, cp in ((0, 0), (0, 1), (1, 0), (1, 1)):
            with open(os.path.join(ROOT, f"build/quickstart/rank.{dp}.{cp}.log")) as f:
                assert all(json.loads(line)["verified"] > 0 for line in f), (dp, cp)
        said, _ = quickstart(folder, *arguments, "--policy", "plain", "--keep")
        with open(os.path.join(ROOT, "build/quickstart/ballastd.pid")) as f:
            pid = int(f.read())
        try:
            assert f"kill {pid}" in said
            assert f"kill {pid}" in quickstart(folder, *arguments, expect=1)[1]
        finally:
            os.kill(pid, signal.SIGTERM)


if __name__ == "__main__":
    main(globals())
