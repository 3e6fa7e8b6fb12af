"""Commands that ask an API server: which server, what they do when it does not answer, and what they print about it."""

import json
import stat
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner, Result

from dranode.api.errors import DranodeError
from dranode.sim.cli.fit import command as fit
from dranode.sim.cli.report import command as report
from dranode.tools.cli.doctor import command as doctor
from dranode.tools.cli.explain import command as explain
from dranode.tools.kubectl.plugin import plugin
from tests.fakes.apiserver import ApiServer, Fault, api_server
from tests.fakes.clusters import CLASS
from tests.fakes.kubeconfig import asked_server, write_kubeconfig
from tests.unit.sim.report.test_waiting import claim, node, pod, slice_of

PAGE = ("--html", "page.html")
COMMANDS: dict[str, tuple[click.Command, tuple[str, ...]]] = {
    "fit": (fit, ()),
    "fit of a pod": (fit, ("pod.yaml",)),
    "report": (report, PAGE),
    "doctor": (doctor, ("--all-nodes",)),
    "explain": (explain, ("some-pod",)),
    "kubectl dranode explain": (plugin, ("explain", "some-pod")),
    "kubectl dranode claims": (plugin, ("claims",)),
    "kubectl dranode devices": (plugin, ("devices",)),
    "kubectl dranode nodes": (plugin, ("nodes",)),
    "kubectl dranode fit": (plugin, ("fit",)),
}


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pod.yaml").write_text(yaml.safe_dump({"apiVersion": "v1", **pod("q", "one")}))
    dump = [{"apiVersion": "v1", **node()}, {"apiVersion": "v1", **pod("q")}]
    Path("dump.yaml").write_text(yaml.safe_dump_all(dump))


def invoke(folder: Path, kubeconfig: Path | str, command: click.Command, *arguments: str) -> Result:
    laptop = {"KUBERNETES_SERVICE_HOST": "", "DRANODE_KUBECONFIG": "", "KUBECONFIG": str(kubeconfig)}
    return CliRunner(env={**laptop, "HOME": str(folder)}).invoke(command, arguments)


def error_of(result: Result) -> str:
    assert result.exit_code != 0
    if isinstance(result.exception, DranodeError):
        return str(result.exception)
    return result.output


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_runs_a_failing_credential_program_once(tmp_path: Path, name: str) -> None:
    program = tmp_path / "login"
    program.write_text(
        f"#!{sys.executable}\nopen({str(tmp_path / 'runs')!r}, 'a').write('x')\nraise SystemExit('log in')\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    user = {
        "exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(program), "interactiveMode": "Never"}
    }
    command, arguments = COMMANDS[name]
    with asked_server() as seen:
        done = invoke(tmp_path, write_kubeconfig(tmp_path, seen.port, user), command, *arguments)
    assert not seen.headers
    assert (tmp_path / "runs").read_text() == "x"
    assert "which provides the credentials, ended with exit status 1: log in" in error_of(done)


@pytest.mark.parametrize("name", COMMANDS)
def test_an_unreachable_server_is_asked_once(tmp_path: Path, name: str) -> None:
    command, arguments = COMMANDS[name]
    done = invoke(tmp_path, write_kubeconfig(tmp_path, 1, {}), command, *arguments)
    assert "the API server at https://127.0.0.1:1 does not answer: Connection refused" in error_of(done)


def test_request_timeout_limits_each_request_as_for_kubectl(tmp_path: Path, cluster: ApiServer) -> None:
    kubeconfig = cluster.kubeconfig(tmp_path / "kubeconfig")
    assert "not a number of seconds or a time" in error_of(invoke(tmp_path, kubeconfig, fit, "--request-timeout=5x"))
    answer = threading.Event()
    cluster.faults.append(Fault("GET", "/nodes", release=answer))
    assert "did not answer in time" in error_of(invoke(tmp_path, kubeconfig, fit, "--request-timeout=100ms"))
    answer.set()
    assert "ns/p" in invoke(tmp_path, kubeconfig, fit, "--request-timeout=0").stdout


# --- which cluster ---


@pytest.fixture
def cluster() -> Iterator[ApiServer]:
    with api_server() as api:
        for resource, document in (
            ("deviceclasses", CLASS),
            ("resourceslices", slice_of("w")),
            ("resourceclaims", claim("one", 1)),
            ("nodes", node()),
            ("pods", pod("p", "one")),
        ):
            core = resource in ("pods", "nodes")
            api.put(resource, {"apiVersion": "v1" if core else "resource.k8s.io/v1", **document})
        yield api


def test_fit_reads_the_cluster_of_kubeconfig_unless_a_file_has_nodes(tmp_path: Path, cluster: ApiServer) -> None:
    kubeconfig = cluster.kubeconfig(tmp_path / "kubeconfig")
    place = f"context stand-in of {kubeconfig} (http://127.0.0.1:{cluster.port})"
    for arguments in ((), ("pod.yaml",), ("--context", "stand-in", "pod.yaml")):
        done = invoke(tmp_path, kubeconfig, fit, *arguments, "-o", "json")
        read = [place, *(argument for argument in arguments if argument.endswith(".yaml"))]
        assert json.loads(done.stdout)["read"] == read
    table = " ".join(invoke(tmp_path, kubeconfig, fit).stdout.split())
    assert f"read: {place}" in table
    cluster.seen.clear()
    assert json.loads(invoke(tmp_path, kubeconfig, fit, "dump.yaml", "-o", "json").stdout)["read"] == ["dump.yaml"]
    assert not cluster.seen
    url = f"http://127.0.0.1:{cluster.port}"
    for words, read_place in ((("--kubeconfig", str(kubeconfig)), place), (("--server", url), url)):
        both = invoke(tmp_path, "", fit, *words, "dump.yaml", "-o", "json")
        assert both.exception is not None or json.loads(both.stdout)["read"] == [read_place, "dump.yaml"]
        assert cluster.seen
        cluster.seen.clear()


def test_fit_reads_the_kubeconfig_at_home_as_kubectl_does(tmp_path: Path, cluster: ApiServer) -> None:
    (tmp_path / ".kube").mkdir()
    cluster.kubeconfig(tmp_path / ".kube" / "config")
    assert "ns/p" in invoke(tmp_path, "", fit).stdout
    (tmp_path / ".kube" / "config").unlink()
    assert "name the files that hold the cluster" in error_of(invoke(tmp_path, "", fit))


def test_report_reads_the_cluster_of_kubeconfig_unless_files_or_this_node_are_given(
    tmp_path: Path, cluster: ApiServer
) -> None:
    kubeconfig = cluster.kubeconfig(tmp_path / "kubeconfig")
    place = f"context stand-in of {kubeconfig} (http://127.0.0.1:{cluster.port})"
    assert f" of {place}: 1 node" in invoke(tmp_path, kubeconfig, report, *PAGE).stdout
    assert f" of {place}: 1 node" in invoke(tmp_path, kubeconfig, report, "--context", "stand-in", *PAGE).stdout
    cluster.seen.clear()
    assert " of dump.yaml: 1 node" in invoke(tmp_path, kubeconfig, report, *PAGE, "dump.yaml").stdout
    assert " of this node: 1 node" in invoke(tmp_path, kubeconfig, report, *PAGE, "--machine", "cores=2").stdout
    assert " of this node: 1 node" in invoke(tmp_path, "", report, *PAGE, "--machine", "cores=2").stdout
    assert not cluster.seen
    url = f"http://127.0.0.1:{cluster.port}"
    assert f" of {url}: 1 node" in invoke(tmp_path, "", report, *PAGE, "--server", url).stdout
    for words in (("--kubeconfig", str(kubeconfig)), ("--as", "jane")):
        for command, subject in ((report, ()), (explain, ("p",))):
            refused = error_of(invoke(tmp_path, "", command, *subject, *words, "dump.yaml"))
            assert "--kubeconfig" in refused
            assert "FILEs" in refused


def test_options_that_the_account_of_a_pod_would_ignore_are_refused(tmp_path: Path) -> None:
    in_pod = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBECONFIG": "", "HOME": str(tmp_path)}
    done = CliRunner(env=in_pod).invoke(fit, ["--as", "jane", "pod.yaml"])
    assert "--as changes what a kubeconfig says, and this pod has none" in error_of(done)
