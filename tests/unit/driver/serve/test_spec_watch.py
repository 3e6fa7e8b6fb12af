"""Specs that are removed or altered under a running driver are written again."""

import shutil
import threading
from collections.abc import Iterable
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import msgspec
import pytest

from dranode.api.errors import ClaimError, UnreadError
from dranode.api.resource import ResourceClaim
from dranode.driver.claims.answers import Refused
from dranode.driver.claims.grant import Grant
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.record import Record
from dranode.driver.node.metadata_files import DeviceMetadata
from dranode.driver.node.node import NodeClaims
from dranode.driver.node.record_store import Entry
from dranode.driver.serve import spec_watch as spec_watch_module
from dranode.driver.serve.spec_watch import SpecWatch
from tests.fakes.drivers import Lamps, allocated_claim
from tests.fakes.node import LAMPS, opened, prepare, spec_of, specs
from tests.fakes.waiting import PATIENCE


def prepared_before(folder: Path, count: int, metadata: DeviceMetadata) -> list[ResourceClaim]:
    """Prepare claims with a driver that has ended since."""
    node = opened(folder, Lamps(count), metadata=metadata)
    claims = [allocated_claim(f"c{number}", LAMPS, [f"lamp-{number}"]) for number in range(count)]
    prepare(node, *claims)
    node.close()
    return claims


def contents(folder: Path) -> dict[str, bytes]:
    """The contents of the CDI folder."""
    return {path.name: path.read_bytes() for path in (folder / "cdi").iterdir()}


def test_unchanged_specs_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = opened(tmp_path, metadata=DeviceMetadata(LAMPS, tmp_path / "metadata", tmp_path / "cdi"))
    claims = [allocated_claim(name, LAMPS, [f"lamp-{number}"]) for number, name in enumerate("ab")]
    prepare(node, *claims)
    looked_into: list[set[str]] = []
    mend = node.mend_files

    def noted(uids: Iterable[str]) -> Any:
        looked_into.append(set(uids))
        return mend(looked_into[-1])

    monkeypatch.setattr(node, "mend_files", noted)
    watch = SpecWatch(node)
    watch.check()
    assert looked_into == []
    altered = spec_of(tmp_path, claims[1])
    altered.write_text("{}")
    watch.check()
    assert looked_into == [{claims[1].metadata.uid}]
    assert "metadata.json" in altered.read_text()


def test_a_check_after_a_call_reads_only_the_claims_of_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = opened(tmp_path, Lamps(50))
    claims = [allocated_claim(f"c{number}", LAMPS, [f"lamp-{number}"]) for number in range(50)]
    prepare(node, *claims[1:])
    watch = SpecWatch(node)
    watch.check()
    passes, entries = list[tuple[Entry, ...]](), node.store.book.entries

    def passed() -> tuple[Entry, ...]:
        passes.append(entries())
        return passes[-1]

    monkeypatch.setattr(node.store.book, "entries", passed)
    prepare(node, claims[0])
    watch.check()
    spec_of(tmp_path, claims[0]).unlink()
    watch.check()
    assert spec_of(tmp_path, claims[0]).exists()
    assert passes == []


def test_a_restart_writes_missing_specs_and_checks_the_others_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = DeviceMetadata(LAMPS, tmp_path / "metadata", tmp_path / "cdi")
    claims = prepared_before(tmp_path, 50, metadata)
    whole = contents(tmp_path)
    spec_of(tmp_path, claims[0]).unlink()
    spec_of(tmp_path, claims[1]).unlink()
    spec_of(tmp_path, claims[2]).write_text("{}")
    again = NodeClaims(Lamps(50), tmp_path / "data", tmp_path / "cdi", metadata=metadata)
    written: list[str] = []
    write = again.files.write

    def noted(record: Record) -> bool:
        written.append(record.name)
        return write(record)

    monkeypatch.setattr(again.files, "write", noted)
    again.open()
    assert sorted(written) == ["c0", "c1"]
    watch = SpecWatch(again)
    looks = []
    for _ in range(5):
        before = len(written)
        watch.check()
        looks.append(len(written) - before)
    assert (max(looks) < 30, sum(looks), looks[-1]) == (True, 49, 0)  # the spec that was written is compared once more
    assert contents(tmp_path) == whole
    assert watch.rewritten == 1


def test_after_a_reboot_specs_are_written_a_few_at_a_time_between_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    metadata = DeviceMetadata(LAMPS, tmp_path / "metadata", tmp_path / "cdi")
    claims = prepared_before(tmp_path, 300, metadata)
    whole = contents(tmp_path)
    for path in (tmp_path / "cdi").iterdir():
        path.unlink()
    again = opened(tmp_path, Lamps(300), metadata=metadata)
    assert len(specs(tmp_path)) < 300
    assert not spec_of(tmp_path, claims[-1]).exists()
    prepare(again, claims[-1])
    assert spec_of(tmp_path, claims[-1]).exists()
    mend, at_once = again.mend_files, list[int]()

    def noted(uids: Iterable[str]) -> Any:
        uids = tuple(uids)
        at_once.append(len(uids))
        return mend(uids)

    monkeypatch.setattr(again, "mend_files", noted)
    watch = SpecWatch(again)
    watch.check()
    assert contents(tmp_path) == whole
    assert max(at_once) <= 20
    # That is what a reboot does, not somebody who removes files.
    assert (watch.rewritten, caplog.messages) == (0, [])
    spec_of(tmp_path, claims[7]).unlink()
    watch.check()
    assert watch.rewritten == 1


def test_a_spec_found_missing_while_the_ledger_cannot_be_read_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = opened(tmp_path)
    claim = allocated_claim("a", LAMPS, ["lamp-0"])
    prepare(node, claim)
    watch = SpecWatch(node)
    watch.check()
    spec_of(tmp_path, claim).unlink()
    with monkeypatch.context() as patch:

        def unread(_: object) -> Any:
            raise UnreadError("the ledger is away")

        patch.setattr(node, "mend_files", unread)
        with pytest.raises(UnreadError):
            watch.check()
    watch.check()
    assert spec_of(tmp_path, claim).exists()


def test_an_altered_spec_is_repaired_before_those_that_wait_for_a_first_check(tmp_path: Path) -> None:
    node = opened(tmp_path, Lamps(60))
    claims = [allocated_claim(f"c{number}", LAMPS, [f"lamp-{number}"]) for number in range(60)]
    prepare(node, *claims)
    node.close()
    again = opened(tmp_path, Lamps(60))
    watch = SpecWatch(again)
    watch.check()
    for claim in claims:
        whole = spec_of(tmp_path, claim).read_bytes()
        spec_of(tmp_path, claim).write_text("{}")
        watch.check()
        assert spec_of(tmp_path, claim).read_bytes() == whole


def test_a_spec_that_is_removed_twice_is_written_again_without_events(tmp_path: Path) -> None:
    node = opened(tmp_path)
    claim = allocated_claim("a", LAMPS, ["lamp-0"])
    prepare(node, claim)
    watch = SpecWatch(node)
    for times in range(1, 4):
        shutil.rmtree(tmp_path / "cdi")
        watch.check()
        assert spec_of(tmp_path, claim).exists()
        assert watch.rewritten == times


def test_writing_metadata_again_is_retried_until_it_succeeds(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    node = opened(tmp_path, metadata=DeviceMetadata(LAMPS, tmp_path / "metadata", tmp_path / "cdi"))
    claim = allocated_claim("a", LAMPS, ["lamp-0"])
    prepare(node, claim)
    watch = SpecWatch(node)
    watch.check()
    spec = spec_of(tmp_path, claim)
    whole = spec.read_bytes()
    spec.unlink()
    (tmp_path / "metadata").rename(tmp_path / "away")
    (tmp_path / "metadata").touch()
    for _ in range(3):
        watch.check()
    # A runtime does not start a container with a mount whose source is missing.
    assert b"LAMP=lamp-0" in spec.read_bytes()
    assert b"metadata.json" not in spec.read_bytes()
    (reason,) = caplog.messages
    assert "claim default/a gets no device metadata" in reason
    (tmp_path / "metadata").unlink()
    (tmp_path / "away").rename(tmp_path / "metadata")
    watch.check()
    assert spec.read_bytes() == whole


def test_a_spec_that_a_prepare_could_not_write_is_written_at_a_later_check(tmp_path: Path) -> None:
    class Fragile(Lamps):
        broken = False

        def complete(self, claim: ClaimRef, grants: tuple[Grant, ...]) -> tuple[Grant, ...]:
            if self.broken:
                raise ClaimError(f"the lamp of {claim} is not to be seen")
            return grants

    driver = Fragile()
    node = opened(tmp_path, driver, metadata=DeviceMetadata(LAMPS, tmp_path / "metadata", tmp_path / "cdi"))
    claim = allocated_claim("a", LAMPS, ["lamp-0"])
    prepare(node, claim)
    now = [0.0]
    watch = SpecWatch(node, lambda: now[0])
    watch.check()
    driver.broken = True
    annotations = {"resource.kubernetes.io/pod-claim-name": "lamp"}
    renamed = msgspec.structs.replace(claim, metadata=msgspec.structs.replace(claim.metadata, annotations=annotations))
    assert isinstance(prepare(node, renamed)["a"], Refused)
    driver.broken = False
    now[0] += 60
    watch.check()
    assert "/resourceclaimtemplates/lamp/r/" in spec_of(tmp_path, claim).read_text()


def test_a_driver_that_fails_for_one_spec_does_not_stop_repairs_of_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Fragile(Lamps):
        broken = ""

        def complete(self, claim: ClaimRef, grants: tuple[Grant, ...]) -> tuple[Grant, ...]:
            if claim.name == self.broken:
                raise ZeroDivisionError
            return grants

    driver = Fragile()
    node = opened(tmp_path, driver)
    claims = [allocated_claim(name, LAMPS, [f"lamp-{index}"]) for index, name in enumerate("abc")]
    prepare(node, *claims)
    watch = SpecWatch(node)
    watch.check()
    driver.broken = "b"
    for path in (tmp_path / "cdi").iterdir():
        path.unlink()
    for _ in range(2):
        watch.check()
    assert {name[-41:-5] for name in specs(tmp_path)} == {claims[0].metadata.uid, claims[2].metadata.uid}
    (sentence,) = (message for message in caplog.messages if "ZeroDivisionError" in message)
    assert sentence == (
        f"claim=default/b uid={claims[1].metadata.uid} driver={LAMPS}: the CDI spec of claim default/b cannot be "
        f"written again: internal error in {LAMPS}: ZeroDivisionError()"
    )
    driver.broken = ""
    watch.check()
    assert len(specs(tmp_path)) == len(claims)


def test_a_spec_that_is_altered_during_its_repair_is_repaired_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = opened(tmp_path)
    claim = allocated_claim("a", LAMPS, ["lamp-0"])
    prepare(node, claim)
    spec = spec_of(tmp_path, claim)
    right = spec.read_bytes()
    watch = SpecWatch(node)
    watch.check()
    write, attacks = node.files.write, [b"{ }"]

    def attacked(record: Record) -> bool:
        changed = write(record)
        if attacks:
            spec.write_bytes(attacks.pop())
        return changed

    monkeypatch.setattr(node.files, "write", attacked)
    spec.write_bytes(b"{}")
    watch.check()
    assert spec.read_bytes() == b"{ }"
    watch.check()
    assert spec.read_bytes() == right
    assert claim.metadata.uid not in node.files.written
    watch.check()
    assert claim.metadata.uid in node.files.written


def test_a_check_is_due_after_an_event_and_after_a_while_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spec_watch_module, "CHECK_SECONDS", 0.01)
    monkeypatch.setattr(spec_watch_module, "_IDLE_SECONDS", PATIENCE)
    node = opened(tmp_path)
    prepare(node, allocated_claim("a", LAMPS, ["lamp-0"]))
    watch, stopping, rested = SpecWatch(node), threading.Event(), SimpleQueue[bool]()
    watch.check()
    watch.check()

    def resting() -> threading.Thread:
        thread = threading.Thread(target=lambda: rested.put(watch.rest(stopping)))
        thread.start()
        return thread

    first = resting()
    with pytest.raises(Empty):
        rested.get(timeout=0.05)
    next((tmp_path / "cdi").iterdir()).unlink()
    assert rested.get(timeout=PATIENCE) is False
    first.join(PATIENCE)
    # The repair causes an event as well, which the next check reads.
    watch.check()
    watch.check()
    second = resting()
    stopping.set()
    watch.wake()
    assert rested.get(timeout=PATIENCE) is True
    second.join(PATIENCE)
    watch.stop()
    monkeypatch.setattr(spec_watch_module, "_IDLE_SECONDS", 0.01)
    again = SpecWatch(node)
    again.check()
    assert again.rest(threading.Event()) is False
    again.stop()
