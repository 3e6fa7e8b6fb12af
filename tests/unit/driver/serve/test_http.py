"""Probes and metrics over real HTTP: pages, refusals, and clients that misbehave."""

import contextlib
import http.client
import socket
import threading
from collections.abc import Iterator
from http import HTTPStatus

import pytest

from dranode.api.errors import DranodeError, UsageError
from dranode.driver.serve.http_server import (
    MAX_CONNECTIONS,
    MAX_HEAD,
    HTTPPages,
    Page,
    bind_address,
    parse_address,
    verdict,
)
from tests.fakes.waiting import PATIENCE

missing: list[str] = []
# Set when the slow page may be made.
may_end = threading.Event()


def broken(accept: str) -> Page:
    raise RuntimeError(f"no page for {accept}")


class Clock:
    """A clock that only a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def slow(accept: str) -> Page:
    may_end.wait(PATIENCE)
    return Page(b"at last" + accept.encode())


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pages(clock: Clock) -> Iterator[HTTPPages]:
    listener = bind_address("127.0.0.1:0")
    assert listener is not None
    pages = HTTPPages(
        listener,
        {
            "/healthz": lambda _: verdict((), "ok"),
            "/readyz": lambda _: verdict(missing, "ready"),
            "/echo": lambda accept: Page(accept.encode(), content_type="text/x-test"),
            "/broken": broken,
            "/slow": slow,
        },
        pytest.fail,
        slow=frozenset({"/slow"}),
        clock=clock,
    )
    pages.start()
    yield pages
    may_end.set()
    missing.clear()
    pages.stop()
    may_end.clear()


def connect(pages: HTTPPages) -> socket.socket:
    return socket.create_connection(("127.0.0.1", pages.port), timeout=PATIENCE)


def ask(pages: HTTPPages, data: bytes) -> bytes:
    """Send these bytes, and return everything that comes back."""
    with connect(pages) as sock:
        sock.sendall(data)
        return all_of(sock)


def all_of(sock: socket.socket) -> bytes:
    found = b""
    with contextlib.suppress(ConnectionError):
        while piece := sock.recv(65536):
            found += piece
    return found


def get(pages: HTTPPages, path: str, method: str = "GET", **headers: str) -> tuple[int, str, str]:
    connection = http.client.HTTPConnection("127.0.0.1", pages.port, timeout=PATIENCE)
    connection.request(method, path, headers=headers)
    response = connection.getresponse()
    body = response.read().decode()
    connection.close()
    return response.status, response.headers.get("Content-Type", ""), body


def test_a_probe_is_answered_with_ok_or_with_the_problems(pages: HTTPPages) -> None:
    assert get(pages, "/healthz") == (200, "text/plain; charset=utf-8", "ok\n")
    assert get(pages, "/readyz")[0] == 200
    missing.extend(["dra.cpu: one thing", "dra.gpu: another"])
    assert get(pages, "/readyz") == (503, "text/plain; charset=utf-8", "dra.cpu: one thing\ndra.gpu: another\n")


def test_a_page_gets_the_accept_header_and_sets_its_type(pages: HTTPPages) -> None:
    for origin in ("", "http://node:9464", "HTTP://[::1]", "/"):
        assert get(pages, f"{origin}/echo?x=1", Accept="text/plain") == (200, "text/x-test", "text/plain")


def test_head_has_no_body(pages: HTTPPages) -> None:
    assert get(pages, "/healthz", "HEAD") == (200, "text/plain; charset=utf-8", "")


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/", 404), ("GET", "/healthz/x", 404), ("POST", "/healthz", 501)]
)
def test_an_unknown_page_is_refused(pages: HTTPPages, method: str, path: str, status: int) -> None:
    assert get(pages, path, method)[0] == status


def test_a_failing_page_is_an_error_and_the_next_one_works(pages: HTTPPages) -> None:
    status, _, body = get(pages, "/broken", Accept="x")
    assert (status, body) == (HTTPStatus.INTERNAL_SERVER_ERROR, "/broken failed: RuntimeError('no page for x')\n")
    assert get(pages, "/healthz")[0] == 200


def test_silent_or_nonsensical_clients_do_not_delay_probes(pages: HTTPPages) -> None:
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(connect(pages)) for _ in range(8)]
        silent[0].sendall(b"\x16\x03\x01\x02\x00\x01\x00")
        silent[1].sendall(b"GET " + b"x" * 70000)
        silent[2].close()
        assert get(pages, "/healthz")[0] == 200


def test_a_request_must_be_complete_by_a_deadline_however_it_arrives(pages: HTTPPages, clock: Clock) -> None:
    with connect(pages) as drip:
        for byte in b"GET /healthz HTTP/1.1":
            drip.sendall(bytes([byte]))
            assert get(pages, "/healthz")[0] == 200
        clock.now += 2.9
        drip.sendall(b"\r")
        assert get(pages, "/healthz")[0] == 200
        clock.now += 0.2
        # The loop checks the clock whenever somebody connects.
        assert get(pages, "/healthz")[0] == 200
        assert all_of(drip) == b""


def test_one_connection_too_many_closes_the_oldest(pages: HTTPPages) -> None:
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(connect(pages)) for _ in range(MAX_CONNECTIONS + 2)]
        assert all_of(idle[0]) == all_of(idle[1]) == b""
        idle[-1].sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert all_of(idle[-1]).endswith(b"ok\n")
        idle[2].sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert all_of(idle[2]).endswith(b"ok\n")


def test_the_client_with_most_connections_loses_one(pages: HTTPPages) -> None:
    with contextlib.ExitStack() as stack:
        scraper = stack.enter_context(
            socket.create_connection(("127.0.0.1", pages.port), timeout=PATIENCE, source_address=("127.0.0.2", 0))
        )
        for _ in range(2 * MAX_CONNECTIONS):
            stack.enter_context(connect(pages))
        scraper.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert all_of(scraper).endswith(b"ok\n")


def test_a_slow_page_delays_no_probe(pages: HTTPPages) -> None:
    with contextlib.ExitStack() as stack:
        waiting = [stack.enter_context(connect(pages)) for _ in range(MAX_CONNECTIONS)]
        for each in waiting:
            each.sendall(b"GET /slow?x HTTP/1.0\r\nAccept: !\r\n\r\n")
        assert get(pages, "/healthz")[0] == 200
        may_end.set()
        assert all_of(waiting[-1]).endswith(b"\r\n\r\nat last!")


def test_an_answer_that_nobody_reads_is_given_up(pages: HTTPPages, clock: Clock) -> None:
    with connect(pages) as lazy:
        lazy.sendall(b"GET /slow HTTP/1.0\r\n\r\n")
        assert get(pages, "/healthz")[0] == 200
        clock.now += 10.1
        assert get(pages, "/healthz")[0] == 200
        assert all_of(lazy) == b""
    may_end.set()
    assert get(pages, "/slow")[0] == 200


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /healthz HTTP/1.1\r\nX: " + b"y" * MAX_HEAD, b"431"),
        (b"GET /" + b"y" * MAX_HEAD, b"431"),
        (b"GET /healthz HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n", b"431"),
        (b"GET /healthz HTTP/7.x\r\n\r\n", b"400"),
        (b"\r\n\r\n", b""),
        (b"\x00\xff \xfe\n\n", b"400"),
        (b"GET /healthz HTTP/1.1\r\n\r\nGET /readyz HTTP/1.1\r\n\r\n", b"200"),
        (b"HEAD /healthz HTTP/1.1\n\n", b"200"),
        (b"POST /healthz HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", b"501"),
    ],
)
def test_every_request_has_one_answer_and_the_connection_ends(pages: HTTPPages, sent: bytes, status: bytes) -> None:
    said = ask(pages, sent)
    assert said.count(b"HTTP/1.0 ") <= 1
    assert (said.split(b" ")[1] if said else b"") == status
    assert get(pages, "/healthz")[0] == 200


def test_a_client_that_has_shut_down_its_side_is_answered(pages: HTTPPages) -> None:
    with connect(pages) as sock:
        sock.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        sock.shutdown(socket.SHUT_WR)
        assert all_of(sock).endswith(b"ok\n")


def test_a_slow_reader_gets_a_long_answer_completely() -> None:
    listener = bind_address("127.0.0.1:0")
    assert listener is not None
    body = b"0123456789abcdef" * (1 << 20)
    pages = HTTPPages(listener, {"/": lambda _: Page(body)}, pytest.fail, clock=Clock())
    pages.start()
    try:
        with connect(pages) as sock:
            sock.sendall(b"GET / HTTP/1.0\r\n\r\n")
            assert len(all_of(sock).partition(b"\r\n\r\n")[2]) == len(body)
    finally:
        pages.stop()


def test_a_port_in_use_is_reported_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(DranodeError) as refused:
            bind_address(f"127.0.0.1:{port}")
    assert str(refused.value) == (
        f"cannot listen on the HTTP address 127.0.0.1:{port}: Address already in use; "
        "choose another with --http-address, or none for no such address"
    )


def test_a_host_without_an_address_is_reported_with_the_resolvers_reason() -> None:
    with pytest.raises(DranodeError, match=r"cannot listen on the HTTP address \[::zz\]:8080: \w"):
        bind_address("[::zz]:8080")


def test_an_invalid_host_name_is_reported_in_one_sentence() -> None:
    with pytest.raises(DranodeError, match=r"cannot listen on the HTTP address 127\.0\.0\.\.1:8080: \w"):
        bind_address("127.0.0..1:8080")


def test_none_opens_no_socket() -> None:
    assert bind_address("none") is None


@pytest.mark.parametrize(
    ("text", "parsed"),
    [("127.0.0.1:8080", ("127.0.0.1", 8080)), (":80", ("", 80)), ("[::1]:8080", ("::1", 8080)), ("h:0", ("h", 0))],
)
def test_valid_addresses_are_accepted(text: str, parsed: tuple[str, int]) -> None:
    assert parse_address(text, "--http-address") == parsed


@pytest.mark.parametrize(
    "text", ["", "8080", "host", "host:", "host:x", "::1:8080", "h:65536", "h:-1", "h:1 ", "h:\u0661"]
)
def test_an_invalid_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--metrics-address must be HOST:PORT"):
        parse_address(text, "--metrics-address")


# As Go's servers do, and with them all components of Kubernetes (`--bind-address=::`).
@pytest.mark.parametrize("text", [":0", "[::]:0"])
def test_all_addresses_are_served_if_no_host_or_the_wildcard_is_given(text: str) -> None:
    listener = bind_address(text)
    assert listener is not None
    with listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as client:
            assert client.getpeername()[1] == port
