"""Reading processes from `/proc`: those that end meanwhile are left out, those that cannot be read are reported."""

import errno
import os
from collections.abc import Callable

import pytest

from dranode.api.cpuset import CPUSet
from dranode.api.errors import MachineError
from dranode.driver.machine.cgroups import Cgroups
from dranode.driver.machine.kubepods import containers_of
from dranode.driver.machine.root import Root
from dranode.tools.readers.processes import pods_seen, processes, threads_last_on, threads_seen_on
from tests.fakes.settings import Kernel

POD = "sys/fs/cgroup/kubepods/podp-1"
CONTAINER = f"{POD}/{'c1' * 32}"
CPUS = f"{CONTAINER}/cpuset.cpus.effective"
ENDED = (errno.ENOENT, errno.ESRCH)
HIDDEN = (errno.EACCES, errno.EMFILE)


def machine() -> Kernel:
    """One process with one thread, outside of any container."""
    status = "Name:\tjob\nState:\tS (sleeping)\nPPid:\t1\nCpus_allowed_list:\t0-3"
    return Kernel(
        {
            "proc/7/status": status,
            "proc/7/cgroup": "0::/system.slice/job.service",
            "proc/7/environ": "",
            "proc/7/task/7/status": status,
            "proc/7/task/7/stat": f"7 (job) S {'0 ' * 35}2 0",
            CPUS: "2-3",
        }
    )


def whole(root: Root) -> object:
    return list(processes(root, by_thread=True))


def ran_last(root: Root) -> object:
    return list(threads_seen_on(root, CPUSet((2,))))


def of_pods(root: Root) -> object:
    return pods_seen(root, ["p-1"]).processes


LOOKS: tuple[tuple[Callable[[Root], object], tuple[str, ...]], ...] = (
    (whole, ("proc", "proc/7/status", "proc/7/task", "proc/7/task/7/status")),
    (ran_last, ("proc", "proc/7/task", "proc/7/task/7/stat", "proc/7/task/7/status")),
    (of_pods, ("proc", "proc/7/status")),
)


@pytest.mark.parametrize("error", HIDDEN)
@pytest.mark.parametrize(("look", "path"), [(look, path) for look, paths in LOOKS for path in paths])
def test_an_unreadable_process_is_not_taken_for_an_ended_one(
    look: Callable[[Root], object], path: str, error: int
) -> None:
    root = machine()
    assert look(root)
    root.unread[path] = error
    with pytest.raises(MachineError, match=rf"^/{path} cannot be (read|listed).*{os.strerror(error)}"):
        look(root)


@pytest.mark.parametrize("error", ENDED)
@pytest.mark.parametrize("path", ["proc", "proc/7/status"])
def test_ended_processes_are_skipped_without_an_error(path: str, error: int) -> None:
    root = machine()
    root.unread[path] = error
    assert list(processes(root)) == []


class Ending(Kernel):
    """A machine whose only process ends, or becomes a zombie, when one of its files is read."""

    def __init__(self, path: str, *, zombie: bool) -> None:
        super().__init__(machine().files)
        self.path, self.zombie = path, zombie

    def read_bytes(self, path: str) -> bytes:
        if path == self.path:
            for each in [each for each in self.files if each.startswith("proc/7/")]:
                if not self.zombie:
                    del self.files[each]
                elif each.endswith("/status"):
                    self.files[each] = self.files[each].replace("S (sleeping)", "Z (zombie)")
                elif each.endswith("/cgroup"):
                    self.files[each] = "0::/"
        # A zombie has no memory any more, and so no environment variables either.
        return b"" if self.zombie and path.endswith("/environ") else super().read_bytes(path)


@pytest.mark.parametrize("zombie", [False, True])
@pytest.mark.parametrize(
    ("look", "path"), [(whole, "proc/7/cgroup"), (whole, "proc/7/environ"), (ran_last, "proc/7/cgroup")]
)
def test_a_process_that_ends_while_it_is_read_is_left_out(
    look: Callable[[Root], object], path: str, *, zombie: bool
) -> None:
    assert look(machine())
    assert look(Ending(path, zombie=zombie)) == []


def test_a_process_with_hidden_variables_is_listed_without_them() -> None:
    root = machine()
    root.unread["proc/7/environ"] = errno.EACCES
    (process,) = processes(root)
    assert (process.env, process.cgroup) == (None, "system.slice/job.service")


def test_threads_are_counted_unless_they_have_ended_or_are_hidden() -> None:
    root = machine()
    assert threads_last_on(root, 7, CPUSet((2,))) == 1
    assert threads_last_on(root, 7, CPUSet((3,))) == 0
    assert threads_last_on(root, 8, CPUSet((2,))) is None
    root.unread["proc/7/task/7/stat"] = errno.EACCES
    assert threads_last_on(root, 7, CPUSet((2,))) is None


@pytest.mark.parametrize("error", HIDDEN)
@pytest.mark.parametrize(
    ("path", "what"),
    [(CPUS, f"the CPUs of the container in {CONTAINER.removeprefix('sys/fs/cgroup/')}"), (POD, f"/{POD}")],
)
def test_a_container_with_an_unreadable_cgroup_has_not_ended(path: str, what: str, error: int) -> None:
    root = machine()
    assert [each.cpus for each in containers_of(root, Cgroups(root), "p-1")] == [CPUSet((2, 3))]
    root.unread[path] = error
    with pytest.raises(MachineError, match=f"^{what} cannot be (read|listed).*{os.strerror(error)}"):
        list(containers_of(root, Cgroups(root), "p-1"))


@pytest.mark.parametrize("error", [errno.ENOENT, errno.ENODEV])
def test_a_container_whose_cgroup_disappears_has_ended(error: int) -> None:
    root = machine()
    root.unread[CPUS] = error
    assert list(containers_of(root, Cgroups(root), "p-1")) == []
