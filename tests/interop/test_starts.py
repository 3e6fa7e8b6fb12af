"""Containers beside a real containerd whose runc fails or is slow: none starts on CPUs of a claim in use.

`make interop` runs these tests. A script takes runc's place.
"""

import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from tests.interop.containerd import Containerd, build, why_not
from tests.interop.cri import Pod, wait_until
from tests.interop.node import ONLINE, Node, short_folder, started
from tests.interop.vanishing import paths_below

VERSIONS = [version for version in os.environ.get("INTEROP", "").split() if version != "crio"]
REASON = (
    "make interop builds and runs real container runtimes"
    if not VERSIONS
    else why_not(*VERSIONS) or ("" if len(ONLINE) > 1 else "one CPU cannot be both held and shared")
)
pytestmark = [pytest.mark.interop, pytest.mark.skipif(bool(REASON), reason=REASON)]

A, B = (Pod(name, f"pod-{name}") for name in "ab")

# Every `update` fails while there is a file `fails`, and `create` waits while there is one with the container's id.
_RUNC = """#!/bin/sh
case " $* " in
*" update "*) [ ! -e {folder}/fails ] || exit 1 ;;
esac
{runc} "$@" || exit
case " $* " in
*" create "*) for word; do while [ -e "{folder}/waits/$word" ]; do sleep 0.05; done; done ;;
esac
"""


@pytest.fixture(params=VERSIONS or ["none"])
def node(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    with short_folder() as folder:
        runc = folder / "bin" / "runc"
        for place in (runc.parent, folder / "waits"):
            place.mkdir()
        runc.write_text(_RUNC.format(folder=folder, runc=shutil.which("runc")))
        runc.chmod(0o755)
        monkeypatch.setenv("PATH", f"{runc.parent}:{os.environ['PATH']}")
        with started(Node(Containerd(build(request.param), folder))) as node:
            try:
                yield node
            finally:
                for file in (folder / "fails", *(folder / "waits").iterdir()):
                    file.unlink(missing_ok=True)


def test_a_claims_container_does_not_start_while_the_runtime_cannot_move_the_others(node: Node) -> None:
    cri = node.runtime.cri
    other = cri.run(B, "other")
    cpus, cdi = node.claim("mine", A)
    (node.folder / "fails").touch()
    made = cri.create(A, "main", cdi=cdi)
    assert node.effective(other) == ONLINE
    with pytest.raises(grpc.RpcError) as refused:
        cri.call("StartContainer", container_id=made)
    assert f'container "other" of pod default/b is on CPUs {ONLINE}, but claim default/mine holds {cpus}' in (
        refused.value.details()
    )
    (node.folder / "fails").unlink()
    again = cri.run(A, "main", cdi=cdi, attempt=1)
    assert (node.effective(again), node.effective(other)) == (cpus, ONLINE - cpus)


def test_a_container_that_was_being_made_when_a_claim_came_does_not_start_on_its_cpus(node: Node) -> None:
    cri = node.runtime.cri
    late = cri.create(B, "late")
    waits = node.folder / "waits" / late
    waits.touch()
    reasons: list[str] = []

    def start() -> None:
        try:
            cri.call("StartContainer", container_id=late)
        except grpc.RpcError as error:
            reasons.append(error.details() or "")

    thread = threading.Thread(target=start)
    thread.start()
    # From now on, the runtime only changes the configuration from which it would create the container.
    wait_until(lambda: any(paths_below(Path("/sys/fs/cgroup"), f"**/{late}/cgroup.procs")), "the container is made")
    cpus, cdi = node.claim("mine", A)
    main = cri.run(A, "main", cdi=cdi)
    waits.unlink()
    thread.join()
    (reason,) = reasons
    assert f"but claim default/mine holds {cpus}; kubelet will create it again, on other CPUs" in reason
    again = cri.run(B, "late", attempt=1)
    assert (node.effective(main), node.effective(again)) == (cpus, ONLINE - cpus)
