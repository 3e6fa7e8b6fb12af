"""The local run from end to end, as a program."""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from dranode.api.cpuset import CPUSet
from dranode.api.errors import ClaimError, DranodeError
from dranode.api.resource import ResourceClaim
from dranode.driver.claims.grant import Grant
from dranode.driver.claims.held import ClaimRef
from dranode.sim.allocator.features import Features
from dranode.sim.cluster.workload import PodWithClaims, WorkloadDocuments
from dranode.sim.local import run as local_run_module
from dranode.sim.local.run import local_run
from tests.fakes.drivers import Board, Lamps, WiredLamps, allocated_claim
from tests.fakes.program import run_program

PROGRAM = Path(sys.executable).with_name("dranode")
SERVER = "sockets=2,numa=2,cores=4,threads=2"


def local(cwd: Path, *arguments: str | Path, claims: list[dict[str, Any]]) -> tuple[int, dict[str, Any], str]:
    (cwd / "claims.yaml").write_text(yaml.safe_dump_all(claims))
    done = run_program("local", "--node-name", "worker", "claims.yaml", "-o", "json", *arguments, cwd=cwd)
    return done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr


def claim(name: str, count: str | None = "4", config: Any = None, **spec: Any) -> dict[str, Any]:
    exactly: dict[str, Any] = {"deviceClassName": "dra.cpu"}
    if count is not None:
        exactly["capacity"] = {"requests": {"dra.cpu/cpu": count}}
    devices: dict[str, Any] = {"requests": [{"name": "r", "exactly": exactly}], **spec}
    if config is not None:
        devices["config"] = [{"opaque": {"driver": "dra.cpu", "parameters": config}}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": devices},
    }


def allocated(
    name: str, *, results: list[dict[str, Any]], config: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "uid": f"uid-{name}"},
        "status": {
            "allocation": {
                "devices": {
                    "results": [
                        {"request": "r", "driver": "dra.cpu", "pool": "worker", **result} for result in results
                    ],
                    "config": config or [],
                }
            }
        },
    }


def test_claims_are_published_allocated_prepared_and_taken_down(tmp_path: Path) -> None:
    rc, shown, _ = local(tmp_path, "--machine", SERVER, "--state", "state", claims=[claim("a"), claim("b", "3")])
    assert rc == 0
    assert [device["name"] for device in shown["slices"][0]["spec"]["devices"]] == [
        f"cpudevnuma{node:03d}" for node in range(4)
    ]
    a, b = shown["claims"]
    assert (a["name"], a["node"], a["cpus"], a["error"]) == ("a", "worker", "0-1,16-17", None)
    assert (b["name"], b["cpus"]) == ("b", "2-3,18")
    assert set(a) == {"namespace", "name", "uid", "node", "allocation", "devices", "cdi_files", "cpus", "error"}
    assert set(a["devices"][0]) == {"requests", "pool", "device", "cdi", "share_id"}
    assert a["devices"][0]["cdi"] == [f"dra.k8s.io/cpu=claim-{a['uid']}"]
    assert [Path(path).name for path in a["cdi_files"]] == [f"dra.k8s.io-cpu_claim-{a['uid']}.json"]
    assert a["devices"][0]["share_id"] == a["allocation"]["devices"]["results"][0]["shareID"]
    assert shown["unprepared"] is True
    assert list((tmp_path / "state" / "cdi").iterdir()) == []


def test_kept_claims_stay_prepared_for_a_second_run(tmp_path: Path) -> None:
    keep = ("--machine", SERVER, "--state", "state", "--keep")
    _, first, _ = local(tmp_path, *keep, claims=[claim("a")])
    spec = json.loads(Path(first["claims"][0]["cdi_files"][0]).read_text())
    assert spec["devices"][0]["containerEdits"]["env"] == [f"DRA_CPUSET_{first['claims'][0]['uid']}=0-1,16-17"]
    assert spec["cdiVersion"] == "0.3.0"
    shown = run_program("claims", "--kubelet-root", "state/kubelet", "-o", "json", cwd=tmp_path)
    (row,) = json.loads(shown.stdout)
    assert (row["name"], row["cpus"], row["held"], row["state"], row["pods"]) == (
        "a",
        "0-1,16-17",
        "0-1,16-17",
        "completed",
        ["a"],
    )
    _, second, _ = local(tmp_path, *keep, claims=[claim("b"), claim("a")])
    cpus = {one["name"]: one["cpus"] for one in second["claims"]}
    assert cpus == {"a": "0-1,16-17", "b": "2-3,18-19"}
    rc, third, _ = local(tmp_path, *keep[:-1], claims=[claim("b"), claim("c")])
    assert (rc, third["unprepared"]) == (0, True)
    assert [path.name for path in (tmp_path / "state" / "store" / "resourceclaims").iterdir()] == ["default.a.yaml"]


def test_each_request_is_shown_with_its_own_cpus(tmp_path: Path) -> None:
    one = claim("a")
    (request,) = one["spec"]["devices"]["requests"]
    one["spec"]["devices"]["requests"] = [{**request, "name": name} for name in ("workers", "io")]
    _, shown, _ = local(tmp_path, "--machine", SERVER, claims=[one])
    (prepared,) = shown["claims"]
    requests = prepared["requestCpus"]
    assert list(requests) == ["workers", "io"]
    assert CPUSet.parse(requests["workers"]).isdisjoint(CPUSet.parse(requests["io"]))
    assert CPUSet.union(map(CPUSet.parse, requests.values())) == CPUSet.parse(prepared["cpus"])


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
def test_beta_versions_and_templates_are_accepted(tmp_path: Path, version: str) -> None:
    capacity = {"requests": {"dra.cpu/cpu": "2"}}
    exactly = {"deviceClassName": "dra.cpu", "capacity": capacity}
    request = {"name": "r", **exactly} if version == "v1beta1" else {"name": "r", "exactly": exactly}
    template = {
        "apiVersion": f"resource.k8s.io/{version}",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "t"},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }
    rc, shown, _ = local(tmp_path, "--machine", SERVER, claims=[template])
    assert rc == 0
    assert [(one["name"], one["cpus"]) for one in shown["claims"]] == [("t", "0,16")]


def test_each_pod_gets_its_own_claim_from_a_template_and_pods_share_a_named_claim(tmp_path: Path) -> None:
    def pod(name: str) -> dict[str, Any]:
        claims = [{"name": "own", "resourceClaimTemplateName": "t"}, {"name": "shared", "resourceClaimName": "both"}]
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {"resourceClaims": claims, "containers": []},
        }

    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "t"},
        "spec": {"spec": claim("x", "2")["spec"]},
    }
    rc, shown, _ = local(tmp_path, "--machine", SERVER, claims=[template, claim("both", "1"), pod("p"), pod("q")])
    assert rc == 0
    assert [(one["name"], one["cpus"]) for one in shown["claims"]] == [
        ("p-own", "0,16"),
        ("both", "1"),
        ("q-own", "2,18"),
        ("both", "1"),
    ]


def test_a_pod_of_another_node_is_not_prepared(tmp_path: Path) -> None:
    def pod(name: str, node: str) -> dict[str, Any]:
        claims = [{"name": "c", "resourceClaimName": f"of-{name}"}]
        spec = {"nodeName": node, "resourceClaims": claims, "containers": []}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}

    documents = [claim("of-p"), claim("of-q"), pod("p", "elsewhere"), pod("q", "worker")]
    rc, shown, _ = local(tmp_path, "--machine", SERVER, claims=documents)
    assert rc == 1
    assert [(one["name"], one["cpus"] is None) for one in shown["claims"]] == [("of-p", True), ("of-q", False)]
    assert "pod default/p is bound to node elsewhere (spec.nodeName)" in shown["claims"][0]["error"]


CPUS = {"device": "cpudevnuma000", "consumedCapacity": {"dra.cpu/cpu": "2"}}


@pytest.mark.parametrize(
    ("result", "sentence"),
    [
        ({"device": "cpudevnuma009", "consumedCapacity": {"dra.cpu/cpu": "2"}}, 'device "cpudevnuma009"'),
        ({"device": "cpudevnuma000", "consumedCapacity": {"dra.cpu/cpu": "500m"}}, "must be a whole number"),
        ({"device": "cpudevnuma000", "consumedCapacity": {"dra.cpu/cpu": "0"}}, "must be positive"),
        ({"device": "cpudevnuma000", "consumedCapacity": {"dra.cpu/cpu": "-1"}}, "must be positive"),
        ({**CPUS, "pool": "node-77"}, 'pool "node-77", but this node\'s pool is "worker"'),
        ({"device": "cpudevnuma000"}, 'CPU capacity "dra.cpu/cpu" for device "cpudevnuma000" is missing'),
    ],
)
def test_an_invalid_allocation_fails_only_its_claim(tmp_path: Path, result: dict[str, Any], sentence: str) -> None:
    claims = [allocated("bad", results=[result]), allocated("good", results=[CPUS])]
    rc, shown, _ = local(tmp_path, "--machine", SERVER, claims=claims)
    bad, good = shown["claims"]
    assert rc == 1
    assert sentence in bad["error"]
    assert (bad["cpus"], bad["cdi_files"]) == (None, [])
    assert good["cpus"] == "0,16"


def test_kubelet_gets_cdi_devices_for_the_claim_and_for_each_request(tmp_path: Path) -> None:
    results = [{**CPUS, "request": name, "shareID": name} for name in ("a", "b")]
    _, shown, _ = local(tmp_path, "--machine", SERVER, claims=[allocated("two", results=results)])
    (two,) = shown["claims"]
    assert (two["error"], two["cpus"]) == (None, "0-1,16-17")
    assert [(device["requests"], device["cdi"][:2]) for device in two["devices"]] == [
        (["a"], ["dra.k8s.io/cpu=claim-uid-two", "dra.k8s.io/cpu=claim-uid-two-0"]),
        (["b"], ["dra.k8s.io/cpu=claim-uid-two", "dra.k8s.io/cpu=claim-uid-two-1"]),
    ]


def test_an_allocated_claim_is_prepared_as_it_is_without_other_drivers_parts(tmp_path: Path) -> None:
    other = {"driver": "other.example.com"}
    configs = [{"source": "FromClaim", "opaque": {**other, "parameters": {"nonsense": [1]}}}]
    results: list[dict[str, Any]] = [{"device": "x", **other}, CPUS]
    rc, shown, stderr = local(tmp_path, "--machine", SERVER, claims=[allocated("a", results=results, config=configs)])
    assert rc == 0
    assert [device["device"] for device in shown["claims"][0]["devices"]] == ["cpudevnuma000"]
    assert "other.example.com" in stderr


@pytest.mark.parametrize(
    ("arguments", "rc", "sentence"),
    [
        (["--reserved-cpus", "99"], 2, "99"),
        (["--machine", "sockets=0"], 2, "sockets"),
        (["--machine", "no-such-folder"], 2, "no-such-folder"),
        (["missing.yaml"], 1, "missing.yaml"),
        (["broken.yaml"], 1, "broken.yaml"),
        (["empty.yaml"], 1, "empty.yaml holds no document"),
        (["typo.yaml"], 1, 'document 1 (ResourceClam): kind: Kubernetes has no kind "ResourceClam"'),
        (["node.yaml"], 1, "no claim, template or pod in node.yaml"),
        (["--keep"], 2, "--state"),
        (["--drivers", "fpga"], 2, 'no driver "fpga"'),
        (["--group-by", "rack"], 2, "rack"),
        (["--config", "config.yaml"], 2, "reservedcpus"),
        (["--state", "broken.yaml"], 1, "broken.yaml"),
    ],
    ids=lambda value: str(value[-1]) if isinstance(value, list) else "",
)
def test_bad_input_is_reported_in_one_sentence_on_stderr(
    tmp_path: Path, arguments: list[str], rc: int, sentence: str
) -> None:
    (tmp_path / "broken.yaml").write_text("kind: [\n")
    (tmp_path / "empty.yaml").write_text("---\n")
    (tmp_path / "typo.yaml").write_text("kind: ResourceClam\n")
    (tmp_path / "node.yaml").write_text("kind: Node\n")
    (tmp_path / "config.yaml").write_text('reservedcpus: "0"\n')
    done = run_program("local", "--machine", "cores=4", *arguments, cwd=tmp_path)
    assert done.returncode == rc, done.stderr
    assert done.stdout == ""
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_the_sockets_of_a_long_state_folder_are_in_a_short_one(tmp_path: Path) -> None:
    long = tmp_path / ("deep" * 20) / "state"
    rc, shown, stderr = local(tmp_path, "--machine", SERVER, "--state", str(long), "--keep", claims=[claim("a")])
    assert (rc, shown["claims"][0]["cpus"]) == (0, "0-1,16-17"), stderr
    assert (long / "kubelet" / "plugins" / "dra.cpu" / "ledger.db").exists()


def test_a_configuration_file_is_overridden_by_the_environment_and_that_by_a_flag(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        'apiVersion: v1alpha1\nreservedCPUs: "0"\ngroupBy: socket\ncpuDeviceMode: grouped\n'
    )
    done = subprocess.run(
        [
            PROGRAM,
            "slices",
            "--config",
            "c.yaml",
            "--machine",
            "sockets=2,cores=4",
            "--reserved-cpus",
            "2",
            "-o",
            "json",
        ],
        cwd=tmp_path,
        env={"DRANODE_GROUP_BY": "machine", "DRANODE_RESERVED_CPUS": "1", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    (device,) = json.loads(done.stdout)["items"][0]["spec"]["devices"]
    assert device["name"] == "cpudevmachine"
    assert device["capacity"]["dra.cpu/cpu"]["value"] == "7"


def test_the_demo_succeeds_if_only_its_too_large_claim_fails(tmp_path: Path) -> None:
    done = run_program("demo", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "cpus/small" in done.stdout
    assert "default/too-large  does not fit" in done.stdout
    assert done.stdout.count("NUMA 7") == 2


def test_a_missing_temporary_folder_is_reported_with_the_advice_to_set_tmpdir(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    run = local_run((), "node", None, Features(), lambda _: None)
    with pytest.raises(DranodeError, match=r"be created: No such file or directory; set TMPDIR"), run:
        pytest.fail("there is no folder to run in")


def test_a_run_is_drawn_before_and_after_as_a_page_and_as_svg(tmp_path: Path) -> None:
    drawn = ("--machine", SERVER, "--html", "run.html", "--svg", "run.svg")
    rc, _, _ = local(tmp_path, *drawn, claims=[claim("fits"), claim("too-large", "99")])
    assert rc == 1
    (text,) = re.findall(r'id="data">(.*?)</script>', (tmp_path / "run.html").read_text(), re.DOTALL)
    page = json.loads(text)
    before, after = page["moments"]
    assert (before["title"], before["claims"], after["title"]) == ("before", [], "after")
    (held,) = after["claims"]
    assert (held[0], held[3]) == ("default/fits", [[0, "0-1,16-17"]])
    (waiting,) = page["waiting"]
    assert waiting[0] == "default/too-large"
    svg = (tmp_path / "run.svg").read_text()
    assert ">before<" in svg
    assert "default/fits  CPUs 0-1,16-17" in svg


def test_a_run_with_memory_shows_how_much_of_each_device_a_claim_has(tmp_path: Path) -> None:
    machine = "sockets=2,cores=8,memory=64,hugepages1g=8"
    example = Path(__file__).parents[2] / "examples" / "memory-database.yaml"
    arguments = ("--drivers", "cpu,memory", "--machine", machine, "--html", "run.html", "--svg", "run.svg")
    done = run_program("local", *arguments, example, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    before, after = done.stdout.split("Before")[1].split("With the claims prepared")
    assert re.search(r"memory +memory-numa0 +8Gi", before)
    assert re.search(r"buffers +hugepages-1g-numa0 +1Gi", before)
    assert re.search(r"│ memory-numa0 +55Gi of 55Gi free ", before)
    assert re.search(r"│ memory-numa0 +47Gi of 55Gi free A ", after)
    assert re.search(r"│ hugepages-1g-numa0 +7Gi of 8Gi free A ", after)
    assert re.search(r"│ memory-numa1 +55Gi of 55Gi free ", after)
    page = (tmp_path / "run.html").read_text()
    assert '"8Gi"' in page
    assert "memory-numa0" in (tmp_path / "run.svg").read_text()


def _container(name: str, *claims: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "image": "i", "resources": {"claims": [{"name": claim} for claim in claims]}, **more}


def _pod(name: str, *containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    claims = [{"name": "c", "resourceClaimName": "both"}]
    made = {"resourceClaims": claims, "containers": list(containers), **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": made}


SHARED_IN_POD = {"apiVersion": "dra.cpu/v1alpha1", "kind": "CPUConfig", "sharing": "pod"}


@pytest.mark.parametrize(
    ("config", "pods", "refused"),
    [
        (None, [_pod("p", _container("a", "c"), _container("b", "c"))], ["one container may use it at a time"]),
        (SHARED_IN_POD, [_pod("p", _container("a", "c"), _container("b", "c"))], [None]),
        (SHARED_IN_POD, [_pod(name, _container("a", "c")) for name in "pq"], [None, "only containers of one pod"]),
        (None, [_pod("p", _container("b", "c"), initContainers=[_container("a", "c")])], [None]),
    ],
)
def test_a_second_user_that_nri_would_refuse_is_the_claims_error(
    tmp_path: Path, config: Any, pods: list[dict[str, Any]], refused: list[str | None]
) -> None:
    rc, shown, _ = local(tmp_path, "--machine", SERVER, claims=[claim("both", "2", config), *pods])
    assert rc == any(refused)
    for row, sentence in zip(shown["claims"], refused, strict=True):
        assert row["cpus"] == "0,16"
        assert row["error"] is None if sentence is None else sentence in row["error"]


def test_a_claim_of_a_pod_that_names_this_node_is_shown_and_has_an_error(tmp_path: Path) -> None:
    documents = [claim("both", "2"), _pod("p", _container("a", "c"), nodeName="worker")]
    rc, shown, _ = local(tmp_path, "--machine", SERVER, claims=documents)
    assert rc == 1
    assert shown["claims"][0]["cpus"] == "0,16"
    assert "sets spec.nodeName to worker" in shown["claims"][0]["error"]


def test_a_class_whose_driver_is_not_running_is_named(tmp_path: Path) -> None:
    gpu = claim("both", None)
    gpu["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = "dra.gpu"
    rc, shown, _ = local(tmp_path, "--machine", SERVER, "--drivers", "cpu", claims=[gpu])
    assert rc == 1
    assert "no device of class dra.gpu: driver dra.gpu does not run here" in shown["claims"][0]["error"]


def test_a_refused_claim_is_reported_once_and_without_waiting(tmp_path: Path) -> None:
    claims = [claim(name, "2", {"cpuset": cpus}) for name, cpus in (("a", "2-3"), ("b", "3-4"))]
    (tmp_path / "claims.yaml").write_text(yaml.safe_dump_all(claims))
    done = run_program("local", "--machine", "cores=8", "claims.yaml", cwd=tmp_path)
    assert done.returncode == 1
    assert "3 held by default/a" in " ".join(done.stdout.split())
    assert "prepare driver=" not in done.stderr


def test_the_settings_that_a_quiet_claim_changes_are_shown_before_during_and_after(tmp_path: Path) -> None:
    quiet = {"apiVersion": "dra.cpu/v1alpha1", "kind": "CPUConfig", "isolation": "quiet"}
    (tmp_path / "claims.yaml").write_text(yaml.safe_dump(claim("a", "2", quiet)))
    arguments = ["local", "--machine", "cores=4,interrupts=2", "--max-isolation", "quiet", "claims.yaml"]
    done = run_program(*arguments, cwd=tmp_path)
    assert re.search(r"/proc/irq/\*/smp_affinity_list \(2 files\) +0-3 +2-3 +0-3", done.stdout)
    assert re.search(r"/sys/devices/virtual/workqueue/cpumask +0000000f +0000000c +0000000f", done.stdout)
    written = json.loads(run_program(*arguments, "-o", "json", cwd=tmp_path).stdout)["written"]
    assert {"path": "proc/irq/25/smp_affinity_list", "before": "0-3", "prepared": "2-3", "after": "0-3"} in written


def test_a_container_is_a_cpuset_partition_while_its_claim_is_prepared(tmp_path: Path) -> None:
    config = {"apiVersion": "dra.cpu/v1alpha1", "kind": "CPUConfig", "isolation": "partition"}
    isolated = ("--machine", "cores=4", "--max-isolation", "partition")
    _, run, _ = local(tmp_path, *isolated, claims=[claim("a", "2", config)])
    changed = {file["path"].rpartition("/cpuset.")[2]: list(file.values())[1:] for file in run["written"]}
    assert changed["cpus.partition"] == ["member", "isolated", ""]
    assert changed["cpus.exclusive"] == ["", "0-1", ""]
    assert "sys/fs/cgroup/kubepods.slice/cpuset.cpus.exclusive" in [file["path"] for file in run["written"]]


def test_a_missing_template_is_named_with_the_pods_namespace(tmp_path: Path) -> None:
    template = {**claim("t"), "kind": "ResourceClaimTemplate", "spec": {"spec": claim("t")["spec"]}}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "team"},
        "spec": {"resourceClaims": [{"name": "c", "resourceClaimTemplateName": "t"}], "containers": []},
    }
    _, run, _ = local(tmp_path, "--machine", SERVER, claims=[template, pod])
    (failed,) = [one["error"] for one in run["claims"] if one["error"]]
    assert "ResourceClaimTemplate team/t, which is not in the files" in failed


def test_the_number_of_published_cpus_is_shown_beside_the_devices(tmp_path: Path) -> None:
    (tmp_path / "claims.yaml").write_text(yaml.safe_dump(claim("c")))
    done = run_program("local", "--machine", SERVER, "claims.yaml", cwd=tmp_path)
    assert "31 of 32 CPUs are published" in done.stdout


# --- How the local run reports that it cannot start, and what it does when it cannot clean up ---


def test_a_missing_short_folder_for_sockets_is_reported_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_run_module, "_SHORT", str(tmp_path / "missing"))
    begun = local_run_module.local_run([Lamps()], "node", tmp_path / ("deep" * 30), Features(), lambda _: None)
    with pytest.raises(DranodeError, match=r"created in .*missing: No such file or directory; pass a folder"), begun:
        pass


def test_a_claim_that_cannot_be_unprepared_does_not_keep_others_prepared(tmp_path: Path) -> None:
    class Stuck(WiredLamps):
        def restore(self, claim: ClaimRef, grants: tuple[Grant, ...]) -> None:
            if claim.name == "b":
                raise ClaimError("the lamp cannot be put out")
            super().restore(claim, grants)

    claims = [allocated_claim(name, Stuck.driver, [f"lamp-{number}"]) for number, name in enumerate("abc")]
    pods = (PodWithClaims("default/p", tuple(claims[:1])), PodWithClaims("default/q", tuple(claims[1:])))
    with local_run_module.local_run([Stuck(Board())], "node", tmp_path, Features(), lambda _: None) as run:
        assert [result.error for result in run.run(WorkloadDocuments(pods, ()), lambda _: None)] == [None] * 3
        assert [sentence for sentence in run.unprepare() if "the lamp cannot be put out" in sentence]
        assert [record.name for record in run.records()] == ["b"]
        assert [claim.metadata.name for claim in run.store.list(ResourceClaim)] == ["b"]
