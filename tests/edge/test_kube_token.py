"""What a file with a token may hold beside the token."""

from __future__ import annotations

from pathlib import Path

from dranode.driver.kube.client import Client, Request
from dranode.driver.kube.connection import Connection
from dranode.driver.kube.source import Source
from tests.fakes_apiserver import api_server


def test_a_token_file_may_end_with_a_newline(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("of the pod\n")
    with api_server(tokens={"of the pod"}) as api:
        api.put("nodes", {"metadata": {"name": "node", "uid": "node-uid"}})
        client = Client(Connection(Source(api.kubeconfig(tmp_path / "kubeconfig", token_file=token))))
        node = client.send(Request("GET", "/api/v1/nodes/node", "get nodes"))
    assert node["metadata"]["uid"] == "node-uid"
