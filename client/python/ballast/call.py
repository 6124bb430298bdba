"""One ttrpc connection: unary calls, and one bidirectional stream at a time.

Knows frames and messages, not ranks. A frame is a header of 10 bytes (length u32, stream u32, type u8,
flags u8, big endian) and `length` bytes; the length is judged before anything is read for it. A call
that is interrupted midway (KeyboardInterrupt) leaves the connection broken, never out of step.
"""

from __future__ import annotations

import select
import ssl
import struct
from collections import deque
from typing import Any, Deque, Dict, Optional, Tuple

from . import messages
from .deadline import Deadline, after, passed, wait
from .dial import Credentials, dial
from .errors import (Disconnected, Error, InvalidArgument, PermissionDenied, ProtocolError, TimedOut,
                     from_status)
from .wire import Schema, decode, encode

DATA_BYTES_MAX = 4 << 20
KEPT_BYTES_MAX = 64 << 20
SEND_TIMEOUT = 30.0
READ_BYTES = 1 << 18

_HEADER = struct.Struct(">IIBB")
_HEADER_BYTES = _HEADER.size
_TYPE_REQUEST, _TYPE_RESPONSE, _TYPE_DATA = 1, 2, 3
_REMOTE_CLOSED, _REMOTE_OPEN, _NO_DATA = 1, 2, 4

_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

Frame = Tuple[int, int, bytes]  # type, flags, data


class Channel:
    """Not for two threads at once."""

    def __init__(self, address: str, known: Credentials = Credentials()):
        self.socket = dial(address, known)
        self.sealed = isinstance(self.socket, ssl.SSLSocket)
        self.stream = 0  # id of the open stream, 0 without
        self.direct: Any = None  # who may take frames of it from the socket and the buffer, and send some
        self._pending = 0  # id of the unary call that is waited for
        self._fetch = 0  # id of the call that is answered with messages
        self._next = 1
        self.buffer = bytearray(READ_BYTES)
        self._view = memoryview(self.buffer)
        self.begin = self.end = 0  # what was read and not looked at
        self.kept: Deque[Tuple[int, Frame]] = deque()
        self._kept_bytes = 0
        self._broken: Optional[Error] = None

    def close(self) -> None:
        self._end_direct()
        self.socket.close()

    def _end_direct(self) -> None:
        direct, self.direct = self.direct, None
        if direct is not None:
            direct.leave()

    def fileno(self) -> int:
        return self.socket.fileno()

    def lose(self, error: Error) -> Error:
        self._end_direct()
        self._broken = self._broken or error
        return error

    def _send(self, stream: int, kind: int, flags: int, data: bytes) -> None:
        if len(data) > DATA_BYTES_MAX:
            raise InvalidArgument(f"a message of {len(data)} bytes does not fit a frame of {DATA_BYTES_MAX}")
        if self._broken is not None:
            raise self._broken
        self.send_rest(_HEADER.pack(len(data), stream, kind, flags) + data)

    def send_rest(self, rest: Any) -> None:
        """Of a frame."""
        try:
            sent = self._write(rest)
            if sent < len(rest):
                deadline, rest = after(SEND_TIMEOUT), memoryview(rest)[sent:]
                while rest:
                    if not wait(self.fileno(), select.POLLOUT, deadline):
                        raise self.lose(TimedOut("the daemon reads nothing from the connection"))
                    rest = rest[self._write(rest):]
            rest = None
        except OSError as reason:
            if isinstance(reason, Error):
                raise
            raise self.lose(Disconnected(f"connection to the daemon: {reason.strerror}")) from None
        finally:
            if rest is not None:
                self.lose(Disconnected("a message to the daemon was interrupted"))

    def _write(self, data: Any) -> int:
        try:
            return self.socket.send(data)
        except _NOT_NOW:
            return 0

    def _request(self, service: str, method: str, payload: bytes, flags: int) -> int:
        stream = self._next
        self._next = stream + 2  # first: no id is sent twice, even where this is interrupted
        request = {"service": service, "method": method, "payload": payload}
        self._send(stream, _TYPE_REQUEST, flags, encode(messages.REQUEST, request))
        return stream

    def _next_frame(self) -> Optional[Tuple[int, Frame]]:
        """(stream, frame) out of what was read, None when it ends within one."""
        begin = self.begin + _HEADER_BYTES
        if self.end < begin:
            return None
        size, stream, kind, flags = _HEADER.unpack_from(self.buffer, self.begin)
        if (size > DATA_BYTES_MAX or kind not in (_TYPE_RESPONSE, _TYPE_DATA) or flags & ~7
                or (flags & _NO_DATA and size > 0) or stream % 2 == 0 or stream >= self._next):
            raise ProtocolError("the connection does not follow the protocol; is this the socket of a "
                                "ballastd of this version?")
        end = begin + size
        if self.end < end:
            if end - self.begin > len(self.buffer):
                self._move(bytearray(_HEADER_BYTES + size))
            return None
        self.begin = end
        return stream, (kind, flags, bytes(self._view[begin:end]))

    def _move(self, buffer: bytearray) -> None:
        """What is left to the beginning of a buffer."""
        left = self.end - self.begin
        buffer[:left] = self._view[self.begin:self.end]
        if buffer is not self.buffer:
            self.buffer, self._view = buffer, memoryview(buffer)
        self.begin, self.end = 0, left

    def _read(self, deadline: Deadline) -> bool:
        """More bytes into the buffer; False when the deadline passed."""
        if self.begin == self.end:
            self.begin = self.end = 0
        elif self.end == len(self.buffer):
            self._move(self.buffer)
        while True:
            try:
                count = self.socket.recv_into(self._view[self.end:] if self.end else self._view)
            except _NOT_NOW:
                if passed(deadline) or not wait(self.fileno(), select.POLLIN, deadline):
                    return False
                continue
            except ssl.SSLError as reason:
                raise PermissionDenied(f"the daemon refuses this side's certificate: {reason.reason or reason}") from None
            except OSError as reason:
                raise Disconnected(f"connection to the daemon: {reason.strerror}") from None
            if count == 0:
                raise Disconnected("the daemon closed the connection")
            self.end += count
            return True

    def _take_kept(self, stream: int) -> Optional[Frame]:
        for at, (kept, frame) in enumerate(self.kept):
            if kept == stream:
                del self.kept[at]
                self._kept_bytes -= len(frame[2])
                return frame
        return None

    def _forget(self, stream: int) -> None:
        """What has come of a call or stream that is given up; what is to come is not kept."""
        while self._take_kept(stream) is not None:
            pass

    def _keep(self, stream: int, frame: Frame) -> None:
        """Of a call or stream that is waited for; anything else is late and dropped."""
        if stream in (self.stream, self._pending, self._fetch):
            self.kept.append((stream, frame))
            self._kept_bytes += len(frame[2])
            if self._kept_bytes > KEPT_BYTES_MAX:
                raise ProtocolError("the daemon sent more than was asked for")

    def _take(self, stream: int, deadline: Deadline) -> Optional[Frame]:
        """The next frame of one stream; None when the deadline passed."""
        if self.direct is not None:
            self.direct.leave()
        frame = self._take_kept(stream) if self.kept else None
        while frame is None:
            if self._broken is not None and self.begin == self.end:
                raise self._broken
            try:
                found = self._next_frame()
                if found is None:
                    if self._broken is not None:
                        raise self._broken
                    if not self._read(deadline):
                        return None
                elif found[0] == stream:
                    frame = found[1]
                else:
                    self._keep(*found)
            except Error as error:
                raise self.lose(error)
            except BaseException:  # a frame of the stream may be out of the buffer, and what follows it must not be taken
                self.begin = self.end
                self.lose(Disconnected("a call to the daemon was interrupted"))
                raise
        return frame

    @staticmethod
    def _payload(data: bytes) -> bytes:
        """Of a response; a refusal is raised."""
        response = decode(messages.RESPONSE, data)
        status = response["status"]
        if status is not None and status["code"] != 0:
            raise from_status(status["code"], status["message"])
        return response["payload"]

    def start(self, service: str, method: str, request: Schema, fields: Dict[str, Any]) -> None:
        """Sends a call; the one before is given up: its answer, come or to come, is dropped."""
        self._forget(self._pending)
        self._pending = self._request(service, method, encode(request, fields), _REMOTE_CLOSED)

    def finish(self, response: Schema, deadline: Deadline) -> Optional[Dict[str, Any]]:
        """What was answered; None when the deadline passed, and it may be waited for again."""
        frame = self._take(self._pending, deadline)
        if frame is None:
            return None
        self._pending = 0
        if frame[0] != _TYPE_RESPONSE:
            raise ProtocolError("the daemon answered a plain call with a stream")
        return decode(response, self._payload(frame[2]))

    def unary(self, service: str, method: str, request: Schema, fields: Dict[str, Any], response: Schema,
              timeout: Optional[float]) -> Dict[str, Any]:
        self.start(service, method, request, fields)
        answer = self.finish(response, after(timeout))
        if answer is None:
            raise TimedOut(f"the daemon did not answer {method} within {timeout:g} s")
        return answer

    def fetch_start(self, service: str, method: str, request: Schema, fields: Dict[str, Any]) -> None:
        """Sends a call that is answered with messages, one such call at a time."""
        self._forget(self._fetch)
        self._fetch = self._request(service, method, encode(request, fields), _REMOTE_CLOSED)

    def fetch_next(self, response: Schema, deadline: Deadline) -> Optional[Dict[str, Any]]:
        """The next message, None when the deadline passed; nothing in it at the end."""
        frame = self._take(self._fetch, deadline)
        if frame is None:
            return None
        if frame[0] == _TYPE_DATA:
            return decode(response, frame[2])
        self._fetch = 0
        self._payload(frame[2])
        return {}

    def stream_open(self, service: str, method: str) -> None:
        assert self.stream == 0
        self.stream = self._request(service, method, b"", _REMOTE_OPEN)

    def stream_send(self, message: bytes) -> None:
        if self.stream == 0:
            raise Disconnected("the stream has ended")
        self._send(self.stream, _TYPE_DATA, 0, message)

    def stream_drop(self) -> None:
        """Forgets the open stream, if any: what comes of it is dropped."""
        self._forget(self.stream)
        self.stream = 0
        self._end_direct()

    def stream_next(self, deadline: Deadline) -> Optional[bytes]:
        """The next message, as it came; None when the deadline passed. The end of the stream is raised."""
        while self.stream:
            frame = self._take(self.stream, deadline)
            if frame is None:
                return None
            kind, flags, data = frame
            if kind == _TYPE_RESPONSE:
                self.stream = 0
                self._end_direct()
                self._payload(data)
                raise Disconnected("the daemon ended the stream")
            if not flags & _NO_DATA:
                return data
        raise Disconnected("the stream has ended")
