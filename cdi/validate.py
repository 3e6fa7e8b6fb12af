"""Checks whether container runtimes would load a CDI spec, with the rules of the newest Go library, v1.1.1."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from dranode.cdi.errors import CDIError
from dranode.cdi.names import split_kind
from dranode.cdi.rules import NO_PERMISSIONS, spec_problems
from dranode.cdi.spec import Spec


class SpecVerdict(msgspec.Struct, frozen=True):
    """The verdict on one document.

    Attributes:
        problems: the reasons why a runtime does not load it, each with its path; empty if it does.
        spec: the content, None if there are problems.
        warnings: older runtimes that do not load it, one sentence each.
    """

    problems: tuple[CDIError, ...] = ()
    spec: Spec | None = None
    warnings: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Return whether a runtime loads it."""
        return not self.problems


def validate(data: bytes) -> SpecVerdict:
    """Check the content of a file, YAML or JSON; never raises."""
    from dranode.cdi.document import load_spec  # noqa: PLC0415 - YAML, which a program that only writes specs does not need

    try:
        spec = load_spec(data)
    except CDIError as error:
        return SpecVerdict(problems=(error,))
    if problems := spec_problems(spec):
        return SpecVerdict(problems=problems)
    return SpecVerdict(spec=spec, warnings=tuple(_older_runtimes(spec)))


def _older_runtimes(spec: Spec) -> Iterator[str]:
    """Yield what older runtimes that are still in use refuse in a spec that the newest library loads."""
    edits = [spec.container_edits, *(device.container_edits for device in spec.devices)]
    new = spec.cdi_version.removeprefix("v") in ("1.0.0", "1.1.0")
    root_clos = any(part.intel_rdt is not None and part.intel_rdt.clos_id == "/" for part in edits)
    no_permissions = any(node.permissions == NO_PERMISSIONS for part in edits for node in part.device_nodes)
    short = any(len(name) == 1 for name in split_kind(spec.kind))
    if new:
        yield f"containerd 1.7 (CDI library v0.8.1) refuses version {spec.cdi_version}; it knows 0.8.0 and older"
    if root_clos:
        yield 'containerd 1.7 (CDI library v0.8.1) refuses closID "/"'
    if no_permissions:
        yield 'containerd 2.2 and older (CDI library v1.1.0) refuse the permissions "none"'
    if short:
        yield f"containerd 2.2 and older (CDI library v1.1.0) crash over a vendor or class of one letter: {spec.kind}"
