"""The contents of a release, as far as they can be checked without building one."""

import hashlib
import io
import json
import re
import tarfile
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import yaml

from release import archives

ROOT = Path(__file__).parents[2]
ALLOWED = re.compile(
    r"Apache|MIT|BSD|ISC|PSF|Python Software Foundation|MPL-2\.0|Mozilla|Unlicense|LGPL", re.IGNORECASE
)


def locked(name: str) -> list[str]:
    text = (ROOT / "requirements" / f"{name}.lock").read_text()
    return re.findall(r"^([a-z0-9_.-]+)==", text, re.MULTILINE)


def license_of(name: str) -> str:
    facts = distribution(name).metadata.json
    classifiers = [each for each in facts.get("classifier", ()) if each.startswith("License")]
    return f"{facts.get('license_expression') or ''} {' '.join(classifiers)} {str(facts.get('license') or '')[:200]}"


def test_every_runtime_package_has_a_licence_that_permits_redistribution() -> None:
    licenses = {name: license_of(name) for name in set(locked("debug")) - {"tzdata"}}
    assert {name: text for name, text in licenses.items() if not ALLOWED.search(text)} == {}


def test_the_locks_agree_on_every_package() -> None:
    def pinned(name: str) -> dict[str, str]:
        text = (ROOT / "requirements" / f"{name}.lock").read_text()
        return dict(re.findall(r"^([a-z0-9_.-]+)==(\S+)", text, re.MULTILINE))

    node, run, debug, dev = (pinned(name) for name in ("serve", "run", "debug", "dev"))
    assert node
    assert node.items() <= run.items() <= debug.items() <= dev.items()


def test_package_chart_and_manifests_have_one_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((ROOT / "deploy" / "chart" / "Chart.yaml").read_text())
    assert {chart["version"], chart["appVersion"]} == {version}
    assert f"dranode:{version}" in (ROOT / "deploy" / "daemonset.yaml").read_text()


# --- an image's archive ---


def blob(files: dict[str, bytes], data: bytes) -> dict[str, object]:
    digest = hashlib.sha256(data).hexdigest()
    files[f"blobs/sha256/{digest}"] = data
    return {"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "digest": f"sha256:{digest}", "size": len(data)}


def packed(files: dict[str, bytes], mode: str = "w") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:  # type: ignore[call-overload]
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def image(blobs: dict[str, bytes], architecture: str, *layers: dict[str, bytes], env: tuple[str, ...] = ()) -> bytes:
    config = {"architecture": architecture, "os": "linux", "config": {"Env": list(env)}}
    described = [blob(blobs, packed(layer, "w:gz")) for layer in layers]
    manifest = {"config": blob(blobs, json.dumps(config).encode()), "layers": described}
    return json.dumps(manifest).encode()


def archive(path: Path, blobs: dict[str, bytes], *manifests: bytes) -> Path:
    index = {"manifests": [blob(blobs, each) for each in manifests]}
    # As docker writes an archive of several platforms.
    outer = {"manifests": [blob(blobs, json.dumps(index).encode())]}
    path.write_bytes(packed({"index.json": json.dumps(outer).encode(), **blobs}))
    return path


def test_an_image_has_the_same_bytes_whatever_the_order_of_its_blobs(tmp_path: Path) -> None:
    blobs: dict[str, bytes] = {}
    made = image(blobs, "amd64", {"var/lib/dpkg/status": b"Package: a\nVersion: 1\nArchitecture: all\n"})
    first, again = archive(tmp_path / "first.tar", blobs, made), tmp_path / "again.tar"
    with tarfile.open(first) as old, tarfile.open(again, "w") as new:
        new.addfile(tarfile.TarInfo("blobs"))
        for member in reversed(old.getmembers()):
            member.mtime, member.uname = 1_700_000_000, "somebody"
            new.addfile(member, old.extractfile(member))
    with tarfile.open(first, "a") as old:
        old.addfile(tarfile.TarInfo("blobs"))
    assert first.read_bytes() != again.read_bytes()
    for path in (first, again):
        archives.settle(path)
        with tarfile.open(path) as settled:
            assert "index.json" in settled.getnames()
    assert first.read_bytes() == again.read_bytes()
