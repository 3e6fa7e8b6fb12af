"""Runs a sample of the crash points of `make crash`, and shows that its checks can fail."""

from dataclasses import replace

import pytest

from dranode.driver.claims.answers import Prepared
from tests.crash import node_points, setting_points, unsynced
from tests.crash.points import CPU, MEMORY, find_points, look, missing, pod, see_mounts, serving, survive, world
from tests.crash.runs import Point, Violation, report
from tests.fakes.settings import DEFAULT
from tests.fakes.waiting import PATIENCE

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "strace is there")


def test_a_point_that_is_not_reached_is_tried_again_and_reported(capsys: pytest.CaptureFixture[str]) -> None:
    points = [Point("write", 1), Point("write", 2)]
    reached = iter([False, True, *[False] * 10])
    assert report("a run", points, points, lambda _: next(reached)) == 0
    assert capsys.readouterr().out.splitlines() == [
        "a run: 2 points: write 2",
        "not reached in 10 runs, in which no thread made so many such calls: write#2 SIGKILL",
        "2 run, 1 reached, 2 survived",
    ]


def test_an_undisturbed_run_yields_the_crash_points() -> None:
    points = find_points()
    assert {"fdatasync", "rename", "unlink", "pwrite64"} <= {point.call for point in points}
    assert Point("fdatasync", 1) in points


@pytest.mark.parametrize(
    "point",
    [Point("fdatasync", 3), Point("rename", 1), Point("pwrite64", 6, "ENOSPC"), Point("rename", 3, "ENOSPC")],
    ids=str,
)
def test_the_driver_survives_a_sample_of_crashes(point: Point) -> None:
    assert survive(point), "the point was not reached"


@pytest.mark.parametrize("point", [Point("fdatasync", 3), Point("rename", 1)], ids=str)
def test_the_memory_driver_survives_a_sample_of_crashes(point: Point) -> None:
    assert survive(point, MEMORY), "the point was not reached"


@pytest.mark.parametrize(
    ("life", "point"),
    [("recovery from the copy", Point("rename", 1)), ("recovery from CDI specs", Point("fdatasync", 2))],
    ids=str,
)
def test_the_driver_survives_crashes_while_it_recovers_a_lost_ledger(life: str, point: Point) -> None:
    assert survive(point, CPU, life), "the point was not reached"


def test_a_spec_with_other_contents_than_the_grant_is_a_violation() -> None:
    other = replace(MEMORY, given=lambda *_: "7")
    with (
        world(MEMORY) as folder,
        serving(folder, subject=other) as run,
        pytest.raises(Violation, match="does not say DRANODE_MEMS_uid-0=7"),
    ):
        look(run, {}, Point("write", 1))


def test_a_spec_that_mounts_a_missing_file_is_a_violation() -> None:
    with world() as folder:
        with serving(folder) as run:
            assert run.register()
            run.kubelet.prepare(pod(0))
        see_mounts(folder / "cdi", Point("write", 1))
        for file in (folder / "kubelet" / "plugins" / CPU.driver / "metadata").iterdir():
            file.unlink()
        with pytest.raises(Violation, match="uid-0_r'], which are not there"):
            see_mounts(folder / "cdi", Point("write", 1))


def test_the_driver_survives_a_crash_beside_another_instance_and_a_runtime() -> None:
    assert node_points.survive(Point("sendto", 3)), "the point was not reached"


@pytest.mark.skipif(bool(setting_points.why_not()), reason=setting_points.why_not() or "-")
def test_the_driver_survives_a_crash_while_it_changes_settings() -> None:
    assert setting_points.survive(Point("write", 5), again=False), "the point was not reached"


def test_a_changed_setting_without_a_record_is_a_violation() -> None:
    with setting_points.world() as folder:
        (folder / "host" / DEFAULT).write_text("00000001\n")
        with pytest.raises(Violation, match="on record is None"):
            setting_points.see_record(folder, Point("write", 1))


def test_machine_crashes_lose_nothing_that_was_flushed() -> None:
    life = unsynced.record()
    for seed, count in enumerate((len(life.operations), len(life.operations) - 3, len(life.operations) // 2)):
        unsynced.survive(life, count, seed)


def test_a_machine_crash_without_flushes_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    life = unsynced.record()
    never = [each for each in life.operations if each.call != "sync" or not each.path]
    monkeypatch.setattr("tests.hostile.settling.PATIENCE", 3.0)

    def crash() -> None:
        for seed in range(8):
            unsynced.survive(unsynced.RecordedLife(never, life.known), len(never), seed)

    with pytest.raises(Violation, match="operations"):
        crash()


def test_a_changed_answer_after_a_restart_is_a_violation() -> None:
    with world() as folder:
        with serving(folder) as run:
            assert run.register()
            (first,) = run.kubelet.prepare(pod(0)).values()
            assert isinstance(first, Prepared)
            run.process.terminate()
            run.process.wait(PATIENCE)
        with serving(folder) as run, pytest.raises(Violation, match="kubelet was told"):
            look(run, {1: first.devices}, Point("write", 1))
