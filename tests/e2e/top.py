#!/usr/bin/python3
"""ballastctl top: a page once off a terminal, live on one, and the terminal as it was, whatever ends it."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time

from faults import small_world
from world import BIN, main

ENTER, LEAVE = b"\x1b[?1049h", b"\x1b[?1049l"


class Terminal:
    """A ballastctl top in a terminal of its own."""

    def __init__(self, world, *arguments, rows=40, columns=100, environment=None):
        self.master, slave = pty.openpty()
        self.resize(rows, columns)
        self.before = termios.tcgetattr(slave)
        self.seen = b""
        self.slave = slave
        env = {k: v for k, v in os.environ.items() if k != "NO_COLOR"}
        self.process = subprocess.Popen(
            [os.path.join(BIN, "ballastctl"), "--socket", world.socket, "top", *arguments], stdin=slave, stdout=slave,
            stderr=slave, env={**env, "TERM": "xterm", **(environment or {})}, preexec_fn=os.setsid)

    def resize(self, rows, columns):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self, wanted, timeout=60):
        """Reads until `wanted` (a pattern) was seen in what came since the last read; what that was."""
        fresh = b""
        deadline = time.monotonic() + timeout
        while not re.search(wanted, fresh):
            assert time.monotonic() < deadline, f"no {wanted} in {fresh[-2000:]}"
            if select.select([self.master], [], [], 0.1)[0]:
                fresh += os.read(self.master, 65536)
        self.seen += fresh
        return fresh

    def end(self):
        """Its exit code, with the terminal as before."""
        code = self.process.wait(60)
        while select.select([self.master], [], [], 0.1)[0]:
            self.seen += os.read(self.master, 65536)
        assert self.seen.count(ENTER) == self.seen.count(LEAVE) >= 1, self.seen[-300:]
        assert b"\x1b[?25h" in self.seen[self.seen.rindex(LEAVE) - 20 :], "no cursor"
        assert termios.tcgetattr(self.slave) == self.before, "the terminal's settings are others now"
        return code


def test_off_a_terminal_one_page_comes_and_json_is_the_answer_of_status():
    with small_world() as world:
        world.start()
        for d, c in ((0, 0), (0, 1), (1, 0), (1, 1)):
            world.rank(d, cp=c, steps=100000, think_ms=5)
        world.wait_for(lambda: all(len(r.lines()) > 5 for r in world.ranks), "ranks are served")
        page = world.ctl("--socket", world.socket, "top").stdout
        assert "\x1b" not in page and all(len(line) <= 80 for line in page.splitlines()), page
        for wanted in ("serving  4/4 ranks", "steps    next ", "balance  total ", "reads    ", "slots    ", "store    ",
                       "QUEUE", "RANK", "dp1 pp0 cp1 tp0", "WAITED", "LEASE"):
            assert wanted in page, (wanted, page)
        assert page.splitlines()[0] == world.ctl("--socket", world.socket, "top", "--once").stdout.splitlines()[0]
        answer = json.loads(world.ctl("--socket", world.socket, "--json", "top").stdout)
        assert answer["reads"]["documents"] > 0 and len(answer["ranks"]) == 4
        assert all(rank["batches"] > 5 for rank in answer["ranks"])
        world.ranks[0].process.kill()
        world.wait_for(lambda: any(r["lease_ms"] > 0 for r in world.live("status")["ranks"]), "a lease runs")
        world.stop()


def test_live_it_follows_the_daemon_and_q_ends_it():
    with small_world() as world:
        world.start()
        world.rank(0, cp=0, steps=100000, think_ms=5)
        world.wait_for(lambda: len(world.ranks[0].lines()) > 5, "the rank is served")
        terminal = Terminal(world, "--interval", "100ms")
        assert b"\x1b[1mserving" in terminal.read(rb"dp0 pp0 cp0 tp0[^\n]*\d")
        terminal.read(rb"steps    next \d+")
        world.kill()
        terminal.read(b"(no daemon|not running|gone|closed|ended)")
        world.start()
        terminal.read(b"serving")
        os.write(terminal.master, b"q")
        assert terminal.end() == 0
        world.stop()


def test_it_fits_any_size_and_follows_a_change():
    with small_world() as world:
        world.start()
        world.wait_for(lambda: world.live("status")["state"] == "serving", "a step is planned")
        terminal = Terminal(world, "--interval", "10s", rows=6, columns=30)
        shown = terminal.read(b"\x1b\\[J")
        lines = re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]|\r", b"", shown).split(b"\n")
        assert len(lines) <= 6 and all(len(line) <= 30 for line in lines), lines
        terminal.resize(40, 100)
        os.kill(terminal.process.pid, signal.SIGWINCH)
        assert terminal.read(b"\x1b\\[J").count(b"\r\n") > 6
        os.write(terminal.master, b" ")
        terminal.read(b"\x1b\\[J")
        os.write(terminal.master, b"q")
        assert terminal.end() == 0
        world.stop()


def test_without_colours_when_asked():
    with small_world() as world:
        world.start()
        terminal = Terminal(world, environment={"NO_COLOR": "1"})
        assert b"\x1b[1m" not in terminal.read(b"\x1b\\[J")
        os.write(terminal.master, b"q")
        assert terminal.end() == 0
        dumb = subprocess.run([os.path.join(BIN, "ballastctl"), "--socket", world.socket, "top"], stdout=subprocess.PIPE,
                              env={**os.environ, "TERM": "dumb"}, timeout=60)
        assert dumb.returncode == 0 and b"\x1b" not in dumb.stdout
        world.stop()


def test_signals_leave_the_terminal_as_it_was():
    with small_world() as world:
        world.start()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            terminal = Terminal(world, "--interval", "10s")
            terminal.read(b"\x1b\\[J")
            os.kill(terminal.process.pid, number)
            assert terminal.end() == -number, number
        world.stop()


if __name__ == "__main__":
    main(globals())
