"""Reports of messages that led to the wrong place."""

from __future__ import annotations

from pathlib import Path

import pytest

from dranode.driver.kube.client import APIRequest, Client
from dranode.driver.kube.connection import Connection
from dranode.driver.kube.errors import ApiError
from dranode.driver.kube.server import Credentials
from tests.fakes.apiserver import Fault, api_server


def test_a_page_in_place_of_an_answer_is_shown(tmp_path: Path) -> None:
    """A login page, or that of a load balancer, comes with status 200 where the address is not the server's."""
    with api_server() as api:
        api.faults.append(Fault(path="/api/v1/nodes/node", status=200, body="<html>Sign in</html>"))
        client = Client(Connection(Credentials(api.kubeconfig(tmp_path / "kubeconfig"))))
        with pytest.raises(ApiError, match=r"begins with b'<html>Sign in</html>'; see that the address is one's"):
            client.send(APIRequest("GET", "/api/v1/nodes/node", "get nodes"))
