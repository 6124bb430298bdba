#!/usr/bin/python3
"""python -m ballast.doctor: what it finds, what it advises, how it exits."""

import contextlib
import io
import json
import os
import subprocess
import sys

from c_forms import LIBRARY
from python_client import ballast, world_of
from world import ROOT, main

import ballast.doctor as checks  # noqa: E402


def doctor(*arguments):
    """(exit code, {check: finding}) of a run, in this process."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = checks.main(["--json", *map(str, arguments)])
    document = json.loads(out.getvalue())
    assert document["healthy"] == (code == 0)
    for finding in document["checks"]:
        assert finding["result"] == "ok" or finding["remedy"] or "no micro-batch is due" in finding["text"], finding
    return code, {finding["check"]: finding for finding in document["checks"]}


def program(*arguments, **environment):
    return subprocess.run([sys.executable, "-m", "ballast.doctor", *arguments], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "PYTHONPATH": os.path.join(ROOT, "client/python"), **environment})


def test_a_good_setup_is_found_good_and_left_as_it_was():
    with world_of(cp=2) as world:
        world.start()
        world.wait_for(lambda: world.live("status")["state"] == "serving", "it serves")
        code, found = doctor("--socket", world.socket)
        checked = ("python", "socket", "daemon", "rank", "memory", "batch", "library")
        assert code == 0 and all(found[c]["result"] == "ok" for c in checked), found
        assert LIBRARY in found["library"]["text"]
        assert "is serving" in found["daemon"]["text"] and "sealed" in found["memory"]["text"], found
        assert "step 0, index 0" in found["batch"]["text"]
        assert world.live("status")["committed_step"] == 0
        digest = ballast.Client(world.socket, cp=1).job.digest.hex()
        assert doctor("--socket", world.socket, "--job-digest", digest)[0] == 0
        plain = program(BALLAST_SOCKET=world.socket, BALLAST_LIBRARY="none")
        assert "library  note   plans are read and rows gathered in Python" in plain.stdout, plain.stdout
        assert plain.returncode == 0 and plain.stdout.startswith("CHECK    RESULT FOUND\npython   ok"), plain
        with open(os.path.join(world.dir, "numpy.py"), "w") as f:
            f.write("raise ImportError\n")
        path = os.pathsep.join((world.dir, os.path.join(ROOT, "client/python")))
        without = program("--socket", world.socket, "--json", PYTHONPATH=path).stdout
        assert '"install numpy first"' in without, without


def test_what_is_wrong_is_named_with_its_remedy_and_exit_code():
    with world_of(cp=2) as world:
        code, found = doctor("--socket", world.socket)
        assert code == 3 and "start ballastd" in found["socket"]["remedy"] and "batch" not in found
        world.start()
        code, found = doctor("--socket", world.socket, "--cp", 7)
        assert code == 1 and "cp 7" in found["rank"]["text"] and "no slab is mapped" in found["memlock"]["text"], found
        code, found = doctor("--socket", world.socket, "--job-digest", "00" * 16)
        assert code == 1 and found["rank"]["result"] == "wrong"
        with ballast.Client(world.socket):
            code, found = doctor("--socket", world.socket)
            assert code == 0 and found["rank"]["result"] == "note" and str(os.getpid()) in found["rank"]["text"]
        os.rename(world.socket + ".data", world.socket + ".gone")
        code, found = doctor("--socket", world.socket, "--cp", 1)
        assert code == 0 and found["memory"]["result"] == "note" and found["batch"]["result"] == "ok"
        world.kill()
        code, found = doctor("--socket", world.socket)
        assert code == 3 and "no daemon listens" in found["daemon"]["text"]
        assert doctor("--socket", world.config_path)[0] == 1
    lost = program("--socket", world.socket, BALLAST_LIBRARY="/nowhere/libballast.so")
    assert lost.returncode == 3 and "BALLAST_LIBRARY is /nowhere" in lost.stdout, lost


def test_usage():
    done = program("--dp", "x")
    assert done.returncode == 2 and "usage:" in done.stderr


if __name__ == "__main__":
    main(globals())
