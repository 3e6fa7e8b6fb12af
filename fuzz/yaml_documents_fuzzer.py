"""Files of Kubernetes objects in YAML or JSON, as people give them to commands."""

import contextlib
import tempfile
from pathlib import Path
from typing import Any

from fuzz.harness import fuzz, instrumented

with instrumented():
    from dranode.api.documents import decode
    from dranode.api.errors import DranodeError
    from dranode.api.resource import DeviceClass, ResourceClaim, ResourceSlice
    from dranode.driver.machine.yaml_files import read_documents

KINDS: dict[str, Any] = {"ResourceClaim": ResourceClaim, "ResourceSlice": ResourceSlice, "DeviceClass": DeviceClass}


def test_one_input(data: bytes) -> None:
    """Read the documents, and decode those that are ours."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "objects.yaml"
        path.write_bytes(data)
        with contextlib.suppress(DranodeError):
            for source in read_documents(path):
                kind = KINDS.get(str(source.document.get("kind")))
                if kind is not None:
                    decode(kind, source.document)


if __name__ == "__main__":
    fuzz(test_one_input)
