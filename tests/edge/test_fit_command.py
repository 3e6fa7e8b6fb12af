"""`dranode fit --kubeconfig --context --html --svg` and `dranode report`, as a program with a real connection."""

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.fakes.apiserver import ApiServer, Fault, api_server
from tests.fakes.clusters import CLASS
from tests.fakes.program import run_program
from tests.unit.sim.report.test_waiting import claim, node, pod, slice_of

CLUSTER = (
    ("deviceclasses", CLASS),
    ("resourceslices", slice_of("w")),
    ("resourceclaims", claim("held", 1, "gpu-0")),
    ("resourceclaims", claim("one", 1)),
    ("nodes", node()),
    ("pods", pod("p", "one")),
)


def fit(cwd: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return run_program("fit", *arguments, cwd=cwd)


def kubeconfig_of(api: ApiServer, folder: Path) -> Path:
    """Put the cluster behind the server."""
    for resource, document in CLUSTER:
        core = resource in ("pods", "nodes")
        api.put(resource, {"apiVersion": "v1" if core else "resource.k8s.io/v1", **document})
    return Path(api.kubeconfig(folder / "kubeconfig"))


@pytest.mark.parametrize("context", [None, "other"])
def test_a_live_cluster_and_a_file_are_read_together_and_drawn(tmp_path: Path, context: str | None) -> None:
    more = [{"apiVersion": "resource.k8s.io/v1", **claim("two", 2)}, {"apiVersion": "v1", **pod("q", "two")}]
    (tmp_path / "more.yaml").write_text(yaml.safe_dump_all(more))
    with api_server() as api:
        api.faults.append(Fault(path="/services", times=9, status=403))
        kubeconfig = kubeconfig_of(api, tmp_path)
        chosen: tuple[str, ...] = ()
        if context is not None:
            # The current context leads nowhere; the named one leads to the cluster.
            config = yaml.safe_load(kubeconfig.read_text("utf-8"))
            current = next(each for each in config["contexts"] if each["name"] == config["current-context"])
            config["contexts"].append({**current, "name": context})
            config["clusters"].append({"name": "nowhere", "cluster": {"server": "http://127.0.0.1:9"}})
            config["contexts"].append({"name": "bad", "context": {**current["context"], "cluster": "nowhere"}})
            kubeconfig.write_text(yaml.safe_dump({**config, "current-context": "bad"}), "utf-8")
            chosen = ("--context", context)
        pictures = ("--html", "fit.html", "--svg", "fit.svg")
        done = fit(tmp_path, "--kubeconfig", kubeconfig, *chosen, "more.yaml", *pictures)
        assert {each.method for each in api.seen} == {"GET"}
    # One of two devices is held and `p` takes the other one, so `q` fits nowhere.
    assert done.returncode == 1, done.stderr
    answer = " ".join(done.stdout.split())
    assert "ns/p" in answer
    assert "ns/q 0/1 nodes are available: 1 cannot allocate all claims." in answer
    assert "not seen" in answer
    assert "services" in answer
    (text,) = re.findall(r'id="data">(.*?)</script>', (tmp_path / "fit.html").read_text("utf-8"), re.DOTALL)
    assert json.loads(text)
    assert (context or "stand-in") in text
    assert (tmp_path / "fit.svg").read_text("utf-8").startswith("<svg")


def test_an_unknown_context_is_reported(tmp_path: Path) -> None:
    with api_server() as api:
        done = fit(tmp_path, "--kubeconfig", api.kubeconfig(tmp_path / "kubeconfig"), "--context", "none")
    assert done.returncode != 0
    assert '"none"' in done.stderr


def test_a_report_reads_a_cluster_and_never_writes(tmp_path: Path) -> None:
    with api_server() as api:
        api.faults.append(Fault(path="/events", times=9, status=403))
        api.put("resourceclaims", {"apiVersion": "resource.k8s.io/v1", **claim("big", 2)})
        api.put("pods", {"apiVersion": "v1", **pod("q", "big")})
        kubeconfig = kubeconfig_of(api, tmp_path)
        done = run_program("report", "--kubeconfig", kubeconfig, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert {each.method for each in api.seen} == {"GET"}
    assert "1 node, 2 devices, 3 claims, 2 waiting" in done.stdout
    # A refusal by the server is reported, not treated as an empty list.
    assert re.search("not seen: not read: .*events", done.stderr)
    (text,) = re.findall(r'id="data">(.*?)</script>', (tmp_path / "report.html").read_text(), re.DOTALL)
    assert "cannot allocate all claims" in json.loads(text)["waiting"][1][2][0]
