"""The archives of the chart and of the kubectl plug-in, and the checksums."""

import gzip
import hashlib
import io
import tarfile
from pathlib import Path

from release.project import DIST, ROOT, epoch, version


def chart() -> Path:
    """Pack deploy/chart as `helm package` does: a gzipped tar with one folder, named for the chart."""
    folder = ROOT / "deploy" / "chart"
    path = DIST / f"dranode-chart-{version()}.tgz"
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as archive:
        for file in sorted(file for file in folder.rglob("*") if file.is_file()):
            archive.add(file, f"dranode/{file.relative_to(folder)}", filter=_of_nobody)
    path.write_bytes(gzip.compress(plain.getvalue(), mtime=int(epoch())))
    return path


def plugin(wheel: Path) -> Path:
    """Pack what krew installs, the launcher with the wheel and the hashes of its libraries, and write the manifest.

    The manifest gets the version and the archive's checksum.
    """
    folder = ROOT / "deploy" / "krew"
    path = DIST / "kubectl-dranode.tar.gz"
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as archive:
        archive.add(folder / "kubectl-dranode", "kubectl-dranode", filter=_program)
        archive.add(wheel, wheel.name, filter=_of_nobody)
        archive.add(ROOT / "requirements" / "run.lock", "run.lock", filter=_of_nobody)
        # krew's validator expects it next to the program.
        archive.add(ROOT / "LICENSE", "LICENSE", filter=_of_nobody)
    path.write_bytes(gzip.compress(plain.getvalue(), mtime=int(epoch())))
    manifest = (folder / "dranode.yaml").read_text().replace("v0.1.0", f"v{version()}")
    manifest = manifest.replace("0" * 64, hashlib.sha256(path.read_bytes()).hexdigest())
    # krew requires the file to be named after the plug-in.
    (DIST / "dranode.yaml").write_text(manifest)
    return path


def _program(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member = _of_nobody(member)
    member.mode = 0o755
    return member


def _of_nobody(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime, member.mode = int(epoch()), 0o755 if member.isdir() else 0o644
    member.pax_headers = {}
    return member


def settle(path: Path) -> None:
    """Write a tar again with its members sorted by name and with the release's time.

    Engines write the blobs of an image in any order and with the current time.
    """
    packed = path.with_suffix(".packed")
    with tarfile.open(path) as old, tarfile.open(packed, mode="w") as new:
        for member in sorted(old.getmembers(), key=lambda member: member.name):
            content = old.extractfile(member)
            new.addfile(_of_nobody(member), content)
    packed.replace(path)


def checksums() -> Path:
    """Write SHA256SUMS over everything in dist/, in the format of `sha256sum --check`."""
    path = DIST / "SHA256SUMS"
    files = sorted(file for file in DIST.iterdir() if file.is_file() and file != path)
    path.write_text("".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files))
    return path
