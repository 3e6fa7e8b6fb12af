"""A ledger that is damaged, lost or replaced by an older one: nothing is granted twice, and no claim is forgotten."""

import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from dranode.api.cpuset import CPUSet
from dranode.api.errors import LedgerError
from dranode.api.resource import ResourceClaim
from dranode.cpu.options import CPUOptions
from dranode.cpu.plugin import CPUPlugin
from dranode.driver.claims.answers import Commit, Prepared
from dranode.driver.claims.record import Record
from dranode.driver.node import ledger_recovery
from dranode.driver.node.ledger import SCHEMA_WITH_LOSS, CorruptLedgerError, Ledger
from dranode.driver.node.ledger_copy import LedgerCopy
from dranode.driver.node.ledger_recovery import LedgerRecovery
from dranode.driver.node.lost_ledger import LOST, Copied, salvaged
from dranode.driver.node.node import NodeClaims
from dranode.show.ledger_reading import had_ledger, read_ledger
from dranode.sim.machines.forms import open_machine
from dranode.tools.cli import claims, drain, forget_lost
from dranode.tools.cli.forget_lost import command
from tests.fakes.drivers import Board, WiredLamps, allocated_claim, lose_copy, reference
from tests.fakes.lifecycle import cpu_claim

MACHINE = "sockets=1,cores=8,threads=2"
BOOT = "boot-1"


def claim(number: int, count: int = 2) -> ResourceClaim:
    return cpu_claim(f"c{number}", f"uid-{number}", "cpudevnuma000", count)


def opened(folder: Path, boot: str = BOOT) -> NodeClaims:
    (folder / "data").mkdir(exist_ok=True)
    node = NodeClaims(CPUPlugin(open_machine(MACHINE), CPUOptions()), folder / "data", folder / "cdi")
    node.open(boot)
    return node


def prepare(node: NodeClaims, asked: ResourceClaim) -> object:
    return node.prepare({reference(asked): asked})[asked.metadata.uid]


def with_claims(folder: Path, count: int = 3) -> dict[str, Record]:
    """The records of a driver that prepared this many claims, unprepared one more, and was killed."""
    live = folder / "live"
    live.mkdir()
    node = opened(live)
    for number in (*range(count), 99):
        assert isinstance(prepare(node, claim(number)), Prepared)
    assert node.unprepare((reference(claim(99)),)) == {"uid-99": None}
    # The files as they are when it is killed.
    for name in ("data", "cdi"):
        shutil.copytree(live / name, folder / name)
    return {record.uid: record for record in node.records()}


def ledger(folder: Path) -> Path:
    return folder / "data" / "ledger.db"


def reboot(folder: Path) -> None:
    """Empty the CDI folder, which is in memory."""
    shutil.rmtree(folder / "cdi", ignore_errors=True)


def checkpoint(folder: Path) -> bytes:
    """Write the whole journal into the file; return the file's bytes."""
    Ledger(ledger(folder)).close()
    return ledger(folder).read_bytes()


def header(folder: Path) -> None:
    good = checkpoint(folder)
    ledger(folder).write_bytes(b"x" * 16 + good[16:])


def schema(folder: Path) -> None:
    good = checkpoint(folder)
    ledger(folder).write_bytes(good.replace(b"held TEXT", b"hold TEXT"))


def gone(folder: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        ledger(folder).with_name(f"ledger.db{suffix}").unlink(missing_ok=True)


def emptied(folder: Path) -> None:
    gone(folder)
    ledger(folder).touch()


def half(folder: Path) -> None:
    good = checkpoint(folder)
    ledger(folder).write_bytes(good[: len(good) // 2])


def journal_gone(folder: Path) -> None:
    for suffix in ("-wal", "-shm"):
        ledger(folder).with_name(f"ledger.db{suffix}").unlink(missing_ok=True)


def rows(folder: Path) -> None:
    good = checkpoint(folder)
    ledger(folder).write_bytes(good.replace(b'"namespace"', b'"nam3space"'))


HARM: list[Callable[[Path], None]] = [header, schema, gone, emptied, half, journal_gone, rows]


@pytest.mark.parametrize("harm", HARM)
@pytest.mark.parametrize("rebooted", [False, True])
def test_the_copy_restores_every_record(tmp_path: Path, harm: Callable[[Path], None], *, rebooted: bool) -> None:
    before = with_claims(tmp_path)
    harm(tmp_path)
    if rebooted:
        reboot(tmp_path)
    node = opened(tmp_path)
    assert {record.uid: record for record in node.records()} == before
    assert isinstance(prepare(node, claim(4)), Prepared)
    assert {record.uid for record in read_ledger(ledger(tmp_path)).records} == {*before, "uid-4"}


@pytest.mark.parametrize("harm", [header, schema])
def test_rows_are_restored_without_the_copy_and_new_claims_wait_for_the_administrator(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    before = with_claims(tmp_path)
    harm(tmp_path)
    lose_copy(tmp_path)
    reboot(tmp_path)
    node = opened(tmp_path)
    records = {record.uid: record for record in node.records()}
    assert before.items() <= records.items()
    refused = str(prepare(node, claim(4)))
    assert "no new claims are prepared on this node: the ledger was lost" in refused
    assert "run `dranode forget-lost --drivers dra.cpu`" in refused
    assert isinstance(prepare(node, claim(1)), Prepared)


@pytest.mark.parametrize("boot", [BOOT, "boot-2"])
def test_a_node_that_lost_everything_is_blocked_until_forget_lost(tmp_path: Path, boot: str) -> None:
    with_claims(tmp_path)
    for path in (tmp_path / "data").glob("ledger.db*"):
        path.write_bytes(b"no database" * 1000)
    reboot(tmp_path)
    assert "run `dranode forget-lost" in str(prepare(opened(tmp_path, boot), claim(4)))
    # The loss is as durable as the records, and an earlier dranode respects it too.
    header(tmp_path)
    assert "run `dranode forget-lost" in str(prepare(opened(tmp_path, boot), claim(4)))
    assert Ledger(ledger(tmp_path)).meta("schema") == str(SCHEMA_WITH_LOSS)
    assert read_ledger(ledger(tmp_path)).loss == LOST
    assert opened(tmp_path).forget_missing() == (LOST,)
    node = opened(tmp_path, boot)
    assert isinstance(prepare(node, claim(4)), Prepared)
    assert node.forget_missing() == ()
    assert Ledger(ledger(tmp_path)).meta("schema") == "1"


def test_claims_of_a_possibly_truncated_copy_are_held_but_may_not_be_all(tmp_path: Path) -> None:
    before = with_claims(tmp_path)
    gone(tmp_path)
    reboot(tmp_path)
    node = opened(tmp_path, "boot-2")
    assert {record.uid: record for record in node.records()} == before
    assert "run `dranode forget-lost" in str(prepare(node, claim(4)))


def test_a_copy_may_be_incomplete_if_the_boot_id_is_unknown(tmp_path: Path) -> None:
    assert isinstance(prepare(opened(tmp_path, ""), claim(1)), Prepared)
    gone(tmp_path)
    reboot(tmp_path)
    node = opened(tmp_path, "")
    assert {record.uid for record in node.records()} == {"uid-1"}
    assert "run `dranode forget-lost" in str(prepare(node, claim(2)))


def test_a_closed_copy_is_trusted_after_a_reboot(tmp_path: Path) -> None:
    node = opened(tmp_path)
    prepare(node, claim(1))
    node.close()
    gone(tmp_path)
    reboot(tmp_path)
    assert isinstance(prepare(opened(tmp_path, "boot-2"), claim(4)), Prepared)


def test_an_up_to_date_copy_is_kept_by_the_next_process_and_rewritten_after_a_boot(tmp_path: Path) -> None:
    node = opened(tmp_path)
    prepare(node, claim(1))
    node.close()
    copy = tmp_path / "data" / "ledger.db-copy"
    inode = copy.stat().st_ino
    again = opened(tmp_path)
    assert copy.stat().st_ino == inode
    prepare(again, claim(2))
    before = {record.uid: record for record in again.records()}
    gone(tmp_path)
    # It was not closed, so it is trusted in the boot in which it was begun, but not afterwards.
    assert {record.uid: record for record in opened(tmp_path).records()} == before
    assert copy.stat().st_ino != inode
    inode = copy.stat().st_ino
    opened(tmp_path, "boot-2").close()
    assert copy.stat().st_ino != inode


def test_an_older_ledger_that_is_put_back_is_not_trusted(tmp_path: Path) -> None:
    node = opened(tmp_path)
    prepare(node, claim(99))
    node.close()
    older = checkpoint(tmp_path)
    node.unprepare((reference(claim(99)),))
    prepare(node, claim(1))
    before = {record.uid: record for record in node.records()}
    node.close()
    gone(tmp_path)
    ledger(tmp_path).write_bytes(older)
    reboot(tmp_path)
    assert {record.uid: record for record in opened(tmp_path).records()} == before


def test_a_ledger_that_is_overwritten_under_a_driver_is_rebuilt_without_a_restart(tmp_path: Path) -> None:
    node = opened(tmp_path)
    # Before the first checkpoint it has no table.
    empty = ledger(tmp_path).read_bytes()
    prepare(node, claim(1))
    other = Ledger(ledger(tmp_path))
    other._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    other.close()
    ledger(tmp_path).write_bytes(empty)
    assert not isinstance(prepare(node, claim(2)), Prepared)
    assert isinstance(prepare(node, claim(2)), Prepared)
    assert {record.uid for record in node.records()} == {"uid-1", "uid-2"}


def test_a_copy_is_rewritten_if_an_earlier_dranode_did_not_keep_it_up_to_date(tmp_path: Path) -> None:
    with_claims(tmp_path)
    earlier = Ledger(ledger(tmp_path))
    with earlier.transaction():
        earlier._db.execute("DELETE FROM claims WHERE uid = 'uid-1'")
    for path in (tmp_path / "cdi").glob("*uid-1.json"):
        path.unlink()
    opened(tmp_path)
    copied = LedgerCopy(tmp_path / "data" / "ledger.db-copy").read()
    assert copied is not None
    assert copied.records.keys() == {"uid-0", "uid-2"}


def test_forget_lost_says_what_is_missing_and_forgets_it(tmp_path: Path) -> None:
    data = tmp_path / "kubelet" / "plugins" / "dra.cpu"
    data.parent.mkdir(parents=True)
    with_claims(tmp_path)
    for path in (tmp_path / "data").glob("ledger.db*"):
        path.write_bytes(b"no database" * 1000)
    reboot(tmp_path)
    opened(tmp_path)
    (tmp_path / "data").rename(data)
    places = ["--machine", MACHINE, "--kubelet-root", str(tmp_path / "kubelet"), "--cdi-dir", str(tmp_path / "cdi")]
    ran = [
        CliRunner().invoke(command, [*places, *more])
        for more in (["--dry-run"], ["--drivers", "dra.cpu"], ["-o", "json"])
    ]
    assert [one.exit_code for one in ran] == [0, 0, 0]
    assert "dra.cpu: new claims wait until it is forgotten" in ran[0].output
    assert f"dra.cpu: {LOST}" in ran[0].output
    assert "dra.cpu: forgotten: new claims are prepared" in ran[1].output
    assert '"missing": []' in ran[2].output


def moved(folder: Path) -> list[str]:
    """Options that make a command find the driver's folder where kubelet has it."""
    data = folder / "kubelet" / "plugins" / "dra.cpu"
    data.parent.mkdir(parents=True)
    (folder / "data").rename(data)
    (folder / "data").symlink_to(data)
    return ["--machine", MACHINE, "--kubelet-root", str(folder / "kubelet"), "--cdi-dir", str(folder / "cdi")]


@pytest.mark.parametrize("harm", [header, half, gone, emptied])
def test_a_dry_run_changes_nothing_and_says_what_a_driver_would_find(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: Callable[[Path], None]
) -> None:
    with_claims(tmp_path)
    harm(tmp_path)
    reboot(tmp_path)
    places = moved(tmp_path)
    (tmp_path / "data" / "serialize.lock").touch()
    files = {path: path.read_bytes() for path in (tmp_path / "data").iterdir()}
    for boot, says in ((BOOT, "nothing is missing"), ("boot-2", "new claims wait until it is forgotten")):
        monkeypatch.setattr(forget_lost, "boot_id", lambda _root, boot=boot: boot)
        done = CliRunner().invoke(command, [*places, "--dry-run"])
        assert (done.exit_code, done.stderr) == (0, "")
        assert says in done.stdout
        assert {path: path.read_bytes() for path in (tmp_path / "data").iterdir()} == files


def test_a_dry_run_says_which_file_it_cannot_read(tmp_path: Path) -> None:
    with_claims(tmp_path)
    unreadable(ledger(tmp_path).with_name("ledger.db-wal"))
    places = moved(tmp_path)
    done = CliRunner().invoke(command, [*places, "--dry-run"])
    assert done.exit_code == 1
    assert "ledger.db-wal cannot be read: Input/output error" in str(done.exception)
    ledger(tmp_path).unlink()
    ledger(tmp_path).symlink_to("/dev/zero")
    done = CliRunner().invoke(command, [*places, "--dry-run"])
    assert "ledger.db cannot be read: it is not a regular file" in str(done.exception)


def test_a_command_beside_a_driver_leaves_the_copy_trustworthy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = opened(tmp_path)
    assert isinstance(prepare(node, claim(1)), Prepared)
    monkeypatch.setattr(forget_lost, "boot_id", lambda _root: BOOT)
    done = CliRunner().invoke(command, moved(tmp_path))
    assert "nothing is missing" in done.output
    assert isinstance(prepare(node, claim(2)), Prepared)
    gone(tmp_path)
    reboot(tmp_path)
    assert isinstance(prepare(opened(tmp_path), claim(3)), Prepared)


def test_a_new_node_has_no_doubt(tmp_path: Path) -> None:
    assert opened(tmp_path).missing() == ()


def test_a_claim_holds_what_either_of_two_sources_says() -> None:
    one = Record(uid="a", cpus=CPUSet.parse("0-1"), held=CPUSet.parse("0-1"), fingerprint="f")
    other = Record(uid="a", cpus=CPUSet.parse("2-3"), held=CPUSet.parse("2-3"), fingerprint="g")
    found = salvaged(Copied(3, {"a": one}, whole=False), {}, (other,), BOOT)
    assert found.records["a"].held == CPUSet(range(4))
    assert found.loss == LOST


def test_claims_are_prepared_even_if_the_copy_cannot_be_written(tmp_path: Path) -> None:
    node = opened(tmp_path)
    (tmp_path / "data" / "ledger.db-copy").unlink()
    (tmp_path / "data" / "ledger.db-copy.new").mkdir()
    assert isinstance(prepare(node, claim(1)), Prepared)
    assert not (tmp_path / "data" / "ledger.db-copy").exists()
    (tmp_path / "data" / "ledger.db-copy.new").rmdir()
    assert isinstance(prepare(node, claim(2)), Prepared)
    copied = LedgerCopy(tmp_path / "data" / "ledger.db-copy").read()
    assert copied is not None
    assert copied.records.keys() == {"uid-1", "uid-2"}


@pytest.mark.parametrize(("damaged", "copied"), [(False, (2, {"uid-1", "uid-2"})), (True, None)])
def test_a_copy_that_lacks_a_commit_is_rewritten_only_from_a_whole_ledger(
    tmp_path: Path, copied: tuple[int, set[str]] | None, *, damaged: bool
) -> None:
    one, two = Record(uid="uid-1"), Record(uid="uid-2")
    copy = LedgerCopy(tmp_path / "ledger.db-copy")
    copy.write(Copied(1, {"uid-1": one}))
    # A process that has not read the copy does not know how long it is.
    recovery = LedgerRecovery(tmp_path / "ledger.db")
    recovery.begin()
    recovery.note(2, Commit(put=(two,)))
    recovery.follow(lambda: {"uid-1": one, "uid-2": two}, damaged=damaged)
    found = copy.read()
    assert (None if found is None else (found.commits, set(found.records))) == copied


def test_a_copy_that_lacks_a_commit_and_cannot_be_written_is_removed(tmp_path: Path) -> None:
    copy = LedgerCopy(tmp_path / "ledger.db-copy")
    copy.write(Copied(1))
    (tmp_path / "ledger.db-copy.new").mkdir()
    recovery = LedgerRecovery(tmp_path / "ledger.db")
    recovery.begin()
    recovery.note(2, Commit(put=(Record(uid="uid-2"),)))
    recovery.follow(lambda: {"uid-2": Record(uid="uid-2")}, damaged=False)
    assert copy.read() is None


def test_a_copy_that_lacks_a_commit_is_not_rewritten_from_a_damaged_ledger(tmp_path: Path) -> None:
    with_claims(tmp_path)
    rows(tmp_path)
    copy = tmp_path / "data" / "ledger.db-copy"
    # Not whole, so that it repairs no row, and too long to append to.
    copy.write_bytes(copy.read_bytes() + b"junk\n" * 3000)
    node = opened(tmp_path)
    assert node.store.book.damaged.keys() == {"uid-0", "uid-1", "uid-2"}
    assert isinstance(prepare(node, claim(4)), Prepared)
    assert not copy.exists()
    header(tmp_path)
    reboot(tmp_path)
    assert "run `dranode forget-lost" in str(prepare(opened(tmp_path), claim(5)))


def beside_its_journal(folder: Path) -> None:
    ledger(folder).unlink()


def emptied_beside_its_journal(folder: Path) -> None:
    ledger(folder).write_bytes(b"")


def unreadable(path: Path) -> None:
    """Replace it by a file whose first byte the kernel answers with an I/O error."""
    path.unlink(missing_ok=True)
    path.symlink_to("/proc/self/mem")


def unreadable_file(folder: Path) -> None:
    unreadable(ledger(folder))


def header_and_unreadable_journal(folder: Path) -> None:
    header(folder)
    unreadable(ledger(folder).with_name("ledger.db-wal"))


def a_folder_in_its_place(folder: Path) -> None:
    ledger(folder).unlink()
    ledger(folder).mkdir()


def untouched(folder: Path) -> None:
    assert folder.is_dir()


def copy_at(folder: Path) -> Path:
    return folder / "data" / "ledger.db-copy"


def empty_copy(folder: Path) -> None:
    copy_at(folder).write_bytes(b"")


def junk_as_copy(folder: Path) -> None:
    copy_at(folder).write_bytes(b"junk\n" * 9)


def unreadable_copy(folder: Path) -> None:
    unreadable(copy_at(folder))


def folder_as_copy(folder: Path) -> None:
    copy_at(folder).unlink()
    copy_at(folder).mkdir()


UNREAD = [unreadable_file, a_folder_in_its_place]
UNREAD_COPIES = [unreadable_copy, folder_as_copy]
MORE_HARM = [beside_its_journal, emptied_beside_its_journal, header_and_unreadable_journal, *UNREAD]
COPIES = [untouched, lose_copy, empty_copy, junk_as_copy, *UNREAD_COPIES]


@pytest.mark.parametrize("rebooted", [False, True], ids=["", "rebooted"])
@pytest.mark.parametrize("copy", COPIES)
@pytest.mark.parametrize("harm", [untouched, *HARM, *MORE_HARM])
def test_no_damage_to_ledger_and_copy_silently_loses_a_claim(
    tmp_path: Path, harm: Callable[[Path], None], copy: Callable[[Path], None], *, rebooted: bool
) -> None:
    if (rebooted, copy) == (True, lose_copy) and harm in (gone, emptied, journal_gone):
        pytest.skip("nothing is left that tells the node from a new one, or the ledger from an older one")
    before = with_claims(tmp_path)
    harm(tmp_path)
    copy(tmp_path)
    if rebooted:
        reboot(tmp_path)
    node = opened(tmp_path, "boot-2" if rebooted else BOOT)
    answer = prepare(node, claim(4))
    if harm in UNREAD or copy in UNREAD_COPIES:
        assert re.search("the (copy of the )?ledger .* cannot be (read|used): I", str(answer))
    elif isinstance(answer, Prepared):
        held = {uid: holding.cpus for uid, holding in node.store.book.held.holdings.items()}
        assert all(before[uid].held <= held[uid] for uid in before)
        assert held["uid-4"].isdisjoint(CPUSet.union(record.held for record in before.values()))
    else:
        assert "no new claims are prepared" in str(answer)
        assert node.missing()


def test_rows_of_a_journal_without_its_file_are_restored(tmp_path: Path) -> None:
    before = with_claims(tmp_path)
    beside_its_journal(tmp_path)
    lose_copy(tmp_path)
    reboot(tmp_path)
    with pytest.raises(CorruptLedgerError, match=r"it is gone, and ledger\.db-wal and ledger\.db-shm lie beside it"):
        read_ledger(ledger(tmp_path))
    node = opened(tmp_path)
    assert before.keys() <= {record.uid for record in node.records()}
    assert node.missing() == (LOST,)


def test_unreadable_rows_are_not_taken_for_no_rows(tmp_path: Path) -> None:
    with_claims(tmp_path)
    header_and_unreadable_journal(tmp_path)
    lose_copy(tmp_path)
    # While specs are written again after a boot, some claims have none.
    for path in sorted((tmp_path / "cdi").iterdir())[:1]:
        path.unlink()
    node = opened(tmp_path)
    wal = ledger(tmp_path).with_name("ledger.db-wal")
    assert node.missing() == (f"{LOST}: {wal} cannot be read (Input/output error)",)
    assert "run `dranode forget-lost" in str(prepare(node, claim(4)))


@pytest.mark.parametrize("harm", [gone, emptied])
@pytest.mark.parametrize("copy", [untouched, junk_as_copy])
def test_commands_do_not_take_a_lost_ledger_with_a_copy_for_an_empty_one(
    tmp_path: Path, harm: Callable[[Path], None], copy: Callable[[Path], None]
) -> None:
    with_claims(tmp_path)
    harm(tmp_path)
    copy(tmp_path)
    assert had_ledger(ledger(tmp_path))
    with pytest.raises(CorruptLedgerError, match=r"it has no tables, and ledger\.db-copy lies beside it"):
        read_ledger(ledger(tmp_path))
    lose_copy(tmp_path)
    assert read_ledger(ledger(tmp_path)).records == ()


@pytest.mark.parametrize("count", [1, 0], ids=["with claims", "with none"])
def test_commands_refuse_a_ledger_that_is_older_than_its_copy(tmp_path: Path, count: int) -> None:
    node = opened(tmp_path)
    for number in range(count):
        assert isinstance(prepare(node, claim(number)), Prepared)
    node.close()
    older = ledger(tmp_path).read_bytes()
    node = opened(tmp_path)
    assert isinstance(prepare(node, claim(2)), Prepared)
    node.close()
    assert len(read_ledger(ledger(tmp_path)).records) == count + 1
    ledger(tmp_path).write_bytes(older)
    reboot(tmp_path)
    with pytest.raises(CorruptLedgerError, match=r"it ends with commit \d+ and its copy with \d+"):
        read_ledger(ledger(tmp_path))
    done = CliRunner().invoke(drain.command, [*moved(tmp_path), "--force"])
    assert (done.exit_code, "not the one that was written last" in str(done.exception)) == (1, True)


@pytest.mark.parametrize("copy", UNREAD_COPIES)
def test_commands_report_an_unreadable_copy(tmp_path: Path, copy: Callable[[Path], None]) -> None:
    with_claims(tmp_path)
    copy(tmp_path)
    with pytest.raises(LedgerError, match=r"the copy of the ledger .* cannot be read: I"):
        read_ledger(ledger(tmp_path))


@pytest.mark.parametrize("harm", [beside_its_journal, emptied_beside_its_journal])
def test_commands_read_a_journal_without_its_ledger(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    with_claims(tmp_path)
    harm(tmp_path)
    lose_copy(tmp_path)
    assert had_ledger(ledger(tmp_path))
    moved(tmp_path)
    done = CliRunner().invoke(claims.command, ["--kubelet-root", str(tmp_path / "kubelet")])
    assert (done.exit_code, "lie beside it" in str(done.exception)) == (1, True)


@pytest.mark.parametrize("copy", UNREAD_COPIES)
@pytest.mark.parametrize("harm", [untouched, gone])
def test_an_empty_file_in_place_of_an_unreadable_copy_does_not_hide_claims(
    tmp_path: Path, harm: Callable[[Path], None], copy: Callable[[Path], None]
) -> None:
    before = with_claims(tmp_path)
    harm(tmp_path)
    copy(tmp_path)
    reboot(tmp_path)
    node = opened(tmp_path)
    assert "put an empty file in its place" in str(prepare(node, claim(4)))
    shutil.move(copy_at(tmp_path), tmp_path / "aside")
    copy_at(tmp_path).touch()
    if harm is gone:
        assert "no new claims are prepared" in str(prepare(node, claim(4)))
    else:
        assert isinstance(prepare(node, claim(4)), Prepared)
        assert before.keys() < {record.uid for record in node.records()}


def wired(folder: Path, board: Board, boot: str, command_of: str = "") -> NodeClaims:
    (folder / "data").mkdir(exist_ok=True)
    node = NodeClaims(WiredLamps(board), folder / "data", folder / "cdi", boot_id=command_of)
    if boot:
        node.open(boot)
    return node


def killed_while_it_makes_the_ledger_anew(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def kill(_path: Path) -> Path:
        raise SystemExit

    header(folder)
    with monkeypatch.context() as patch:
        patch.setattr(ledger_recovery, "move_aside", kill)
        with pytest.raises(SystemExit):
            wired(folder, Board(), "boot-2")


def command_before_the_driver(folder: Path, _monkeypatch: pytest.MonkeyPatch) -> None:
    node = wired(folder, Board(), "", "boot-2")
    assert node.missing() == ()
    node.close()
    header(folder)


@pytest.mark.parametrize("first", [killed_while_it_makes_the_ledger_anew, command_before_the_driver])
def test_hardware_is_configured_after_a_reboot_even_if_another_process_opened_the_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: Callable[[Path, pytest.MonkeyPatch], None]
) -> None:
    asked = allocated_claim("a", WiredLamps.driver, ["lamp-0"])
    node = wired(tmp_path, Board(), BOOT)
    assert isinstance(prepare(node, asked), Prepared)
    node.close()
    reboot(tmp_path)
    first(tmp_path, monkeypatch)
    board = Board()
    assert isinstance(prepare(wired(tmp_path, board, "boot-2"), asked), Prepared)
    assert board.actions == ["configure a"]


def test_hardware_is_not_configured_twice_in_one_boot_if_a_spec_exists(tmp_path: Path) -> None:
    asked = allocated_claim("a", WiredLamps.driver, ["lamp-0"])
    node = wired(tmp_path, Board(), BOOT)
    assert isinstance(prepare(node, asked), Prepared)
    node.close()
    header(tmp_path)
    board = Board()
    assert isinstance(prepare(wired(tmp_path, board, BOOT), asked), Prepared)
    assert board.actions == []


def attack(folder: Path, dice: random.Random) -> None:
    """Damage the ledger's files; only one of ledger and copy is hit, as by one failing block."""
    data = folder / "data"
    name = dice.choice(["ledger.db", "ledger.db", "ledger.db", "ledger.db-wal", "ledger.db-shm", "ledger.db-copy"])
    path = data / name
    if not path.exists():
        return
    good = bytearray(path.read_bytes())
    pages = max(len(good) // 4096, 1)
    one, other = (slice(4096 * at, 4096 * (at + 1)) for at in (dice.randrange(pages), dice.randrange(pages)))
    match dice.randrange(6):
        case 0:
            del good[dice.randrange(len(good) + 1) :]
        case 1:
            good[one] = bytes(len(good[one]))
        case 2:
            good[one], good[other] = bytes(good[other]), bytes(good[one])
        case 3:
            good[one] = dice.randbytes(len(good[one]))
        case 4:
            for _ in range(dice.randrange(1, 20)):
                good[dice.randrange(len(good))] ^= 1 << dice.randrange(8)
        case 5:
            path.unlink()
            return
    path.write_bytes(good)


def killed(folder: Path, at: int) -> Path:
    """Copy the driver's files into another folder, as a kill at this moment would leave them."""
    after = folder.parent / str(at)
    for name in ("data", "cdi"):
        if (folder / name).exists():
            shutil.copytree(folder / name, after / name)
    return after


@pytest.mark.parametrize("seed", range(12))
def test_no_attack_on_the_files_grants_a_cpu_twice_or_silently_loses_a_claim(tmp_path: Path, seed: int) -> None:
    dice, folder = random.Random(seed), tmp_path / "begin"
    folder.mkdir()
    node = opened(folder)
    told: dict[str, CPUSet] = {}
    for number in range(12):
        asked = claim(number, 1 + number % 2)
        if isinstance(prepare(node, asked), Prepared):
            told[asked.metadata.uid] = node.store.book.held.holdings[asked.metadata.uid].cpus
        if dice.random() < 0.5 and told:
            uid = dice.choice(sorted(told))
            if node.unprepare((reference(claim(int(uid[4:]))),))[uid] is None:
                del told[uid]
        if dice.random() < 0.6:
            if dice.random() < 0.5:
                node.close()
            folder = killed(folder, number)
            attack(folder, dice)
            if dice.random() < 0.4:
                reboot(folder)
            node = opened(folder)
        assert sum(map(len, told.values())) == len(CPUSet.union(told.values())), "a CPU was given twice"
        known = {record.uid: record for record in node.records()}
        assert all(told[uid] <= known[uid].held for uid in told.keys() & known.keys())
        assert told.keys() <= known.keys() or node.missing(), "a claim was lost in silence"
