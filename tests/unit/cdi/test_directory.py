import errno
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from dranode.cdi.directory import (
    ABANDONED_AFTER,
    encode_spec,
    make_file,
    read_spec,
    remove_abandoned,
    remove_spec,
    spec_files,
    write_spec,
)
from dranode.cdi.document import load_spec
from dranode.cdi.errors import CDIError
from dranode.cdi.spec import CDIDevice, ContainerEdits, Spec
from dranode.cdi.version import with_minimum_version

NAME = "dra.k8s.io-cpu_claim-u.json"


def _spec(*env: str, kind: str = "dra.k8s.io/cpu", annotations: dict[str, str] | None = None) -> Spec:
    device = CDIDevice(name="claim-u", container_edits=ContainerEdits(env=env or ("DRA_CPUSET_u=0-1",)))
    return with_minimum_version(Spec(cdi_version="", kind=kind, devices=(device,), annotations=annotations or {}))


def test_a_spec_is_compact_json_at_its_minimum_version() -> None:
    assert encode_spec(_spec()) == (
        b'{"cdiVersion":"0.3.0","kind":"dra.k8s.io/cpu",'
        b'"devices":[{"name":"claim-u","containerEdits":{"env":["DRA_CPUSET_u=0-1"]}}]}'
    )


def test_the_reference_drivers_spec_is_read(tmp_path: Path) -> None:
    path = tmp_path / NAME
    # Its exact bytes (reference sheet cpu-driver, section 4).
    path.write_bytes(
        b'{"cdiVersion":"0.8.0","kind":"dra.k8s.io/cpu","devices":[{"name":"claim-u","containerEdits":'
        b'{"env":["DRA_CPUSET_u=0-1"]}}],"containerEdits":{}}'
    )
    assert read_spec(path) == msgspec.structs.replace(_spec(), cdi_version="0.8.0")


def test_a_handwritten_yaml_spec_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(
        "cdiVersion: 0.3.0\nkind: dra.k8s.io/cpu\ndevices:\n"
        "- name: claim-u\n  containerEdits:\n    env: [DRA_CPUSET_u=0-1]\n"
    )
    assert read_spec(path) == _spec()


def test_a_file_that_is_not_a_spec_is_refused_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"kind": 5, "foo": 1}')
    with pytest.raises(CDIError, match=r"a\.json: foo: is not a field"):
        read_spec(path)
    path.write_bytes(b"\xff\xff")
    with pytest.raises(CDIError, match=r"a\.json: byte 0"):
        read_spec(path)


# Characters that JSON may contain raw, but a runtime's YAML parser rejects, folds, or takes for half a character.
@pytest.mark.parametrize(
    "value", ["\x7f", "\x81", "\x85", "\u2028", "\u2029", "\ufeff", "\uffff", "/", "\0\t\n\r\\\"'", "😀", "é"]
)
def test_no_character_of_a_value_is_changed_by_a_runtimes_parser(value: str) -> None:
    spec = _spec(f"A={value}b  c")
    assert load_spec(encode_spec(spec)) == spec


def test_a_written_file_is_world_readable_and_alone_in_a_new_folder(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "cdi"
    before = os.umask(0o077)
    try:
        assert write_spec(folder, NAME, _spec())
    finally:
        os.umask(before)
    assert (folder / NAME).stat().st_mode & 0o777 == 0o644
    assert folder.stat().st_mode & 0o777 == 0o755
    assert [entry.name for entry in folder.iterdir()] == [NAME]


def test_the_same_content_is_not_written_again_and_other_content_replaces_the_file(tmp_path: Path) -> None:
    assert write_spec(tmp_path, NAME, _spec())
    first = (tmp_path / NAME).stat().st_ino
    assert not write_spec(tmp_path, NAME, _spec())
    assert (tmp_path / NAME).stat().st_ino == first
    # A reader with the old file open keeps the whole old content.
    with (tmp_path / NAME).open("rb") as reader:
        write_spec(tmp_path, NAME, _spec("A=2"))
        assert b"DRA_CPUSET" in reader.read()
    assert read_spec(tmp_path / NAME) == _spec("A=2")


_FULL = """
import resource, sys
from pathlib import Path
from dranode.cdi.directory import write_spec
from dranode.cdi.spec import CDIDevice, ContainerEdits, Spec
device = CDIDevice(name="claim-u", container_edits=ContainerEdits(env=("A=2",)))
resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
try:
    write_spec(Path(sys.argv[1]), sys.argv[2], Spec(cdi_version="0.3.0", kind="dra.k8s.io/cpu", devices=(device,)))
except OSError as error:
    sys.exit(error.errno)
"""


def test_a_file_that_does_not_fit_leaves_the_old_one_and_no_temporary_file(tmp_path: Path) -> None:
    write_spec(tmp_path, NAME, _spec())
    # A limit on file sizes stands in for a full disk: the write fails half-way.
    failed = subprocess.run([sys.executable, "-c", _FULL, str(tmp_path), NAME], check=False)
    assert failed.returncode == errno.EFBIG
    assert [entry.name for entry in tmp_path.iterdir()] == [NAME]
    assert read_spec(tmp_path / NAME) == _spec()


def test_a_target_that_cannot_be_replaced_leaves_no_temporary_file(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    with pytest.raises(IsADirectoryError):
        write_spec(tmp_path, NAME, _spec())
    assert [entry.name for entry in tmp_path.iterdir()] == [NAME]


def test_a_new_file_never_replaces_another(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        make_file(str(tmp_path / NAME), b"first")
    finally:
        os.umask(before)
    assert (tmp_path / NAME).stat().st_mode & 0o777 == 0o644
    with pytest.raises(FileExistsError):
        make_file(str(tmp_path / NAME), b"second")
    assert (tmp_path / NAME).read_bytes() == b"first"


@pytest.mark.parametrize("name", ["a.yml", "a", "../a.json", "b/a.json", ""])
def test_a_file_name_that_no_runtime_reads_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(CDIError, match="not a file name that ends with"):
        write_spec(tmp_path, name, _spec())


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        (_spec("A"), "devices[0].containerEdits.env[0]"),
        (_spec(kind="Vendor.com/cpu"), "kind"),
        (_spec(kind="v.com/" + "c" * 64), "kind"),
        (_spec(kind="v/c"), "kind"),
        (msgspec.structs.replace(_spec(), cdi_version="0.2.0"), "cdiVersion"),
        (_spec(annotations={"k" * 1023: "v"}), "annotations"),
        (_spec("A=\ud800"), ""),
    ],
)
def test_a_spec_that_some_runtime_could_not_load_is_never_written(tmp_path: Path, spec: Spec, path: str) -> None:
    with pytest.raises(CDIError) as refused:
        write_spec(tmp_path, NAME, spec)
    assert refused.value.path == path
    assert list(tmp_path.iterdir()) == []


def test_the_longest_key_that_runtimes_read_is_written() -> None:
    spec = _spec(annotations={"k" * 1022: "v"})
    assert load_spec(encode_spec(spec)) == spec


def test_a_spec_may_be_removed_twice(tmp_path: Path) -> None:
    write_spec(tmp_path, NAME, _spec())
    remove_spec(tmp_path, NAME)
    remove_spec(tmp_path, NAME)
    assert list(tmp_path.iterdir()) == []


def test_own_specs_are_listed_by_name_without_files_that_runtimes_ignore(tmp_path: Path) -> None:
    for name in ("b_2.json", "b_1.yaml", "b_3.yml", "spec.x.tmp", "a_1.json"):
        (tmp_path / name).touch()
    assert [path.name for path in spec_files(tmp_path, "b_")] == ["b_1.yaml", "b_2.json"]
    assert [path.name for path in spec_files(tmp_path)] == ["a_1.json", "b_1.yaml", "b_2.json"]
    assert list(spec_files(tmp_path / "missing")) == []


def test_the_folder_is_readable_whatever_the_umask(tmp_path: Path) -> None:
    mask = os.umask(0o077)
    try:
        write_spec(tmp_path / "cdi", "a.json", _spec())
    finally:
        os.umask(mask)
    assert (tmp_path / "cdi").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "cdi" / "a.json").stat().st_mode & 0o777 == 0o644


def _age(path: Path) -> None:
    then = path.stat().st_mtime - ABANDONED_AFTER - 1
    os.utime(path, (then, then))


def test_a_temporary_file_of_a_killed_writer_is_removed_once_it_is_abandoned(tmp_path: Path) -> None:
    code = f"""
import os, pathlib
from dranode.cdi.directory import replace_file
os.rename = lambda *_: os.kill(os.getpid(), 9)
replace_file({str(tmp_path / NAME)!r}, b"content")
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    (left,) = tmp_path.iterdir()
    remove_abandoned(tmp_path)
    assert left.exists()
    _age(left)
    remove_abandoned(tmp_path)
    assert not left.exists()


def test_specs_and_temporary_files_of_other_writers_are_not_removed(tmp_path: Path) -> None:
    write_spec(tmp_path, NAME, _spec())
    for name in ("spec.2863311530.tmp", "spec.json", ".dra.gpu_0123456789abcdef.tmp"):
        (tmp_path / name).touch()
    before = sorted(tmp_path.iterdir())
    for path in before:
        _age(path)
    remove_abandoned(tmp_path)
    assert sorted(tmp_path.iterdir()) == before


def test_nothing_is_removed_from_a_missing_folder(tmp_path: Path) -> None:
    remove_abandoned(tmp_path / "cdi")
    assert not (tmp_path / "cdi").exists()
