"""Reading a file never blocks if there is a named pipe in its place."""

import contextlib
import errno
import os
import socket
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dranode.api.errors import DocumentError, LedgerError, MachineError
from dranode.api.resource import ResourceClaim
from dranode.cdi.directory import read_spec, write_file
from dranode.cdi.regular_file import read_given, read_regular
from dranode.driver.claims.held import ClaimRef
from dranode.driver.local.store import Store
from dranode.driver.machine.folder import HostRoot
from dranode.driver.machine.yaml_files import load_documents, read_yaml
from dranode.driver.node.ledger import damage_of
from dranode.driver.node.ledger_copy import LedgerCopy
from dranode.sim.machines.archive import read_archive


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Path]:
    """A named pipe. A reader that opens it gets a writer in the end, so that a test which waits fails."""
    path = tmp_path / "vendor.com-class_name.json"
    os.mkfifo(path)
    rescue = threading.Timer(20, lambda: os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK)))
    rescue.start()
    yield path
    rescue.cancel()
    rescue.join()


def test_a_file_is_read_completely_or_up_to_a_limit(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"0123456789")
    (tmp_path / "link").symlink_to(file)
    assert (read_regular(file), read_regular(str(file), first=4), read_regular(tmp_path / "link")) == (
        b"0123456789",
        b"0123",
        b"0123456789",
    )


def test_anything_but_a_file_is_an_error_and_does_not_block(tmp_path: Path, pipe: Path) -> None:
    with pytest.raises(OSError, match="it is not a regular file") as caught:
        read_regular(pipe)
    assert caught.value.errno == errno.EINVAL
    with pytest.raises(IsADirectoryError):
        read_regular(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "none")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "s"))
    with pytest.raises(OSError, match="No such device or address"):
        read_regular(tmp_path / "s")


def test_reading_specs_and_ledgers_does_not_block(pipe: Path) -> None:
    with pytest.raises(OSError, match="it is not a regular file"):
        read_spec(pipe)
    with pytest.raises(OSError, match="it is not a regular file"):
        damage_of(pipe)
    with pytest.raises(LedgerError, match=r"cannot be read: it is not a regular file; "):
        LedgerCopy(pipe).read()


def test_a_pipe_in_place_of_a_spec_is_replaced(pipe: Path) -> None:
    assert write_file(pipe.parent, pipe.name, b"{}")
    assert pipe.read_bytes() == b"{}"


def test_an_explicitly_named_file_may_be_an_anonymous_pipe(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"0123456789")

    # Its writer may write later than it is opened.
    def write_more() -> None:
        os.write(writer, b"later")
        os.close(writer)

    later = threading.Timer(0.1, write_more)
    later.start()
    assert read_given(f"/dev/fd/{reader}") == b"0123456789later"
    later.join()
    os.close(reader)
    (tmp_path / "file").write_bytes(b"0123456789")
    assert (read_given(tmp_path / "file"), read_given("/dev/null")) == (b"0123456789", b"")


def test_an_endless_file_is_an_error_and_is_not_read_far(tmp_path: Path) -> None:
    reader, writer = os.pipe()

    def write_for_ever() -> None:
        with contextlib.suppress(BrokenPipeError):
            while True:
                os.write(writer, bytes(1 << 16))

    writing = threading.Thread(target=write_for_ever)
    writing.start()
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    (tmp_path / "sys").mkdir()
    (tmp_path / "sys/zero").symlink_to("/dev/zero")
    tracemalloc.start()
    cases: tuple[tuple[Callable[[Any], Any], object, str], ...] = (
        (read_given, "/dev/zero", "it is a device; name a file"),
        (read_yaml, "/dev/zero", "it is a device"),
        (load_documents, ["/dev/urandom"], "it is a device"),
        (read_given, f"/dev/fd/{reader}", "it is larger than 64 MiB"),
        (read_regular, tmp_path / "sparse", "it is larger than 64 MiB"),
        (HostRoot(str(tmp_path)).read_bytes, "sys/zero", "it is not a regular file"),
        (HostRoot(str(tmp_path)).read_bytes, "sparse", "it is larger than 64 MiB"),
        (HostRoot(str(tmp_path)).read_bytes, "a\0b", "No such file"),
    )
    for read, path, message in cases:
        with pytest.raises((OSError, DocumentError), match=message):
            read(path)
    assert tracemalloc.get_traced_memory()[1] < 80 << 20
    tracemalloc.stop()
    os.close(reader)
    writing.join()
    os.close(writer)


def test_pipes_are_read_where_the_system_does_not_name_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(path: Path) -> Path:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))

    reader, writer = os.pipe()
    os.write(writer, b"0123456789")
    os.close(writer)
    monkeypatch.setattr(Path, "readlink", missing)
    assert read_given(f"/dev/fd/{reader}") == b"0123456789"
    os.close(reader)


def test_an_explicitly_named_fifo_is_an_error(tmp_path: Path, pipe: Path) -> None:
    with pytest.raises(OSError, match="it is a named pipe; name a file") as caught:
        read_given(pipe)
    assert caught.value.errno == errno.EINVAL
    with pytest.raises(IsADirectoryError):
        read_given(tmp_path)


def test_explicitly_named_documents_and_archives_do_not_block(pipe: Path) -> None:
    said = "cannot be read: it is a named pipe; name a file"
    with pytest.raises(DocumentError, match=said):
        load_documents([pipe])
    with pytest.raises(DocumentError, match=said):
        read_yaml(pipe)
    with pytest.raises(MachineError, match=said):
        read_archive(pipe)


def test_a_pipe_in_a_local_store_is_an_error(pipe: Path) -> None:
    store = Store(pipe.parent / "store")
    (store.folder / "resourceclaims").mkdir(parents=True)
    pipe.rename(store.folder / "resourceclaims" / "default.c.yaml")
    ref = ClaimRef("default", "c", "u")
    assert "cannot be read: it is not a regular file" in str(store.get((ref,))[ref])
    with pytest.raises(DocumentError, match="cannot be read: it is not a regular file"):
        store.list(ResourceClaim)
