"""Reads a CDI folder as a container runtime would, by the rules of the reference loader."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from dranode.cdi.errors import CDIError
from dranode.cdi.names import parse_qualified_name
from dranode.cdi.spec import ContainerEdits, Spec
from dranode.cdi.validate import SpecVerdict, validate
from dranode.sanity.breach import Breach, expect


@dataclass(frozen=True)
class SpecFile:
    """A spec file; `spec` is None if a runtime does not load it."""

    path: Path
    verdict: SpecVerdict
    spec: Spec | None

    def names(self) -> Iterator[str]:
        """The qualified names of its devices."""
        for device in self.spec.devices if self.spec else ():
            yield f"{self.spec.kind}={device.name}" if self.spec else ""


@dataclass(frozen=True)
class SpecFolder:
    """The folder of CDI specs that driver and runtime share."""

    folder: Path

    def listing(self) -> dict[str, bytes]:
        """Every file of the folder with its content, temporary ones included."""
        try:
            paths = sorted(path for path in self.folder.iterdir() if path.is_file())
        except FileNotFoundError:
            return {}
        return {path.name: content for path in paths if (content := _content(path)) is not None}

    def files(self) -> list[SpecFile]:
        """The files that a runtime reads."""
        return [
            _spec_file(self.folder / name, content)
            for name, content in self.listing().items()
            if name.endswith((".json", ".yaml"))
        ]

    def resolve(self, name: str, files: Sequence[SpecFile] | None = None) -> tuple[ContainerEdits, ...]:
        """The edits that a container gets for a qualified name: those of its spec, then those of the device.

        Args:
            name: the CDI id.
            files: the spec files; read anew by default.

        Raises:
            Breach: a runtime would not find it.
        """
        try:
            parse_qualified_name(name)
        except CDIError as error:
            raise Breach(f"CDI id {error}", "return `vendor/class=name` with characters that CDI allows") from None
        files = self.files() if files is None else files
        defining = [file for file in files if name in file.names()]
        broken = "; ".join(f"{file.path.name}: {file.verdict.problems[0]}" for file in files if not file.verdict.ok)
        expect(
            defining,
            f"CDI id {name} is in no spec of {self.folder}{f' ({broken})' if broken else ''}",
            "before you answer Prepare, write the spec into the folder that the runtime reads",
        )
        expect(
            len(defining) == 1,
            f"CDI id {name} is in {' and '.join(file.path.name for file in defining)}, so runtimes accept neither",
            "give every device a name that only one spec defines",
        )
        spec = defining[0].spec
        if spec is None:
            raise Breach(f"{defining[0].path} is not loaded", "write a spec that the reference loader accepts")
        device = next(device for device in spec.devices if f"{spec.kind}={device.name}" == name)
        return spec.container_edits, device.container_edits

    def edits(self, names: Iterable[str]) -> list[Any]:
        """The edits for several names, as plain documents in their order; empty ones are left out.

        Raises:
            Breach: a runtime would not find one of them.
        """
        files = self.files()
        found = [edits for name in names for edits in self.resolve(name, files) if edits]
        return [json.loads(msgspec.json.encode(edits)) for edits in found]


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _spec_file(path: Path, content: bytes) -> SpecFile:
    verdict = validate(content)
    return SpecFile(path, verdict, verdict.spec)
