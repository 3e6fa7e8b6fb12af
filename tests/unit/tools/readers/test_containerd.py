"""containerd's configuration is read the way each version of containerd loads it."""

import json
from pathlib import Path
from typing import Any

import pytest

from dranode.tools.diagnosis.rules import diagnose
from dranode.tools.readers.host import HostError, NodeHost, UnparsedError
from dranode.tools.readers.runtime import load, read_runtime
from tests.fakes.doctor import CRI, NRI, VALIDATOR, FakeNode, diagnosed, server_of

CASES = json.loads((Path(__file__).parents[3] / "vectors" / "containerd.json").read_text())["cases"]
RELEASES = ("1.7.27", "2.2.1", "2.4.2")


def node_with(folder: Path, files: dict[str, str]) -> NodeHost:
    for name, text in files.items():
        place = folder / "etc/containerd" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text.replace("@", "/etc/containerd"))
    return NodeHost.at(str(folder))


def version(release: str) -> tuple[int, int]:
    major, minor, _ = release.split(".")
    return int(major), int(minor)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_configuration_is_read_as_containerd_loads_it(tmp_path: Path, case: dict[str, Any], release: str) -> None:
    host, known = node_with(tmp_path, case["files"]), case["loaded"][release]
    if "error" in known:
        with pytest.raises(UnparsedError):
            load(host, "/etc/containerd/config.toml", version(release), certain=True)
        return
    loaded = load(host, "/etc/containerd/config.toml", version(release), certain=True)
    assert (loaded.nri, loaded.cri) == (known["nri"], known["cri"])
    # Of the disabled plug-ins, only those that the driver needs.
    for name in ("nri", "cri"):
        disabled = getattr(loaded, f"{name}_disabled")
        assert (disabled or None) in {*known["disabled"], None}
    full = {"nri": {"nri"} if "nri" in known["disabled"] else {NRI}, "cri": {"cri", "io.containerd.grpc.v1.cri"}}
    for name, names in full.items():
        assert bool(getattr(loaded, f"{name}_disabled")) == bool(names & set(known["disabled"])), name


def test_an_import_that_a_pod_cannot_see_is_reported(tmp_path: Path) -> None:
    host = node_with(tmp_path, {"config.toml": 'version = 3\nimports = ["/opt/more/*.toml"]\n'})
    (sentence,) = load(host, "/etc/containerd/config.toml", (2, 2), certain=False).unseen
    assert "imports /opt/more/*.toml, but /opt/more cannot be seen" in sentence
    assert load(host, "/etc/containerd/config.toml", (2, 2), certain=True).unseen == ()
    host = node_with(tmp_path, {"config.toml": 'version = 3\nimports = ["/opt/nri.toml"]\n'})
    with pytest.raises(HostError, match=r"/opt/nri\.toml cannot be seen"):
        load(host, "/etc/containerd/config.toml", (2, 2), certain=False)


def test_cdi_cannot_be_switched_off_from_containerd_2_4_on(tmp_path: Path) -> None:
    text = 'version = 3\n[plugins."io.containerd.cri.v1.runtime"]\nenable_cdi = false\n'
    host = node_with(tmp_path, {"config.toml": text})
    assert read_runtime(host, "containerd://2.3.1")[0].cdi is False
    assert read_runtime(host, "containerd://2.4.0")[0].cdi is True


@pytest.mark.parametrize(
    ("text", "release"),
    [
        (f'version = 2\ndisabled_plugins = ["{NRI}"]\n', "2.2.1"),
        (f'version = 2\ndisabled_plugins = ["{NRI}"]\n', "1.7.27"),
        ('disabled_plugins = ["nri"]\n', "1.7.27"),
    ],
)
def test_a_disabled_nri_plugin_means_that_nri_is_off(node: FakeNode, text: str, release: str) -> None:
    server_of(node).nodes["worker"]["containerRuntimeVersion"] = f"containerd://{release}"
    node.silence()
    node.write("etc/containerd/config.toml", text)
    (finding,) = (each for each in diagnosed(node) if each.code == "nri-off")
    name = NRI if NRI in text else "nri"
    assert finding.fault.fix.startswith(f'remove "{name}" from disabled_plugins in /etc/containerd/config.toml')


@pytest.mark.parametrize("release", ["1.7.27", "2.2.1"])
def test_the_configuration_of_dockers_package_turns_cri_off(node: FakeNode, release: str) -> None:
    server_of(node).nodes["worker"]["containerRuntimeVersion"] = f"containerd://{release}"
    node.write("etc/containerd/config.toml", 'disabled_plugins = ["cri"]\n')
    assert "cri-off" in [finding.code for finding in diagnosed(node)]


def test_kubelet_uses_the_containerd_that_has_cri(node: FakeNode) -> None:
    # As on Talos and Bottlerocket, or where Docker is installed next to k3s.
    node.runtime("containerd", "--config=/etc/cri/containerd.toml")
    node.write("etc/cri/containerd.toml", "version = 3\n")
    node.write("proc/79/comm", "containerd\n")
    node.write("proc/79/cmdline", "containerd\0")
    node.write("etc/containerd/config.toml", f'version = 2\ndisabled_plugins = ["{CRI}", "{NRI}"]\n')
    assert {"cri-off", "nri-off"}.isdisjoint(finding.code for finding in diagnosed(node))
    runtime = node.facts().runtime
    assert runtime is not None
    assert runtime.config == "/etc/cri/containerd.toml"


def test_an_import_of_containerd_1_7_replaces_the_whole_section(node: FakeNode) -> None:
    server_of(node).nodes["worker"]["containerRuntimeVersion"] = "containerd://1.7.27"
    cri, nri = '[plugins."io.containerd.grpc.v1.cri"]\n', f'[plugins."{NRI}"]\ndisable = false\n'
    node.write("etc/containerd/config.toml", f'version = 2\nimports = ["b.toml"]\n{nri}{cri}enable_cdi = true\n')
    node.write("etc/containerd/b.toml", f'version = 2\n{cri}sandbox_image = "pause"\n')
    assert "cdi-off" in [finding.code for finding in diagnosed(node)]


@pytest.mark.parametrize(("value", "seconds"), [("2000000000", 2.0), ("0", 2.0), ('"0s"', 2.0), ('"1s"', 1.0)])
def test_a_timeout_without_a_unit_is_in_nanoseconds(node: FakeNode, value: str, seconds: float) -> None:
    node.write("etc/containerd/config.toml", f'version = 3\n[plugins."{NRI}"]\nplugin_request_timeout = {value}\n')
    runtime = node.facts().runtime
    assert runtime is not None
    assert runtime.request_timeout == seconds


def test_paths_are_compared_cleaned(node: FakeNode) -> None:
    node.containerd(
        {"default_validator": VALIDATOR, "socket_path": "/var/run//nri/./nri.sock"},
        {"cdi_spec_dirs": ["/var/run/./cdi/"]},
    )
    assert diagnose(node.facts()) == ()
