"""Every way in which a kubeconfig names a cluster and credentials, over real sockets."""

import base64
import json
import os
import signal
import stat
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from dranode.driver.kube.client import APIRequest, Client, Timing
from dranode.driver.kube.connection import Connection
from dranode.driver.kube.errors import ApiError
from dranode.driver.kube.exec_credentials import ExecCredentials
from dranode.driver.kube.http1 import Outgoing
from dranode.driver.kube.kubeconfig import kubeconfig_context
from dranode.driver.kube.kubeconfig_file import ConfigExec
from dranode.driver.kube.server import Credentials, UnreachableError
from dranode.tools.kubectl.plugin import plugin
from tests.fakes.apiserver import CERTIFICATES
from tests.fakes.kubeconfig import asked_server, in_base64, tunnel_proxy, write_kubeconfig
from tests.fakes.waiting import PATIENCE

GET = APIRequest("GET", "/api/v1/nodes/node", "get nodes")
V1 = "client.authentication.k8s.io/v1"


def get(path: Path | str, context: str = "") -> Any:
    client = Client(Connection(Credentials(str(path), context=context)))
    return client.send(GET, seconds=PATIENCE, patient=False)["metadata"]["name"]


# --- credentials ---


def test_a_token_is_sent_and_a_token_file_has_precedence(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("of the file\n")
    with asked_server() as seen:
        get(write_kubeconfig(tmp_path, seen.port, {"token": "written"}))
        assert seen.last("Authorization") == ["Bearer written"]
        get(write_kubeconfig(tmp_path, seen.port, {"token": "written", "tokenFile": "token"}))
        assert seen.last("Authorization") == ["Bearer of the file"]


def test_an_unreadable_token_file_leaves_the_last_token_or_the_one_in_the_kubeconfig(tmp_path: Path) -> None:
    file = tmp_path / "token"
    with asked_server() as seen:
        path = write_kubeconfig(tmp_path, seen.port, {"token": "written", "tokenFile": "token"})
        client = Client(Connection(Credentials(str(path))))
        for content, sent in ((None, "written"), ("", "written"), ("of the file", "of the file"), ("", "of the file")):
            if content is not None:
                file.write_text(content)
            client.send(GET, seconds=PATIENCE, patient=False)
            assert seen.last("Authorization") == [f"Bearer {sent}"]
        file.unlink()
        client.send(GET, seconds=PATIENCE, patient=False)
        assert seen.last("Authorization") == ["Bearer of the file"]


def test_a_username_and_password_are_sent_as_basic_authentication(tmp_path: Path) -> None:
    with asked_server() as seen:
        get(write_kubeconfig(tmp_path, seen.port, {"username": "me", "password": "p:w"}))
    assert seen.last("Authorization") == [f"Basic {base64.b64encode(b'me:p:w').decode()}"]


def test_a_client_certificate_is_read_from_files_and_from_base64(tmp_path: Path) -> None:
    for name in ("server.crt", "server.key"):
        (tmp_path / name).write_bytes((CERTIFICATES / name).read_bytes())
    users = (
        {"client-certificate": "server.crt", "client-key": "server.key"},
        {"client-certificate-data": in_base64("server.crt"), "client-key-data": in_base64("server.key")},
    )
    with asked_server(client_certificate=True) as seen:
        for user in users:
            assert get(write_kubeconfig(tmp_path, seen.port, user)) == "node"
        with pytest.raises(ApiError, match=r"does not answer|TLS with .* fails"):
            get(write_kubeconfig(tmp_path, seen.port, {}))
    assert [each["subject"] for each in seen.certificates] == [((("commonName", "127.0.0.1"),),)] * 2


@pytest.mark.parametrize(
    ("user", "message"),
    [
        ({}, "a certificate needs its key"),
        ({"client-key": "gone.key"}, r"client-key names .*gone\.key, which cannot be read: No such file"),
        ({"client-key": "."}, "client-key names .* which cannot be read: Is a directory"),
        ({"client-key-data": in_base64("intermediate.crt")}, "client-key is not the key of client-certificate"),
        ({"client-certificate-data": in_base64("other.crt")}, "client-key is not the key of client-certificate"),
        ({"client-certificate-data": in_base64("server.key")}, "client-certificate has no certificate in PEM"),
        ({"client-certificate-data": "-----BEGIN"}, "client-certificate-data is not base64"),
    ],
)
def test_a_certificate_without_its_key_or_with_a_wrong_key_is_an_error(
    tmp_path: Path, user: dict[str, str], message: str
) -> None:
    key = {"client-key-data": in_base64("server.key")} if "client-certificate-data" in user else {}
    with pytest.raises(ApiError, match=message):
        get(write_kubeconfig(tmp_path, 1, {"client-certificate-data": in_base64("server.crt")} | key | user))


def test_impersonation_has_a_header_for_every_group(tmp_path: Path) -> None:
    user = {
        "token": "t",
        "as": "jane",
        "as-uid": "7",
        "as-groups": ["dev", "ops"],
        "as-user-extra": {"example.com/scopes": ["view"]},
    }
    with asked_server() as seen:
        get(write_kubeconfig(tmp_path, seen.port, user))
    assert seen.last("Impersonate-User") == ["jane"]
    assert seen.last("Impersonate-Uid") == ["7"]
    assert seen.last("Impersonate-Group") == ["dev", "ops"]
    assert seen.last("Impersonate-Extra-example.com%2Fscopes") == ["view"]
    with pytest.raises(ApiError, match="need as, the user to impersonate"):
        get(write_kubeconfig(tmp_path, 1, {name: user[name] for name in user if name != "as"}))


def test_kubectls_options_for_the_connection_replace_what_the_context_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    words = ["explain", "pod/p", "--as", "jane", "--as-group", "dev", "--as-group=ops", "--as-uid", "7"]
    with asked_server() as seen:
        write_kubeconfig(tmp_path, 1, {"client-certificate-data": "-----BEGIN"})
        for named in ([], ["--kubeconfig", str(tmp_path / "kubeconfig")]):
            seen.headers.clear()
            server = ["-s", f"https://127.0.0.1:{seen.port}", "--insecure-skip-tls-verify", "--token", "mine"]
            CliRunner().invoke(plugin, [*words, *server, *named])
            assert seen.last("Authorization") == ["Bearer mine"]
            assert seen.last("Impersonate-User") == ["jane"]
            assert seen.last("Impersonate-Group") == ["dev", "ops"]
            assert seen.last("Impersonate-Uid") == ["7"]
    for name in ("cluster", "user"):
        with pytest.raises(UnreachableError, match=f'names {name} "other"; there are'):
            kubeconfig_context(str(tmp_path / "kubeconfig"), flags={name: "other"})


# --- credential programs ---


def program(folder: Path, body: str) -> str:
    """A Python program beside the kubeconfig, named by its relative path; it counts its runs in `runs`."""
    path = folder / "login"
    counted = f"import json, os, sys\nopen({str(folder / 'runs')!r}, 'a').write('x')\n"
    path.write_text(f"#!{sys.executable}\n{counted}info = json.loads(os.environ['KUBERNETES_EXEC_INFO'])\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return "./login"


def runs(folder: Path) -> int:
    return len((folder / "runs").read_text())


def given(status: dict[str, Any], version: str = V1) -> str:
    return f"print(json.dumps({{'kind': 'ExecCredential', 'apiVersion': {version!r}, 'status': {status!r}}}))"


def executed(command: str, **more: Any) -> dict[str, Any]:
    return {"exec": {"apiVersion": V1, "command": command, "interactiveMode": "Never", **more}}


def test_a_credential_program_gives_a_token_and_is_run_once(tmp_path: Path) -> None:
    told = "os.environ['WHO'] + sys.argv[1] + str(sys.stdin.read()) + str(info['spec']['interactive'])"
    body = f"print('{{kind: ExecCredential, apiVersion:', info['apiVersion'], ', status: {{token:', {told}, '}}}}')"
    user = executed(program(tmp_path, body), args=["-token-"], env=[{"name": "WHO", "value": "my"}])
    with asked_server() as seen:
        client = Client(Connection(Credentials(str(write_kubeconfig(tmp_path, seen.port, user)))))
        for _ in range(3):
            client.send(GET)
    assert seen.last("Authorization") == ["Bearer my-token-False"]
    assert runs(tmp_path) == 1


def test_a_program_is_run_again_when_its_token_has_expired(tmp_path: Path) -> None:
    status = {"token": "t", "expirationTimestamp": "2020-01-01T12:00:00Z"}
    now = [datetime(2020, 1, 1, tzinfo=UTC)]
    program_user = ConfigExec(command=str(tmp_path / program(tmp_path, given(status))), api_version=V1)
    credentials = ExecCredentials(program_user, {}, lambda: now[0])
    for hour, count in ((0, 1), (11, 1), (12, 2)):
        now[0] = datetime(2020, 1, 1, hour, tzinfo=UTC)
        assert credentials.headers() == {"Authorization": "Bearer t"}
        assert runs(tmp_path) == count
    # By this clock every new token has expired already; only the server can tell whether that is so.
    credentials.headers()
    assert credentials.pair() is None
    assert runs(tmp_path) == 2


@pytest.mark.parametrize("retries", [False, True])
def test_a_program_whose_token_is_rejected_is_run_once_more(tmp_path: Path, *, retries: bool) -> None:
    user = executed(program(tmp_path, given({"token": "stale", "expirationTimestamp": "2999-01-01T00:00:00Z"})))
    with asked_server(refuse="stale") as seen:
        path = str(write_kubeconfig(tmp_path, seen.port, user))
        client = Client(Connection(Credentials(path), retries=retries), retries=retries)
        for _ in range(3):
            with pytest.raises(ApiError, match="rejects the credentials"):
                client.send(GET)
    # A driver asks for every request, since the account may work again. A command asks once more in all.
    assert runs(tmp_path) == (4 if retries else 2)


def test_a_command_runs_a_failing_program_once_for_all_requests(tmp_path: Path) -> None:
    user = executed(program(tmp_path, "print('Session expired,', 'log in', file=sys.stderr)\nsys.exit(3)"))
    with asked_server() as seen:
        client = Client(Connection(Credentials(str(write_kubeconfig(tmp_path, seen.port, user)))))

        def ask(number: int) -> str:
            del number
            with pytest.raises(ApiError) as raised:
                client.send(GET)
            return str(raised.value)

        with ThreadPoolExecutor(8) as pool:
            errors = set(pool.map(ask, range(20)))
    assert runs(tmp_path) == 1
    (error,) = errors
    assert error.endswith("login, which provides the credentials, ended with exit status 3: Session expired, log in")


def test_a_driver_runs_a_failing_program_again(tmp_path: Path) -> None:
    body = f"if len(open({str(tmp_path / 'runs')!r}).read()) < 2: sys.exit(3)\n{given({'token': 't'})}"
    with asked_server() as seen:
        path = str(write_kubeconfig(tmp_path, seen.port, executed(program(tmp_path, body))))
        client = Client(Connection(Credentials(path), retries=True), timing=Timing(dice=lambda: 0.0), retries=True)
        assert client.send(GET)["metadata"]["name"] == "node"
    assert runs(tmp_path) == 2


def test_a_process_that_a_program_leaves_behind_is_not_waited_for(tmp_path: Path) -> None:
    # Like an agent that keeps a login: it holds the program's outputs, and lives longer than `get` waits.
    left = "import subprocess\nchild = subprocess.Popen(['sleep', '600'])\n"
    body = f"{left}open({str(tmp_path / 'child')!r}, 'w').write(str(child.pid))\n{given({'token': 't'})}"
    with asked_server() as seen:
        answer = get(write_kubeconfig(tmp_path, seen.port, executed(program(tmp_path, body))))
        # It fails if the child had to end before.
        os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)
    assert answer == "node"


def test_a_program_gives_a_certificate(tmp_path: Path) -> None:
    status = {
        "clientCertificateData": (CERTIFICATES / "server.crt").read_text(),
        "clientKeyData": (CERTIFICATES / "server.key").read_text(),
    }
    with asked_server(client_certificate=True) as seen:
        assert get(write_kubeconfig(tmp_path, seen.port, executed(program(tmp_path, given(status))))) == "node"
        assert seen.last("Authorization") == []
    assert seen.certificates[0]["subject"]


def test_a_program_gets_the_cluster_if_it_asks_for_it(tmp_path: Path) -> None:
    body = given({"token": "t"}) + f"\nopen({str(tmp_path / 'info')!r}, 'w').write(json.dumps(info['spec']))"
    extensions = [{"name": "client.authentication.k8s.io/exec", "extension": {"audience": "a"}}]
    user = executed(program(tmp_path, body), provideClusterInfo=True)
    cluster = {"certificate-authority": str(CERTIFICATES / "ca.crt"), "extensions": extensions}
    with asked_server() as seen:
        get(write_kubeconfig(tmp_path, seen.port, user, cluster=cluster))
    assert json.loads((tmp_path / "info").read_text())["cluster"] == {
        "server": f"https://127.0.0.1:{seen.port}",
        "certificate-authority-data": in_base64("ca.crt"),
        "config": {"audience": "a"},
    }


def test_a_token_in_the_kubeconfig_has_precedence_over_a_program(tmp_path: Path) -> None:
    with asked_server() as seen:
        get(write_kubeconfig(tmp_path, seen.port, {"token": "written", **executed("/no/such/program")}))
    assert seen.last("Authorization") == ["Bearer written"]


@pytest.mark.parametrize(
    ("body", "more", "sentence"),
    [
        ("sys.exit(3)", {}, "ended with exit status 3"),
        ("print('hello')", {}, "it printed no ExecCredential"),
        ("while True: print('hello')", {}, "it printed more than 1024 KiB"),
        (given({}), {}, "neither a token nor a certificate"),
        (given({"clientKeyData": "k"}), {}, "only one of certificate and key"),
        (given({"token": "t"}, "client.authentication.k8s.io/v1beta1"), {}, "it is to print .*/v1, and printed"),
        (
            given({"token": "t", "expirationTimestamp": "2030-01-01T00:00:00"}),
            {},
            r"it printed no ExecCredential: status\.expirationTimestamp: .*timezone",
        ),
        (given({"token": "t", "expirationTimestamp": "tomorrow"}), {}, r"status\.expirationTimestamp"),
        (given({"token": "t"}), {"apiVersion": "client.authentication.k8s.io/v1alpha1"}, "is not one of"),
        (given({"token": "t"}), {"interactiveMode": "Sometimes"}, 'interactiveMode "Sometimes" is not one of'),
        (given({"token": "t"}), {"interactiveMode": "Always"}, "it has to ask at a terminal"),
        (
            given({"token": "t"}),
            {"command": "./missing", "installHint": "get it\nthere"},
            "cannot be run: .*; get it there",
        ),
        ("", {"env": [{"name": "A=B", "value": ""}]}, "cannot be run: illegal environment variable name"),
        ("", {"args": ["a\0"]}, "cannot be run: embedded null byte"),
        ("", {"command": "./windows"}, "cannot be run: the interpreter in its first line does not exist"),
    ],
)
def test_a_program_that_breaks_the_protocol_is_named(
    tmp_path: Path, body: str, more: dict[str, Any], sentence: str
) -> None:
    user = executed(**{"command": program(tmp_path, body), **more})
    (tmp_path / "windows").write_bytes(b"#!/bin/sh\r\n")
    (tmp_path / "windows").chmod(0o755)
    with asked_server() as seen, pytest.raises(ApiError, match=sentence) as raised:
        get(write_kubeconfig(tmp_path, seen.port, user))
    assert "provides the credentials" in str(raised.value)
    assert not seen.headers  # no anonymous request is sent


# --- auth providers ---


def identity(**claims: Any) -> str:
    parts: tuple[dict[str, Any], ...] = ({"alg": "none"}, claims, {})
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)


def test_the_oidc_provider_sends_the_id_token_of_the_kubeconfig(tmp_path: Path) -> None:
    pytest.importorskip("kubernetes")
    token = identity(exp=int(time.time()) + 86400, sub="me")
    user = {"auth-provider": {"name": "oidc", "config": {"id-token": token, "client-id": "c"}}}
    with asked_server() as seen:
        get(write_kubeconfig(tmp_path, seen.port, user))
    assert seen.last("Authorization") == [f"Bearer {token}"]


def test_a_provider_without_a_token_is_an_error_and_no_request_is_sent(tmp_path: Path) -> None:
    pytest.importorskip("kubernetes")
    expired = {"id-token": identity(exp=1), "idp-issuer-url": "http://127.0.0.1:1", "client-id": "c"}
    with asked_server() as seen:
        for provider in ({"name": "oidc", "config": expired}, {"name": "azure", "config": {}}):
            with pytest.raises(ApiError, match="gives no token"):
                get(write_kubeconfig(tmp_path, seen.port, {"auth-provider": provider}))
    assert not seen.headers


def test_a_provider_without_the_extra_is_an_error_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "kubernetes"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with asked_server() as seen:
        written = write_kubeconfig(tmp_path, seen.port, {"auth-provider": {"name": "oidc", "config": {}}})
        with pytest.raises(ApiError, match=r'auth-provider "oidc" .* install dranode\[auth-provider\]'):
            get(written)
    assert not seen.headers


def test_unusable_credentials_are_not_retried(tmp_path: Path) -> None:
    wire = Connection(Credentials(str(write_kubeconfig(tmp_path, 1, {"client-certificate": "gone.crt"}))))
    tried: list[str] = []

    class Counted:
        def send(self, outgoing: Outgoing) -> Any:
            tried.append(outgoing.path)
            return wire.send(outgoing)

    with pytest.raises(ApiError, match=r"cannot be used: .*client-certificate"):
        Client(Counted()).send(GET, seconds=3)
    assert tried == [GET.path]


# --- the server and its CA ---


def test_ca_data_has_precedence_over_a_ca_file_and_only_that_ca_is_trusted(tmp_path: Path) -> None:
    other = str(CERTIFICATES / "other.crt")
    with asked_server() as seen:
        trusted = {"certificate-authority-data": in_base64("ca.crt"), "certificate-authority": other}
        assert get(write_kubeconfig(tmp_path, seen.port, {}, cluster=trusted)) == "node"
        for wrong in ({"certificate-authority-data": in_base64("other.crt")}, {"certificate-authority": other}):
            with pytest.raises(ApiError, match="is not trusted"):
                get(write_kubeconfig(tmp_path, seen.port, {}, cluster=wrong))
        assert get(write_kubeconfig(tmp_path, seen.port, {}, cluster={"insecure-skip-tls-verify": True})) == "node"
    with pytest.raises(ApiError, match=r"certificate-authority names .* cannot be read: No such"):
        get(write_kubeconfig(tmp_path, seen.port, {}, cluster={"certificate-authority": "gone.crt"}))


def test_tls_server_name_replaces_the_host_name_in_the_check(tmp_path: Path) -> None:
    authority = {"certificate-authority": str(CERTIFICATES / "ca.crt")}
    with asked_server() as seen:
        assert (
            get(write_kubeconfig(tmp_path, seen.port, {}, cluster={**authority, "tls-server-name": "localhost"}))
            == "node"
        )
        with pytest.raises(ApiError, match="is not trusted"):
            get(write_kubeconfig(tmp_path, seen.port, {}, cluster={**authority, "tls-server-name": "else.example.com"}))


def test_an_intermediate_ca_is_trusted(tmp_path: Path) -> None:
    with asked_server(certificate="server-of-intermediate.crt") as seen:
        for authority in (
            {"certificate-authority-data": in_base64("intermediate.crt")},
            {"certificate-authority": str(CERTIFICATES / "intermediate.crt")},
        ):
            assert get(write_kubeconfig(tmp_path, seen.port, {}, cluster=authority)) == "node"
        with pytest.raises(ApiError, match="is not trusted"):
            get(write_kubeconfig(tmp_path, seen.port, {}, cluster={"certificate-authority-data": in_base64("ca.crt")}))


@pytest.mark.parametrize("scheme", ["", "https://", "HTTPS://"])
@pytest.mark.parametrize("path", ["", "/"])
def test_a_server_without_scheme_is_reached_over_https(tmp_path: Path, scheme: str, path: str) -> None:
    with asked_server() as seen:
        cluster = {
            "server": f"{scheme}127.0.0.1:{seen.port}{path}",
            "certificate-authority": str(CERTIFICATES / "ca.crt"),
        }
        assert get(write_kubeconfig(tmp_path, seen.port, {}, cluster=cluster)) == "node"


# --- proxies ---

AUTHORITY = {"certificate-authority": str(CERTIFICATES / "ca.crt")}
# The name is known only to the proxy, since Go's rules never proxy local addresses of the environment.
BEHIND = {**AUTHORITY, "tls-server-name": "localhost"}


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "REQUEST_METHOD"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.mark.parametrize("secure", [False, True])
def test_a_cluster_is_reached_through_the_proxy_of_its_kubeconfig(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, secure: bool
) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    with asked_server() as seen, tunnel_proxy(tls=secure) as (port, heads):
        url = f"http{'s' if secure else ''}://user%40here:p%3Aw@127.0.0.1:{port}"
        path = write_kubeconfig(tmp_path, seen.port, {}, cluster={**AUTHORITY, "proxy-url": url})
        client = Client(Connection(Credentials(str(path))))
        for _ in range(3):
            assert client.send(GET, patient=False)["metadata"]["name"] == "node"
    (head,) = heads
    assert head.startswith(f"CONNECT 127.0.0.1:{seen.port} HTTP/1.1\r\n")
    pair = base64.b64encode(b"user@here:p:w").decode()
    assert f"Proxy-Authorization: Basic {pair}\r\n" in head


@pytest.mark.parametrize("secure", [False, True])
def test_a_proxy_gets_the_whole_url_of_a_plain_http_request(tmp_path: Path, *, secure: bool) -> None:
    with asked_server(tls=False) as seen, tunnel_proxy(tls=secure) as (port, heads):
        url = f"http{'s' if secure else ''}://user:word@127.0.0.1:{port}"
        cluster = {"proxy-url": url, **AUTHORITY}
        assert get(write_kubeconfig(tmp_path, seen.port, {}, scheme="http", cluster=cluster)) == "node"
    assert heads[0].startswith(f"GET http://127.0.0.1:{seen.port}/api/v1/nodes/node HTTP/1.1\r\n")
    assert "Proxy-Authorization: Basic dXNlcjp3b3Jk\r\n" in heads[0]


def test_the_environments_proxy_is_used_by_gos_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with asked_server() as seen, tunnel_proxy(upstream=seen.port) as (port, heads):
        # Local addresses are reached directly.
        monkeypatch.setenv("HTTPS_PROXY", f"127.0.0.1:{port}")
        assert get(write_kubeconfig(tmp_path, seen.port, {})) == "node"
        assert not heads
        behind = write_kubeconfig(tmp_path, 0, {}, cluster={**BEHIND, "server": "https://api.cluster.example:6443"})
        assert get(behind) == "node"
        assert heads[0].startswith("CONNECT api.cluster.example:6443 HTTP/1.1\r\n")


def test_a_pod_reaches_its_api_server_by_the_same_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("of the pod")
    (tmp_path / "ca.crt").write_bytes((CERTIFICATES / "ca.crt").read_bytes())
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00:10:96::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    with tunnel_proxy(tls=True, upstream=1) as (port, heads):
        monkeypatch.setenv("https_proxy", f"https://localhost:{port}")
        client = Client(Connection(Credentials(service_account=tmp_path)))
        with pytest.raises(ApiError):
            client.send(GET, patient=False)
        assert heads[0].startswith("CONNECT [fd00:10:96::1]:443 HTTP/1.1\r\n")


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("socks5://127.0.0.1:1080", "the proxy in proxy-url uses socks5, which is not supported"),
        ("proxy.example.com:3128", "the proxy in proxy-url is not an http or https URL"),
        ("ftp://proxy.example.com", "the proxy in proxy-url is not an http or https URL"),
        ("http://proxy:word", "the address of the proxy in proxy-url cannot be read"),
        ("http://", "the proxy in proxy-url is not an http or https URL"),
    ],
)
def test_an_unusable_proxy_is_reported_in_one_sentence(tmp_path: Path, url: str, sentence: str) -> None:
    with pytest.raises(ApiError, match=sentence):
        get(write_kubeconfig(tmp_path, 1, {}, cluster={**AUTHORITY, "proxy-url": url}))


def test_a_proxy_that_is_not_trusted_or_does_not_answer_is_named(tmp_path: Path) -> None:
    with asked_server() as seen, tunnel_proxy(tls=True) as (port, heads):
        other = {"certificate-authority": str(CERTIFICATES / "other.crt"), "proxy-url": f"https://127.0.0.1:{port}"}
        with pytest.raises(ApiError, match=rf"the certificate of the proxy 127\.0\.0\.1:{port} is not trusted"):
            get(write_kubeconfig(tmp_path, seen.port, {}, cluster=other))
        assert not heads
    with pytest.raises(ApiError, match=r"the proxy 127\.0\.0\.1:1 does not answer: Connection refused"):
        get(write_kubeconfig(tmp_path, 1, {}, cluster={**AUTHORITY, "proxy-url": "http://127.0.0.1:1"}))
    with asked_server(tls=False) as plain:
        for proxy in ({}, {"proxy-url": f"https://127.0.0.1:{plain.port}"}):
            with pytest.raises(ApiError, match=f"{'proxy' if proxy else 'server'} .* does not speak TLS;"):
                get(write_kubeconfig(tmp_path, plain.port, {}, cluster={**AUTHORITY, **proxy}))


# --- files and contexts ---


def test_an_invalid_file_among_several_kubeconfigs_is_named(tmp_path: Path) -> None:
    good, bad = write_kubeconfig(tmp_path, 1, {}), tmp_path / "bad"
    bad.write_text("clusters: [{name: c, cluster: {server: 7}}]")
    with pytest.raises(
        ApiError, match=r"\S+/bad is not a kubeconfig: clusters\[0\]\.cluster\.server: a string is expected"
    ):
        get(f"{good}:{bad}")


def test_the_first_of_several_kubeconfigs_that_sets_something_wins(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
        (folder / "token").write_text(folder.name)
    with asked_server(tls=False) as seen:
        one, two = (
            write_kubeconfig(folder, seen.port, {"tokenFile": "token"}, scheme="http") for folder in (first, second)
        )
        one.write_text(f"{one.read_text()}---\nclusters: []\n")
        joined = f"{tmp_path / 'missing'}:{one}:{two}"
        get(joined)
        assert seen.last("Authorization") == ["Bearer first"]  # each path is relative to its own file
        document = yaml.safe_load(two.read_text())
        document["contexts"].append({"name": "there", "context": {"cluster": "c", "user": "second"}})
        document["users"] = [{"name": "second", "user": {"tokenFile": "token"}}]
        document["current-context"] = "there"
        two.write_text(yaml.safe_dump(document))
        get(joined)
        assert seen.last("Authorization") == ["Bearer first"]
        get(joined, "there")
        assert seen.last("Authorization") == ["Bearer second"]
    assert kubeconfig_context(joined).namespace == "team"
    assert not kubeconfig_context(joined, "there").namespace


@pytest.mark.parametrize(
    ("change", "context", "sentence"),
    [
        ({}, "gone", 'there is no context "gone"; there are here'),
        ({"current-context": ""}, "", "or set it with kubectl config use-context: here"),
        ({"clusters": None}, "", 'context "here" names cluster "c"; there are none'),
        ({"users": []}, "", 'context "here" names user "u"; there are none'),
        ({"clusters": [{"name": "c", "cluster": {}}]}, "", 'cluster "c" has no server'),
        ({"clusters": [{"name": "c", "cluster": {"server": "host:6443/path"}}]}, "", "is neither a URL nor host:port"),
        ({"clusters": [{"name": "c", "cluster": {"server": "ftp://host:6443"}}]}, "", "is not an http or https URL"),
        ({"clusters": [{"name": "c", "cluster": {"server": "https://me:pw@host"}}]}, "", "URL has a user in it; write"),
        ({"contexts": [{"context": {}}]}, "", r"contexts\[0\].*required field name"),
    ],
)
def test_a_missing_context_cluster_or_user_is_reported_with_the_existing_ones(
    tmp_path: Path, change: dict[str, Any], context: str, sentence: str
) -> None:
    path = write_kubeconfig(tmp_path, 1, {})
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **change}))
    with pytest.raises(ApiError, match=sentence):
        get(path, context)
    if "URL" not in sentence:
        with pytest.raises(UnreachableError, match=sentence):
            kubeconfig_context(str(path), context)
