"""The world of the end-to-end tests: real files, a real daemon, real ranks, in one temporary folder.

Programs come from BALLAST_BIN (release) and BALLAST_BIN_ASAN. A test is a script whose functions named
test_* run in order; `main()` runs them, prints one line each and exits 0, 1, or 77 when all skipped.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import traceback

import numpy
import xxhash

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ.get("BALLAST_BIN", os.path.join(ROOT, "build/release/bin"))
BIN_ASAN = os.environ.get("BALLAST_BIN_ASAN", os.path.join(ROOT, "build/asan/bin"))
SHARED = os.path.join(ROOT, "..", "shared", "data")
FULL = os.environ.get("BALLAST_TEST_FULL") == "1"


class Skip(Exception):
    """The reason a test cannot run here."""


def shared_corpus():
    """[(name, prefix, weight)] of the real corpora, or Skip."""
    base = os.path.join(SHARED, "corpus")
    if not os.path.exists(os.path.join(base, "man.idx")):
        raise Skip(f"no corpus in {base}")
    return [(n, os.path.join(base, n), w) for n, w in (("pydoc", 2), ("perl", 1), ("man", 1))]


class Corpus:
    """A Megatron indexed dataset, read independently of the product."""

    DTYPES = {1: "u1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2", 9: "<u4", 10: "<u8"}

    def __init__(self, prefix):
        with open(prefix + ".idx", "rb") as f:
            index = f.read()
        magic, _, code, n, d = struct.unpack_from("<9sQBQQ", index)
        assert magic == b"MMIDIDX\0\0"
        self.lengths = numpy.frombuffer(index, "<i4", n, 34)
        self.offsets = numpy.frombuffer(index, "<i8", n, 34 + 4 * n)
        self.width = numpy.dtype(self.DTYPES[code]).itemsize
        self.tokens = numpy.fromfile(prefix + ".bin", self.DTYPES[code])
        assert d == n + 1

    def document(self, i):
        start = int(self.offsets[i]) // self.width
        return self.tokens[start : start + int(self.lengths[i])]


def write_corpus(prefix, documents, code=8):
    """Writes documents (lists of ids) as a Megatron indexed dataset."""
    dtype = numpy.dtype(Corpus.DTYPES[code])
    lengths = [len(d) for d in documents]
    pointers = numpy.concatenate([[0], numpy.cumsum(lengths)[:-1]]) if lengths else []
    with open(prefix + ".bin", "wb") as f:
        for d in documents:
            f.write(numpy.asarray(d).astype(dtype).tobytes())
    with open(prefix + ".idx", "wb") as f:
        f.write(struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, code, len(lengths), len(lengths) + 1))
        f.write(numpy.asarray(lengths, "<i4").tobytes())
        f.write((numpy.asarray(pointers) * dtype.itemsize).astype("<i8").tobytes())
        f.write(numpy.arange(len(lengths) + 1, dtype="<i8").tobytes())


def synthetic_documents(seed, count, longest, vocab=50000):
    """Mostly short documents, a long tail, some tiny and empty ones."""
    rng = numpy.random.default_rng(seed)
    lengths = numpy.clip(rng.lognormal(5.0, 1.6, count).astype(int), 0, longest)
    lengths[rng.random(count) < 0.03] = 0
    lengths[rng.random(count) < 0.05] = rng.integers(1, 8)
    lengths[rng.random(count) < 0.02] = longest
    return [rng.integers(0, vocab, n) for n in lengths]


LAYOUTS = {"LAYOUT_PER_SEQUENCE": 1, "LAYOUT_PER_DOCUMENT": 2, "LAYOUT_VARIABLE_DEGREE": 3, "LAYOUT_HYBRID": 4,
           "LAYOUT_ULYSSES": 5}


def plan_digest(plan):
    """The digest of a step, from its JSON alone."""
    words = [plan["step"], len(plan["micro_batches"])]
    for mb in sorted(plan["micro_batches"], key=lambda mb: (mb["dp"], mb["index"])):
        words.append(len(mb["documents"]))
        for d in mb["documents"]:
            words += [d[k] for k in ("dataset", "document", "offset", "length", "nominal_step", "epoch")]
        words += [mb["pad_tokens"], LAYOUTS[mb["sharding"]["layout"]], len(mb["sharding"]["ranks"])]
        for rank in mb["sharding"]["ranks"]:
            words.append(len(rank["fragments"]))
            for f in rank["fragments"]:
                words += [f["document"], f["start"], f["length"]]
    words += [len(plan["pools"]), plan["loss_denominator"]]
    return xxhash.xxh3_128(struct.pack(f"<{len(words)}Q", *words)).hexdigest()


class Oracle:
    """What every rank must receive, computed from the .bin files and the plan alone."""

    def __init__(self, prefixes):
        self.corpora = [Corpus(p) for p in prefixes]

    def part(self, document):
        whole = self.corpora[document["dataset"]].document(document["document"])
        assert document["document_length"] <= len(whole)
        whole = whole[: document["document_length"]]
        start = document["offset"]
        return whole, start, start + document["length"]

    def columns(self, micro_batch, cp):
        """tokens, labels, positions of one context-parallel rank, int32."""
        shard = micro_batch["sharding"]["ranks"][cp]
        tokens, labels, positions = [], [], []
        for f in shard["fragments"]:
            whole, start, end = self.part(micro_batch["documents"][f["document"]])
            a = start + f["start"]
            b = a + f["length"]
            assert b <= end
            tokens.append(whole[a:b].astype("<i4"))
            following = whole[a + 1 : b + 1].astype("<i4")
            if len(following) < f["length"]:
                following = numpy.append(following, numpy.int32(-100))
            labels.append(following)
            positions.append(numpy.arange(f["start"], f["start"] + f["length"], dtype="<i4"))
        pads = shard["pad_rows"]
        tokens.append(numpy.zeros(pads, "<i4"))
        labels.append(numpy.full(pads, -100, "<i4"))
        positions.append(numpy.zeros(pads, "<i4"))
        columns = [numpy.concatenate(c).astype("<i4") for c in (tokens, labels, positions)]
        assert all(len(c) == shard["rows"] for c in columns)
        return columns

    def hash(self, micro_batch, cp):
        return xxhash.xxh3_64(self.columns(micro_batch, cp)[0].tobytes()).hexdigest()


class Rank:
    """A ballast-rank process and its log."""

    def __init__(self, world, dp=0, pp=0, cp=0, tp=0, bin_dir=None, **options):
        self.place = (dp, pp, cp, tp)
        self.log = os.path.join(world.dir, f"rank.{dp}.{pp}.{cp}.{tp}.{time.monotonic_ns()}.log")
        command = [os.path.join(bin_dir or BIN, "ballast-rank"), "--socket", world.socket]
        command += ["--dp", str(dp), "--pp", str(pp), "--cp", str(cp), "--tp", str(tp)]
        command += ["--log", self.log]
        for key, value in options.items():
            command += ["--" + key.replace("_", "-")] + ([] if value is True else [str(value)])
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(command, stderr=self.errors, stdout=subprocess.DEVNULL)
        world.ranks.append(self)

    def lines(self):
        if not os.path.exists(self.log):
            return []
        with open(self.log) as f:
            return [json.loads(line) for line in f if line.endswith("\n")]

    def wait(self, timeout=120):
        code = self.process.wait(timeout)
        self.errors.seek(0)
        text = self.errors.read()
        return code, text

    def finish(self, timeout=120):
        code, text = self.wait(timeout)
        assert code == 0, f"rank {self.place} exited {code}: {text}"
        return self.lines()


def hold_port():
    """A socket on a port of 127.0.0.1 that is the caller's until it closes it. It stays bound, so that the kernel gives the
    port to nobody who asks for any; a daemon listens on it all the same: both set SO_REUSEADDR, and this one never listens."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held


class World:
    """One temporary folder with a config, a state directory, a socket and processes."""

    def __init__(self):
        self.dir = tempfile.mkdtemp(prefix="ballast-test-")
        self.socket = os.path.join(self.dir, "b.sock")
        self.state = os.path.join(self.dir, "state")
        self.config_path = os.path.join(self.dir, "ballast.conf")
        self.ranks = []
        self.daemon = None
        self.daemon_log = os.path.join(self.dir, "daemon.log")
        self.held_port = None

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        for rank in self.ranks:
            if rank.process.poll() is None:
                rank.process.kill()
                rank.process.wait()
        if self.daemon and self.daemon.poll() is None:
            self.daemon.kill()
            self.daemon.wait()
        if self.held_port is not None:
            self.held_port.close()
        if kind is not None and kind is not Skip and os.path.exists(self.daemon_log):
            with open(self.daemon_log) as f:
                sys.stdout.write("".join(f.readlines()[-40:]))
        shutil.rmtree(self.dir, ignore_errors=True)

    def config(self, datasets, sections):
        """Writes the config; sections = {"plan": {"window": 1024}, ...}; datasets [(name, prefix, weight)]."""
        sections = {k: dict(v) for k, v in sections.items()}
        sections.setdefault("daemon", {}).setdefault("socket", self.socket)
        sections["daemon"].setdefault("state_dir", self.state)
        with open(self.config_path, "w") as f:
            for name, prefix, weight in datasets:
                f.write(f"[dataset {name}]\npath = {prefix}\nweight = {weight}\n\n")
            for section, settings in sections.items():
                f.write(f"[{section}]\n")
                for key, value in settings.items():
                    f.write(f"{key} = {value}\n")
                f.write("\n")

    @property
    def port(self):
        """A port that is this world's to its end."""
        if self.held_port is None:
            self.held_port = hold_port()
        return self.held_port.getsockname()[1]

    def start(self, *arguments, bin_dir=None, ready=True, timeout=60, environment=None, **popen):
        """Starts ballastd and waits for READY=1; returns the process."""
        notify_path = os.path.join(self.dir, f"notify.{time.monotonic_ns()}")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            notify.bind(notify_path)
            notify.settimeout(0.2)
            with open(self.daemon_log, "a") as log:
                self.daemon = subprocess.Popen(
                    [os.path.join(bin_dir or BIN, "ballastd"), "--config", self.config_path, *arguments],
                    stderr=log, stdout=log, env={**os.environ, "NOTIFY_SOCKET": notify_path, **(environment or {})}, **popen)
            deadline = time.monotonic() + timeout
            while ready:
                with contextlib.suppress(TimeoutError):
                    if b"READY=1" in notify.recv(65536):
                        break
                assert self.daemon.poll() is None, f"ballastd exited {self.daemon.returncode}"
                assert time.monotonic() < deadline, "ballastd is not ready"
        return self.daemon

    def kill(self):
        self.daemon.send_signal(signal.SIGKILL)
        self.daemon.wait()

    def stop(self, timeout=60):
        self.daemon.send_signal(signal.SIGTERM)
        code = self.daemon.wait(timeout)
        assert code == 0, f"ballastd exited {code} on SIGTERM"

    def rank(self, dp=0, pp=0, cp=0, tp=0, **options):
        return Rank(self, dp, pp, cp, tp, **options)

    def ctl(self, *arguments, expect=0, bin_dir=None):
        done = subprocess.run([os.path.join(bin_dir or BIN, "ballastctl"), *map(str, arguments)],
                              capture_output=True, text=True, timeout=120)
        assert expect is None or done.returncode == expect, \
            f"ballastctl {' '.join(map(str, arguments))} exited {done.returncode}: {done.stderr}{done.stdout}"
        return done

    def ctl_json(self, *arguments):
        return json.loads(self.ctl("--json", *arguments).stdout)

    def live(self, *arguments):
        """The answer of the running daemon, as JSON."""
        return self.ctl_json("--socket", self.socket, *arguments)

    def plan(self, step):
        """The plan of one step, computed without the daemon."""
        return self.ctl_json("--config", self.config_path, "plan", "--step", step)["plan"]

    def plans(self):
        """Every plan to the end of data, which must come before step 100000."""
        done = self.ctl("--json", "--config", self.config_path, "plan", "--fragments", "--steps", "0..99999",
                        expect=4)
        return json.loads(done.stdout)["steps"]

    def wait_for(self, condition, what, timeout=60):
        deadline = time.monotonic() + timeout
        while not condition():
            assert time.monotonic() < deadline, f"timed out waiting until {what}"
            time.sleep(0.02)


def slab_bytes(pid):
    """Of the slab that the daemon has mapped."""
    with open(f"/proc/{pid}/maps") as f:
        mapped = [line.split()[0].split("-") for line in f if "memfd:ballast-slab" in line]
    return sum(int(end, 16) - int(begin, 16) for begin, end in mapped)


def of_threads(pid, look):
    """What `look` says of each thread's number; those that end meanwhile are left out, the kernel's helpers among them."""
    seen = []
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            seen.append(look(int(thread)))
    return seen


def least(measure, bound, tries=5):
    """The first figure that is not above `bound`, or the least of so many: what others do on the machine makes some of
    them larger, a fault all of them."""
    figures = []
    while len(figures) < tries and (not figures or figures[-1] > bound):
        figures.append(measure())
    return min(figures)


def digests(lines):
    """{step: digest} of a rank's log; a step has one digest."""
    seen = {}
    for line in lines:
        assert seen.setdefault(line["step"], line["plan_digest"]) == line["plan_digest"]
    return seen


def in_order(lines, micro_batches):
    """A rank's batches come in order, without gaps; repeats only after a restart, equal."""
    known = {}
    expected = None
    for line in lines:
        at = (line["step"], line["index"])
        content = {k: v for k, v in line.items() if k != "waited_us"}
        assert known.setdefault(at, content) == content, f"batch {at} was delivered twice, differently"
        assert expected is None or at <= expected, f"batch {expected} is missing before {at}"
        expected = (at[0], at[1] + 1) if at[1] + 1 < micro_batches else (at[0] + 1, 0)
    return known


def main(namespace):
    tests = [(n, f) for n, f in namespace.items() if n.startswith("test_") and callable(f)]
    wanted = sys.argv[1:]
    failed = ran = 0
    for name, function in tests:
        if wanted and name not in wanted:
            continue
        started = time.monotonic()
        try:
            function()
            ran += 1
            print(f"ok    {name} ({time.monotonic() - started:.1f} s)", flush=True)
        except Skip as reason:
            print(f"skip  {name}: {reason}", flush=True)
        except Exception:
            failed += 1
            traceback.print_exc(file=sys.stdout)
            print(f"FAIL  {name} ({time.monotonic() - started:.1f} s)", flush=True)
    sys.exit(1 if failed else 0 if ran else 77)
