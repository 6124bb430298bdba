"""The connection of one rank to its daemon, and how it comes back.

                              +--------- greeted, no slab ---------+
                              |                                    v
    DOWN --connect--> GREETING --greeted--> MAPPING --mapped--> READY
     ^                   |                     |                   |
     +----- lose, close: lost, refused, or not ours ---------------+

One window of connect_timeout covers every try to get from DOWN to work again. It opens with the first
loss and closes with `progress`, when the daemon has sent something. Tries are 10 ms apart, then an
eighth more each, to 500 ms. Each state goes on where a deadline interrupted it.
Where the slab cannot be had, READY follows GREETING, and slots are fetched over the connection.
"""

from __future__ import annotations

import select
from time import monotonic
from dataclasses import dataclass
from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple

from . import messages, slab
from .call import Channel
from .deadline import Deadline, after, earlier, passed, wait
from .dial import Credentials
from .errors import (AlreadyExists, Error, InvalidArgument, JobMismatch, NoSocket, PermissionDenied, ProtocolError,
                     TimedOut, Unavailable, Unsupported)

SERVICE = "ballast.v1.Loader"
PROTOCOL = 1
PAUSE_MIN, PAUSE_MAX = 0.010, 0.500
TELL_AGAIN = 30.0
SILENT = 1.0  # that a try lasts
ROWS_MAX = 0x7FFFFFFF  # positions and cu_seqlens are 32 bits

DOWN, GREETING, MAPPING, READY = range(4)


class Job(NamedTuple):
    """What the daemon said of the job when it was connected to last."""

    digest: bytes
    dp: int
    pp: int
    cp: int
    tp: int
    next_step: int
    micro_batches: int
    tokens_max: int
    token_bytes: int
    generation: int
    generation_step: int
    daemon: str


@dataclass(frozen=True)
class Options:
    """What a client was opened with."""

    socket: str
    dp: int = 0
    pp: int = 0
    cp: int = 0
    tp: int = 0
    parts: Tuple[str, ...] = ("tokens", "labels")
    credits: int = 4
    connect_timeout: Optional[float] = 30.0
    job_digest: Optional[bytes] = None
    name: str = "python"
    start: Optional[Tuple[int, int]] = None
    transport: str = "auto"
    waiting: Optional[Callable[[str], None]] = None
    waiting_after: float = 2.0
    credentials: Credentials = Credentials()
    map: Optional[Callable[[memoryview], None]] = None
    unmap: Optional[Callable[[memoryview], None]] = None

    @property
    def wants_slots(self) -> bool:
        return "tokens" in self.parts or "labels" in self.parts

    @property
    def rank(self) -> str:
        return f"rank (dp {self.dp}, pp {self.pp}, cp {self.cp}, tp {self.tp})"


class Link:
    def __init__(self, options: Options):
        self.options = options
        self.job_digest = options.job_digest
        self.state = DOWN
        self.channel: Optional[Channel] = None
        self.slab: Optional[slab.Slab] = None
        self.fetches = False  # slots come over this connection
        self.claim = (0, 0)  # first step whose commit was not acknowledged, in this generation
        self.connections = 0  # greetings answered and seeks since
        self.job: Optional[Job] = None
        self.generation_by = ""
        self._data: Any = None  # data socket, in MAPPING
        self._slab_bytes = 0
        self._give_up: Deadline = None
        self.window: Deadline = None  # when it opened, None while it is closed
        self._tell: Deadline = None
        self._retry: Deadline = None
        self._begun = 0.0  # when this try began, except in DOWN
        self._pause = PAUSE_MIN
        self._loss: Optional[Error] = None

    def drop(self) -> None:
        """Closes descriptors, and nothing else."""
        if self.channel is not None:
            self.channel.close()
        if self._data is not None:
            self._data.close()

    def close(self) -> None:
        """Goes DOWN without a reason to come back at once."""
        self.drop()
        self.channel = self._data = self.slab = None
        self.state = DOWN
        self.window = self._give_up = self._retry = None
        self._pause = PAUSE_MIN

    def _open_window(self) -> None:
        if self.window is None:
            self.window = after(0)
            self._give_up = after(self.options.connect_timeout)
            self._tell = None if self.options.waiting is None else after(self.options.waiting_after)

    def lose(self, why: Error) -> None:
        """After a failure that was the connection's: remembers why and goes DOWN, to try again."""
        window, give_up, pause = self.window, self._give_up, self._pause
        self.close()
        self._loss = why
        if window is None:
            self._open_window()
            return
        self.window, self._give_up = window, give_up
        self._retry = after(pause)
        self._pause = min(pause * 1.125, PAUSE_MAX)

    def progress(self) -> None:
        """The daemon works: closes the window."""
        self.window = None
        self._pause = PAUSE_MIN

    def lost(self, error: Error) -> bool:
        """Whether the connection, not the request, was at fault."""
        if isinstance(error, AlreadyExists):  # our own connection of before, not yet seen to end
            return self.connections > 0
        return isinstance(error, (Unavailable, TimedOut))

    def fileno(self) -> int:
        if self.channel is None:
            return -1
        fd: int = self._data.fileno() if self.state == MAPPING else self.channel.fileno()
        return fd

    def advance(self, deadline: Deadline) -> bool:
        """Goes on towards READY: True there, False when the deadline passed."""
        while self.state != READY:
            self._open_window()
            give_up = self._give_up
            until = earlier(deadline, give_up)
            moved = True
            try:
                moved = self._step(earlier(until, self._tell))
            except Error as error:
                if not self.lost(error):
                    self.close()
                    raise
                self.lose(error)
            if self.state != READY and passed(self._tell):
                self._say()
            if not moved and passed(give_up):
                raise self._gave_up()
            if not moved and passed(deadline):
                return False
        return True

    def _say(self) -> None:
        """Tells the caller what it waits for."""
        assert self.window is not None and self.options.waiting is not None
        self._tell = after(TELL_AGAIN)
        timeout, path = self.options.connect_timeout, self.options.socket
        bound = "" if timeout is None else f", for {timeout:.0f} s at most"
        why = (f"{path} takes connections and does not answer; its log says what it does" if self._silent()
               else self._loss)
        self.options.waiting(f"waiting for the daemon since {monotonic() - self.window:.1f} s{bound}: {why}")

    def _silent(self) -> bool:
        """Whether the try under way has lasted so long that it says more than how the one before ended."""
        assert self.window is not None
        half = SILENT if self._give_up is None else (self._give_up - self.window) / 2
        return self._loss is None or self.state != DOWN and monotonic() - self._begun >= min(half, SILENT)

    def _gave_up(self) -> Error:
        silent, loss = self._silent(), self._loss
        self.close()
        timeout = self.options.connect_timeout
        if silent or loss is None:
            return TimedOut(f"the daemon on {self.options.socket} did not answer within {timeout:g} s")
        return type(loss)(f"tried for {timeout:g} s: {loss}")

    def _step(self, until: Deadline) -> bool:
        if self.state == DOWN:
            return self._connect(until)
        if self.state == GREETING:
            return self._greet(until)
        return self._map(until)

    def _connect(self, until: Deadline) -> bool:
        if self._retry is not None and not passed(self._retry):
            wait(-1, 0, earlier(until, self._retry))
            if not passed(self._retry):
                return False
        options = self.options
        self._begun = monotonic()
        self.channel = Channel(options.socket, options.credentials)
        self.state = GREETING
        rank = {"dp": options.dp, "pp": options.pp, "cp": options.cp, "tp": options.tp}
        self.channel.start(SERVICE, "Hello", messages.HELLO_REQUEST, {
            "protocol_min": PROTOCOL, "protocol_max": PROTOCOL, "rank": rank,
            "parts": [messages.PARTS[part] for part in options.parts],
            "job_digest": self.job_digest or b"", "client": options.name,
            "committed_step": self.claim[0], "generation": self.claim[1]})
        return True

    def _greet(self, until: Deadline) -> bool:
        assert self.channel is not None
        hello = self.channel.finish(messages.HELLO_RESPONSE, until)
        if hello is None:
            return False
        self._accept(hello)
        if self.options.wants_slots and not self.fetches:
            self._ask(hello)
        self.state = READY if self._data is None else MAPPING
        return True

    def _ask(self, hello: Dict[str, Any]) -> None:
        """For the slab. Where its socket cannot be reached, as in a container that has only the control
        socket, slots are fetched."""
        try:
            self._data = slab.ask(hello["data_path"], hello["data_token"])
            self._slab_bytes = hello["slab_bytes"]
        except (NoSocket, PermissionDenied):
            if self.options.transport != "auto":
                raise
            self.fetches = True

    def _map(self, until: Deadline) -> bool:
        if not wait(self._data.fileno(), select.POLLIN, until):
            return False
        try:
            self.slab = slab.receive(self._data, self._slab_bytes, self.options.map, self.options.unmap)
        except Exception as reason:
            if not isinstance(reason, Error):
                self.close()  # the caller's function raised it, after the answer was taken
            raise
        if self.slab is None:
            return False
        self._data.close()
        self._data = None
        self.state = READY
        return True

    def _accept(self, hello: Dict[str, Any]) -> None:
        """Judges a greeting by itself, against this rank, and against what was said before."""
        options, mesh = self.options, hello["mesh"]
        if hello["protocol"] != PROTOCOL:
            raise ProtocolError(f"the daemon speaks protocol {hello['protocol']}, this client {PROTOCOL}")
        if (len(hello["job_digest"]) != 16 or mesh is None or hello["micro_batches"] == 0
                or hello["tokens_max"] > ROWS_MAX or hello["token_bytes"] not in (2, 4)):
            raise ProtocolError("the daemon's greeting makes no sense")
        if any(getattr(options, axis) >= mesh[axis] for axis in ("dp", "pp", "cp", "tp")):
            raise InvalidArgument(f"{options.rank} is not in the daemon's mesh of dp {mesh['dp']}, "
                                  f"pp {mesh['pp']}, cp {mesh['cp']}, tp {mesh['tp']}")
        job = Job(hello["job_digest"], mesh["dp"], mesh["pp"], mesh["cp"], mesh["tp"], hello["next_step"],
                  hello["micro_batches"], hello["tokens_max"], hello["token_bytes"], hello["generation"],
                  hello["generation_step"], hello["daemon"])
        self._check_job(job)
        self.fetches = options.wants_slots and (options.transport == "fetch" or (
            options.transport == "auto" and not hello["data_path"]))
        shares = options.wants_slots and not self.fetches
        if shares and not hello["data_path"]:
            raise Unsupported("the daemon cannot share its memory over this connection; let transport be auto or "
                              "fetch, or connect to its Unix socket")
        if shares and len(hello["data_token"]) != slab.TOKEN_BYTES:
            raise ProtocolError(f"the daemon's data token has {len(hello['data_token'])} bytes, not "
                                f"{slab.TOKEN_BYTES}")
        self.generation_by = hello["generation_by"] or "another rank"
        self.job = job
        self.job_digest = job.digest
        self.connections += 1

    def _check_job(self, job: Job) -> None:
        known = self.job
        what = None
        if self.job_digest is not None and self.job_digest != job.digest:
            what = "job"
        elif known is not None and known[1:5] != job[1:5]:
            what = "mesh"
        elif known is not None and known.token_bytes != job.token_bytes:
            what = "token width"
        if what is not None:
            raise JobMismatch(f"the daemon's {what} is not the one that this client was opened for; close "
                              "the client and open another")
