"""Wrong input is one error with file, document and path, and exit status 1, in every command that reads documents."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dranode.api.errors import DocumentError
from dranode.driver.cli.commands import cli

DRA = "apiVersion: resource.k8s.io/v1\n"
CLASS = f"{DRA}kind: DeviceClass\nmetadata: {{name: c}}\n"
NODE = "apiVersion: v1\nkind: Node\nmetadata: {name: w}\nstatus: {allocatable: {cpu: '4', pods: '110'}}\n"
SLICE = (
    f"{DRA}kind: ResourceSlice\nmetadata: {{name: s}}\nspec: {{driver: d.example.com, nodeName: w, "
    "pool: {name: w, generation: 1, resourceSliceCount: 1}, devices: [{name: d0}]}\n"
)
CLAIM = (
    f"{DRA}kind: ResourceClaim\nmetadata: {{name: cl}}\n"
    "spec: {devices: {requests: [{name: r, exactly: {deviceClassName: c}}]}}\n"
)
POD = (
    "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: a, image: x, resources: {claims: "
    "[{name: k}]}}], resourceClaims: [{name: k, resourceClaimName: cl}]}\n"
)
RULE = f"{DRA}kind: DeviceTaintRule\nmetadata: {{name: t}}\nspec: {{taint: {{key: x, effect: NoSchedule}}}}\n"
GROUP = "apiVersion: scheduling.k8s.io/v1alpha3\nkind: PodGroup\nmetadata: {name: g}\nspec: {}\n"
DOCUMENTS = f"{CLASS}---\n{NODE}---\n{SLICE}---\n{CLAIM}---\n{POD}---\n{RULE}---\n{GROUP}"
NODES = "nodes: [{name: m, machine: 'sockets=1,cores=4'}]\n"
COMMANDS = (("check",), ("allocate",), ("fit",), ("bundle",), ("local", "--nodes", "nodes.yaml"))

# What is replaced in the documents, by what, in which document, at which path.
DAMAGED = {
    "a misspelt kind": ("kind: Pod\n", "kind: Pood\n", 5, "kind"),
    "no kind": ("kind: Pod\n", "", 5, ""),
    "an unknown group": (
        f"{DRA}kind: ResourceSlice",
        "apiVersion: resources.k8s.io/v1\nkind: ResourceSlice",
        3,
        "apiVersion",
    ),
    "metadata that is a text": ("metadata: {name: p}", "metadata: p", 5, "metadata"),
    "a name that is a number": ("metadata: {name: w}", "metadata: {name: 5}", 2, "metadata.name"),
    "a label that is no text": ("metadata: {name: w}", "metadata: {name: w, labels: {a: true}}", 2, "metadata.labels"),
    "a quantity that is none": ("cpu: '4'", "cpu: lots", 2, "status.allocatable"),
    "a slice without a driver": ("driver: d.example.com, ", "", 3, "spec"),
    "a misspelt field": (
        "deviceClassName: c",
        "deviceClassName: c, cout: 2",
        4,
        "spec.devices.requests[0].exactly.cout",
    ),
    "a count that is a word": ("deviceClassName: c", "deviceClassName: c, count: two", 4, "spec.devices.requests[0]"),
    "a status that is a text": ("requests: [{name: r", "requests: [5, {name: r", 4, "spec.devices.requests[0]"),
    "an effect that is none": ("effect: NoSchedule", "effect: Never", 6, "spec.taint.effect"),
    "a rule without a taint": ("taint: {key: x, effect: NoSchedule}", "", 6, "spec"),
    "a group that is a number": ("metadata: {name: g}\nspec: {}", "metadata: {name: g}\nspec: 5", 7, "spec"),
    "two of one name": (
        "metadata: {name: g}\nspec: {}\n",
        f"metadata: {{name: g}}\nspec: {{}}\n---\n{SLICE}",
        8,
        "metadata.name",
    ),
}
UNREADABLE = {
    "nothing": b"",
    "an empty document": b"---\n---\n",
    "half a JSON object": b'{"kind": "Pod", ',
    "UTF-16": "kind: Pod".encode("utf-16"),
    "a text": b"hello\n",
    "a List of nothing": b"apiVersion: v1\nkind: List\nitems: []\n",
}


def run(folder: Path, text: str | bytes, *command: str) -> Result:
    (folder / "nodes.yaml").write_text(NODES)
    (folder / "x.yaml").write_bytes(text.encode() if isinstance(text, str) else text)
    return CliRunner().invoke(cli, [*command, "x.yaml"])


def sentence(result: Result) -> str:
    """What the program says, on one line; fails unless the program reports an error."""
    assert isinstance(result.exception, (DocumentError, SystemExit)), repr(result.exception)
    assert result.exit_code == 1, result.output
    said = str(result.exception) if isinstance(result.exception, DocumentError) else result.output
    return " ".join(said.split())


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("what", DAMAGED)
def test_a_damaged_document_is_named_by_every_command(what: str, tmp_path: Path) -> None:
    before, after, number, path = DAMAGED[what]
    assert before in DOCUMENTS
    text = DOCUMENTS.replace(before, after, 1)
    for command in COMMANDS:
        said = sentence(run(tmp_path, text, *command))
        assert path in said, command
        assert "x.yaml" in said, command
        if command != ("check",):
            assert said.startswith(f"x.yaml, document {number}"), command


@pytest.mark.parametrize("what", UNREADABLE)
def test_a_file_without_documents_is_named_by_every_command(what: str, tmp_path: Path) -> None:
    for command in COMMANDS:
        assert "x.yaml" in sentence(run(tmp_path, UNREADABLE[what], *command)), command


def test_the_unchanged_documents_are_valid(tmp_path: Path) -> None:
    for command in COMMANDS[:3]:
        result = run(tmp_path, DOCUMENTS, *command)
        assert result.exit_code == 0, result.output


def test_a_misspelled_field_of_a_new_pod_is_reported(tmp_path: Path) -> None:
    pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: typo}\nspec: {nodeSelecter: {a: b}, containers: [{name: c}]}\n"
    for command in COMMANDS[1:]:
        text = f"{DOCUMENTS}\n---\n{pod}"
        assert "spec.nodeSelecter: there is no such field" in run(tmp_path, text, *command).stderr, command
        assert "nodeSelecter" not in run(tmp_path, text.replace("name: typo", "name: typo, uid: u"), *command).stderr


def test_a_field_that_an_api_server_has_stored_is_not_reported(tmp_path: Path) -> None:
    stored = DOCUMENTS.replace("metadata: {name: cl}", "metadata: {name: cl, uid: u}")
    newer = stored.replace("deviceClassName: c", "deviceClassName: c, newer: 2")
    assert run(tmp_path, newer, "allocate").exit_code == 0


@pytest.mark.parametrize(
    ("nodes", "path"),
    [
        ("nodes: []", "nodes"),
        ("nodes: [null]", "nodes[0]"),
        ("nodes: [{name: w, machin: cores=4}]", "nodes[0]"),
        ("nodes: [{name: w, machine: cores=x}]", "the machine of the nodes w: cores=x"),
        ("nodes: [{name: w, machine: absent.tar}]", 'the machine of the nodes w: there is no machine "absent.tar"'),
    ],
)
def test_a_damaged_catalog_is_named(nodes: str, path: str, tmp_path: Path) -> None:
    (tmp_path / "wrong.yaml").write_text(nodes)
    poor = DOCUMENTS.replace("cpu: '4'", "cpu: '0'").replace("resources: {", "resources: {requests: {cpu: 1}, ")
    for command in (("local", "--nodes", "wrong.yaml"), ("fit", "--add", "wrong.yaml")):
        assert sentence(run(tmp_path, poor, *command)).startswith(f"wrong.yaml: {path}")


def test_a_missing_file_is_named_once(tmp_path: Path) -> None:
    for command in (("local", "--nodes", "gone.yaml"), ("fit", "--add", "gone.yaml")):
        assert sentence(run(tmp_path, DOCUMENTS, *command)).count("gone.yaml") == 1


def test_a_count_below_0_is_refused(tmp_path: Path) -> None:
    text = DOCUMENTS.replace("deviceClassName: c", "deviceClassName: c, count: -1")
    for command in (("check",), ("allocate",), ("fit",)):
        assert "count" in sentence(run(tmp_path, text, *command))
