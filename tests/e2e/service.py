#!/usr/bin/python3
"""The daemon as a service: start and stop, reload, sockets, limits, damage under a running daemon."""

import array
import contextlib
import errno
import fcntl
import os
import pwd
import re
import resource
import shutil
import signal
import socket
import sqlite3
import struct
import subprocess
import time

from faults import Raw, closed, small_world
from world import BIN, ROOT, Skip, in_order, least, main, of_threads

try:
    import seccomp
except ImportError:
    seccomp = None


def daemon_output(world, *arguments):
    """Runs ballastd to its end; (exit code, what it said)."""
    done = subprocess.run([os.path.join(BIN, "ballastd"), "--config", world.config_path, *arguments],
                          capture_output=True, text=True, timeout=30)
    return done.returncode, done.stderr


def log(world):
    with open(world.daemon_log) as f:
        return f.read()


def field(data, number):
    """The first field of a protobuf message: int or bytes; None without it."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        value = varint()
        if key & 7 == 2:
            value, at = data[at : at + value], at + value
        if key >> 3 == number:
            return value
    return None


def hello(raw, dp, cp):
    """The payload of a HelloResponse; Raw reads short answers only."""
    rank = bytes([8, dp, 24, cp])
    request = bytes([8, 1, 16, 1]) + Raw.field(3, rank) + bytes([32, 2])
    stream = raw.stream
    raw.stream += 2
    body = Raw.field(1, b"ballast.v1.Loader") + Raw.field(2, b"Hello") + Raw.field(3, request)
    raw.frame(stream, 1, 1, body)
    return field(raw.receive()[3], 2)


def slab(world, token):
    """What the data socket answers to a token: a descriptor, or None."""
    data = socket.socket(socket.AF_UNIX)
    data.settimeout(30)
    data.connect(world.socket + ".data")
    data.sendall(token)
    message, ancillary, _, _ = data.recvmsg(1, socket.CMSG_SPACE(4))
    if not message:
        return None
    fds = array.array("i")
    fds.frombytes(ancillary[0][2][:4])
    return fds[0]


def test_exit_codes_tell_what_was_wrong():
    with small_world() as world:
        done = subprocess.run([os.path.join(BIN, "ballastd"), "--frobnicate"], capture_output=True)
        assert done.returncode == 2
        assert daemon_output(world, "--set", "plan.policy=best")[0] == 78
        code, text = daemon_output(world, "--set", "daemon.state_dir=/proc/no/such")
        assert code == 74, (code, text)
        world.start()
        world.stop()
        with open(os.path.join(world.dir, "d.idx"), "r+b") as f:
            f.seek(40)
            f.write(b"\xff\xff\xff\x7f")
        code, text = daemon_output(world)
        assert code == 65 and "d.idx" in text, (code, text)
        with open(os.path.join(world.dir, "d.idx"), "r+b") as f:
            f.seek(9)
            f.write(b"\x02")
        code, text = daemon_output(world)
        assert code == 65 and "version 2" in text, (code, text)
        done = subprocess.run([os.path.join(BIN, "ballastd"), "--print-config"], capture_output=True)
        assert done.returncode == 0 and b"[plan]" in done.stdout


def test_a_changed_corpus_or_plan_is_refused_by_name():
    with small_world() as world:
        world.start()
        in_order(world.rank(0, cp=0, steps=4).finish(60), 2)
        world.stop()
        code, text = daemon_output(world, "--set", "plan.window=4096")
        assert code == 78 and "plan.window" in text, (code, text)
        code, text = daemon_output(world, "--set", "job.seed=5")
        assert code == 78 and "seed" in text, (code, text)


def test_a_damaged_state_stops_the_start_and_names_the_step():
    with small_world() as world:
        world.start()
        in_order(world.rank(0, cp=0, steps=4).finish(60), 2)
        world.stop()
        store = sqlite3.connect(os.path.join(world.state, "ballast.db"))
        tables = [row[0] for row in store.execute("select name from sqlite_master where type='table'")]
        steps = next(t for t in tables if "step" in t)
        columns = [row[1] for row in store.execute(f"pragma table_info({steps})")]
        assert "digest" in columns, columns
        store.execute(f"update {steps} set digest = zeroblob(16) where rowid in "
                      f"(select rowid from {steps} order by step limit 1)")
        store.commit()
        store.close()
        code, text = daemon_output(world)
        assert code == 65, (code, text)


def test_the_slab_goes_to_whoever_has_a_fresh_token_and_is_read_only():
    with small_world() as world:
        world.start()
        raw = Raw(world.socket)
        response = hello(raw, 0, 0)
        token, size, path = field(response, 9), field(response, 10), field(response, 12)
        assert path.decode() == world.socket + ".data" and len(token) == 16
        assert slab(world, b"x" * 16) is None
        fd = slab(world, token)
        assert os.fstat(fd).st_size == size
        for attempt in (lambda: os.write(fd, b"x"), lambda: os.ftruncate(fd, 0)):
            try:
                attempt()
                assert False, "the slab can be changed by a client"
            except OSError:
                pass
        assert slab(world, token) is None, "a token was good twice"
        for path in (world.socket, world.socket + ".data"):
            assert os.stat(path).st_mode & 0o777 == 0o660
        world.stop()


def open_sockets(pid):
    """How many a process has; what it closes meanwhile is not one."""
    count = 0
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            count += "socket:" in os.readlink(f"/proc/{pid}/fd/{fd}")
        except FileNotFoundError:
            pass
    return count


def test_hostile_connections_are_closed_within_100_ms():
    with small_world() as world:
        world.start()
        for header in (struct.pack(">IIBB", 2**32 - 1, 1, 1, 0), struct.pack(">IIBB", 0, 1, 1, 0),
                       struct.pack(">IIBB", 9, 1, 7, 0), struct.pack(">IIBB", 9, 1, 1, 64)):
            def closes(header=header):
                """Seconds that it takes."""
                raw = Raw(world.socket)
                raw.send(header)
                started = time.monotonic()
                assert closed(raw), header
                return time.monotonic() - started

            assert least(closes, 0.1) <= 0.1, header
        silent = Raw(world.socket)
        silent.frame(1, 9, 0, b"x" * 64)
        world.wait_for(lambda: open_sockets(world.daemon.pid) <= 2, "a peer that does not read its refusal is closed", 20)
        world.stop()


def cpu_seconds(pid):
    """What it has used."""
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cpu_share(pid, seconds):
    """Of a core, during so long."""
    before, started = cpu_seconds(pid), time.monotonic()
    time.sleep(seconds)
    return (cpu_seconds(pid) - before) / (time.monotonic() - started)


def test_without_descriptors_accepting_pauses_and_resumes_and_ranks_go_on():
    with small_world() as world:
        world.start(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)))
        rank = world.rank(0, cp=0, steps=100000, think_ms=2)
        world.wait_for(lambda: len(rank.lines()) > 4, "the rank is served")
        crowd = [Raw(world.socket) for _ in range(100)]
        world.wait_for(lambda: "accepting pauses" in log(world), "descriptors run out")
        count = len(rank.lines())
        rank.process.send_signal(signal.SIGSTOP)
        spent = least(lambda: cpu_share(world.daemon.pid, 1), 0.05)
        rank.process.send_signal(signal.SIGCONT)
        assert spent <= 0.05, f"{spent:.2f} of a core while nobody can connect"
        world.wait_for(lambda: len(rank.lines()) > count + 10, "the rank goes on")
        for raw in crowd:
            raw.socket.close()
        world.wait_for(lambda: world.ctl("--socket", world.socket, "status", expect=None).returncode == 0,
                       "new connections are accepted again")
        rank.process.send_signal(signal.SIGTERM)
        rank.wait()
        world.stop()


def test_more_connections_than_allowed_are_told_so():
    with small_world(limits={"connections": 4}) as world:
        world.start()
        crowd = [Raw(world.socket) for _ in range(4)]
        for raw in crowd:
            assert raw.call(b"Ping")[0] == 0
        status, message = Raw(world.socket).call(b"Ping")
        assert status == 8 and b"limits.connections" in message, (status, message)
        crowd[0].socket.close()
        world.wait_for(lambda: Raw(world.socket).call(b"Ping")[0] == 0, "a place is free")
        world.stop()


def memory(pid):
    with open(f"/proc/{pid}/status") as f:
        return int(next(line.split()[1] for line in f if line.startswith("RssAnon")))


def test_an_idle_connection_takes_16_kilobytes_at_most():
    with small_world(limits={"connections": 2000}) as world:
        world.start()
        idle = [Raw(world.socket) for _ in range(20)]
        world.live("status")
        before = memory(world.daemon.pid)
        idle += [Raw(world.socket) for _ in range(800)]
        assert idle[-1].call(b"Ping")[0] == 0
        each = (memory(world.daemon.pid) - before) / 800
        print(f"      {each:.1f} KB a connection")
        assert each <= 16
        for raw in idle:
            raw.socket.close()
        world.stop()


def test_a_file_that_shrinks_ends_the_streams_that_need_it_with_its_name():
    for backend in ("io_uring", "pread"):
        with small_world(reader={"backend": backend}) as world:
            world.start()
            path = os.path.join(world.dir, "d.bin")
            rank = world.rank(0, cp=0, steps=100000, think_ms=1)
            world.wait_for(lambda r=rank: len(r.lines()) > 4, "the rank is served")
            size = os.path.getsize(path)
            os.truncate(path, 4096)
            code, text = rank.wait(60)
            assert code != 0 and "d.bin" in text, (code, text)
            assert "cannot be read" in log(world)
            assert world.live("status")["state"] == "serving"
            os.truncate(path, size)  # the bytes are zeros now
            code, text = world.rank(0, cp=0, steps=3).wait(60)
            assert code != 0 and "written to or replaced" in text, (code, text)
            os.rename(path, path + ".old")
            shutil.copyfile(path + ".old", path)
            code, text = world.rank(0, cp=0, steps=3).wait(60)
            assert code != 0 and "d.bin" in text and "replaced" in text, (code, text)
            world.stop()


def damage_unseen(path):
    """Bits turn over: every byte of the file is another one, its size and times are as they were."""
    times = os.stat(path)
    with open(path, "r+b") as f:
        data = bytes(b ^ 1 for b in f.read())
        f.seek(0)
        f.write(data)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_damaged_tokens_are_refused_with_a_manifest_by_either_reader():
    for backend in ("io_uring", "pread"):
        with small_world() as world:
            path = os.path.join(world.dir, "d.bin")
            verified = world.ctl("verify", "--write-manifest", path[:-4]).stdout
            assert "manifest: written" in verified, verified
            world.start(environment={"BALLAST_READER_BACKEND": backend, "BALLAST_READER_MANIFEST": "required",
                                     "BALLAST_READER_RECHECK": "true"})
            rank = world.rank(0, cp=0, steps=100000, think_ms=1)
            world.wait_for(lambda: len(rank.lines()) > 4, "the rank is served")
            damage_unseen(path)
            code, text = rank.wait(60)
            assert code != 0 and "d.bin: byte " in text and "document" in text and "manifest" in text, (code, text)
            assert world.live("status")["state"] == "serving"
            world.stop()
            damaged = world.ctl("verify", path[:-4], expect=None)
            assert damaged.returncode == 1 and "d." in damaged.stderr, damaged
            assert world.ctl("verify", "--write-manifest", path[:-4]).returncode == 0
            assert "manifest: holds" in world.ctl("verify", path[:-4]).stdout


def test_the_service_manager_is_told():
    with small_world() as world, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        path = os.path.join(world.dir, "notify")
        notify.bind(path)
        notify.settimeout(60)
        told = []

        def wait_to_hear(prefix):
            while not any(line.startswith(prefix) for line in told):
                told.extend(notify.recv(65536).decode().splitlines())
            heard = next(line for line in told if line.startswith(prefix))
            told.clear()
            return heard

        world.start(ready=False, environment={"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "600000"})
        wait_to_hear("READY=1")
        wait_to_hear("WATCHDOG=1")
        wait_to_hear("STATUS=serving 0/4 ranks, step 0")
        world.rank(0, cp=0, steps=3).finish(60)
        world.daemon.send_signal(signal.SIGHUP)
        wait_to_hear("RELOADING=1")
        wait_to_hear("READY=1")
        world.daemon.send_signal(signal.SIGTERM)
        wait_to_hear("STOPPING=1")
        assert world.daemon.wait(60) == 0


def unit_calls():
    """The calls of the system that the unit lets the daemon make."""
    with open(os.path.join(ROOT, "deploy/ballastd.service")) as f:
        words = re.findall(r"^SystemCallFilter=(.*)$", f.read(), re.M)
    groups, allowed = {}, set()
    done = subprocess.run(["systemd-analyze", "syscall-filter"], capture_output=True, text=True, timeout=60, check=True)
    for line in done.stdout.splitlines():
        if line.startswith("@"):
            name = groups.setdefault(line.strip(), [])
        elif line.strip() and not line.strip().startswith("#"):
            name.append(line.strip())

    def calls(word):
        return set().union(*map(calls, groups[word])) if word.startswith("@") else {word}

    for line in words:
        named = set().union(*map(calls, line.lstrip("~").split()))
        allowed = allowed - named if line.startswith("~") else allowed | named
    return allowed


def test_under_the_units_filter_of_calls_it_does_all_that_it_does_without():
    if shutil.which("systemd-analyze") is None or seccomp is None:
        raise Skip("no systemd-analyze or no python3-seccomp; install both packages")
    allowed = seccomp.SyscallFilter(seccomp.ERRNO(errno.EPERM))
    for call in unit_calls():
        with contextlib.suppress(RuntimeError):  # one that this machine does not have
            allowed.add_rule(seccomp.ALLOW, call)
    with small_world(slab={"numa_node": 0}, reader={"backend": "io_uring"}) as world:
        world.start(preexec_fn=allowed.load)
        with open(f"/proc/{world.daemon.pid}/status") as f:
            assert re.search(r"^Seccomp:\s+2$", f.read(), re.M)
        ranks = [world.rank(d, cp=c, steps=20) for d in range(2) for c in range(2)]
        for rank in ranks:
            in_order(rank.finish(), 2)
        with open(f"/proc/{world.daemon.pid}/numa_maps") as f:
            assert any("memfd:ballast-slab" in line and " bind:0 " in line for line in f)
        policies = of_threads(world.daemon.pid, os.sched_getscheduler)
        assert policies.count(os.SCHED_BATCH) >= 2, policies
        world.stop()


def test_sockets_of_the_service_manager_are_taken_and_left():
    with small_world() as world:
        listeners = []
        for path in (world.socket, world.socket + ".data"):
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(path)
            listener.listen(64)
            listeners.append(listener)
        early = Raw(world.socket)
        inodes = [os.stat(world.socket + suffix).st_ino for suffix in ("", ".data")]

        def hand_over():
            copies = [os.dup(listener.fileno()) for listener in listeners]
            high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for fd in copies]
            for i, fd in enumerate(high):
                os.dup2(fd, 3 + i)

        for _ in range(2):
            with open(world.daemon_log, "a") as out:
                world.daemon = subprocess.Popen(
                    ["sh", "-c", 'LISTEN_PID=$$ exec "$0" "$@"', os.path.join(BIN, "ballastd"), "--config",
                     world.config_path], env={**os.environ, "LISTEN_FDS": "2", "NOTIFY_SOCKET": ""}, stdout=out,
                    stderr=out, preexec_fn=hand_over, close_fds=False)
            world.rank(0, cp=0, steps=3).finish(60)
            if early is not None:
                assert early.call(b"Ping")[0] in (0, 14), "who came before the daemon is served"
                early.socket.close()
                early = None
            world.stop()
            assert [os.stat(world.socket + suffix).st_ino for suffix in ("", ".data")] == inodes
        for listener in listeners:
            listener.close()


def test_with_the_journal_behind_stderr_lines_have_a_priority_or_fields():
    with small_world() as world:
        open(world.daemon_log, "w").close()
        stream = os.stat(world.daemon_log)
        world.start(environment={"JOURNAL_STREAM": f"{stream.st_dev}:{stream.st_ino}"})
        world.stop()
        if os.path.exists("/run/systemd/journal/socket"):
            raise Skip("a journal runs here and took the lines")
        lines = log(world).splitlines()
        assert lines and all(re.match(r"<[3-7]>(error|warning|notice|info|debug) +\w+: ", line) for line in lines), lines
        assert any(re.search(r" socket=\S+ step=0 slots=\d+", line) for line in lines), lines


def test_a_user_may_be_served_without_administering_and_the_other_way_round():
    if os.geteuid() != 0:
        raise Skip("needs root to be somebody else")
    nobody = pwd.getpwnam("nobody").pw_uid
    for key, served, answered in (("allow_uids", 0, 1), ("admin_uids", 1, 0)):
        with small_world(daemon={key: nobody}) as world:
            world.start()
            os.chmod(world.dir, 0o755)
            for path in (world.socket, world.socket + ".data"):
                os.chmod(path, 0o666)
            for program, code in ((["ballast-rank", "--cp", "0", "--steps", "2"], served),
                                  (["ballastctl", "status"], answered)):
                done = subprocess.run([os.path.join(BIN, program[0]), "--socket", world.socket, *program[1:]],
                                      user=nobody, capture_output=True, text=True, timeout=60)
                assert done.returncode == code, (key, program, done.stderr)
                assert code == 0 or "not allowed" in done.stderr, (key, program, done.stderr)
            world.stop()


def rewrite(world, old, new):
    with open(world.config_path) as f:
        text = f.read()
    assert old in text
    with open(world.config_path, "w") as f:
        f.write(text.replace(old, new))


def reload(world, said):
    """SIGHUP; waits until `said` is logged once more, and returns the warnings."""
    count = log(world).count(said)
    world.daemon.send_signal(signal.SIGHUP)
    world.wait_for(lambda: log(world).count(said) > count, f"it says '{said}'")
    return world.live("status")["warnings"]


def settings(world):
    return {s["name"]: s["value"] for s in world.live("config")["settings"]}


def test_reload_changes_users_log_level_and_limits():
    with small_world() as world:
        world.start()
        rewrite(world, "[daemon]\n", "[limits]\nconnections = 2\nsteps_retained = 77\nlead_steps = 55\n"
                "[daemon]\nallow_uids = 4242\nlog_level = debug\n")
        assert reload(world, "config: reloaded") == []
        now = settings(world)
        assert now["daemon.allow_uids"] == "4242" and now["daemon.log_level"] == "debug"
        assert now["limits.connections"] == "2" and now["limits.steps_retained"] == "77" and now["limits.lead_steps"] == "55"
        held = [Raw(world.socket) for _ in range(2)]
        assert [raw.call(b"Ping")[0] for raw in held] == [0, 0]
        assert Raw(world.socket).call(b"Ping")[0] == 8
        held.pop().socket.close()
        world.wait_for(lambda: Raw(world.socket).call(b"Ping")[0] == 0, "a place is free")
        held.pop().socket.close()
        rewrite(world, "connections = 2\n", "connections = 700\n")
        assert reload(world, "config: reloaded") == []
        held = [Raw(world.socket) for _ in range(600)]
        assert all(raw.call(b"Ping")[0] == 0 for raw in held)
        for raw in held:
            raw.socket.close()
        world.rank(0, cp=0, steps=3).finish(60)
        world.stop()


def test_a_reload_of_a_broken_config_or_of_a_fixed_key_keeps_the_old_one_and_says_so():
    with small_world() as world:
        world.start()
        before = settings(world)
        with open(world.config_path) as f:
            text = f.read()
        for old, new, said in (
                ("[daemon]\n", "[daemon]\nallow_uids = 4242\nahead_steps = 9\n",
                 "daemon.ahead_steps needs a restart to change from '32' to '9'"),
                ("window = 2048", "window = 1024", "plan.window needs a restart to change from '2048' to '1024'"),
                ("[daemon]\n", "[daemon]\nallow_uids = 4242\n[nonsense]\nx = 1\n[daemon]\n", "nonsense"),
                ("[daemon]\n", "[limits]\ncredits = 4\n[daemon]\n", "limits.credits needs a restart"),
                ("[plan]", "[dataset more]\npath = d\n[plan]", "datasets or sections were added or removed")):
            rewrite(world, old, new)
            warnings = reload(world, "the running config stays")
            assert len(warnings) == 1 and "the config was not reloaded: " in warnings[0] and said in warnings[0], warnings
            assert said in log(world) and settings(world) == before
            assert "warning  the config was not reloaded" in world.ctl("--socket", world.socket, "health").stdout
            with open(world.config_path, "w") as f:
                f.write(text)
        assert reload(world, "config: reloaded") == []
        world.rank(0, cp=0, steps=3).finish(60)
        world.stop()


def test_a_step_that_is_no_longer_in_memory_is_planned_again():
    with small_world(limits={"steps_retained": 150}, daemon={"lease": "1s"}) as world:
        world.start()
        rank = world.rank(0, cp=0, steps=300, commit_every=1)
        digests = {line["step"]: line["plan_digest"] for line in rank.finish(120)}
        world.wait_for(lambda: world.live("status")["committed_step"] >= 300, "leases end")
        for step in (299, 200, 151):
            assert world.live("plan", step)["plan"]["digest"] == digests[step], step
        done = world.ctl("--socket", world.socket, "plan", 3, expect=None)
        assert done.returncode == 4, (done.returncode, done.stderr)
        world.stop()


def test_a_stopped_daemon_leaves_quickly_and_removes_its_sockets():
    with small_world() as world:
        world.start()
        ranks = [world.rank(d, cp=c, steps=100000, think_ms=1) for d in range(2) for c in range(2)]
        world.wait_for(lambda: all(len(r.lines()) > 10 for r in ranks), "all are served")
        started = time.monotonic()
        world.stop(10)
        print(f"      stopped in {time.monotonic() - started:.2f} s")
        assert not os.path.exists(world.socket) and not os.path.exists(world.socket + ".data")
        world.start()
        before = [len(r.lines()) for r in ranks]
        world.wait_for(lambda: all(len(r.lines()) > n + 10 for r, n in zip(ranks, before)), "all go on")
        for rank in ranks:
            rank.process.send_signal(signal.SIGTERM)
        for rank in ranks:
            rank.wait()
            in_order(rank.lines(), 2)
        world.stop()


if __name__ == "__main__":
    main(globals())
