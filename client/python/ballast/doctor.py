"""python -m ballast.doctor: checks a setup from the trainer's side, and says what to do about it.

    python -m ballast.doctor
    python -m ballast.doctor --socket /run/ballast/ballast.sock --dp 1 --cp 0 --json

It asks as the trainer would, from the same user and container, and takes one micro-batch of the rank,
which nobody else may be at the moment; nothing is committed or moved. Exit codes: 0 all is well (notes
may say what could be better), 1 something is wrong, 2 usage, 3 daemon not running, 4 no such thing,
5 timed out.
"""

from __future__ import annotations

import argparse
import grp
import importlib.metadata
import importlib.util
import json
import mmap
import os
import platform
import resource
import socket as _socket
import stat
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any, Callable, List, Optional

from . import client as _client
from . import messages, native
from .batch import Batch
from .call import Channel
from .client import Client
from .columns import numpy
from .dial import credentials
from .dial import parse as parse_address
from .errors import AlreadyExists, Error, PermissionDenied
from .version import __version__

OK, NOTE, WRONG = "ok", "note", "wrong"


@dataclass
class Finding:
    """One check: what was found, and where it is not as it should be, the remedy."""

    check: str
    result: str
    text: str
    remedy: str = ""


class Doctor:
    """Runs checks in an order in which each explains the failure of the next."""

    def __init__(self, arguments: argparse.Namespace):
        self.arguments = arguments
        self.socket: str = arguments.socket or _client.default_socket()
        self.findings: List[Finding] = []
        self.exit_code = 0
        self.client: Optional[Client] = None

    def say(self, check: str, result: str, text: str, remedy: str = "", exit_code: int = 1) -> bool:
        self.findings.append(Finding(check, result, text, remedy))
        if result == WRONG and self.exit_code == 0:
            self.exit_code = exit_code
        return result != WRONG

    # this process

    def check_python(self) -> bool:
        good = sys.version_info >= (3, 9) and sys.platform == "linux" and sys.byteorder == "little"
        return self.say("python", OK if good else WRONG,
                        f"Python {platform.python_version()} on {sys.platform} {platform.machine()}, "
                        f"ballast {__version__}", "" if good else "take Python 3.9 or newer on Linux")

    def check_module(self, name: str, why: str, remedy: str) -> None:
        if importlib.util.find_spec(name) is None:
            self.say(name, NOTE, f"not installed for {sys.executable}; {why}", remedy)
            return
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            version = "of unknown version"
        self.say(name, OK, f"{name} {version}")

    def check_modules(self) -> None:
        self.check_module("numpy", "columns are slow without", "install python3-numpy, or pip install numpy")
        self.check_module("torch", "ballast.torch needs it, nothing else does", "install python3-torch, or pip install torch")

    def check_library(self) -> None:
        """Whether plans are read and rows gathered by libballast or in Python."""
        try:
            library, why = native.find()
        except Error as error:
            self.say("library", WRONG, str(error), "name another, or unset BALLAST_LIBRARY")
            return
        if library is not None:
            self.say("library", OK, f"{library.path} takes batches, reads plans and gathers rows")
        else:
            self.say("library", NOTE, f"plans are read and rows gathered in Python, which costs some 0.4 ms a batch: {why}",
                     "install numpy first" if numpy is None else
                     f"install libballast where the loader finds {native.NAME}, or name it in BALLAST_LIBRARY")

    def check_memlock(self) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        slab = self.client._link.slab.size if self.client is not None and self.client._link.slab is not None else 0
        known = "unlimited" if soft == resource.RLIM_INFINITY else f"{soft >> 20} MiB"
        if soft == resource.RLIM_INFINITY or soft >= slab:
            self.say("memlock", OK, f"RLIMIT_MEMLOCK is {known}, " + (f"the slab {slab >> 20} MiB" if slab else "no slab is mapped"))
        else:
            self.say("memlock", NOTE, f"RLIMIT_MEMLOCK is {known}, less than the slab's {slab >> 20} MiB: it cannot be "
                     "pinned whole", "raise it (ulimit -l, LimitMEMLOCK=), or copy through pinned buffers")

    def check_pages(self) -> None:
        shared = "/sys/kernel/mm/transparent_hugepage/shmem_enabled"
        try:
            with open(shared) as f:
                huge = f.read().split("[")[1].split("]")[0]
        except (OSError, IndexError):
            huge = "unknown"
        self.say("pages", OK, f"pages of {mmap.PAGESIZE} bytes, huge pages for shared memory: {huge}")

    # the way to the daemon

    def check_socket(self) -> bool:
        kind, path, port = parse_address(self.socket)
        if kind != "unix":
            return self.say("socket", OK, f"{path} port {port}, {kind}")
        try:
            mode = os.stat(path)
        except PermissionError:
            return self.say("socket", WRONG, f"{path} lies in a folder that uid {os.getuid()} may not enter",
                            "join the daemon's group (usermod -aG), and log in anew")
        except OSError as reason:
            return self.say("socket", WRONG, f"{path}: {reason.strerror}", "start ballastd, mount its socket into "
                            "this container, or set --socket or BALLAST_SOCKET", 3)
        if not stat.S_ISSOCK(mode.st_mode):
            return self.say("socket", WRONG, f"{path} is not a socket", "name the daemon's (daemon.socket)")
        try:
            group = grp.getgrgid(mode.st_gid).gr_name
        except KeyError:
            group = str(mode.st_gid)
        where = f"{path}, mode {stat.S_IMODE(mode.st_mode):o}, group {group}"
        if not os.access(path, os.W_OK):
            return self.say("socket", WRONG, f"{where}: uid {os.getuid()} may not write to it",
                            f"join the group {group}, or change daemon.socket_mode")
        return self.say("socket", OK, where)

    def check_daemon(self) -> bool:
        """It answers, and of which version it is."""
        try:
            channel = Channel(self.socket, credentials())
        except Error as error:
            return self.failed("daemon", error)
        try:
            channel.unary("ballast.v1.Loader", "Ping", messages.PING_REQUEST, {}, messages.PING_RESPONSE,
                          self.arguments.timeout)
        except Error as error:
            channel.close()
            return self.failed("daemon", error)
        try:
            status = channel.unary("ballast.v1.Admin", "Status", messages.STATUS_REQUEST, {}, messages.STATUS_RESPONSE,
                                   self.arguments.timeout)
        except PermissionDenied:
            return self.say("daemon", OK, "it answers; its status is for administrators")
        except Error as error:
            return self.failed("daemon", error)
        finally:
            channel.close()
        text = (f"{status['version']} is {status['state']}, step {status['next_step']} is planned next, "
                f"{len(status['ranks'])} ranks are known")
        if status["version"].split()[-1:] != [__version__]:
            return self.say("daemon", NOTE, f"{text}; this client is of {__version__}",
                            "protocols are compatible; install both from one release to be sure of everything")
        if status["io_lacks"]:
            return self.say("daemon", NOTE, f"{text}; reading: {status['io_lacks']}",
                            "the sentence says it; batches are the same")
        return self.say("daemon", OK, text)

    def failed(self, check: str, error: Error, remedy: str = "the sentence says it; the daemon's log says more") -> bool:
        return self.say(check, WRONG, str(error), remedy, error.exit_code)

    def check_rank(self) -> bool:
        """The greeting: place in the mesh, job digest, and whether descriptors pass."""
        a = self.arguments
        try:
            self.client = Client(self.socket, dp=a.dp, pp=a.pp, cp=a.cp, tp=a.tp, job_digest=a.job_digest,
                                 connect_timeout=a.timeout, name="ballast.doctor", credits=1)
        except AlreadyExists as error:
            return self.say("rank", NOTE, str(error), "stop that process, or name a rank that is free (--dp, --cp, ...)")
        except Error as error:
            return self.failed("rank", error, "compare --dp, --pp, --cp, --tp and --job-digest with `ballastctl status`")
        job = self.client.job
        return self.say("rank", OK, f"rank (dp {a.dp}, pp {a.pp}, cp {a.cp}, tp {a.tp}) of dp {job.dp}, pp {job.pp}, "
                        f"cp {job.cp}, tp {job.tp}; job {job.digest.hex()}, generation {job.generation}")

    def check_memory(self) -> bool:
        """Whether tokens come through shared memory."""
        assert self.client is not None
        if not self.client._link.fetches:
            slab = self.client._link.slab
            return self.say("memory", OK, f"descriptors pass: a slab of {slab.size >> 10 if slab else 0} KiB, sealed, is mapped")
        if parse_address(self.socket)[0] != "unix":
            return self.say("memory", OK, "tokens are fetched over the network")
        return self.say("memory", NOTE, "tokens are fetched over the connection, with twice the copying",
                        f"make {self.socket}.data reachable too (mount the folder, not the file)")

    def check_batch(self) -> bool:
        """A micro-batch comes, and can be gathered."""
        assert self.client is not None
        began = time.monotonic()
        try:
            event = self.client.next(self.arguments.timeout)
            if event is None:
                return self.say("batch", WRONG, f"none came within {self.arguments.timeout:g} s",
                                "ask `ballastctl status` whether it waits for other ranks, reads, or plans", 5)
            if not isinstance(event, Batch):
                return self.say("batch", NOTE, f"{type(event).__name__} of step {event.step}: no micro-batch is due")
            with event:
                rows, labels = len(event.tokens()), event.labels()
                counted = sum(1 for label in labels if label != -100)
        except Error as error:
            return self.failed("batch", error)
        return self.say("batch", OK, f"step {event.step}, index {event.index}: {rows} rows, {len(event.documents)} documents, "
                        f"{counted} labels, in {1000 * (time.monotonic() - began):.1f} ms")

    def run(self) -> None:
        steps: List[Callable[[], bool]] = [self.check_python, self.check_socket, self.check_daemon, self.check_rank]
        if all(step() for step in steps) and self.client is not None:
            if self.check_memory():
                self.check_batch()
        self.check_modules()
        self.check_library()
        self.check_memlock()
        self.check_pages()
        if self.client is not None:
            self.client.close()


def parse(arguments: Optional[List[str]] = None) -> argparse.Namespace:
    summary, examples = (__doc__ or "").split("\n\n", 1)
    parser = argparse.ArgumentParser("python -m ballast.doctor", description=summary, epilog=examples,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--socket", help="address of the daemon (default $BALLAST_SOCKET, else /run/ballast/ballast.sock)")
    for axis in ("dp", "pp", "cp", "tp"):
        parser.add_argument(f"--{axis}", type=int, default=0, metavar="N", help="place in the mesh (default 0)")
    parser.add_argument("--job-digest", metavar="HEX", help="that the job must have, as `ballastctl status` shows it")
    parser.add_argument("--timeout", type=float, default=10.0, metavar="S", help="seconds to wait for each answer (default 10)")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument("--version", action="version", version=f"ballast.doctor {__version__}")
    return parser.parse_args(arguments)


def report(doctor: Doctor, out: Any) -> None:
    if doctor.arguments.json:
        host = _socket.gethostname()
        document = {"host": host, "socket": doctor.socket, "healthy": doctor.exit_code == 0,
                    "checks": [asdict(finding) for finding in doctor.findings]}
        print(json.dumps(document, indent=2), file=out)
        return
    print(f"{'CHECK':<8} {'RESULT':<6} FOUND", file=out)
    for finding in doctor.findings:
        print(f"{finding.check:<8} {finding.result:<6} {finding.text}", file=out)
        if finding.remedy:
            print(f"{'':<15} -> {finding.remedy}", file=out)


def main(arguments: Optional[List[str]] = None) -> int:
    doctor = Doctor(parse(arguments))
    doctor.run()
    report(doctor, sys.stdout)
    return doctor.exit_code


if __name__ == "__main__":
    sys.exit(main())
