"""An image's archive, read: its platforms, and which packages the base of each brought."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

_STATUS = PurePosixPath("var/lib/dpkg/status")
# Where images of single packages, as distroless ones, have a file for each.
_STATUS_FOLDER = PurePosixPath("var/lib/dpkg/status.d")


@dataclass(frozen=True, slots=True, order=True)
class BasePackage:
    """A package of an image's base.

    Attributes:
        name: its name.
        version: its version.
        purl: its package URL (ECMA-427), by which databases of vulnerabilities find it.
    """

    name: str
    version: str
    purl: str


@dataclass(frozen=True, slots=True)
class PlatformImage:
    """The content of the archive for one platform.

    Attributes:
        platform: such as `linux/arm64`.
        layers: how many there are.
        size: of all layers as they are pulled, in bytes.
        base: the Debian packages of the base, and its Python where the base has built its own.
    """

    platform: str
    layers: int
    size: int
    base: tuple[BasePackage, ...]


def read(archive: Path) -> list[PlatformImage]:
    """Read an OCI archive (a tar of an OCI image layout, version 1.0.0).

    Raises:
        KeyError: it is none.
    """
    with tarfile.open(archive) as tar:
        blobs = _Blobs(tar)
        return [_image(blobs, manifest) for manifest in blobs.manifests()]


class _Blobs:
    """The blobs of an archive by their digests."""

    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar = tar

    def file(self, name: str) -> Any:
        return self._tar.extractfile(name)

    def document(self, descriptor: Mapping[str, Any]) -> dict[str, Any]:
        return dict(json.load(self.file(_path(descriptor))))

    def manifests(self) -> Iterator[dict[str, Any]]:
        """The image manifests, in whatever index they are."""
        waiting = list(json.load(self.file("index.json"))["manifests"])
        while waiting:
            document = self.document(waiting.pop(0))
            if "manifests" in document:
                waiting += document["manifests"]
            # What attests to an image is a manifest too, of layers that are no file systems.
            elif all("tar" in layer["mediaType"] for layer in document["layers"]):
                yield document


def _path(descriptor: Mapping[str, Any]) -> str:
    return f"blobs/{descriptor['digest'].replace(':', '/')}"


def _image(blobs: _Blobs, manifest: Mapping[str, Any]) -> PlatformImage:
    config = blobs.document(manifest["config"])
    architecture = str(config["architecture"])
    found: dict[str, str] = {}
    for layer in manifest["layers"]:
        with tarfile.open(fileobj=blobs.file(_path(layer)), mode="r:*") as files:
            found |= dict(_statuses(files))
    debian = [each for text in found.values() for each in _debian(text)]
    variables = dict(each.partition("=")[::2] for each in config.get("config", {}).get("Env", ()))
    # Said by the images of Python's own project, which compile it.
    version = variables.get("PYTHON_VERSION")
    python = [BasePackage("python", version, f"pkg:generic/python@{version}")] if version else []
    return PlatformImage(
        f"{config['os']}/{architecture}",
        len(manifest["layers"]),
        sum(layer["size"] for layer in manifest["layers"]),
        (*sorted(debian), *python),
    )


def _statuses(files: tarfile.TarFile) -> Iterator[tuple[str, str]]:
    """Yield the records of dpkg in a layer by their paths; a later layer stands for an earlier one."""
    for member in files:
        path = PurePosixPath(member.name.removeprefix("./"))
        if member.isfile() and (path == _STATUS or (path.parent == _STATUS_FOLDER and path.suffix != ".md5sums")):
            content = files.extractfile(member)
            assert content is not None  # noqa: S101 - a file has one
            yield str(path), content.read().decode()


def _debian(status: str) -> Iterator[BasePackage]:
    for paragraph in status.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and line[0] not in " \t")
        if "Package" in fields and fields.get("Status", "install ok installed").endswith(" installed"):
            name, version = fields["Package"], fields["Version"]
            purl = f"pkg:deb/debian/{quote(name)}@{quote(version, safe='')}?arch={fields['Architecture']}"
            yield BasePackage(name, version, purl)
