"""Bug reports in which something came late, twice, or from another past than expected."""

import copy
from pathlib import Path

import pytest

from dranode.api.resource import Device
from dranode.driver.claims.plugin import Inventory
from dranode.driver.kube import slice_requests
from dranode.driver.kube.client import Timing
from dranode.driver.kube.cluster import KubeCluster
from dranode.driver.kube.server import Credentials
from tests.fakes.apiserver import api_server
from tests.fakes.waiting import eventually


def test_slices_are_published_again_after_the_servers_storage_was_restored_from_a_backup(tmp_path: Path) -> None:
    with api_server() as api:
        api.put("nodes", {"metadata": {"name": "node", "uid": "node-uid"}})
        backup, version = copy.deepcopy(api.objects._objects), api.objects.version
        source = Credentials(api.kubeconfig(tmp_path / "kubeconfig"))
        cluster = KubeCluster(source, "node", claim_status=False, fatal=pytest.fail, timing=Timing(dice=lambda: 0.0))
        cluster.publish("d.example.com", Inventory(devices=(Device(name="a"),)))
        eventually(lambda: cluster.status("d.example.com").published)
        api.stop()
        with api.objects.changed:
            api.objects._objects, api.objects.version = backup, version
            api.objects.history.clear()
        api.start()
        eventually(lambda: api.objects.all("resourceslices"))
        cluster.close()


def test_edits_by_others_are_undone_even_if_watches_deliver_no_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slice_requests, "_SILENCE_SECONDS", 0.5)
    with api_server() as api:
        api.put("nodes", {"metadata": {"name": "node", "uid": "node-uid"}})
        source = Credentials(api.kubeconfig(tmp_path / "kubeconfig"))
        cluster = KubeCluster(source, "node", claim_status=False, fatal=pytest.fail, timing=Timing(dice=lambda: 0.0))
        api.mute = True
        cluster.publish("d.example.com", Inventory(devices=(Device(name="a"),)))
        eventually(lambda: cluster.status("d.example.com").published)
        (published,) = api.objects.all("resourceslices")
        api.objects.edit("resourceslices", published["metadata"]["name"], lambda one: one["spec"].pop("devices"))
        eventually(lambda: api.objects.all("resourceslices")[0]["spec"].get("devices"))
        cluster.close()
