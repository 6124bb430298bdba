#!/usr/bin/python3
"""Clients that misbehave, a second daemon, stale sockets: a defined answer, and the others go on."""

import os
import pwd
import signal
import socket
import struct
import subprocess
import time

from world import BIN, Skip, World, in_order, least, main, synthetic_documents, write_corpus


def small_world(**sections):
    world = World()
    prefix = os.path.join(world.dir, "d")
    write_corpus(prefix, synthetic_documents(4, 600, 3000))
    sections.setdefault("daemon", {})
    world.config([("d", prefix, 1)], {
        "plan": {"window": 2048, "micro_batches": 4, "policy": "wlb:bands"},
        "parallel": {"dp": 2, "cp": 2},
        **sections,
    })
    return world


def status_ranks(world):
    return {(r["rank"]["dp"], r["rank"]["cp"]) for r in world.live("status")["ranks"]}


def test_a_client_that_stops_reading_is_cut_after_its_lease_and_others_go_on():
    with small_world(daemon={"lease": "2s"}, slab={"slots": 24}) as world:
        world.start()
        stuck = world.rank(0, cp=1, steps=100000)
        world.wait_for(lambda: len(stuck.lines()) > 4, "the rank is served")
        stuck.process.send_signal(signal.SIGSTOP)
        other = world.rank(1, cp=0, steps=150)
        sibling = world.rank(0, cp=0, steps=150)
        in_order(other.finish(60), 2)
        in_order(sibling.finish(60), 2)
        stuck.process.send_signal(signal.SIGCONT)
        before = len(stuck.lines())
        world.wait_for(lambda: len(stuck.lines()) > before + 10, "the stuck rank goes on", 60)
        stuck.process.send_signal(signal.SIGTERM)
        stuck.wait()
        in_order(stuck.lines(), 2)
        world.stop()


def test_a_client_that_dies_holding_slots_gives_them_back():
    with small_world(daemon={"lease": "2s"}, slab={"slots": 24}) as world:
        world.start()
        for _ in range(8):
            rank = world.rank(0, cp=1, steps=100000, think_ms=50, credits=8)
            world.wait_for(lambda r=rank: len(r.lines()) > 0, "the rank is served")
            rank.process.kill()
            rank.process.wait()
        in_order(world.rank(0, cp=0, steps=100).finish(60), 2)
        world.stop()


def test_two_ranks_with_one_identity_the_first_stays():
    with small_world() as world:
        world.start()
        first = world.rank(0, cp=0, steps=100000, think_ms=5)
        world.wait_for(lambda: len(first.lines()) > 2, "the first is served")
        raw = Raw(world.socket)
        status, message = raw.hello(0, 0)
        assert status == 6 and b"0" in message, (status, message)
        count = len(first.lines())
        world.wait_for(lambda: len(first.lines()) > count + 4, "the first goes on")
        first.process.send_signal(signal.SIGTERM)
        first.wait()
        world.stop()


def test_a_uid_that_is_not_allowed_is_refused():
    if os.geteuid() != 0:
        raise Skip("needs root to be somebody else")
    nobody = pwd.getpwnam("nobody").pw_uid
    with small_world() as world:
        world.start()
        os.chmod(world.dir, 0o755)
        for path in (world.socket, world.socket + ".data"):
            os.chmod(path, 0o666)
        done = subprocess.run(
            [os.path.join(BIN, "ballastctl"), "--socket", world.socket, "status"],
            user=nobody, capture_output=True, text=True)
        assert done.returncode == 1 and "allow" in done.stderr, (done.returncode, done.stderr)
        in_order(world.rank(0, cp=0, steps=5).finish(60), 2)
        world.stop()


def test_a_second_daemon_on_the_same_state_is_refused_at_once():
    with small_world() as world:
        first = world.start()
        other = os.path.join(world.dir, "other.sock")

        def refused():
            """Seconds until it is."""
            started = time.monotonic()
            done = subprocess.run(
                [os.path.join(BIN, "ballastd"), "--config", world.config_path, "--socket", other],
                capture_output=True, text=True, timeout=60)
            assert done.returncode not in (0, None) and str(first.pid) in done.stderr, done.stderr
            return time.monotonic() - started

        assert least(refused, 1) <= 1
        assert not os.path.exists(other)
        in_order(world.rank(0, cp=0, steps=5).finish(60), 2)
        world.kill()
        world.start()
        world.stop()


def test_a_stale_socket_is_replaced_and_a_plain_file_is_not():
    with small_world() as world:
        world.start()
        world.kill()
        assert os.path.exists(world.socket)
        world.start()
        world.stop()
        assert not os.path.exists(world.socket)
        with open(world.socket, "w") as f:
            f.write("precious")
        done = subprocess.run([os.path.join(BIN, "ballastd"), "--config", world.config_path],
                              capture_output=True, text=True, timeout=60)
        assert done.returncode != 0 and world.socket in done.stderr, done.stderr
        with open(world.socket) as f:
            assert f.read() == "precious"


def test_a_socket_path_that_is_a_link_a_folder_or_anothers_is_refused_and_left_alone():
    with small_world() as world:
        elsewhere = os.path.join(world.dir, "elsewhere")
        open(elsewhere, "w").close()

        def refused():
            done = subprocess.run([os.path.join(BIN, "ballastd"), "--config", world.config_path],
                                  capture_output=True, text=True, timeout=60)
            return done.returncode == 74 and world.socket in done.stderr

        for target in (elsewhere, os.path.join(world.dir, "nowhere"), world.dir):
            os.symlink(target, world.socket)
            assert refused() and os.readlink(world.socket) == target, target
            os.unlink(world.socket)
        os.mkdir(world.socket)
        assert refused() and os.path.isdir(world.socket)
        os.rmdir(world.socket)
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(world.socket)
            other.listen()
            assert refused()
        with socket.socket(socket.AF_UNIX) as stale:  # what other left behind, and at the data socket too
            stale.bind(world.socket + ".data")
        world.start()
        world.rank(0, cp=0, steps=2).finish(60)
        world.stop()


def test_a_socket_path_that_is_too_long_is_refused_by_name():
    with small_world() as world:
        done = subprocess.run([os.path.join(BIN, "ballastd"), "--config", world.config_path,
                               "--socket", os.path.join(world.dir, "x" * 108)],
                              capture_output=True, text=True, timeout=60)
        assert done.returncode != 0 and "102 characters" in done.stderr, done.stderr


class Raw:
    """A client made of bytes."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(30)
        self.socket.connect(path)
        self.stream = 1

    def send(self, data):
        self.socket.sendall(data)

    def frame(self, stream, kind, flags, data, length=None):
        self.send(struct.pack(">IIBB", len(data) if length is None else length, stream, kind, flags) + data)

    def receive(self):
        """(stream, type, flags, data), or None at the end of the connection."""
        header = self.exactly(10)
        if header is None:
            return None
        length, stream, kind, flags = struct.unpack(">IIBB", header)
        return stream, kind, flags, self.exactly(length)

    def exactly(self, n):
        data = b""
        while len(data) < n:
            try:
                more = self.socket.recv(n - len(data))
            except ConnectionError:
                return None
            if not more:
                return None
            data += more
        return data

    @staticmethod
    def field(number, data):
        return bytes([number << 3 | 2, len(data)]) + data

    def call(self, method, payload=b"", service=b"ballast.v1.Loader"):
        """(status code, message or payload) of a unary call."""
        stream = self.stream
        self.stream += 2
        body = self.field(1, service) + self.field(2, method) + self.field(3, payload)
        self.frame(stream, 1, 1, body)
        answer = self.receive()
        assert answer is not None and answer[0] == stream and answer[1] == 2, answer
        return self.response(answer[3])

    @staticmethod
    def response(data):
        """Response {1 status {1 code, 2 message}, 2 payload}."""
        code, text, payload, at = 0, b"", b"", 0
        while at < len(data):
            key = data[at]
            size, at = data[at + 1], at + 2
            if size & 128:
                size, at = (size & 127) | data[at] << 7, at + 1
            value, at = data[at : at + size], at + size
            if key >> 3 == 1:
                if value[:1] == b"\x08":
                    code = value[1]
                    text = value[4:] if len(value) > 4 else b""
            else:
                payload = value
        return code, text or payload

    def hello(self, dp, cp):
        rank = bytes([8, dp, 24, cp])
        return self.call(b"Hello", bytes([8, 1, 16, 1]) + self.field(3, rank))


def closed(raw, within=30.0):
    """Whether the daemon closes the connection in time."""
    deadline = time.monotonic() + within
    raw.socket.settimeout(within)
    try:
        while time.monotonic() < deadline:
            if not raw.socket.recv(65536):
                return True
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return False


def test_hostile_frames_close_their_own_connection_only():
    hello = Raw.field(1, b"ballast.v1.Loader") + Raw.field(2, b"Ping")
    with small_world() as world:
        world.start()
        rank = world.rank(0, cp=0, steps=100000, think_ms=2)
        world.wait_for(lambda: len(rank.lines()) > 2, "the rank is served")

        def attack(name, send):
            raw = Raw(world.socket)
            send(raw)
            assert closed(raw), f"{name}: the connection stays open"

        attack("length 2^32-1", lambda r: r.frame(1, 1, 0, b"x" * 64, length=2**32 - 1))
        attack("length over 4 MiB", lambda r: r.frame(1, 1, 0, b"x" * 64, length=(4 << 20) + 1))
        attack("unknown type", lambda r: r.frame(1, 9, 0, hello))
        attack("even stream", lambda r: r.frame(2, 1, 0, hello))

        def reused(raw):
            raw.frame(3, 1, 1, hello)
            raw.receive()
            raw.frame(3, 1, 1, hello)

        attack("reused stream", reused)
        attack("response from a client", lambda r: r.frame(1, 2, 0, hello))
        attack("zero stream", lambda r: r.frame(0, 1, 0, hello))

        attack("length 0", lambda r: r.frame(1, 1, 1, b""))
        raw = Raw(world.socket)
        raw.frame(1, 1, 1, b"\xff" * 40)
        assert Raw.response(raw.receive()[3])[0] == 3

        for cut in range(1, 10 + len(hello)):
            half = Raw(world.socket)
            half.send((struct.pack(">IIBB", len(hello), 1, 1, 1) + hello)[:cut])
            half.socket.close()

        ping = Raw(world.socket)
        assert ping.call(b"Ping")[0] == 0
        assert ping.call(b"Nonsense")[0] == 12
        assert ping.call(b"Guess")[0] == 12
        count = len(rank.lines())
        world.wait_for(lambda: len(rank.lines()) > count + 4, "the rank goes on")
        rank.process.send_signal(signal.SIGTERM)
        rank.wait()
        in_order(rank.lines(), 2)
        world.stop()


def test_thousands_of_connections_one_after_the_other_and_many_idle_ones():
    with small_world() as world:
        world.start()
        rank = world.rank(0, cp=0, steps=100000, think_ms=2)
        world.wait_for(lambda: len(rank.lines()) > 2, "the rank is served")
        for _ in range(2000):
            Raw(world.socket).socket.close()
        idle = []
        for _ in range(300):
            try:
                idle.append(Raw(world.socket))
            except OSError:
                break
        for raw in idle:
            raw.socket.close()
        count = len(rank.lines())
        world.wait_for(lambda: len(rank.lines()) > count + 4, "the rank goes on")
        rank.process.send_signal(signal.SIGTERM)
        rank.wait()
        world.stop()


def test_a_wrong_rank_is_refused_with_the_mesh_named():
    with small_world(node={"replicas": 1}) as world:
        world.start()
        raw = Raw(world.socket)
        status, message = raw.hello(0, 0)
        assert status == 9 and b"replica" in message, (status, message)
        raw = Raw(world.socket)
        status, message = raw.hello(1, 7)
        assert status in (3, 11) and b"cp" in message, (status, message)
        world.stop()


def test_a_broken_config_names_file_line_and_key():
    with small_world() as world:
        with open(world.config_path, "a") as f:
            f.write("[plan]\nwindw = 5\n")
        done = subprocess.run([os.path.join(BIN, "ballastd"), "--config", world.config_path,
                               "--check-config"], capture_output=True, text=True, timeout=60)
        assert done.returncode == 78, done.returncode
        assert "windw" in done.stderr and world.config_path in done.stderr and "window" in done.stderr


def test_checking_a_config_opens_its_datasets():
    with small_world() as world:
        check = [os.path.join(BIN, "ballastd"), "--config", world.config_path, "--check-config"]
        assert subprocess.run(check, capture_output=True, timeout=60).returncode == 0
        with open(os.path.join(world.dir, "d.bin"), "r+b") as f:
            f.truncate(f.seek(0, 2) - 3)
        done = subprocess.run(check, capture_output=True, text=True, timeout=60)
        assert done.returncode == 65 and "d.bin" in done.stderr and "3 bytes" in done.stderr, done
        os.remove(os.path.join(world.dir, "d.idx"))
        done = subprocess.run(check, capture_output=True, text=True, timeout=60)
        assert done.returncode == 74 and "d.idx" in done.stderr, done


def test_sigterm_under_load_ends_in_time_and_resumes():
    with small_world() as world:
        world.start()
        ranks = [world.rank(d, cp=c, steps=120, think_ms=1) for d in range(2) for c in range(2)]
        world.wait_for(lambda: all(len(r.lines()) > 10 for r in ranks), "all are served")
        world.stop(10)
        world.start()
        for rank in ranks:
            assert len(in_order(rank.finish(100), 2)) == 120 * 2
        world.stop()


if __name__ == "__main__":
    main(globals())
