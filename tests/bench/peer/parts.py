"""Parts of a Prepare that the floor is made of, and that no other benchmark has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dranode.driver.kube.client import APIRequest, Client
from dranode.driver.kube.connection import Connection
from dranode.driver.kube.server import Credentials


def get(kubeconfig: Path) -> Callable[[int], None]:
    """A GET of the first claim on a kept connection."""
    client = Client(Connection(Credentials(str(kubeconfig))))
    request = APIRequest("GET", "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/claim-0", "get the claim")

    def once(number: int) -> None:
        del number
        client.send(request)

    return once


def twice(call: Callable[[int], None]) -> Callable[[int], None]:
    """The call, two times."""

    def once(number: int) -> None:
        call(number)
        call(number)

    return once
