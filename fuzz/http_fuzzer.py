"""HTTP of both sides: what comes to the probes' port, and what an API server answers."""

import contextlib
import socket

from fuzz.harness import fuzz, instrumented

with instrumented():
    from dranode.driver.kube.http1 import BrokenError, Channel
    from dranode.driver.serve.http_server import Page, answer, head_of, path_of

PAGES = {"/healthz": lambda _accept: Page(b"ok\n")}
# Of a socket's buffer, so that what is sent need not be read meanwhile.
_MOST = 1 << 16


def test_one_input(data: bytes) -> None:
    """The bytes as a request, and as an answer."""
    data = data[:_MOST]
    if (head := head_of(data)) is not None:
        path_of(head)
        answer(head, "127.0.0.1", PAGES)
    near, far = socket.socketpair()
    with near, far:
        far.sendall(data)
        far.shutdown(socket.SHUT_WR)
        channel = Channel(near)
        with contextlib.suppress(BrokenError, TimeoutError):
            list(channel.body(channel.request(b"GET / HTTP/1.1\r\n\r\n", 1.0)))


if __name__ == "__main__":
    fuzz(test_one_input)
