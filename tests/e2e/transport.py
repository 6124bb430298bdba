#!/usr/bin/python3
"""However tokens travel, a rank has the ring's bytes: Fetch on the Unix socket, over TCP, over TLS."""

import ctypes
import os
import random
import socket
import ssl
import struct
import threading
import time

from authority import Authority
from faults import Raw
from world import Skip, World, in_order, least, main, synthetic_documents, write_corpus

STEPS = 12
MICRO_BATCHES = 4  # of two replicas


def world_with_corpus(listen=None, **sections):
    """Micro-batches of half a megabyte: several pieces each. With `listen`, on a port of its own."""
    world = World()
    if listen is not None:
        sections["listen"] = {"tcp": f"127.0.0.1:{world.port}", **listen}
    prefix = os.path.join(world.dir, "d")
    write_corpus(prefix, synthetic_documents(5, 4000, 100000))
    world.config([("d", prefix, 1)], {
        "job": {"seed": 3},
        "plan": {"window": 262144, "micro_batches": MICRO_BATCHES},
        "parallel": {"dp": 2, "cp": 2},
        "reader": {"payload_hashes": "true"},
        **sections,
    })
    return world


def content(lines):
    return [{k: v for k, v in line.items() if k != "waited_us"} for line in lines]


def dumped(folder):
    found = {}
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), "rb") as f:
            found[name] = f.read()
    return found


def ring(world):
    """Log and columns of rank (0, 1) as the ring gives them."""
    folder = os.path.join(world.dir, "ring")
    os.makedirs(folder)
    lines = world.rank(cp=1, steps=STEPS, commit_every=0, dump=folder, transport="shared").finish()
    return content(lines), dumped(folder)


def expect_ring(world, expected, **options):
    folder = os.path.join(world.dir, f"dump.{time.monotonic_ns()}")
    os.makedirs(folder)
    lines = world.rank(cp=1, steps=STEPS, commit_every=0, dump=folder, **options).finish()
    assert content(lines) == expected[0]
    assert dumped(folder) == expected[1]


def test_a_rank_that_fetches_has_the_rings_bytes():
    with world_with_corpus() as world:
        world.start()
        expected = ring(world)
        assert len(expected[1]) == 3 * STEPS * MICRO_BATCHES // 2
        expect_ring(world, expected, transport="fetch")
        expect_ring(world, expected, transport="fetch", credits=1)
        os.rename(world.socket + ".data", world.socket + ".away")  # only the control socket is mounted
        expect_ring(world, expected)
        os.rename(world.socket + ".away", world.socket + ".data")
        world.stop()


def test_kill_9_in_the_middle_of_fetches_changes_no_byte():
    seed = int(os.environ.get("BALLAST_SEED", time.time_ns() % 1000000))
    print(f"      seed {seed} (BALLAST_SEED)", flush=True)
    rng = random.Random(seed)
    with world_with_corpus() as world:
        world.start()
        expected = ring(world)[0]
        rank = world.rank(cp=1, transport="fetch", steps=STEPS, commit_every=0, think_ms=20)
        for _ in range(5):
            time.sleep(rng.uniform(0.02, 0.12))
            world.kill()
            world.start()
        known = in_order(rank.finish(), MICRO_BATCHES // 2)
        assert [known[at] for at in sorted(known)] == expected
        world.stop()


class SlowFetcher(Raw):
    """A rank of replica 1 that fetches, and reads a kilobyte now and then."""

    def __init__(self, path):
        super().__init__(path)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        rank = self.field(3, b"\x08\x01")
        assert self.call(b"Hello", b"\x08\x01\x10\x01" + rank + self.field(4, b"\x02"))[0] == 0
        stream = self.stream
        self.stream += 2
        self.frame(stream, 1, 2, self.field(1, b"ballast.v1.Loader") + self.field(2, b"Stream"))
        self.frame(stream, 3, 0, b"\x08\x01")
        self.batch = self.receive()
        assert self.batch[0] == stream and self.batch[1] == 3
        request = self.field(1, b"\x08\x00\x10\x01")
        body = self.field(1, b"ballast.v1.Loader") + self.field(2, b"Fetch") + self.field(3, request)
        self.frame(self.stream, 1, 1, body)


def test_a_slow_fetcher_does_not_delay_the_rings_ranks():
    with world_with_corpus() as world:
        world.start()

        def waits():
            """Medians of milliseconds waited, without the first steps."""
            lines = world.rank(steps=STEPS, commit_every=0, think_ms=5).finish()
            return sorted(line["waited_us"] / 1000 for line in lines[4:])[len(lines) // 2]

        def beside():
            """The waits beside it in parts of what they may be."""
            most = 2 * waits() + 2
            slow = SlowFetcher(world.socket)
            done = threading.Event()

            def dawdle():
                while not done.wait(0.01):
                    slow.socket.recv(1024)

            thread = threading.Thread(target=dawdle)
            thread.start()
            try:
                return waits() / most
            finally:
                done.set()
                thread.join()
                slow.socket.close()

        assert least(beside, 1) <= 1
        assert world.live("status")["state"] == "serving"
        world.stop()


# TCP


def write_token(world, name, token):
    path = os.path.join(world.dir, name)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as f:
        f.write(token + "\n")
    return path


def world_on_tcp(**listen):
    """A world whose ranks and ctl may use .tcp with the token files .token and .admin."""
    world = world_with_corpus(listen={"token_file": "token", "admin_token_file": "admin", **listen},
                              limits={"connections": 30})
    world.tcp = f"tcp:127.0.0.1:{world.port}"
    world.token = write_token(world, "token", "a token of ranks 0123456789".replace(" ", "-"))
    world.admin = write_token(world, "admin", "a token of operators 012345".replace(" ", "-"))
    return world


def flags(options):
    return [word for key, value in options.items() for word in ("--" + key.replace("_", "-"), value)]


def ask(world, address, options, expect=0):
    return world.ctl("--socket", address, *flags(options), "--json", "status", expect=expect)


def logged(world):
    with open(world.daemon_log) as f:
        return f.read()


def expect_over(world, expected, address, **options):
    unix, world.socket = world.socket, address
    try:
        expect_ring(world, expected, **options)
    finally:
        world.socket = unix


def test_over_tcp_on_loopback_a_rank_has_the_rings_bytes():
    with world_on_tcp() as world:
        world.start()
        expected = ring(world)
        expect_over(world, expected, world.tcp, token_file=world.token)
        refused = ask(world, world.tcp, {"token_file": world.token}, expect=1)
        assert "not allowed to administer" in refused.stderr and "admin_token_file" in refused.stderr
        ask(world, world.tcp, {"token_file": world.admin})
        other = write_token(world, "other", "0" * 32)
        refused = ask(world, world.tcp, {"token_file": other}, expect=1)
        assert "not the one of listen.token_file" in refused.stderr
        refused = ask(world, world.tcp, {}, expect=1)
        assert "needs the daemon's token" in refused.stderr and "BALLAST_TOKEN_FILE" in refused.stderr
        unix, world.socket = world.socket, world.tcp
        code, text = world.rank(cp=1, transport="shared", token_file=world.token).wait()
        world.socket = unix
        assert code == 1 and "cannot share its memory" in text, text
        with socket.create_connection(("127.0.0.1", world.port)) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            stranger.settimeout(30)
            assert b"begins with a token" in stranger.recv(4096)
            assert stranger.recv(4096) == b""
        silent = [socket.create_connection(("127.0.0.1", world.port)) for _ in range(40)]
        ask(world, world.tcp, {"token_file": world.admin})
        silent[0].settimeout(30)
        assert silent[0].recv(1) == b"", "the oldest that keeps silent makes way"
        ask(world, world.socket, {})
        for one in silent:
            one.close()
        world.stop()


def drop_what_comes(connection):
    """From here on the kernel drops every packet for this socket unseen: the cable is pulled."""
    program = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0))  # BPF: return 0
    attach = 26  # SO_ATTACH_FILTER
    connection.setsockopt(socket.SOL_SOCKET, attach, struct.pack("@HP", 1, ctypes.addressof(program)))


def test_a_pulled_cable_ends_the_connection_after_its_timeout():
    with world_on_tcp(timeout="1s") as world:
        world.start()
        stray = Raw.__new__(Raw)
        stray.socket = socket.create_connection(("127.0.0.1", world.port))
        stray.socket.settimeout(30)
        stray.stream = 1
        with open(world.token, "rb") as f:
            stray.send(b"ballast/1 bearer " + f.read())
        hello = b"\x08\x01\x10\x01" + Raw.field(3, b"\x08\x01") + Raw.field(4, b"\x02")
        assert stray.call(b"Hello", hello)[0] == 0
        drop_what_comes(stray.socket)
        world.wait_for(lambda: "rank left dp=1" in logged(world), "the daemon gives the rank up")
        stray.socket.close()
        assert world.live("status")["state"] in ("serving", "warming")
        world.stop()


# TLS


def world_on_tls():
    world = world_with_corpus(listen={
        "certificate": "ca/daemon.pem", "key": "ca/daemon.key", "ca": "ca/ca.pem",
        "serve_names": "trainer.test", "admin_names": "operator.test"})
    world.tls = f"tls:127.0.0.1:{world.port}"
    world.authority = Authority(os.path.join(world.dir, "ca"))
    world.authority.sign("daemon", "IP:127.0.0.1,DNS:daemon.test")
    world.authority.sign("trainer", "DNS:trainer.test")
    world.authority.sign("operator", "DNS:operator.test")
    return world


def need_tls(world):
    done = world.ctl("--socket", "tls:127.0.0.1:1", "--tls-ca", world.config_path, "status", expect=None)
    if "no TLS" in done.stderr:
        raise Skip("this build has no TLS")


def test_over_mutual_tls_a_rank_has_the_rings_bytes():
    with world_on_tls() as world:
        need_tls(world)
        world.start()
        expected = ring(world)
        trainer = world.authority.client("trainer")
        expect_over(world, expected, world.tls, **trainer)
        expect_over(world, expected, world.tls, tls_name="daemon.test", credits=1, **trainer)
        ask(world, world.tls, world.authority.client("operator"))
        unix, world.socket = world.socket, world.tls
        rank = world.rank(cp=1, steps=STEPS, commit_every=0, think_ms=20, **trainer)
        world.socket = unix
        time.sleep(0.3)
        world.kill()
        world.start()
        known = in_order(rank.finish(), MICRO_BATCHES // 2)
        assert [known[at] for at in sorted(known)] == expected[0]
        world.stop()


def test_who_has_no_right_certificate_is_told_so_on_both_sides():
    with world_on_tls() as world:
        need_tls(world)
        world.start()
        authority = world.authority
        stranger = Authority(os.path.join(world.dir, "stranger"))
        stranger.sign("trainer", "DNS:trainer.test")
        authority.sign("expired", "DNS:operator.test", days=-1)
        authority.sign("nobody", "DNS:nobody.test")
        cases = [
            # options, what the client says, what the daemon logs
            (stranger.client("trainer", ca=authority), "did not accept the certificate of this side", "not accepted"),
            (authority.client("trainer", ca=stranger), "daemon's certificate is not accepted", "unknown ca"),
            (authority.client("expired"), "certificate expired", "has expired"),
            ({"tls_ca": authority.path("ca.pem")}, "certificate required", "showed no certificate"),
            (authority.client("nobody"), "no name of this certificate is allowed", "no name of this certificate"),
            (authority.client("trainer"), "is not allowed to administer", ""),
            ({**authority.client("operator"), "tls_name": "other.test"}, "is not for other.test", ""),
        ]
        for options, said, log in cases:
            before = len(logged(world))
            done = ask(world, world.tls, options, expect=1)
            assert said in done.stderr, (said, done.stderr)
            world.wait_for(lambda: log in logged(world)[before:], f"the daemon logs '{log}'")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(authority.path("ca.pem"))
        context.load_cert_chain(authority.path("trainer.pem"), authority.path("trainer.key"))
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with socket.create_connection(("127.0.0.1", world.port)) as old:
            try:
                context.wrap_socket(old)
                raise AssertionError("TLS 1.2 was spoken")
            except ssl.SSLError as refused:
                assert "PROTOCOL_VERSION" in str(refused).upper(), refused
        world.wait_for(lambda: "does not speak TLS 1.3" in logged(world), "the daemon logs the version")
        plain = ask(world, f"tcp:127.0.0.1:{world.port}", {"token_file": write_token(world, "t", "0" * 32)}, expect=None)
        assert plain.returncode != 0 and "connection" in plain.stderr, plain.stderr
        ask(world, world.tls, authority.client("operator"))
        world.stop()


if __name__ == "__main__":
    main(globals())
