"""HTTP/1.1 over a persistent socket: what servers and proxies may send, and what they should not."""

import socket
import ssl
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from dranode.driver.kube.http1 import BrokenError, Channel
from dranode.driver.kube.proxy import parsed_proxy
from dranode.driver.kube.server import Server
from tests.fakes.waiting import PATIENCE

ANSWERS = {
    "a length": (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody", b"body", True),
    "chunks": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nbo\r\n2;x=y\r\ndy\r\n0\r\n\r\n",
        b"body",
        True,
    ),
    "trailers": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n4\r\nbody\r\n0\r\nA: b\r\n\r\n", b"body", True),
    "until the end": (b"HTTP/1.1 200 OK\r\n\r\nbody", b"body", False),
    "an old server": (b"HTTP/1.0 200 OK\r\nContent-Length: 4\r\n\r\nbody", b"body", False),
    "a last answer": (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 4\r\n\r\nbody", b"body", False),
    "no body": (b"HTTP/1.1 204 No Content\r\n\r\n", b"", True),
    "a word before": (
        b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length:0\r\n\r\n",
        b"",
        True,
    ),
}
BROKEN = {
    "nothing": b"",
    "half a head": b"HTTP/1.1 200 OK\r\nContent-Le",
    "half a body": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nbody",
    "half a chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nbod",
    "a chunk that is longer": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nbody\r\n0\r\n\r\n",
    "another protocol": b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
    "no status": b"HTTP/1.1 OK\r\n\r\n",
    "a negative length": b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
    "a length in words": b"HTTP/1.1 200 OK\r\nContent-Length: four\r\n\r\nbody",
    "a head without end": b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 20000,
    "announcements without end": b"HTTP/1.1 103 Early Hints\r\n\r\n" * 6 + b"HTTP/1.1 200 OK\r\n\r\n",
    "another protocol on the way": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
    "another transfer encoding": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n",
    "trailers without end": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + b"A: b\r\n" * 20000,
}


class SteppedClock:
    """A clock that only a test moves."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def ends() -> Iterator[tuple[Channel, socket.socket]]:
    ours, theirs = socket.socketpair()
    channel = Channel(ours)
    yield channel, theirs
    channel.close()
    theirs.close()


@pytest.mark.parametrize("step", [1, 7, 1 << 16])
@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_read_however_it_is_split(ends: tuple[Channel, socket.socket], name: str, step: int) -> None:
    channel, server = ends
    sent, body, reusable = ANSWERS[name]

    def answer() -> None:
        for at in range(0, len(sent), step):
            server.sendall(sent[at : at + step])
        if name == "until the end":
            server.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=answer)
    thread.start()
    head = channel.request(b"GET / HTTP/1.1\r\n\r\n", PATIENCE)
    assert b"".join(channel.body(head)) == body
    thread.join()
    assert channel.reusable is reusable


@pytest.mark.parametrize("name", BROKEN)
def test_an_incomplete_answer_is_an_error(ends: tuple[Channel, socket.socket], name: str) -> None:
    channel, server = ends

    def answer() -> None:
        server.sendall(BROKEN[name])
        server.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=answer)
    thread.start()
    with pytest.raises(BrokenError) as raised:
        list(channel.body(channel.request(b"GET / HTTP/1.1\r\n\r\n", PATIENCE)))
    assert raised.value.untouched is (name == "nothing")
    assert not channel.reusable
    thread.join()


# The state of a server's slow answer when the time is up.
DRIPPED = {
    "headers": (b"", b"A"),
    "announcements": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "a body of a length": (b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n", b" "),
    "a body until the end": (b"HTTP/1.1 200 OK\r\n\r\n", b" "),
    "chunks": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
    "trailers": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"A: b\r\n"),
}


@pytest.mark.parametrize("name", DRIPPED)
def test_a_server_that_drips_bytes_is_given_up_when_the_time_is_up(
    ends: tuple[Channel, socket.socket], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    channel, server = ends
    first, drop = DRIPPED[name]
    clock = SteppedClock()
    monkeypatch.setattr("dranode.driver.kube.http1.time", clock)
    ours = channel._socket

    class Dripping:
        """A socket to a server that sends one piece for each read, a second later."""

        def __getattr__(self, attribute: str) -> Any:
            return getattr(ours, attribute)

        def recv(self, most: int) -> bytes:
            clock.now += 1.0
            server.sendall(drop)
            return ours.recv(most)

    channel._socket = Dripping()
    server.sendall(first)
    with pytest.raises((TimeoutError, BrokenError)) as raised:
        list(channel.body(channel.request(b"GET / HTTP/1.1\r\n\r\n", 5.0)))
    assert clock.now <= 6
    assert name == "announcements" or isinstance(raised.value, TimeoutError)


def test_a_server_that_does_not_read_is_given_up_when_the_time_is_up(ends: tuple[Channel, socket.socket]) -> None:
    channel, _ = ends
    with pytest.raises(TimeoutError):
        channel.request(b"x" * (16 << 20), 0.2)


def test_another_protocol_is_recognized_without_waiting_for_its_end(ends: tuple[Channel, socket.socket]) -> None:
    channel, server = ends
    server.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
    with pytest.raises(BrokenError, match="is not HTTP/1: it begins with b'SSH"):
        channel.request(b"GET / HTTP/1.1\r\n\r\n", PATIENCE)


@pytest.mark.parametrize(
    "sent",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 4294967296\r\n\r\n" + b" " * 2000,
        b"HTTP/1.1 200 OK\r\n\r\n" + b" " * 2000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"64\r\n" + b" " * 100 + b"\r\n" + b"FFFFFFFF\r\n" + b" " * 2000,
    ],
)
def test_a_body_has_a_maximum_size(ends: tuple[Channel, socket.socket], sent: bytes) -> None:
    channel, server = ends
    server.sendall(sent)
    with pytest.raises(BrokenError, match="larger than 1000 bytes"):
        list(channel.body(channel.request(b"GET / HTTP/1.1\r\n\r\n", PATIENCE), 1000))
    assert not channel.reusable


def test_a_kept_connection_that_was_closed_or_has_data_is_not_reused(ends: tuple[Channel, socket.socket]) -> None:
    channel, server = ends
    assert channel.idle()
    server.sendall(b"HTTP/1.1 408 Request Timeout\r\n\r\n")
    assert not channel.idle()


def test_a_proxy_is_asked_for_a_tunnel_and_its_refusal_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        asked: list[bytes] = []

        def refuse() -> None:
            met, _ = listener.accept()
            with met:
                asked.append(met.recv(4096))
                met.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")

        thread = threading.Thread(target=refuse)
        thread.start()
        address = f"http://user%40here:word@127.0.0.1:{listener.getsockname()[1]}"
        proxy = parsed_proxy(address, "proxy-url", ssl.create_default_context)
        server = Server("https://api.example:6443", dict, ssl.create_default_context(), proxy=proxy)
        with pytest.raises(OSError, match="answered 407 to a connection to api"):
            server.connect(PATIENCE)
        thread.join()
    assert asked[0].startswith(b"CONNECT api.example:6443 HTTP/1.1\r\n")
    assert b"Proxy-Authorization: Basic dXNlckBoZXJlOndvcmQ=\r\n" in asked[0]
