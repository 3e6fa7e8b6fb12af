"""The answers of the registration service, and its reaction to kubelet's."""

from pathlib import Path

import pytest

from dranode.driver.kubelet.listener import Registration
from dranode.proto import pluginregistration_v1_pb2 as api


def registration(rejected: list[str]) -> Registration:
    return Registration("a.example.com", Path("/s.sock"), ("v1.DRAPlugin",), rejected.append)


@pytest.mark.parametrize(
    ("registered", "error", "reasons"),
    [
        (True, "", []),
        (False, "no such version", ["kubelet rejected the driver a.example.com: no such version"]),
        (False, "", ["kubelet rejected the driver a.example.com: it gave no reason"]),
    ],
)
def test_kubelets_verdict_is_recorded(*, registered: bool, error: str, reasons: list[str]) -> None:
    rejected: list[str] = []
    asked = registration(rejected)
    status = api.RegistrationStatus(plugin_registered=registered, error=error)
    assert asked.NotifyRegistrationStatus(status, None) == api.RegistrationStatusResponse()
    assert (asked.registered, rejected) == (registered, reasons)
