"""`dranode fit --kubeconfig --context --html --svg`, as a program with a real connection."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.fakes.apiserver import Fault, api_server
from tests.fakes.clusters import CLASS
from tests.fakes.program import run_program
from tests.unit.sim.report.test_waiting import claim, node, pod, slice_of

PROGRAM = Path(sys.executable).with_name("dranode")
CLUSTER = (
    ("deviceclasses", CLASS),
    ("resourceslices", slice_of("n")),
    ("resourceclaims", claim("held", 1, "gpu-0")),
    ("resourceclaims", claim("one", 1)),
    ("nodes", node()),
    ("pods", pod("p", "one")),
)


def fit(cwd: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return run_program("fit", *arguments, cwd=cwd)


@pytest.mark.parametrize("context", [None, "other"])
def test_a_live_cluster_and_a_file_are_read_together_and_drawn(tmp_path: Path, context: str | None) -> None:
    more = [{"apiVersion": "resource.k8s.io/v1", **claim("two", 2)}, {"apiVersion": "v1", **pod("q", "two")}]
    (tmp_path / "more.yaml").write_text(yaml.safe_dump_all(more))
    with api_server() as api:
        api.faults.append(Fault(path="/services", times=9, status=403))
        for resource, document in CLUSTER:
            core = resource in ("pods", "nodes")
            api.put(resource, {"apiVersion": "v1" if core else "resource.k8s.io/v1", **document})
        kubeconfig = Path(api.kubeconfig(tmp_path / "kubeconfig"))
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
