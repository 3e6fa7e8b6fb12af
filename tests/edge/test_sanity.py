"""`dranode sanity` as a program, with drivers of this package as programs."""

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

from tests.fakes.program import run_program

PROGRAM = Path(sys.executable).with_name("dranode")
SERVE = (
    str(PROGRAM), "serve", "--nri-socket", "none", "--http-address", "none", "--kubelet-root", "{kubelet}",
    "--cdi-dir", "{cdi}", "--node-name", "{node}", "--kubeconfig", "{kubeconfig}",
)  # fmt: skip
CPU = (*SERVE, "--machine", "sockets=2,numa=2,cores=2,threads=2")


def sanity(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PROGRAM, "sanity", *arguments], check=False, capture_output=True, text=True)


def test_a_driver_is_started_checked_and_stopped(tmp_path: Path) -> None:
    report = tmp_path / "junit.xml"
    options = ("--focus", "registration-stale-socket", "--focus", "prepare-v1beta1-agrees", "--patience", "180")
    ended = sanity(*options, "--junit", str(report), "-o", "json", "--", *CPU)
    assert ended.returncode == 0, ended.stderr
    document = json.loads(ended.stdout)
    assert [check["verdict"] for check in document["checks"]] == ["passed", "passed"]
    assert document["summary"] == "dra.cpu: 2 of 2 MUST, 0 of 0 SHOULD passed; 0 not run"
    assert document["capabilities"]["shareableDevices"] == 4
    assert len(ET.parse(report).getroot()) == 2  # noqa: S314 - our own


def test_our_driver_passes_the_checks_of_unprepare_and_cdi() -> None:
    options = (
        "--focus",
        "unprepare",
        "--focus",
        "cdi",
        "--focus",
        "restart-same-answer",
        "--patience",
        "180",
        "--strict",
    )
    ended = sanity(*options, "-o", "json", "--", *CPU, "--cpu-device-mode", "individual")
    document = json.loads(ended.stdout)
    assert [(check["id"], check["text"]) for check in document["checks"] if check["verdict"] != "passed"] == []
    assert ended.returncode == 0


def test_a_driver_that_does_not_start_fails_with_its_log(tmp_path: Path) -> None:
    report = tmp_path / "junit.xml"
    command = ("--", "/bin/sh", "-c", "echo no lamps; exit 3")
    ended = sanity("--state", str(tmp_path / "state"), "--junit", str(report), "--focus", "prepare", *command)
    assert ended.returncode == 1
    assert ended.stderr.startswith("dranode: no registration socket answers")
    assert "the driver ended with status 3; its log ends: no lamps" in ended.stderr
    root = ET.parse(report).getroot()  # noqa: S314 - our own
    assert (root.get("failures"), root.get("skipped")) == ("1", str(int(root.get("tests", "0")) - 1))


def test_wrong_options_are_named(tmp_path: Path) -> None:
    for arguments, message in (
        ((), "no driver is named"),
        (("--focus", "prepar", "--list"), '--focus "prepar" matches no check'),
        (("--", "/bin/true", "{kubeconfg}"), '"{kubeconfg}" in the command is unknown'),
        (("--socket", "s", "--claims", "/nowhere"), "the folder of claims /nowhere cannot be read"),
    ):
        ended = run_program("sanity", *arguments, cwd=tmp_path)
        assert (ended.returncode, message in ended.stderr) == (2, True), ended.stderr


def test_the_list_has_every_check(tmp_path: Path) -> None:
    listed = json.loads(run_program("sanity", "--list", "-o", "json", cwd=tmp_path).stdout)
    assert {check["level"] for check in listed} == {"MUST", "SHOULD"}
    assert all(check["rule"] and check["source"] for check in listed)
