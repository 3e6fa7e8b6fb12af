"""Writes a container image with one file, busybox, as an OCI archive that containerd imports."""

import hashlib
import io
import json
import platform
import tarfile
from pathlib import Path
from typing import Any

IMAGE = "dranode.test/busybox:latest"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def _tar(files: dict[str, tuple[bytes, int]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, (data, mode) in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), mode
            archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def _json(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def _blob(blobs: dict[str, bytes], kind: str, data: bytes) -> dict[str, Any]:
    digest = hashlib.sha256(data).hexdigest()
    blobs[f"blobs/sha256/{digest}"] = data
    return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": len(data)}


def write_image(path: Path, busybox: Path) -> None:
    """Write an image whose only file is busybox; by default it sleeps."""
    blobs: dict[str, bytes] = {}
    layer = _tar({"busybox": (busybox.read_bytes(), 0o755)})
    config = {
        "architecture": _ARCHITECTURES[platform.machine()],
        "os": "linux",
        "config": {"Entrypoint": ["/busybox", "sleep", "100000"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": _blob(blobs, "config.v1+json", _json(config)),
        "layers": [_blob(blobs, "layer.v1.tar", layer)],
    }
    entry = _blob(blobs, "manifest.v1+json", _json(manifest)) | {"annotations": {"io.containerd.image.name": IMAGE}}
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [entry]}
    files = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}', "index.json": _json(index), **blobs}
    path.write_bytes(_tar({name: (data, 0o644) for name, data in files.items()}))
