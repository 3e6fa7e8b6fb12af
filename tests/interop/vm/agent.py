"""Runs, in the machine, the commands that come through a virtio port, one after the other, and answers each.

It is copied into the machine's image and needs nothing but Python. A line is a JSON document. Of a command: `command`,
for bash, and `input`; of an answer: `status`, `stdout`, `stderr`. The first line says that the machine is up.
"""

import json
import os
import subprocess
import tempfile
import time
from typing import IO, Any

PORT = "/dev/virtio-ports/dranode"
_CHUNK = 1 << 16


def run(order: dict[str, str]) -> dict[str, Any]:
    # Into files: a program that a command leaves in the background would keep a pipe open.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        done = subprocess.run(
            ["bash", "-c", order["command"]],
            input=order["input"].encode(),
            stdout=out,
            stderr=err,
            check=False,
            cwd="/root",
        )
        return {"status": done.returncode, "stdout": _text(out), "stderr": _text(err)}


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _write(port: IO[bytes], document: dict[str, Any]) -> None:
    data = memoryview(json.dumps(document).encode() + b"\n")
    while data:
        data = data[port.write(data) or 0 :]


def main() -> None:
    # udev names the port, and may come to it later than systemd to this service where the processor is slow.
    while not os.path.exists(PORT):  # noqa: PTH110 - what the machine's Python loads fastest
        time.sleep(0.1)
    with open(PORT, "r+b", buffering=0) as port:  # noqa: PTH123 - the port can be opened once
        _write(port, {})
        line = b""
        while True:
            line += port.read(_CHUNK) or b""
            if not line:
                # Nobody is connected.
                time.sleep(0.1)
            if line.endswith(b"\n"):
                _write(port, run(json.loads(line)))
                line = b""


if __name__ == "__main__":
    main()
