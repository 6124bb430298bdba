#!/usr/bin/python3
"""Two versions at the ends of a socket, and of a state directory: served, or refused by name."""

import os
import socket
import sqlite3
import struct
import threading

from faults import Raw, small_world
from service import daemon_output
from world import in_order, main

# A field that no version has: number 1000, "from the future".
UNKNOWN = b"\xc2\x3e\x0ffrom the future"
PRECONDITION, UNIMPLEMENTED = 9, 12


def varint(value):
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def lengthy(number, data):
    return bytes([number << 3 | 2]) + varint(len(data)) + data


def fields(data):
    """[(number, value)] of a message; value int or bytes."""
    found, at = [], 0
    while at < len(data):
        words = []
        while len(words) < 2:
            value = shift = 0
            while True:
                value |= (data[at] & 127) << shift
                shift, at = shift + 7, at + 1
                if data[at - 1] < 128:
                    break
            words.append(value)
        key, value = words
        if key & 7 == 2:
            value, at = data[at : at + value], at + value
        found.append((key >> 3, value))
    return found


def put(message):
    return b"".join(lengthy(n, v) if isinstance(v, bytes) else bytes([n << 3]) + varint(v) for n, v in message)


def hello(raw, lowest, highest, more=b""):
    """(status code, text or payload) of Hello for rank (0, 0, 0, 0)."""
    body = bytes([8]) + varint(lowest) + bytes([16]) + varint(highest) + lengthy(3, b"") + more
    return raw.call(b"Hello", body)


def test_a_client_of_another_version_is_served_or_told_which_is_older():
    with small_world() as world:
        world.start()
        for lowest, highest in ((1, 1), (1, 7), (0, 1)):
            raw = Raw(world.socket)
            code, payload = hello(raw, lowest, highest, UNKNOWN)
            assert code == 0 and dict(fields(payload))[1] == 1, (lowest, highest, code, payload)
            raw.socket.close()
            world.wait_for(lambda: all(r["pid"] == 0 for r in world.live("status")["ranks"]), "it is gone")
        for lowest, highest in ((2, 7), (2, 2**32 - 1), (0, 0)):
            code, text = hello(Raw(world.socket), lowest, highest)
            assert code == PRECONDITION, (code, text)
            assert b"protocol 1 is spoken here" in text and b"update the older side" in text, text
        raw = Raw(world.socket)
        for service in (b"ballast.v1.Loader", b"ballast.v1.Admin", b"ballast.v2.Loader"):
            code, text = raw.call(b"Teleport", UNKNOWN, service=service)
            assert code == UNIMPLEMENTED, (service, code, text)
        assert raw.call(b"Ping", UNKNOWN)[0] == 0
        world.stop()


class Between(threading.Thread):
    """Stands between a client and the daemon and adds an unknown field to every message, both ways."""

    def __init__(self, path, daemon_path):
        super().__init__(daemon=True)
        self.daemon_path = daemon_path
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen()
        self.changed = 0
        self.start()

    def run(self):
        while True:
            client = self.listener.accept()[0]
            daemon = socket.socket(socket.AF_UNIX)
            daemon.connect(self.daemon_path)
            for source, sink in ((client, daemon), (daemon, client)):
                threading.Thread(target=self.pass_on, args=(source, sink), daemon=True).start()

    def pass_on(self, source, sink):
        try:
            with source.makefile("rb") as frames:
                while header := frames.read(10):
                    length, stream, kind, flags = struct.unpack(">IIBB", header)
                    data = self.add(kind, flags, frames.read(length))
                    sink.sendall(struct.pack(">IIBB", len(data), stream, kind, flags) + data)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def add(self, kind, flags, data):
        """Request and Response carry a payload in field 3 or 2; Data frames are a message themselves."""
        if flags & 4 or (kind == 3 and not data):
            return data
        self.changed += 1
        if kind == 3:
            return data + UNKNOWN
        inner = {1: 3, 2: 2}[kind]
        return put([(n, v + UNKNOWN if n == inner else v) for n, v in fields(data)]) + UNKNOWN


def test_what_a_newer_side_adds_is_passed_over_by_the_older_in_both_directions():
    with small_world() as world:
        world.start()
        ours = world.socket
        world.socket = os.path.join(world.dir, "between.sock")
        between = Between(world.socket, ours)
        ranks = [world.rank(d, cp=c, steps=20) for d in range(2) for c in range(2)]
        for rank in ranks:
            assert len(in_order(rank.finish(60), 2)) == 40
        assert world.live("status")["state"] == "serving"
        assert world.live("plan", 3)["plan"]["step"] == 3
        print(f"      {between.changed} messages changed on the way", flush=True)
        assert between.changed > 4 * 20 * 3
        world.socket = ours
        world.stop()


def test_a_state_of_a_newer_version_is_refused_by_name_and_left_alone():
    with small_world() as world:
        world.start()
        world.rank(0, cp=0, steps=3).finish(60)
        world.stop()
        path = os.path.join(world.state, "ballast.db")
        with sqlite3.connect(path) as db:
            version = db.execute("PRAGMA user_version").fetchone()[0]
            db.execute(f"PRAGMA user_version = {version + 1}")
        db.close()
        with open(path, "rb") as f:
            before = f.read()
        code, text = daemon_output(world)
        assert code == 65 and f"has format {version + 1}, this version reads up to {version}" in text, (code, text)
        with open(path, "rb") as f:
            assert f.read() == before


if __name__ == "__main__":
    main(globals())
