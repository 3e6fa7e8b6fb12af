"""Device metadata in files for containers (KEP-5304)."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dranode.api.names import is_qualified_name
from dranode.cdi.regular_file import read_regular
from dranode.cdi.spec import Mount
from dranode.sanity.bench import Bench
from dranode.sanity.breach import Breach, Unable, expect, listed, shown
from dranode.sanity.check import must, should
from dranode.sanity.claims import BenchClaim
from dranode.sanity.kubelet import ClaimAnswer

_KEP: Final = "KEP-5304"
_GROUP: Final = "metadata.resource.k8s.io"
_VERSIONS: Final = (f"{_GROUP}/v1beta1", f"{_GROUP}/v1alpha1")
_BASE: Final = "/var/run/kubernetes.io/dra-device-attributes"
_POD_CLAIM: Final = "resource.kubernetes.io/pod-claim-name"
_ATTRIBUTES: Final = 32


@dataclass(frozen=True)
class MetadataFile:
    """A file of one request: its mount, and the documents in it."""

    request: str
    mount: Mount
    documents: Sequence[Mapping[str, Any]]


def _prepared(bench: Bench, **properties: Any) -> tuple[BenchClaim, list[MetadataFile]]:
    """A prepared claim, and its metadata files as containers of each request see them.

    Raises:
        Unable: the driver offers no metadata.
    """
    claim = bench.claim(bench.devices(), **properties)
    (answer,) = bench.prepared(claim)
    return claim, _files(bench, answer)


def _files(bench: Bench, answer: ClaimAnswer) -> list[MetadataFile]:
    files = [
        MetadataFile(device.requests[0] if device.requests else "", mount, _documents(Path(mount.host_path)))
        for device in answer.devices
        for name in device.cdi
        for edits in bench.specs.resolve(name)
        for mount in edits.mounts
        if mount.container_path.startswith(_BASE) or mount.container_path.endswith("-metadata.json")
    ]
    if not files:
        raise Unable("the driver offers no device metadata")
    return files


def _documents(path: Path) -> list[Mapping[str, Any]]:
    decoder, documents, at = json.JSONDecoder(), [], 0
    try:
        text = read_regular(path).decode()
        while at < len(text.rstrip()):
            document, at = decoder.raw_decode(text, at)
            at += len(text[at:]) - len(text[at:].lstrip())
            documents.append(document)
    except OSError as error:
        raise Breach(
            f"the metadata file {path} cannot be read: {error.strerror}", "write it before Prepare is answered"
        ) from error
    except ValueError as error:
        raise Breach(
            f"{path} is not a stream of JSON documents: {error}", "write one document after the other"
        ) from error
    for document in documents:
        holds = isinstance(document, dict) and isinstance(document.get("metadata"), dict)
        expect(holds, f"{path} has {shown(document)[:80]}, which has no metadata", "write objects with metadata")
    return documents


@must("metadata-documents", f"{_KEP}: the same object once for each version")
def documents_are_metadata(bench: Bench) -> None:
    """The file is a stream of DeviceMetadata documents, each of a known version.

    Looks at version and kind of each document.
    """
    for file in _prepared(bench)[1]:
        expect(file.documents, f"{file.mount.host_path} is empty", "write the object in each version")
        for document in file.documents:
            kind = (document.get("apiVersion"), document.get("kind"))
            right = kind[0] in _VERSIONS and kind[1] == "DeviceMetadata"
            expect(
                right,
                f"a document has apiVersion and kind {shown(kind)}",
                f"write DeviceMetadata of {' and '.join(_VERSIONS)}",
            )


@must("metadata-v1beta1", f"{_KEP}; kubeletplugin helper: v1beta1 is mandatory from 1.37 on")
def v1beta1_is_written(bench: Bench) -> None:
    """One of the documents is of v1beta1.

    Consumers read this version.
    """
    for file in _prepared(bench)[1]:
        versions = [document.get("apiVersion") for document in file.documents]
        expect(_VERSIONS[0] in versions, f"the file has {shown(versions)}", "write v1beta1 too")


@should("metadata-order", f"{_KEP}: consumers take the first document that they know")
def versions_are_newest_first(bench: Bench) -> None:
    """Newer versions come before older ones.

    Looks at the order of the documents.
    """
    for file in _prepared(bench)[1]:
        versions = [document.get("apiVersion") for document in file.documents]
        expect(
            versions == [version for version in _VERSIONS if version in versions],
            f"the file has {shown(versions)}",
            "sort them",
        )


@must("metadata-claim", f"{_KEP}: metadata is the claim's")
def documents_name_the_claim(bench: Bench) -> None:
    """The documents name the claim: name, namespace and UID.

    Compares them with the identity that kubelet sent.
    """
    claim, files = _prepared(bench)
    for file in files:
        for document in file.documents:
            metadata = document.get("metadata", {})
            seen = (metadata.get("namespace"), metadata.get("name"), metadata.get("uid"))
            identity = (claim.identity.namespace, claim.identity.name, claim.uid)
            expect(
                seen == identity,
                f"a document names {shown(seen)}, but the claim is {shown(identity)}",
                "copy the claim's identity",
            )


@must("metadata-devices", f"{_KEP}: requests[].devices[]")
def documents_name_the_devices(bench: Bench) -> None:
    """The documents list the request's devices: driver, pool and name as they were allocated.

    Compares them with the allocation.
    """
    claim, files = _prepared(bench)
    allocated = {(result["driver"], result["pool"], result["device"]) for result in claim.results}
    for file in files:
        for document in file.documents:
            named = {
                (device.get("driver"), device.get("pool"), device.get("name"))
                for request in document.get("requests", ())
                for device in request.get("devices", ())
            }
            expect(named == allocated, f"a document has {listed(map(str, named))}", f"write {listed(allocated)}")


@should("metadata-generation", f"{_KEP}: generation starts at 1 and grows with every update")
def generations_are_kept(bench: Bench) -> None:
    """The first version of a file has generation 1, and a repeated Prepare leaves it.

    Compares the generation before and after.
    """
    claim, files = _prepared(bench)
    before = [document.get("metadata", {}).get("generation") for file in files for document in file.documents]
    expect(set(before) == {1}, f"the generations are {shown(before)}", "begin with 1")
    (answer,) = bench.prepared(claim)
    after = [document["metadata"].get("generation") for file in _files(bench, answer) for document in file.documents]
    expect(after == before, f"after another Prepare the generations are {shown(after)}", "write only what differs")


@must("metadata-path", f"{_KEP}; kubeletplugin helper, devicemetadata")
def paths_are_by_claim(bench: Bench) -> None:
    """In containers, the file is at resourceclaims/<claim>/<request>/<driver>-metadata.json.

    A pod names the claim directly.
    """
    claim, files = _prepared(bench)
    for file in files:
        path = f"{_BASE}/resourceclaims/{claim.identity.name}/{file.request}/{bench.driver}-metadata.json"
        seen = file.mount.container_path
        expect(seen == path, f"it is at {seen}", f"mount it at {path}")


@must("metadata-template-path", f"{_KEP}; annotation {_POD_CLAIM}")
def paths_are_by_template(bench: Bench) -> None:
    """For a claim from a template, it is at resourceclaimtemplates/<name in the pod>/<request>/.

    The claim has the annotation that the controller sets.
    """
    _, files = _prepared(bench, annotations={_POD_CLAIM: "of-the-pod"})
    for file in files:
        path = f"{_BASE}/resourceclaimtemplates/of-the-pod/{file.request}/{bench.driver}-metadata.json"
        seen = file.mount.container_path
        expect(seen == path, f"it is at {seen}", f"mount it at {path}")


@must("metadata-read-only", f"{_KEP}: a read-only bind mount")
def mounts_are_read_only(bench: Bench) -> None:
    """Containers cannot write to the file.

    Looks at the options of the mount.
    """
    for file in _prepared(bench)[1]:
        expect("ro" in file.mount.options, f"the mount's options are {listed(file.mount.options)}", "add ro and bind")


@must(
    "metadata-removed",
    "kubeletplugin/draplugin.go, UnprepareResourceClaims must undo whatever PrepareResourceClaims did",
)
def files_are_removed(bench: Bench) -> None:
    """Unprepare removes the file.

    Looks for the file on the host.
    """
    claim, files = _prepared(bench)
    bench.unprepared(claim)
    left = [file.mount.host_path for file in files if Path(file.mount.host_path).exists()]
    expect(not left, f"{', '.join(left)} is left", "remove the claim's folder")


@should("metadata-attributes", f"{_KEP}; validation of {_VERSIONS[0]}")
def attributes_are_valid(bench: Bench) -> None:
    """Attributes have the names and values of the slices, at most 32 per device.

    Looks at every device in every document.
    """
    for file in _prepared(bench)[1]:
        for document in file.documents:
            for request in document.get("requests", ()):
                for device in request.get("devices", ()):
                    attributes = device.get("attributes") or {}
                    expect(len(attributes) <= _ATTRIBUTES, f"{len(attributes)} attributes", f"keep to {_ATTRIBUTES}")
                    odd = [name for name in attributes if not is_qualified_name(name)]
                    expect(not odd, f"{listed(odd)} are not valid attribute names", "use the names of the slices")
