"""`dranode report --kubeconfig`, as a program with a real connection."""

import json
import re
import sys
from pathlib import Path

from tests.fakes.apiserver import Fault, api_server
from tests.fakes.clusters import CLASS
from tests.fakes.program import run_program
from tests.unit.sim.report.test_waiting import claim, node, pod, slice_of

PROGRAM = Path(sys.executable).with_name("dranode")


def test_a_cluster_is_read_and_never_written(tmp_path: Path) -> None:
    with api_server() as api:
        api.faults.append(Fault(path="/events", times=9, status=403))
        for resource, document in (
            ("deviceclasses", CLASS),
            ("resourceslices", slice_of("w")),
            ("resourceclaims", claim("held", 1, "gpu-0")),
            ("resourceclaims", claim("big", 2)),
            ("nodes", node()),
            ("pods", pod("p", "big")),
        ):
            core = resource in ("pods", "nodes")
            api.put(resource, {"apiVersion": "v1" if core else "resource.k8s.io/v1", **document})
        kubeconfig = api.kubeconfig(tmp_path / "kubeconfig")
        done = run_program("report", "--kubeconfig", kubeconfig, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert {each.method for each in api.seen} == {"GET"}
    assert "1 node, 2 devices, 2 claims, 1 waiting" in done.stdout
    # A refusal by the server is reported, not treated as an empty list.
    assert re.search("not seen: not read: .*events", done.stderr)
    (text,) = re.findall(r'id="data">(.*?)</script>', (tmp_path / "report.html").read_text(), re.DOTALL)
    assert "cannot allocate all claims" in json.loads(text)["waiting"][0][2][0]
