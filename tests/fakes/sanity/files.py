"""The CDI specs and metadata files of the correct driver."""

import json
import shutil
from pathlib import Path
from typing import Any

NAME = "right.example.com"
Document = dict[str, Any]


class Files:
    """Files of claims; each is written atomically, and removed by claim UID."""

    def __init__(self, folder: Path) -> None:
        self.cdi = folder / "cdi"
        self.data = folder / "plugins" / "dra-device-metadata"

    def write(self, spec: Document, claim: Document, metadata: dict[str, list[Document]], container_path: str) -> None:
        uid = claim["metadata"]["uid"]
        self.cdi.mkdir(exist_ok=True)
        if spec["devices"]:
            self.put(self.cdi / f"light_{uid}.json", json.dumps(spec))
        for request, documents in metadata.items():
            path = self.data / uid / request / "metadata.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            self.put(path, "".join(f"{json.dumps(document)}\n" for document in documents))
            mount = self.mount(path, f"{container_path}/{request}/{NAME}-metadata.json")
            device = {"name": f"{uid}_{request}", "containerEdits": {"mounts": [mount]}}
            content = {"cdiVersion": "0.5.0", "kind": f"{NAME}/metadata", "devices": [device]}
            self.put(self.cdi / f"{NAME}_metadata_{uid}_{request}.json", json.dumps(content))

    def mount(self, path: Path, container_path: str) -> Document:
        return {"hostPath": str(path), "containerPath": container_path, "options": ["ro", "bind"]}

    def put(self, path: Path, content: str) -> None:
        temporary = path.with_name(f".{path.name}.tmp")
        temporary.write_text(content)
        temporary.replace(path)

    def remove(self, uid: str) -> None:
        for path in [*self.cdi.glob(f"light_{uid}.json"), *self.cdi.glob(f"{NAME}_metadata_{uid}_*.json")]:
            path.unlink()
        shutil.rmtree(self.data / uid, ignore_errors=True)
