"""Getting a connection to a daemon, wherever it is.

    unix:/run/ballast/ballast.sock    or the path alone
    tcp:127.0.0.1:7411                loopback, with a token
    tls:loader.example:7411           TLS 1.3, certificates on both sides; [v6] in brackets
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import ssl
from dataclasses import dataclass
from typing import Optional, Tuple, Type

from .errors import (Disconnected, Error, InvalidArgument, NoSocket, NotFound, PermissionDenied, TimedOut,
                     Unavailable)

TIMEOUT = 30.0  # of connecting and of the TLS handshake; of a peer that acknowledges nothing
_AWAY = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN)


@dataclass(frozen=True)
class Credentials:
    """Files for tcp: and tls:, read at every connect."""

    token_file: Optional[str] = None
    tls_certificate: Optional[str] = None
    tls_key: Optional[str] = None
    tls_ca: Optional[str] = None
    tls_name: Optional[str] = None


def credentials(**given: Optional[str]) -> Credentials:
    """What is not given comes from BALLAST_TOKEN_FILE, BALLAST_TLS_CERTIFICATE, and so on."""
    names = Credentials.__dataclass_fields__
    return Credentials(**{name: given.get(name) or os.environ.get(f"BALLAST_{name.upper()}") or None for name in names})


def parse(text: str) -> Tuple[str, str, int]:
    """(kind, host or path, port)."""
    kind, _, rest = text.partition(":")
    if kind == "unix" and rest:
        return kind, rest, 0
    if kind not in ("tcp", "tls"):
        return "unix", text, 0
    host, _, port = rest.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    if not host or not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise InvalidArgument(f"address {text} is none of unix:/path, tcp:127.0.0.1:PORT, tls:HOST:PORT")
    return kind, host, int(port)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def dial_unix(path: str) -> socket.socket:
    """A connected, non-blocking Unix socket."""
    if len(path.encode()) > 107:
        raise InvalidArgument(f"socket path {path} has {len(path.encode())} bytes, at most 107 fit")
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.setblocking(False)
    try:
        connection.connect(path)
    except OSError as reason:
        connection.close()
        if reason.errno in (errno.ENOENT, errno.ECONNREFUSED):
            kind = NoSocket if reason.errno == errno.ENOENT else Unavailable
            raise kind(f"no daemon listens on {path}; start ballastd, or name its socket (socket=, BALLAST_SOCKET)") from None
        if reason.errno == errno.EAGAIN:
            raise Unavailable(f"the daemon on {path} accepts no more connections") from None
        if reason.errno in (errno.EACCES, errno.EPERM):
            raise PermissionDenied(f"not allowed to connect to {path}; ask for its group, or check its "
                                   "mode") from None
        raise Error(f"connect to {path}: {reason.strerror}") from None
    return connection


def _tcp(host: str, port: int) -> socket.socket:
    try:
        connection = socket.create_connection((host, port), TIMEOUT)
    except socket.gaierror as reason:
        kind = Unavailable if reason.errno == socket.EAI_AGAIN else NotFound
        raise kind(f"host {host} is not known: {reason.strerror}; check the name in socket= or BALLAST_SOCKET") from None
    except TimeoutError:
        raise TimedOut(f"connect to {host} port {port}: no answer within {TIMEOUT:g} s") from None
    except OSError as reason:
        if reason.errno == errno.ECONNREFUSED:
            raise Unavailable(f"nobody listens on {host} port {port}; start ballastd with listen.tcp, or name another "
                              "address (socket=, BALLAST_SOCKET)") from None
        away: Type[Error] = Unavailable if reason.errno in _AWAY else Error
        raise away(f"connect to {host} port {port}: {reason.strerror}") from None
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, int(TIMEOUT) // 3)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, int(TIMEOUT) // 3)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(TIMEOUT * 1000))
    return connection


def _token(path: str) -> str:
    try:
        with open(path) as f:
            if os.fstat(f.fileno()).st_mode & 0o007:
                raise PermissionDenied(f"other users may read the token in {path}; chmod o-rwx it")
            token = f.readline().rstrip("\n")
    except OSError as reason:
        if isinstance(reason, Error):
            raise
        raise NotFound(f"token file {path}: {reason.strerror}") from None
    if not 16 <= len(token) <= 256 or not all("!" <= letter <= "~" for letter in token):
        raise InvalidArgument(f"the first line of {path} is no token: 16 to 256 printable characters without blanks")
    return token


def _secure(connection: socket.socket, host: str, known: Credentials) -> socket.socket:
    try:
        context = ssl.create_default_context(cafile=known.tls_ca)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        if known.tls_certificate:
            context.load_cert_chain(known.tls_certificate, known.tls_key)
    except (OSError, ssl.SSLError) as reason:
        raise InvalidArgument(f"TLS files: {reason}; check tls_ca, tls_certificate and tls_key") from None
    name = known.tls_name or host
    try:
        return context.wrap_socket(connection, server_hostname=name)
    except ssl.SSLCertVerificationError as reason:
        raise PermissionDenied(f"the daemon's certificate is not for {name}, or not by tls_ca: "
                               f"{reason.verify_message}") from None
    except TimeoutError:
        raise TimedOut(f"no TLS handshake within {TIMEOUT:g} s") from None
    except ssl.SSLError as reason:
        raise PermissionDenied(f"TLS handshake with {host}: {reason.reason or reason}") from None
    except OSError as reason:
        raise Disconnected(f"connection to the daemon: {reason.strerror}") from None


def _check(text: str, kind: str, host: str, port: int, known: Credentials) -> None:
    """What must be given with an address before anything is tried."""
    if kind == "tcp" and not _is_loopback(host):
        raise InvalidArgument(f"{text} is not loopback, where plain text would be read by others; use tls:{host}:{port}")
    if kind == "tcp" and not known.token_file:
        raise InvalidArgument(f"{text} needs the daemon's token; name its file (token_file=, BALLAST_TOKEN_FILE)")
    if kind == "tls" and not known.tls_ca:
        raise InvalidArgument(f"{text} needs the authority that signs the daemon's certificate; name its file (tls_ca=, "
                              "BALLAST_TLS_CA)")
    if bool(known.tls_certificate) != bool(known.tls_key):
        raise InvalidArgument("a certificate and its key belong together; name both (tls_certificate= and tls_key=, "
                              "BALLAST_TLS_CERTIFICATE and BALLAST_TLS_KEY)")


def dial(text: str, known: Credentials) -> socket.socket:
    """A connected, non-blocking socket to the daemon at an address."""
    kind, host, port = parse(text)
    _check(text, kind, host, port, known)
    if kind == "unix":
        return dial_unix(host)
    connection = _tcp(host, port)
    try:
        if kind == "tls":
            connection = _secure(connection, host, known)
        else:
            assert known.token_file is not None
            connection.sendall(f"ballast/1 bearer {_token(known.token_file)}\n".encode())
    except OSError as reason:
        connection.close()
        if isinstance(reason, Error):
            raise
        raise Disconnected(f"connection to the daemon: {reason.strerror}") from None
    except Error:
        connection.close()
        raise
    connection.setblocking(False)
    return connection
