"""On a node CEL is not installed: doctor and explain leave out what needs it, and say so."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from dranode.kubectl.doctor import command as doctor
from dranode.kubectl.explain import command as explain
from tests.fakes.apiserver import ApiServer
from tests.fakes.doctor import FakeNode
from tests.fakes.machine import write_machine
from tests.fakes.pods import PodCluster

# What no module of these commands may need before it is known that it is there.
BLOCKED = "import sys; sys.modules['cel_expr_python'] = sys.modules['kubernetes'] = None; import {module}"


@pytest.mark.parametrize("module", ["dranode.kubectl.doctor", "dranode.kubectl.explain", "dranode.kubectl.on_node"])
def test_the_commands_of_a_node_load_without_it(module: str) -> None:
    subprocess.run([sys.executable, "-c", BLOCKED.format(module=module)], check=True)


def test_doctor_judges_the_rest_and_names_what_it_could_not(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dranode.kubectl.class_check", None)
    write_machine(node.folder)
    with ApiServer() as api:
        api.put("deviceclasses", {"metadata": {"name": "dra.cpu"}, "spec": {}})
        kubeconfig = api.kubeconfig(node.folder / "kubeconfig")
        arguments = ["--root", str(node.folder), "--node-name", "worker", "--reserved-cpus", "0", "-o", "json"]
        ran = CliRunner().invoke(doctor, [*arguments, "--kubeconfig", kubeconfig])
    answer = json.loads(ran.stdout)
    assert [sentence for sentence in answer["unseen"] if "CEL is not installed here" in sentence]
    assert "node-missing" in {one["code"] for one in answer["findings"]}


def test_explain_says_what_kube_scheduler_says_and_that_it_has_no_answer_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "dranode.kubectl.scheduler", None)
    with ApiServer() as api:
        cluster = PodCluster(api)
        request = {"name": "cpus", "exactly": {"deviceClassName": "dra.cpu"}}
        cluster.made_claim("app", "cpus", request)
        cluster.pod(templates={"cpus": "t"}, made={"cpus": "app-cpus-x7k2p"})
        cluster.template("t", request)
        environment = {"KUBERNETES_SERVICE_HOST": "", "KUBECONFIG": api.kubeconfig(tmp_path / "kubeconfig")}
        arguments = ["app", "-o", "json", "--node-name", "laptop", "--kubelet-root", str(tmp_path)]
        ran = CliRunner(env=environment).invoke(explain, arguments)
    page = json.loads(ran.stdout)
    assert [sentence for sentence in page["unasked"] if "CEL is not installed here" in sentence]
