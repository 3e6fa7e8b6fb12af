"""Bug reports of configurations that were read in another way than their authors meant."""

import subprocess
import sys
from pathlib import Path

import pytest

from dranode.show import cluster_option
from dranode.show.cluster_option import named_cluster
from tests.fakes.apiserver import api_server
from tests.fakes.kubeconfig import write_kubeconfig


def test_a_kubeconfig_may_come_from_another_program(tmp_path: Path) -> None:
    """A shell turns `<(command)` into a pipe, which can be read only once."""
    program = Path(sys.executable).with_name("dranode")
    with api_server() as api:
        kubeconfig = api.kubeconfig(tmp_path / "kubeconfig")
        asked = f"{program} explain pod/app --kubeconfig <(cat {kubeconfig})"
        done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, timeout=300, check=False)
    assert "there is no pod default/app" in done.stdout, done.stderr


def test_a_kubeconfig_that_is_a_named_pipe_does_not_block(tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("dranode")
    asked = f"mkfifo {tmp_path}/pipe; {program} explain pod/app --kubeconfig {tmp_path}/pipe"
    done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, timeout=300, check=False)
    assert "it is a named pipe" in done.stderr


def test_in_a_pod_the_kubeconfig_at_home_names_the_cluster_as_for_kubectl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    (tmp_path / ".kube").mkdir()
    write_kubeconfig(tmp_path, 1, {}, scheme="http").rename(tmp_path / ".kube" / "config")
    cluster = named_cluster("", "", "")
    assert cluster is not None
    assert (cluster.name, cluster.namespace) == ("here", "team")
    config = tmp_path / ".kube" / "config"
    config.write_text(config.read_text().replace("namespace: team", "namespace: ''"))
    (tmp_path / "namespace").write_text("pods\n")
    monkeypatch.setattr(cluster_option, "SERVICE_ACCOUNT", tmp_path)
    for variable, namespace in (("", "pods"), ("named", "named")):
        monkeypatch.setenv("POD_NAMESPACE", variable)
        assert getattr(named_cluster("", "", ""), "namespace", None) == namespace
