"""The client against an API server that works, misbehaves and goes away."""

import contextlib
import socketserver
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from dranode.api.errors import UsageError
from dranode.driver.kube.client import APIRequest, Client, Timing
from dranode.driver.kube.connection import Connection
from dranode.driver.kube.errors import ApiError, BrokenStreamError
from dranode.driver.kube.http1 import BrokenError, Outgoing
from dranode.driver.kube.server import Credentials
from tests.fakes.apiserver import CERTIFICATES, ApiServer, Fault, api_server
from tests.fakes.doctor import forbid
from tests.fakes.kubeconfig import write_kubeconfig

NODES = "/api/v1/nodes/node"
GET_NODE = APIRequest("GET", NODES, "get nodes")


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with api_server() as server:
        server.put("nodes", {"metadata": {"name": "node", "uid": "node-uid"}})
        yield server


@pytest.fixture
def client(api: ApiServer, tmp_path: Path) -> Client:
    return connect(api, tmp_path)


def connect(api: ApiServer, folder: Path, **credentials: Any) -> Client:
    # Dice that always show the same number make the delays of a test short and certain.
    timing = Timing(dice=lambda: 0.0)
    source = Credentials(api.kubeconfig(folder / "kubeconfig", **credentials))
    return Client(Connection(source, retries=True), timing=timing, retries=True)


def claims(root: str, version: str) -> APIRequest:
    del version
    return APIRequest("GET", f"{root}/namespaces/default/resourceclaims/a", "get resourceclaims in namespace default")


def test_documents_are_sent_and_received_unchanged(client: Client, api: ApiServer) -> None:
    assert client.send(GET_NODE)["metadata"]["uid"] == "node-uid"
    event = {"metadata": {"generateName": "e-"}, "note": 'text with "quotes" and ü'}
    made = client.send(
        APIRequest("POST", "/apis/events.k8s.io/v1/namespaces/default/events", "create events", {}, event)
    )
    assert made["note"] == event["note"]
    (seen,) = api.requests("POST")
    assert seen.body == event
    assert seen.headers["User-Agent"] == "dranode"


@pytest.mark.parametrize(
    ("served", "used"), [(("v1", "v1beta1"), "v1"), (("v1beta2", "v1beta1"), "v1beta2"), (("v1beta1",), "v1beta1")]
)
def test_the_newest_served_version_is_used_and_read_as_v1(
    api: ApiServer, tmp_path: Path, served: tuple[str, ...], used: str
) -> None:
    api.versions = served
    spec = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}}
    api.put("resourceclaims", {"metadata": {"namespace": "default", "name": "a"}, "spec": spec})
    client = connect(api, tmp_path)
    for _ in range(2):
        claim = client.resource(claims)
        assert claim["apiVersion"] == "resource.k8s.io/v1"
        assert claim["spec"] == spec
    assert len(api.requests(path=f"/{used}/namespaces")) == 2
    assert len([one for one in api.seen if one.path == "/apis/resource.k8s.io"]) == 1


def test_the_version_is_discovered_again_after_an_upgrade_removed_it(client: Client, api: ApiServer) -> None:
    api.put("resourceclaims", {"metadata": {"namespace": "default", "name": "a"}})
    api.versions = ("v1beta1",)
    assert client.resource(claims)["metadata"]["name"] == "a"
    api.versions = ("v1",)
    assert client.resource(claims)["metadata"]["name"] == "a"
    assert client.version() == "v1"


def test_a_missing_object_causes_no_discovery(client: Client, api: ApiServer) -> None:
    with pytest.raises(ApiError) as raised:
        client.resource(claims)
    assert raised.value.status == 404
    assert len([one for one in api.seen if one.path == "/apis/resource.k8s.io"]) == 1


def test_a_server_without_the_api_is_an_error_that_names_the_version_with_it(client: Client, api: ApiServer) -> None:
    api.versions = ()
    with pytest.raises(ApiError, match=r"nothing of resource\.k8s\.io.*Kubernetes 1\.34 and later serve v1"):
        client.resource(claims)


def test_a_role_that_may_not_discover_uses_v1(client: Client, api: ApiServer) -> None:
    api.put("resourceclaims", {"metadata": {"namespace": "default", "name": "a"}})
    api.faults.append(Fault(path="/apis/resource.k8s.io", status=403))
    assert client.resource(claims)["metadata"]["name"] == "a"


@pytest.mark.parametrize("status", [0, 429, 500, 502, 503, 504])
def test_reading_is_retried_after_temporary_errors(client: Client, api: ApiServer, status: int) -> None:
    api.faults.append(Fault(path=NODES, status=status, drop=not status, times=2))
    assert client.send(GET_NODE)["metadata"]["name"] == "node"
    assert [one.status for one in api.seen] == [status, status, 200]


@pytest.mark.parametrize("status", [400, 403, 404, 409, 422])
def test_permanent_errors_are_not_retried(client: Client, api: ApiServer, status: int) -> None:
    api.faults.append(Fault(path=NODES, status=status, times=9, body='{"kind":"Status","message":"the reason"}'))
    with pytest.raises(ApiError, match="the reason") as raised:
        client.send(GET_NODE)
    assert raised.value.status == status
    assert len(api.seen) == 1


def test_writing_is_retried_only_if_the_server_did_nothing(client: Client, api: ApiServer) -> None:
    post = APIRequest("POST", "/apis/events.k8s.io/v1/namespaces/default/events", "create events", {}, {"metadata": {}})
    api.faults.append(Fault("POST", status=503))
    with pytest.raises(ApiError, match="503"):
        client.send(post)
    assert len(api.seen) == 1
    api.faults.append(Fault("POST", status=429))
    named = APIRequest(post.method, post.path, post.what, {}, {"metadata": {"generateName": "e-"}})
    assert client.send(named)["kind"] == "Event"
    assert [one.status for one in api.seen] == [503, 429, 200]


def test_a_command_sends_a_request_again_only_if_the_server_did_nothing(api: ApiServer, tmp_path: Path) -> None:
    command = Client(Connection(Credentials(api.kubeconfig(tmp_path / "kubeconfig"))))
    asked: list[str] = []

    def asking(what: str) -> contextlib.AbstractContextManager[None]:
        asked.append(what)
        return contextlib.nullcontext()

    command.asking = asking
    api.faults += [Fault(path=NODES, status=429), Fault(path=NODES, status=503)]
    with pytest.raises(ApiError, match="503"):
        command.send(GET_NODE)
    assert [one.status for one in api.seen] == [429, 503]
    assert asked == ["get nodes"] * 2  # what a command shows while it waits


def test_a_retry_after_beyond_the_time_limit_ends_the_request(client: Client, api: ApiServer) -> None:
    api.faults.append(Fault(path=NODES, status=429, headers={"Retry-After": "30"}))
    with pytest.raises(ApiError, match="429") as raised:
        client.send(GET_NODE, seconds=5)
    assert raised.value.retry_after == 30
    assert len(api.seen) == 1


def test_a_slow_answer_ends_at_the_time_limit(client: Client, api: ApiServer) -> None:
    api.faults.append(Fault(path=NODES, seconds=2.0, times=99))
    with pytest.raises(ApiError, match=r"the API server at http://127\.0\.0\.1:\d+ did not answer in time") as raised:
        client.send(GET_NODE, seconds=0.3)
    assert raised.value.passes


def test_an_unreachable_server_is_reported_in_one_sentence(client: Client, api: ApiServer) -> None:
    api.stop()
    with pytest.raises(ApiError, match=r"^the API server at http://[\d.:]+ does not answer: Connection refused$"):
        client.send(GET_NODE, seconds=0.2)


def test_retrying_ends_when_the_driver_stops(api: ApiServer, tmp_path: Path) -> None:
    client = connect(api, tmp_path)
    api.faults.append(Fault(path=NODES, status=503, times=99, headers={"Retry-After": "15"}))
    threading.Timer(0.1, client.timing.stopped.set).start()
    with pytest.raises(ApiError, match="503"):
        client.send(GET_NODE)


def test_an_answer_that_is_not_json_is_reported_in_one_sentence(client: Client, api: ApiServer) -> None:
    api.faults.append(Fault(path=NODES, status=200, body="<html>", times=99))
    with pytest.raises(ApiError, match="is not JSON"):
        client.send(GET_NODE, seconds=0.1)


def test_a_token_file_is_read_again_when_its_token_is_rejected(api: ApiServer, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old")
    api.tokens = {"old"}
    client = connect(api, tmp_path, token_file=token)
    client.send(GET_NODE)
    api.tokens = {"new"}
    with pytest.raises(ApiError, match="rejects the credentials for get nodes") as raised:
        client.send(GET_NODE)
    assert "old" not in str(raised.value)
    token.write_text("new")
    assert client.send(GET_NODE)["metadata"]["name"] == "node"


def test_a_server_with_another_ca_is_not_trusted(tmp_path: Path) -> None:
    with api_server(tls=True) as api:
        kubeconfig = Path(api.kubeconfig(tmp_path / "kubeconfig"))
        kubeconfig.write_text(kubeconfig.read_text().replace("ca.crt", "other.crt"))
        kubeconfig.write_text(kubeconfig.read_text().replace("127.0.0.1", "localhost"))
        client = Client(Connection(Credentials(str(kubeconfig))))
        with pytest.raises(ApiError, match="is not trusted"):
            client.send(GET_NODE, seconds=0.2)


@pytest.fixture
def pods_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    """An API server as a pod sees it; the pod's service account is in `tmp_path`."""
    with api_server(tls=True, tokens={"of the pod"}) as api:
        api.put("nodes", {"metadata": {"name": "node"}})
        (tmp_path / "token").write_text("of the pod")
        (tmp_path / "ca.crt").write_bytes((CERTIFICATES / "ca.crt").read_bytes())
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(api.port))
        yield api


def test_a_pod_connects_with_its_service_accounts_token_and_ca(pods_server: ApiServer, tmp_path: Path) -> None:
    source = Credentials(service_account=tmp_path)
    source.check()
    client = Client(Connection(source))
    assert client.send(GET_NODE)["metadata"]["name"] == "node"
    # kubelet has renewed the token. The rejection of the old one is enough to read it again, whatever the clock says.
    pods_server.tokens = {"renewed"}
    (tmp_path / "token").write_text("renewed")
    assert client.send(GET_NODE)["metadata"]["name"] == "node"


@pytest.mark.parametrize("text", ["", "{", "- a\n- b\n", "\0\1ÿ", "clusters: 7", "current-context: missing", None])
def test_an_unusable_kubeconfig_is_named(tmp_path: Path, text: str | None) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    if text is None:
        kubeconfig.mkdir()
    else:
        kubeconfig.write_text(text)
    Credentials(str(kubeconfig)).check()
    client = Client(Connection(Credentials(str(kubeconfig))))
    with pytest.raises(ApiError, match=r"kubeconfig (cannot be|is not|holds)"):
        client.send(GET_NODE, seconds=0.1)


def test_missing_credentials_are_a_usage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(UsageError, match="--kubeconfig"):
        Credentials().check()
    with pytest.raises(UsageError, match="there is no kubeconfig"):
        Credentials(str(tmp_path / "missing")).check()
    (tmp_path / "closed").mkdir()
    forbid(monkeypatch, tmp_path / "closed")
    with pytest.raises(UsageError, match=r"closed/kubeconfig cannot be accessed: Permission denied; run as"):
        Credentials(str(tmp_path / "closed" / "kubeconfig")).check()


@dataclass
class Scripted:
    """A wire that plays scripted answers; each takes some seconds on the clock."""

    answers: list[tuple[float, int, bytes]]
    now: float = 0.0
    seen: list[str] = field(default_factory=list)

    def clock(self) -> float:
        return self.now

    def send(self, outgoing: Outgoing) -> Any:
        seconds, status, data = self.answers.pop(0)
        self.now += seconds
        self.seen.append(outgoing.path)
        return SimpleNamespace(status=status, headers={}, data=data)


def test_a_version_that_disappears_at_the_time_limit_is_an_api_error() -> None:
    group = b'{"versions":[{"version":"v1"}]}'
    # An answer may take longer than its limit, since the limit applies to each part of it.
    wire = Scripted([(4.0, 200, group), (3.0, 404, b"404 page not found"), (0.0, 200, group)])
    client = Client(wire, timing=Timing(clock=wire.clock, dice=lambda: 0.0))
    with pytest.raises(ApiError) as raised:
        client.resource(claims, seconds=5.0, patient=False)
    assert raised.value.status == 404
    assert wire.seen.count("/apis/resource.k8s.io") == 2


def test_a_stream_that_breaks_during_its_refusal_is_a_broken_stream() -> None:
    class Breaking(Scripted):
        def send(self, outgoing: Outgoing) -> Any:
            del outgoing

            class Broken:
                status = 500
                headers: ClassVar[dict[str, str]] = {}

                @property
                def data(self) -> bytes:
                    raise BrokenError("the server closed the connection")

            return Broken()

    with pytest.raises(BrokenStreamError):
        list(Client(Breaking([])).stream(GET_NODE, 5.0, lambda _: None))


def test_a_proxys_multiline_page_is_reported_in_one_line() -> None:
    wire = Scripted([(0.0, 502, b"<html>\r\n<head><title>502</title></head>\r\n\r\n<hr>nginx\r\n</html>\r\n")])
    with pytest.raises(ApiError) as raised:
        Client(wire, timing=Timing(clock=wire.clock)).send(GET_NODE, patient=False)
    assert str(raised.value) == (
        "the API server answered 502 Bad Gateway to get nodes: <html> <head><title>502</title></head> <hr>nginx </html>"
    )


# --- servers and proxies that are no API server, or a bad one ---


@contextlib.contextmanager
def answering(folder: Path, first: bytes, drop: bytes = b"") -> Iterator[Client]:
    """A client of a server that starts every answer with `first` and keeps sending `drop`."""
    stopped = threading.Event()

    class Answering(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError):
                while self.request.recv(1 << 16):
                    self.request.sendall(first)
                    while drop and not stopped.wait(0.05):
                        self.request.sendall(drop)

    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Answering)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        kubeconfig = write_kubeconfig(folder, server.server_address[1], {}, scheme="http")
        yield Client(Connection(Credentials(str(kubeconfig))), timing=Timing(dice=lambda: 0.0))
    finally:
        stopped.set()
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("first", "drop"),
    [
        (b"HTTP/1.1 200 OK\r\n", b"A"),
        (b"", b"HTTP/1.1 103 Early Hints\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b" "),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
        (b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 100000\r\n\r\n", b" "),
        (b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 100000\r\n\r\n", b" "),
    ],
)
def test_a_server_that_drips_bytes_does_not_extend_the_time_limit(tmp_path: Path, first: bytes, drop: bytes) -> None:
    with answering(tmp_path, first, drop) as client, pytest.raises(ApiError, match=r"did not answer in time|1xx"):
        client.send(GET_NODE, seconds=0.5, patient=False)


def test_a_watch_ends_if_a_line_takes_too_long(tmp_path: Path) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    line = b'{"type":"BOOKMARK","object":{}}\n'
    with answering(tmp_path, head + b"%x\r\n%s\r\n" % (len(line), line), b"1\r\n \r\n") as client:
        events = client.stream(GET_NODE, 0.5, lambda _: None)
        assert next(events)["type"] == "BOOKMARK"
        with pytest.raises(BrokenStreamError):
            next(events)


def test_a_watch_ends_if_a_line_is_too_long(tmp_path: Path) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    request = APIRequest("GET", NODES, "watch nodes", most=1000)
    with answering(tmp_path, head, b"400\r\n%s\r\n" % (b" " * 1024)) as client, pytest.raises(BrokenStreamError):
        list(client.stream(request, 60.0, lambda _: None))


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (b"204 No Content\r\n\r\n", "answered 204 No Content to get nodes"),
        (b"304 Not Modified\r\n\r\n", "answered 304 Not Modified to get nodes"),
        (
            b"302 Found\r\nLocation: https://login.example.com/\r\nContent-Length: 2\r\n\r\n{}",
            "answered 302 Found to get nodes: it redirects to https://login.example.com/",
        ),
        (b"207 Multi-Status\r\nContent-Length: 2\r\n\r\n{}", "answered 207"),
        (b"200 OK\r\nContent-Length: 0\r\n\r\n", "answer is empty"),
        (b"201 Created\r\nContent-Length: 0\r\n\r\n", "answer is empty"),
        (b"200 OK\r\nContent-Length: 4\r\n\r\nnull", "answer is not an object"),
        (b"200 OK\r\nContent-Length: 2\r\n\r\n[]", "answer is not an object"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE"])
def test_an_answer_without_an_object_is_an_error(tmp_path: Path, method: str, answer: bytes, sentence: str) -> None:
    request = APIRequest(method, NODES, "get nodes")
    with answering(tmp_path, b"HTTP/1.1 " + answer) as client, pytest.raises(ApiError, match=sentence):
        client.send(request, patient=False)


def test_a_watch_with_a_status_other_than_200_is_an_error(tmp_path: Path) -> None:
    with (
        answering(tmp_path, b"HTTP/1.1 204 No Content\r\n\r\n") as client,
        pytest.raises(ApiError, match="answered 204"),
    ):
        list(client.stream(GET_NODE, 5.0, lambda _: None))


def test_an_endless_answer_ends_at_the_maximum_size(tmp_path: Path) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    request = APIRequest("GET", NODES, "get nodes", most=10_000)
    chunk = b"400\r\n%s\r\n" % (b" " * 1024)
    with answering(tmp_path, head, chunk) as client, pytest.raises(ApiError, match="larger than 10000 bytes"):
        client.send(request, seconds=60.0, patient=False)
