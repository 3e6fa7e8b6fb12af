"""Probes and metrics over real HTTP: pages, refusals, and clients that misbehave."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from http import HTTPStatus

import pytest

from dranode.driver import http as http_module
from dranode.driver.core.errors import DranodeError, UsageError
from dranode.driver.http import HTTPPages, Page, verdict
from dranode.driver.http_address import bind_address, parse_address

missing: list[str] = []


def broken(accept: str) -> Page:
    raise RuntimeError(f"no page for {accept}")


@pytest.fixture
def pages() -> Iterator[HTTPPages]:
    listener = bind_address("127.0.0.1:0")
    assert listener is not None
    pages = HTTPPages(
        listener,
        {
            "/healthz": lambda _: verdict((), "ok"),
            "/readyz": lambda _: verdict(missing, "ready"),
            "/echo": lambda accept: Page(accept.encode(), content_type="text/x-test"),
            "/broken": broken,
        },
        pytest.fail,
    )
    pages.start()
    yield pages
    missing.clear()
    pages.stop()


def get(pages: HTTPPages, path: str, method: str = "GET", **headers: str) -> tuple[int, str, str]:
    connection = http.client.HTTPConnection("127.0.0.1", pages.port, timeout=5)
    connection.request(method, path, headers=headers)
    response = connection.getresponse()
    body = response.read().decode()
    connection.close()
    return response.status, response.headers.get("Content-Type", ""), body


def test_a_probe_is_answered_with_a_word_or_with_what_is_missing(pages: HTTPPages) -> None:
    assert get(pages, "/healthz") == (200, "text/plain; charset=utf-8", "ok\n")
    assert get(pages, "/readyz")[0] == 200
    missing.extend(["dra.cpu: one thing", "dra.gpu: another"])
    assert get(pages, "/readyz") == (503, "text/plain; charset=utf-8", "dra.cpu: one thing\ndra.gpu: another\n")


def test_a_page_gets_the_accept_header_and_says_its_type(pages: HTTPPages) -> None:
    assert get(pages, "/echo?x=1", Accept="text/plain") == (200, "text/x-test", "text/plain")


def test_head_has_no_body(pages: HTTPPages) -> None:
    assert get(pages, "/healthz", "HEAD") == (200, "text/plain; charset=utf-8", "")


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/", 404), ("GET", "/healthz/x", 404), ("POST", "/healthz", 501)]
)
def test_what_is_not_there_is_refused(pages: HTTPPages, method: str, path: str, status: int) -> None:
    assert get(pages, path, method)[0] == status


def test_a_page_that_fails_says_so_and_the_next_one_works(pages: HTTPPages) -> None:
    status, _, body = get(pages, "/broken", Accept="x")
    assert (status, body) == (HTTPStatus.INTERNAL_SERVER_ERROR, "/broken failed: RuntimeError('no page for x')\n")
    assert get(pages, "/healthz")[0] == 200


def test_clients_that_say_nothing_or_nonsense_do_not_keep_probes_waiting(
    pages: HTTPPages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_module._Handler, "timeout", 0.05)
    silent = [socket.create_connection(("127.0.0.1", pages.port)) for _ in range(8)]
    silent[0].sendall(b"\x16\x03\x01\x02\x00\x01\x00")
    silent[1].sendall(b"GET " + b"x" * 70000)
    silent[2].close()
    assert get(pages, "/healthz")[0] == 200
    for each in silent:
        each.close()


def test_a_port_that_is_taken_is_one_sentence_with_the_way_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(DranodeError) as refused:
            bind_address(f"127.0.0.1:{port}")
    assert str(refused.value) == (
        f"nobody can listen on the HTTP address 127.0.0.1:{port}: Address already in use; "
        "choose another with --http-address, or none to do without probes and metrics"
    )


def test_a_host_that_has_no_address_is_named_with_the_resolvers_word() -> None:
    with pytest.raises(DranodeError, match=r"the HTTP address \[::zz\]:8080: \w"):
        bind_address("[::zz]:8080")


def test_a_host_that_can_be_none_is_one_sentence() -> None:
    with pytest.raises(DranodeError, match=r"the HTTP address 127\.0\.0\.\.1:8080: \w"):
        bind_address("127.0.0..1:8080")


def test_none_listens_nowhere() -> None:
    assert bind_address("none") is None


@pytest.mark.parametrize(
    ("text", "parsed"),
    [("127.0.0.1:8080", ("127.0.0.1", 8080)), (":80", ("", 80)), ("[::1]:8080", ("::1", 8080)), ("h:0", ("h", 0))],
)
def test_addresses_that_are_taken(text: str, parsed: tuple[str, int]) -> None:
    assert parse_address(text) == parsed


@pytest.mark.parametrize(
    "text", ["", "8080", "host", "host:", "host:x", "::1:8080", "h:65536", "h:-1", "h:1 ", "h:\u0661"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--http-address is HOST:PORT"):
        parse_address(text)


def test_every_address_is_served_where_no_host_is_named() -> None:
    listener = bind_address(":0")
    assert listener is not None
    with listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
            assert client.getpeername()[1] == port
