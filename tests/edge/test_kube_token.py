"""What a token file may contain besides the token."""

import os
from pathlib import Path

import pytest

from dranode.api.errors import DranodeError
from dranode.driver.kube.client import APIRequest, Client
from dranode.driver.kube.connection import Connection, pod_server
from dranode.driver.kube.server import Credentials
from tests.fakes.apiserver import api_server


def test_a_token_that_is_invalid_in_a_header_is_refused_and_never_shown(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret\nof the cluster")
    with api_server(tokens={"secret"}) as api:
        client = Client(
            Connection(Credentials(api.kubeconfig(tmp_path / "kubeconfig", token_file=token)), retries=True),
            retries=True,
        )
        with pytest.raises(DranodeError, match="not ASCII; check the token") as raised:
            client.send(APIRequest("GET", "/api/v1/nodes/node", "get nodes"), patient=False)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("name", ["token", "ca.crt"])
def test_a_named_pipe_among_a_pods_credentials_does_not_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")
    (tmp_path / "token").write_text("of the pod")
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    with pytest.raises(DranodeError, match="it is a named pipe"):
        pod_server(tmp_path)
