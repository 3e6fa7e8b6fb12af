"""Go libraries that runtimes use, and how they differ from the one whose verdict counts.

The table of a library lists the documents that are loaded and that this one does not load. The first row that
applies decides. Names and verdicts are those of the vectors in tests/vectors/cdi*.json.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from dranode.cdi.errors import CDIError
from dranode.cdi.loader.direct import load_directly
from dranode.cdi.loader.document import LoadedSpec
from dranode.cdi.names import split_kind
from dranode.cdi.rules import spec_problems
from dranode.cdi.spec import ContainerEdits, Spec

_REFUSES: Final = "refuses it"
_CRASHES: Final = "crashes over it, and the runtime with it"

# Fields that came with version 1.1.0. An earlier library refuses a document that mentions one, even as null.
_NEW_FIELDS: Final = frozenset({"netDevices", "schemata", "enableMonitoring"})


def _all_edits(spec: Spec) -> Iterator[ContainerEdits]:
    yield spec.container_edits
    for device in spec.devices:
        yield device.container_edits


def _new_fields(document: LoadedSpec) -> str:
    names = ", ".join(sorted(document.fields & _NEW_FIELDS))
    return f"it does not know {names}" if names else ""


def _version_after_0_8_0(document: LoadedSpec) -> str:
    declared = document.spec.cdi_version.removeprefix("v")
    return "cdiVersion: the newest that it knows is 0.8.0" if declared in ("1.0.0", "1.1.0") else ""


def _one_character(document: LoadedSpec) -> str:
    parts = zip(("vendor", "class"), split_kind(document.spec.kind), strict=True)
    names = " and ".join(what for what, name in parts if len(name) == 1)
    return f"kind: {names} of one character" if names else ""


def _no_permissions(document: LoadedSpec) -> str:
    nodes = (node for edits in _all_edits(document.spec) for node in edits.device_nodes)
    return 'permissions: it does not know "none"' if any(node.permissions == "none" for node in nodes) else ""


def _root_clos(document: LoadedSpec) -> str:
    rdts = (edits.intel_rdt for edits in _all_edits(document.spec))
    return 'closID: it does not know "/"' if any(rdt is not None and rdt.clos_id == "/" for rdt in rdts) else ""


class Library(msgspec.Struct, frozen=True):
    """A release, the runtime that it was seen in, and its differences in the order in which it checks them."""

    name: str
    differences: tuple[tuple[Callable[[LoadedSpec], str], str], ...]


RELEASED: Final = "v1.1.1 (containerd 2.4.2)"
OLDER: Final = (
    Library(
        "v0.8.1 (containerd 1.7.30)",
        (
            (_new_fields, _REFUSES),
            (_version_after_0_8_0, _REFUSES),
            (_one_character, _CRASHES),
            (_no_permissions, _REFUSES),
            (_root_clos, _REFUSES),
        ),
    ),
    Library(
        "v1.1.0 (containerd 2.2.7)",
        (
            (_one_character, _CRASHES),
            (_no_permissions, _REFUSES),
        ),
    ),
)


def other_verdicts(document: LoadedSpec, data: bytes) -> Iterator[str]:
    """Yield one sentence for each library that does not load a document that is loaded, the file's bytes beside it."""
    for library in OLDER:
        for difference, outcome in library.differences:
            if reason := difference(document):
                yield f"CDI library {library.name} {outcome}: {reason}"
                break
    try:
        problems = spec_problems(load_directly(data))
    except CDIError as error:
        yield f"CDI library {RELEASED} {_REFUSES}: {error}"
    else:
        if problems:
            yield f"CDI library {RELEASED} {_REFUSES}: {problems[0]}"
