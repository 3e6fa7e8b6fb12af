"""`python -m release`: build everything into dist/, then try it."""

import shutil
import sys
from pathlib import Path

from release import archives, image, project, software
from release.project import DIST, StepError, version


def main() -> int:
    """Build and try a release; return 1 and say why if the image cannot be built on this machine."""
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    print(f"dranode {version()}", flush=True)
    wheel = _done(project.build())
    _done(archives.chart())
    _done(archives.plugin(wheel))
    no_image = _image()
    node = software.environment(wheel)
    _done(software.bill(node))
    _done(software.notices(node))
    _done(archives.checksums())
    for line in project.install(wheel):
        print(f"  {line}", flush=True)
    if no_image:
        print(f"no image: {no_image}", file=sys.stderr)
    return 1 if no_image else 0


def _image() -> str:
    """Build the image; return why there is none, or nothing."""
    if reason := image.why_not():
        return reason
    try:
        path = image.build()
    except StepError as error:
        return str(error)
    _done(path, image.describe(path))
    return ""


def _done(path: Path, note: str = "") -> Path:
    print(f"  {path.name}{f' ({note})' if note else ''}", flush=True)
    return path


if __name__ == "__main__":
    try:
        sys.exit(main())
    except StepError as error:
        sys.exit(str(error))
