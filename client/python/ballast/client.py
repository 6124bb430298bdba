"""A trainer rank's connection to its daemon.

The position (step, index) is the next batch to give out. It belongs to the client and not to the
connection, and every event from the daemon must be exactly the one that comes next, so however often
the daemon goes away, a rank sees each batch once and in order. Credits bound what is held: the daemon
never sends more than fits.
"""

from __future__ import annotations

import contextlib
import os
import struct
import sys
import time
import warnings
import weakref
from threading import get_ident
from typing import (Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union)

from . import messages, native
from .batch import Batch, Origin, create
from .batch import read as read_batch
from .columns import Spare
from .deadline import Deadline, after
from .dial import Credentials
from .dial import credentials as make_credentials
from .errors import (Busy, Disagreement, Error, FailedPrecondition, Forked, InvalidArgument, ProtocolError,
                     Stale)
from .link import DOWN, READY, SERVICE, Job, Link, Options
from .native import PLAIN
from .version import __version__
from .wire import Schema, decode, encode

SOCKET = "/run/ballast/ballast.sock"
CREDITS_MAX = 1024


class EndOfStep(NamedTuple):
    """All of this rank's batches of the step have come; every rank and node has the same digest."""

    step: int
    plan_digest: bytes


class EndOfData(NamedTuple):
    """`step` will not come."""

    step: int


class Measured(NamedTuple):
    """How long a micro-batch took on this rank, forward and backward; 0 is not measured."""

    index: int  # type: ignore[assignment]  # not tuple's method
    attention_ns: int = 0
    total_ns: int = 0
    expert_tokens: Sequence[int] = ()


Event = Union[Batch, EndOfStep, EndOfData]


def default_socket() -> str:
    return os.environ.get("BALLAST_SOCKET") or SOCKET


def _digest(value: Union[bytes, str, None]) -> Optional[bytes]:
    digest = bytes.fromhex(value) if isinstance(value, str) else value
    if digest is not None and len(digest) != 16:
        raise InvalidArgument(f"job_digest has {len(digest)} bytes, not 16")
    return digest


def make_options(socket: Optional[str] = None, *, dp: int = 0, pp: int = 0, cp: int = 0, tp: int = 0,
                 parts: Iterable[str] = ("tokens", "labels"), credits: int = 4,
                 connect_timeout: Optional[float] = 30.0, job_digest: Union[bytes, str, None] = None,
                 name: Optional[str] = None, start: Optional[Tuple[int, int]] = None, transport: str = "auto",
                 waiting: Optional[Callable[[str], None]] = None, waiting_after: float = 2.0,
                 map: Optional[Callable[[memoryview], None]] = None,
                 unmap: Optional[Callable[[memoryview], None]] = None, **files: Optional[str]) -> Options:
    """Judges what Client is called with."""
    chosen = (parts,) if isinstance(parts, str) else tuple(parts)
    if not chosen or any(part not in messages.PARTS for part in chosen):
        raise InvalidArgument(f"parts is {chosen}, not some of plan, tokens, labels")
    if not 1 <= credits <= CREDITS_MAX:
        raise InvalidArgument(f"credits is {credits}, not within 1 to {CREDITS_MAX}")
    if min(dp, pp, cp, tp) < 0:
        raise InvalidArgument(f"rank (dp {dp}, pp {pp}, cp {cp}, tp {tp}) is not one of a mesh")
    if transport not in ("auto", "shared", "fetch"):
        raise InvalidArgument(f"transport is {transport}, none of auto, shared, fetch")
    strange = set(files) - set(Credentials.__dataclass_fields__)
    if strange:
        raise TypeError(f"no such option: {', '.join(sorted(strange))}")
    label = name or os.path.basename(sys.argv[0] or "python")
    return Options(str(socket or default_socket()), dp, pp, cp, tp, chosen, credits, connect_timeout,
                   _digest(job_digest), f"{label[:96]} ballast-python/{__version__}", start, transport, waiting,
                   waiting_after, make_credentials(**files), map, unmap)


class Step:
    """A step as a loop over its micro-batches. Each is released when the next one is asked for; what was
    not asked for can be passed over by `skip`. `number` is the step's."""

    def __init__(self, client: "Client", first: Event):
        self._client = client
        self._first: Optional[Event] = first
        self._batch: Optional[Batch] = None
        self.number = first.step
        self.plan_digest: bytes = first.plan_digest  # type: ignore[union-attr]
        self.micro_batches = getattr(first, "micro_batches", 0)
        self.loss_denominator = getattr(first, "loss_denominator", 0)
        self.label_tokens = getattr(first, "label_tokens", 0)
        self.ended = False

    def _next(self) -> Event:
        event, self._first = self._first, None
        if event is not None:
            return event
        event = self._client.next()
        assert event is not None
        return event

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if self._batch is not None and self._batch.held:
            self._batch.release()
        self._batch = None
        if self.ended:
            raise StopIteration
        event = self._next()
        if isinstance(event, Batch):
            if event.step != self.number:
                raise Stale(f"step {event.step} came within step {self.number}: the job went elsewhere")
            self._batch = event
            return event
        self.ended = True
        raise StopIteration

    def skip(self) -> None:
        """Takes and releases what is left."""
        for _ in self:
            pass

    def commit(self, measured: Iterable[Measured] = ()) -> None:
        self._client.commit(self.number, measured)

    def __repr__(self) -> str:
        return f"<ballast.Step {self.number}: {self.micro_batches} micro-batches>"


class Client:
    """Connects as one rank of the job; waits for a daemon that is not there yet.

        with ballast.Client(dp=0, cp=0) as client:
            for step in client:
                for batch in step:
                    train(batch.tokens(), batch.labels(), batch.positions())
                step.commit()

    socket           the daemon's address: unix:/path or the path alone, tcp:127.0.0.1:PORT, tls:HOST:PORT;
                     $BALLAST_SOCKET, else /run/ballast/ballast.sock
    dp, pp, cp, tp   this rank's place in the mesh, each from 0
    parts            of "tokens" (the first pipeline stage), "labels" (the last), "plan" (the others)
    credits          batches in flight, held ones included
    connect_timeout  seconds that the daemon may stay away or silent, at the start and at every reconnect;
                     None for ever
    job_digest       16 bytes, or their hex, that the daemon's job must have
    start            (step, index) of the first batch wanted; the daemon's next step otherwise
    transport        "shared": tokens lie in the daemon's memory; "fetch": they come over the connection;
                     "auto": shared where that is possible
    token_file, tls_certificate, tls_key, tls_ca, tls_name
                     files for tcp: and tls:, read at every connect; $BALLAST_TOKEN_FILE,
                     $BALLAST_TLS_CERTIFICATE and so on
    waiting          called with a sentence when the daemon has been away for `waiting_after` seconds, and
                     every 30 s then: logging.warning, say
    map, unmap       called with a memoryview of the daemon's memory when it is mapped, at every connect, and when
                     nothing points into it any more: to register it, so that a GPU copies from it without staging.
                     What map raises ends the connect

    When the daemon goes away the client reconnects by itself and goes on at exactly the next batch. It
    belongs to one thread at a time, another gets Busy, and to the process that opened it; a forked child gets
    Forked and opens its own. Its rank is taken until `close`; what is dropped without is closed with a
    ResourceWarning, maybe late. What is pickled is the options: a spawned process gets a client that connects
    when first used.
    """

    _closed = True  # until _init

    def __init__(self, socket: Optional[str] = None, **options: Any):
        self._init(make_options(socket, **options))
        try:
            self._connect(None)
        except BaseException:
            self.close()
            raise

    def __del__(self) -> None:
        if not self._closed and self._usable and self._link.state != DOWN:
            warnings.warn(f"unclosed {self!r}: its rank was taken until now", ResourceWarning, source=self)
            self.close()

    def _init(self, options: Options) -> None:
        self.options = options
        self.library = native.find()[0]
        self._pid = os.getpid()
        self._link = Link(options)
        self._reader: Optional[native.Reader] = None  # of the stream, with libballast
        self._origin: Optional[Origin] = None  # of its batches
        self._stream_connection = -1  # number of the connection that the stream is open on
        self._generation: Optional[int] = None  # that this rank is of
        self._at = options.start  # position: the next batch, or, at micro_batches, the end of the step
        self._micro_batches = 0  # of this step, once a batch of it was seen
        self._digest = b""  # likewise
        self._ended: Optional[EndOfData] = None
        self._last_step = 0  # of the last event
        self._last_digest = bytes(16)  # of the last end of a step
        self._waited = 0.0
        self._waits: List[int] = []  # of batches taken since the daemon was told last, in nanoseconds
        self._batches: List[Batch] = []  # held, or with a view that is
        self._lingering = False  # there are some of the second kind
        self._fetching: Optional[Batch] = None  # whose bytes are still to come
        self._spare = Spare(3 * min(options.credits, 4))  # for columns that are asked for without `out`
        self._inside = 0  # the thread that is in a call that reads from the connection
        self._closed = False
        self._usable = True  # not closed, and in the process that opened it
        _clients.add(self)

    def __reduce__(self) -> Any:
        return _unpickle, (self.options,)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Gives back everything; views stay readable, but nothing says whether they are overwritten.
        Nothing is committed or waited for."""
        for batch in self._batches:
            batch._end()
        self._batches = []
        self._link.close()
        self._closed, self._usable = True, False

    def _enter(self) -> None:
        """Every call begins here, or with a look at `_usable`."""
        if self._pid != os.getpid():
            raise Forked(f"this client belongs to process {self._pid}; after fork, open one of its own")
        if self._closed:
            raise InvalidArgument("this client is closed; open another")

    @property
    def job(self) -> Job:
        """What the daemon said when it was connected to last."""
        if self._link.job is None:
            self._enter()
            self._connect(None)
        assert self._link.job is not None
        return self._link.job

    @property
    def step(self) -> int:
        """Of the last event."""
        return self._last_step

    def fileno(self) -> int:
        """For foreign event loops: poll it for reading, then call next(0) until it returns None. Changes
        with a reconnect; -1 while the daemon is away."""
        return self._link.fileno()

    # connection

    def _held(self) -> int:
        if self._lingering:
            self._sweep()
        return len(self._batches)

    def _streaming(self) -> bool:
        return self._link.state == READY and self._stream_connection == self._link.connections

    def _check_generation(self) -> None:
        """Whether the daemon is in this rank's generation still; known anew with each greeting."""
        job = self._link.job
        assert job is not None
        if self._generation is not None and self._generation != job.generation:
            raise Stale(f"{self._link.generation_by} sought step {job.generation_step}, where generation "
                        f"{job.generation} begins; this rank is of generation {self._generation}: seek that step")

    def _open_stream(self) -> None:
        """On a new connection, at the position, with a credit for each batch that is not held."""
        job, channel = self._link.job, self._link.channel
        assert job is not None and channel is not None
        self._fetching = None
        self._generation = job.generation
        if self._at is None:
            self._at = (job.next_step, 0)
        begin = {"step": self._at[0], "dp": self.options.dp, "index": self._at[1]}
        channel.stream_open(SERVICE, "Stream")
        self._send({"credits": self.options.credits - self._held(), "from": begin, "reports_waits": True})
        self._stream_connection = self._link.connections
        self._origin = Origin(job, self._link.connections, self.options.parts, self.options.cp)
        if self.library is not None:
            self._reader = native.Reader(self.library, channel, self._origin, self.options.dp, self._link.slab)
            channel.direct = None if channel.sealed else self._reader

    def _send(self, request: Dict[str, Any]) -> None:
        """Tells the daemon what this rank waited, with what it is told anyway."""
        assert self._link.channel is not None
        waits, self._waits = self._waits, []
        self._link.channel.stream_send(encode(messages.STREAM_REQUEST, {**request, "waited_ns": waits}))

    def _moved(self, why: Error) -> Error:
        """The daemon has moved on without this rank: a new greeting says where to, for `job`."""
        self._link.close()
        try:
            self._link.advance(after(self.options.connect_timeout))
        except Error:
            pass
        return why

    def _failed(self, error: Error) -> None:
        """Lost connections are to be tried again; of anything else the connection is closed, since what
        the daemon sent is not what it should have, and it is raised."""
        if self._link.lost(error):
            self._link.lose(error)
            return
        if isinstance(error, Stale):
            raise self._moved(error)
        self._link.close()
        raise error

    def _connect(self, deadline: Deadline) -> bool:
        """Gets a stream that is open at the position; False when the deadline passed."""
        while True:
            if not self._link.advance(deadline):
                return False
            if self._streaming():
                return True
            self._check_generation()  # a seek goes over this connection
            try:
                self._open_stream()
            except Error as error:
                self._failed(error)

    # events

    def _micro_batches_now(self) -> int:
        job = self._link.job
        return self._micro_batches or (job.micro_batches if job is not None else 0)

    def _unexpected(self, what: str, step: int, index: int) -> ProtocolError:
        at = self._at or (0, 0)
        return ProtocolError(f"the daemon sent {what} {step}.{index} where step {at[0]}, index {at[1]} comes next")

    def _check_digest(self, digest: bytes) -> None:
        """One plan per step: every digest of the step is the same, on whatever connection it came."""
        assert self._at is not None
        if len(digest) != 16:
            raise ProtocolError(f"the daemon sent a digest of {len(digest)} bytes")
        if self._digest and self._digest != digest:
            raise ProtocolError(f"the daemon changed its plan of step {self._at[0]} midway")
        self._digest = digest

    def _take_batch(self, head: Tuple[Any, ...], plan: Any, pool: Optional[Dict[str, Any]]) -> Optional[Batch]:
        """Of what native.Reader found, or _decode_batch; None when its bytes are still to come."""
        link, job = self._link, self._link.job
        assert job is not None
        step, dp, index, micro_batches = head[:4]
        if ((step, index) != self._at or dp != self.options.dp or index >= (micro_batches or job.micro_batches)
                or len(self._batches) >= self.options.credits):
            self._check_place(step, dp, index, micro_batches)
        if isinstance(plan, Error):
            raise plan
        assert self._origin is not None
        batch = Batch.judged(self, self._origin, head, plan, pool, link.slab, link.fetches)
        if batch.plan_digest != self._digest:
            self._check_digest(batch.plan_digest)
        if batch._missing > 0:
            assert link.channel is not None
            self._fetching = batch
            link.channel.fetch_start(SERVICE, "Fetch", messages.FETCH_REQUEST,
                                     {"id": {"step": batch.step, "dp": batch.dp, "index": batch.index}})
            return None
        if batch._payload_hash:
            batch._verify()
        return self._give(batch)

    def _take_plain(self, reader: native.Reader) -> Optional[Batch]:
        """What is there if it is a batch as nearly all are, by the shortest way; the reader keeps what is anything else."""
        plan = reader.plan()
        code = reader.take(plan.pointer, reader.pointer)
        batches, waits, credits, at = self._batches, self._waits, self.options.credits, self._at
        if code == PLAIN and len(batches) < credits:
            assert at is not None
            step, index = at
            batch = create(Batch)._begin(self, reader.origin, plan, step, index, self._link.slab, reader)
            batches.append(batch)
            self._at = step, index + 1
            if len(waits) < credits:
                waits.append(int(self._waited * 1e9))
            if self._waited:
                batch.waited, self._waited = self._waited, 0.0
            return batch
        reader.taken = plan, code
        return None

    def _check_place(self, step: int, dp: int, index: int, micro_batches: int) -> None:
        assert self._link.job is not None
        if (step, index) != self._at or dp != self.options.dp or index >= (micro_batches or self._link.job.micro_batches):
            raise self._unexpected("batch", step, index)
        if self._held() >= self.options.credits:
            raise ProtocolError("the daemon sent more batches than it had credits for")

    def _decode_batch(self, message: Dict[str, Any]) -> Optional[Batch]:
        """The same in Python."""
        identity = message["id"]
        if identity is None:
            raise self._unexpected("batch", 0, 0)
        self._check_place(identity["step"], identity["dp"], identity["index"], message["micro_batches"])
        assert self._link.job is not None
        return self._take_batch(*read_batch(message, self._link.job, self.options.cp), message["pool"])

    def _fetch(self, deadline: Deadline) -> Optional[Batch]:
        """Goes on with a batch whose bytes come over the connection; None when the deadline passed."""
        batch, channel = self._fetching, self._link.channel
        assert batch is not None and channel is not None
        while True:
            answer = channel.fetch_next(messages.FETCH_RESPONSE, deadline)
            if answer is None:
                return None
            if not answer:
                break
            batch._fetched(answer["payload"])
        if batch._missing > 0:
            raise ProtocolError(f"the daemon left {batch._missing} bytes of a batch out")
        self._fetching = None
        batch._verify()
        return self._give(batch)

    def _give(self, batch: Batch) -> Batch:
        """Gives a batch out, whose bytes are there."""
        self._batches.append(batch)
        self._last_step = batch.step
        self._micro_batches = batch.micro_batches
        self._at = (batch.step, batch.index + 1)
        return batch

    def _take_end_of_step(self, message: Dict[str, Any]) -> EndOfStep:
        assert self._at is not None
        micro_batches = message["micro_batches"] or self._micro_batches_now()
        if (message["step"], micro_batches) != self._at:
            raise self._unexpected("the end of step", message["step"], 0)
        self._check_digest(message["plan_digest"])
        self._last_step, self._last_digest = message["step"], message["plan_digest"]
        self._at = (message["step"] + 1, 0)
        self._micro_batches = 0
        self._digest = b""
        return EndOfStep(self._last_step, self._last_digest)

    def _take_end_of_data(self, message: Dict[str, Any]) -> EndOfData:
        if (message["step"], 0) != self._at:
            raise self._unexpected("the end of data at step", message["step"], 0)
        self._last_step = message["step"]
        self._ended = EndOfData(message["step"])
        return self._ended

    def _take(self, data: bytes) -> Optional[Event]:
        message = decode(messages.STREAM_ENVELOPE, data)
        if message["batch"] is not None:
            return self._decode_batch(message["batch"])
        if message["end_of_step"] is not None:
            return self._take_end_of_step(message["end_of_step"])
        if message["end_of_data"] is not None:
            return self._take_end_of_data(message["end_of_data"])
        raise ProtocolError("the daemon sent an event that this client does not know")

    def _receive(self, deadline: Deadline) -> Optional[Event]:
        """The next event of the open stream, where it is not a plain batch; None when the deadline passed."""
        if self._fetching is None:
            assert self._link.channel is not None
            data = self._link.channel.stream_next(deadline)
            if data is None:
                return None
            found = None if self._reader is None else self._reader.read(data)
            return self._take_batch(*found) if found else self._take(data)
        return self._fetch(deadline)

    def _wait(self, deadline: Deadline) -> Optional[Event]:
        """The next event; None when the deadline passed."""
        link = self._link
        while (link.state == READY and self._stream_connection == link.connections) or self._connect(deadline):
            try:
                reader = self._reader
                found = reader.next(deadline) if reader is not None and self._fetching is None else None
                if found is not None:
                    event = self._take_batch(*found) if found else None
                else:
                    event = self._receive(deadline)
                if event is None and self._fetching is not None:
                    event = self._fetch(deadline)
                if event is not None and link.window is not None:
                    link.progress()
                return event
            except Error as error:
                self._failed(error)
        return None

    def next(self, timeout: Optional[float] = None) -> Optional[Event]:
        """What comes next: a Batch to be released, EndOfStep, or EndOfData, which stays; None after
        `timeout` seconds (0: not waiting at all; None: for ever). Batches come in pipeline order, each
        once. FailedPrecondition when as many are held as there are credits; ProtocolError when the daemon
        sent anything but what must come next. After any failure the next call tries again, from the same
        place."""
        if not self._usable:
            self._enter()
        if self._ended is not None:
            return self._ended
        me = get_ident()
        if self._inside and self._inside != me:
            raise self._busy()
        at, micro_batches, digest = self._at, self._micro_batches, self._digest
        try:
            self._inside = me
            if self._lingering:
                self._sweep()
            reader = self._reader
            if reader is not None and reader.ready:
                event = self._take_plain(reader)
                if event is not None:
                    self._inside = 0
                    return event
            event = self._wait(0.0)  # what is there already costs no waiting
            if event is None:
                self._check_credits()
                event = None if timeout == 0 else self._wait_longer(after(timeout))
            if isinstance(event, Batch):
                if len(self._waits) < self.options.credits:
                    self._waits.append(int(self._waited * 1e9))
                if self._waited:
                    event.waited = self._waited
            if event is not None:
                self._waited = 0.0
            self._inside = 0
            return event
        except Error:
            self._inside = 0
            raise
        except BaseException:  # KeyboardInterrupt, anywhere: what was taken is not the caller's, and comes again
            for batch in self._batches:
                if at is None or (batch.step, batch.index) >= at:
                    batch._end()
            self._drop_released()
            self._at, self._micro_batches, self._digest, self._ended = at, micro_batches, digest, None
            self._inside = 0
            raise

    def _busy(self) -> Error:
        return Busy(f"thread {self._inside} is in a call of this client, which belongs to one thread at a time: hand it "
                    "on with a lock, or let one thread take batches for all")

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Around a call that reads from the connection."""
        self._enter()
        me = get_ident()
        if self._inside and self._inside != me:
            raise self._busy()
        try:
            self._inside = me
            yield
        finally:
            self._inside = 0

    def _wait_longer(self, deadline: Deadline) -> Optional[Event]:
        began = time.monotonic()
        try:
            return self._wait(deadline)
        finally:
            self._waited += time.monotonic() - began

    def _check_credits(self) -> None:
        """Nothing can come while all are held, but the end of a step."""
        if self._held() < self.options.credits or (
                self._at is not None and 0 < self._at[1] >= self._micro_batches_now()):
            return
        viewed = sum(not batch.held for batch in self._batches)
        raise FailedPrecondition(
            f"all {self.options.credits} batches are held" + (f", {viewed} of them by views" if viewed else "")
            + "; release one, or open with more credits")

    def __iter__(self) -> Iterator[Step]:
        """Step after step, to the end of the data. A step has to be gone through, or skipped."""
        while True:
            event = self.next()
            if isinstance(event, EndOfData):
                return
            assert event is not None
            step = Step(self, event)
            yield step
            if not step.ended and self._at is not None and self._at[0] == step.number:
                raise FailedPrecondition(f"{step} was not gone through; take all its batches, or call skip()")

    # batches

    def _rewind(self, batch: Batch) -> None:
        """Moves the position back to a batch whose slot was lost; the stream is opened anew from there."""
        at = (batch.step, batch.index)
        if batch.generation != self._generation or self._at is None or at >= self._at:
            return
        self._at = at
        self._micro_batches = batch.micro_batches
        self._digest = batch.plan_digest
        self._ended = None
        self._link.close()

    def _sweep(self) -> None:
        """Slots of batches that were released while a view was alive, and are not viewed any more."""
        released = [batch for batch in self._batches if not batch.held]
        lingering = any(batch.viewed for batch in released)
        try:
            for batch in released:
                if not batch.viewed:
                    self._give_back(batch)
        except Error:
            raise
        except BaseException:
            self._drop_released()
            raise
        self._lingering = lingering

    def _drop_released(self) -> None:
        """After an interrupt: the daemon is told of what is held by a new stream."""
        self._batches = [batch for batch in self._batches if batch.held or batch.viewed]
        self._fetching = None
        self._link.close()

    def _give_back(self, batch: Batch) -> None:
        self._batches.remove(batch)
        batch._let_go()
        reader, waits = batch._reader, self._waits
        try:
            if reader is not None and reader is self._reader and len(waits) == 1 and reader.release(batch._plan, waits[0]):
                waits.clear()
            elif self._streaming():  # else the next stream is opened with this credit, and knows nothing of the batch
                self._waits = []
                assert self._link.channel is not None
                known = batch.connection == self._link.connections
                self._link.channel.stream_send(messages.released(
                    (batch.step, batch.dp, batch.index) if known else None, waits))
        except Error as error:
            self._failed(error)

    # steps

    def _check_views(self, step: int) -> None:
        """A committed step's slots are reused, so nobody may look at them."""
        self._sweep()
        for batch in self._batches:
            if batch.step <= step and batch.viewed:
                raise FailedPrecondition(f"step {step} is not committed while a view of step {batch.step}, index "
                                         f"{batch.index} is alive; copy what is needed and drop the view")

    def commit(self, step: int, measured: Iterable[Measured] = ()) -> None:
        """The optimizer step is done; durable when this returns. Repeated over reconnects until answered;
        committing twice is fine. LimitReached: the daemon's disk is full, or 16 commits of this rank wait for it; the
        step is durable once a later commit returns, so training may go on. Stale as for `next`. With `measured`, one entry
        for each micro-batch that this rank has a time of, `ballastctl status` shows balance as it was."""
        with self._alone():
            self._check_views(step)
            times = [dict(Measured(*one)._asdict()) for one in measured]
            self._commit({"step": step, "measured": times})

    def _commit(self, request: Dict[str, Any]) -> None:
        while True:
            self._link.advance(None)
            self._check_generation()
            try:
                assert self._link.channel is not None
                self._link.channel.unary(SERVICE, "Commit", messages.COMMIT_REQUEST, request, messages.COMMIT_RESPONSE,
                                         self.options.connect_timeout)
                self._claim(request["step"] + 1)
                self._link.progress()
                return
            except Stale as error:
                raise self._moved(error)
            except Error as error:
                if not self._link.lost(error):
                    raise
                self._link.lose(error)

    def _claim(self, committed_step: int) -> None:
        """What was acknowledged is said in every greeting from now on: a daemon that was killed may know
        less of this rank."""
        assert self._link.job is not None
        claimed, generation = self._link.claim
        if generation != self._link.job.generation or claimed < committed_step:
            self._link.claim = (committed_step, self._link.job.generation)

    def _ask(self, method: str, request: Schema, fields: Dict[str, Any], response: Schema) -> Dict[str, Any]:
        """Asks until it is answered, over reconnects; the daemon may take its time."""
        with self._alone():
            while True:
                self._link.advance(None)
                try:
                    assert self._link.channel is not None
                    answer = self._link.channel.unary(SERVICE, method, request, fields, response, None)
                    self._link.progress()
                    return answer
                except Error as error:
                    if not self._link.lost(error):
                        raise
                    self._link.lose(error)

    def _placed(self, answer: Dict[str, Any]) -> None:
        """The rank stands at another step of another generation: no stream is open there yet, and what is
        held is of another connection as far as releases go."""
        link, step = self._link, answer["next_step"]
        assert link.channel is not None and link.job is not None
        link.channel.stream_drop()
        link.connections += 1
        link.claim = (0, 0)
        link.job = link.job._replace(next_step=step, generation=answer["generation"], generation_step=step)
        self._generation = answer["generation"]
        self._at = (step, 0)
        self._micro_batches = 0
        self._ended = None
        self._digest = answer["plan_digest"]

    def seek(self, step: int, generation: int = 0) -> None:
        """Goes to a step with the whole job: the first rank to call this opens a new generation, durably,
        and the others join it by the same step; their `next` and `commit` raise Stale until they do. The
        next batch is then (step, 0). `generation`: at least this one is opened; 0: the next. Where a daemon
        may have been replaced, pass the largest job.generation over all ranks + 1. FailedPrecondition:
        another rank sought another step, and both are named; OutOfRange: beyond the end of the data."""
        self._placed(self._ask("Seek", messages.SEEK_REQUEST, {"step": step, "generation": generation},
                               messages.SEEK_RESPONSE))

    def export_state(self, step: int) -> bytes:
        """The state from which `step` is planned, for the job's checkpoint; mostly below 64 KB. On one
        rank, before the step after `step` - 1 is 1,000 steps old. NotFound: it is no longer kept;
        OutOfRange: it is not planned yet."""
        answer = self._ask("Export", messages.EXPORT_REQUEST, {"step": step}, messages.EXPORT_RESPONSE)
        state: bytes = answer["state"]
        return state

    def import_state(self, state: bytes, generation: int = 0) -> None:
        """`seek` to the step of such a state, whatever this daemon knew before: on a new node with the same
        corpus, wherever that lies. One rank of a node must, the others may seek the step instead.
        FailedPrecondition: it is of another job, corpus or version, and the dataset or setting is named;
        DataLoss: it is damaged; Unimplemented: of a newer format."""
        self._placed(self._ask("Import", messages.IMPORT_REQUEST, {"state": state, "generation": generation},
                               messages.IMPORT_RESPONSE))

    # agreement

    def agreement(self) -> bytes:
        """What ranks compare: generation, step and plan digest, of the step that is under way after a batch
        or a seek, else of the step that ended last."""
        step, digest = (self._at[0], self._digest) if self._digest and self._at else (
            self._last_step, self._last_digest)
        return struct.pack("<QQ16s", self._generation or 0, step, digest)

    def agree(self, all_gather: Callable[[bytes], Sequence[bytes]]) -> None:
        """Whether all ranks of the job, of all nodes, have the same. `all_gather` is given this rank's bytes
        and returns those of every rank, in rank order. At the same point everywhere, best before the first
        collective of a step. Disagreement names the ranks that are not like most others."""
        self._enter()
        everyone = [bytes(one) for one in all_gather(self.agreement())]
        if not everyone:
            raise InvalidArgument("agreement of no ranks")
        counts = [everyone.count(one) for one in everyone]
        usual = counts.index(max(counts))
        odd = [rank for rank, one in enumerate(everyone) if one != everyone[usual]]
        if not odd:
            return
        names = ", ".join(map(str, odd[:32])) + (", ..." if len(odd) > 32 else "")
        majority = "the majority" if 2 * counts[usual] > len(everyone) else "most others"
        raise Disagreement(
            f"rank {names} of {len(everyone)} differ{'s' if len(odd) == 1 else ''} from {majority}: "
            f"rank {odd[0]} has {_describe(everyone[odd[0]])}, rank {usual} {_describe(everyone[usual])}")

    def __repr__(self) -> str:
        return f"<ballast.Client {self.options.rank} at {self.options.socket}>"


def _describe(record: bytes) -> str:
    if len(record) != 32:
        return f"{len(record)} bytes that are no agreement"
    generation, step, digest = struct.unpack("<QQ16s", record)
    return f"generation {generation}, step {step}, digest {digest[:4].hex()}"


def _unpickle(options: Options) -> Client:
    client = Client.__new__(Client)
    client._init(options)
    return client


_clients: "weakref.WeakSet[Client]" = weakref.WeakSet()


def _after_fork() -> None:
    """The child's copies of the sockets would keep its parent's rank alive after the parent is gone."""
    for client in list(_clients):
        client._usable = False
        for batch in client._batches:
            batch._fill = None
        client._link.drop()


os.register_at_fork(after_in_child=_after_fork)
