"""Choosing checks, and what a run reports of them."""

import time
from functools import partial
from typing import Any
from xml.etree import ElementTree as ET

import grpc
import pytest

import dranode.sanity.checks  # noqa: F401 - importing registers them
from dranode.api.errors import UsageError
from dranode.sanity import bench as bench_module
from dranode.sanity import driver_link
from dranode.sanity.apiserver import ApiServer, SeenRequest
from dranode.sanity.bench import Bench
from dranode.sanity.breach import Breach, Unable, expect
from dranode.sanity.check import Check, CheckGroup, Level, registered
from dranode.sanity.kinds import kind_of
from dranode.sanity.kubelet import DriverCallError
from dranode.sanity.objects import StatusError
from dranode.sanity.suite import (
    OF_GET_INFO,
    CheckOutcome,
    Verdict,
    failed,
    junit,
    report_document,
    run_checks,
    select,
    summary,
    unanswered,
    unproven,
)
from tests.fakes.sanity import faults_slices
from tests.fakes.sanity.bench import bench_of
from tests.fakes.sanity.driver import Instance, RightDriver


def check(name: str, level: Level = Level.MUST, run: object = None) -> Check:
    return Check(name, CheckGroup(name.split("-", maxsplit=1)[0]), level, "A rule.", "KEP-1", run)  # type: ignore[arg-type]


CHECKS = [check("prepare-a"), check("prepare-b", Level.SHOULD), check("cdi-a")]


@pytest.mark.parametrize(
    ("focus", "skip", "ids"),
    [
        ((), (), ["prepare-a", "prepare-b", "cdi-a"]),
        (("prepare",), (), ["prepare-a", "prepare-b"]),
        (("*-a",), (), ["prepare-a", "cdi-a"]),
        ((), ("prepare-a",), ["prepare-b", "cdi-a"]),
        (("prepare",), ("*-b",), ["prepare-a"]),
    ],
)
def test_patterns_select_checks(focus: tuple[str, ...], skip: tuple[str, ...], ids: list[str]) -> None:
    assert [each.id for each in select(CHECKS, focus, skip)] == ids


@pytest.mark.parametrize(("focus", "skip"), [(("prepar",), ()), ((), ("cdi-b",)), (("prepare", "x"), ())])
def test_a_pattern_that_matches_nothing_is_an_error(focus: tuple[str, ...], skip: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="matches no check"):
        select(CHECKS, focus, skip)


OUTCOMES = [
    CheckOutcome(CHECKS[0], Verdict.PASSED),
    CheckOutcome(CHECKS[1], Verdict.FAILED, "a <lamp> was seen", "put it out"),
    CheckOutcome(CHECKS[2], Verdict.SKIPPED, "there is no folder"),
]


def test_a_check_that_was_not_run_is_not_counted_as_passed() -> None:
    assert summary("d", OUTCOMES) == "d: 1 of 1 MUST, 0 of 1 SHOULD passed; 1 not run"


def test_only_a_must_fails_a_run_unless_it_is_strict() -> None:
    assert not failed(OUTCOMES, strict=False)
    assert failed(OUTCOMES, strict=True)
    assert failed([CheckOutcome(CHECKS[0], Verdict.FAILED)], strict=False)


def test_the_document_has_the_rule_its_source_and_the_remedy() -> None:
    document = report_document("d", {"devices": 1}, OUTCOMES)
    assert document["checks"][1] == {
        "id": "prepare-b", "group": "prepare", "level": "SHOULD", "rule": "A rule.", "source": "KEP-1",
        "verdict": "failed", "text": "a <lamp> was seen", "remedy": "put it out", "seconds": 0.0,
    }  # fmt: skip


def test_junit_has_one_suite_per_group_and_a_should_as_skipped() -> None:
    root = ET.fromstring(junit("d", [*OUTCOMES, CheckOutcome(check("cdi-b"), Verdict.FAILED, "x", "y")]))  # noqa: S314
    assert [(suite.get("name"), suite.get("failures"), suite.get("skipped")) for suite in root] == [
        ("prepare", "0", "1"),
        ("cdi", "1", "1"),
    ]
    assert {key: root.get(key) for key in ("tests", "failures", "errors", "skipped")} == {
        "tests": "4", "failures": "1", "errors": "0", "skipped": "2",
    }  # fmt: skip
    skipped = root.find("testsuite/testcase/skipped")
    assert skipped is not None
    assert skipped.get("message") == "SHOULD not kept: a <lamp> was seen"


def test_ids_start_with_their_group_and_rules_are_sentences() -> None:
    checks = registered()
    assert [each.id for each in checks if not each.rule.endswith(".") or not each.source] == []
    assert sorted({each.group for each in checks}) == sorted({CheckGroup(each.id.split("-")[0]) for each in checks})


def broken(_: object) -> None:
    raise Breach("seen", "do")


def not_able(_: object) -> None:
    raise Unable("no device")


def test_an_outcome_follows_from_how_a_check_ends() -> None:
    with bench_of(RightDriver) as bench:
        checks = [check("cdi-a", run=broken), check("cdi-b", run=not_able), check("cdi-c", run=lambda _: None)]
        outcomes = run_checks(bench, checks)
    assert [(each.verdict, each.text, each.remedy) for each in outcomes] == [
        (Verdict.FAILED, "seen", "do"),
        (Verdict.SKIPPED, "no device", ""),
        (Verdict.PASSED, "", ""),
    ]


def test_a_driver_that_ends_during_a_check_fails_it_and_is_started_again() -> None:
    def end(_: object) -> None:
        assert isinstance(driver, RightDriver)
        driver.status = 3

    with bench_of(RightDriver) as bench:
        driver = bench.process
        assert isinstance(driver, RightDriver)
        outcomes = run_checks(bench, [check("cdi-a", run=end), check("cdi-b", run=lambda _: None)])
    assert [each.verdict for each in outcomes] == [Verdict.FAILED, Verdict.PASSED]
    assert outcomes[0].text == "the driver ended with status 3 during the check"


class Torn(RightDriver):
    """Does not start if it finds a half-written file."""

    def start(self, instance: str = "") -> None:
        if (self.folder / "plugins" / "torn").exists():
            self.status = 1
        else:
            super().start(instance)


@pytest.mark.parametrize("ends", [lambda: None, lambda: expect(False, "seen", "do")], ids=["passed", "failed"])  # noqa: FBT003
def test_a_check_that_keeps_the_driver_from_starting_fails_and_the_next_runs(ends: Any) -> None:
    def tear(bench: Bench) -> None:
        bench.disconnect()
        bench.started().kill()
        (bench.places.data / "torn").touch()  # type: ignore[operator]
        ends()

    with bench_of(Torn) as bench:
        first, second = run_checks(bench, [check("cdi-a", run=tear), check("cdi-b", run=lambda _: None)])
        assert (bench.places.data.parent / "plugins-1" / "torn").exists()  # type: ignore[union-attr]
    assert (first.verdict, second.verdict) == (Verdict.FAILED, Verdict.PASSED)
    assert "afterwards the driver starts only with an empty folder: no registration socket answers" in first.text
    assert first.text.startswith("seen; ") == first.remedy.startswith("do; ")


def test_a_failure_says_that_the_driver_ended_meanwhile() -> None:
    def end(_: object) -> None:
        assert isinstance(driver, RightDriver)
        driver.status = -11
        raise Breach("a call failed", "answer it")

    with bench_of(RightDriver) as bench:
        driver = bench.process
        (outcome,) = run_checks(bench, [check("cdi-a", run=end)])
    assert outcome.text == "a call failed; the driver ended with signal 11 (Segmentation fault) during the check"
    assert outcome.remedy == "answer it"


def test_a_check_that_crashes_does_not_stop_the_other_checks() -> None:
    def surprised(_: object) -> None:
        raise KeyError("devices")

    with bench_of(RightDriver) as bench:
        outcomes = run_checks(bench, [check("cdi-a", run=surprised), check("cdi-b", run=lambda _: None)])
    assert [each.verdict for each in outcomes] == [Verdict.FAILED, Verdict.PASSED]
    assert outcomes[0].text == "the check itself failed: KeyError: 'devices'"


def test_a_driver_that_never_answers_gets_a_report_with_one_failure() -> None:
    with bench_of(RightDriver) as bench:
        outcomes = unanswered(bench, [CHECKS[1], CHECKS[0], CHECKS[2]], Breach("nobody is there", "listen"))
    assert [(each.check.id, each.verdict) for each in outcomes] == [
        ("prepare-a", Verdict.FAILED), ("cdi-a", Verdict.SKIPPED), ("prepare-b", Verdict.SKIPPED),
    ]  # fmt: skip
    assert outcomes[0].text == "the driver never answered: nobody is there"


class RelativeEndpoint(RightDriver):
    """Gives an endpoint that kubelet cannot dial."""

    def info(self, instance: Instance) -> Any:
        info = super().info(instance)
        info.endpoint = "plugins/dra.sock"
        return info


def test_get_info_is_checked_even_if_the_driver_answers_no_calls() -> None:
    checks = [each for each in registered() if each.id in OF_GET_INFO or each.id == "prepare-answers"]
    with bench_of(RelativeEndpoint) as bench:
        bench.process.start()  # type: ignore[union-attr]
        outcomes = unanswered(bench, checks, Breach("the service does not answer", "listen"))
    by_verdict = {verdict: {each.check.id for each in outcomes if each.verdict is verdict} for verdict in Verdict}
    assert by_verdict == {
        Verdict.PASSED: OF_GET_INFO - {"registration-endpoint"},
        Verdict.FAILED: {"registration-endpoint"},
        Verdict.SKIPPED: {"prepare-answers"},
    }


def test_a_run_that_tested_no_claim_proves_nothing() -> None:
    skipped = [CheckOutcome(each, Verdict.SKIPPED, "no device is published") for each in CHECKS]
    # Some checks of Prepare and Unprepare need no device.
    skipped.append(CheckOutcome(check("unprepare-unknown"), Verdict.PASSED))
    with bench_of(RightDriver) as bench:
        assert unproven(bench, skipped) == "no claim was tested: no device is published"
        assert unproven(bench, [CheckOutcome(check("registration-a"), Verdict.SKIPPED, "x")]) == ""
        bench.claims_tried = 1
        assert unproven(bench, skipped) == ""


class Hangs(RightDriver):
    """Never answers a call that has claims."""

    def prepare_call(self, api: Any, request: Any, context: Any) -> Any:
        if request.claims:
            context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "as kubelet would see it")
        return super().prepare_call(api, request, context)


def test_a_driver_whose_calls_time_out_is_given_less_time() -> None:
    with bench_of(Hangs) as bench:
        bench.begin()
        given = []
        for _ in range(4):
            with bench._patiently() as seconds:
                given.append(seconds)
            with pytest.raises(DriverCallError):
                bench.prepare(bench.make_claim([]))
    assert given == [45.0, 45.0, 45.0, 5.0]


class SilentStream(RightDriver):
    """Begins its streams with nothing."""

    def watch(self, api: Any, context: Any, instance: Instance) -> Any:
        del api
        while context.is_active():
            instance.stopped.wait(0.05)
        yield from ()


class HangsWithoutClaims(RightDriver):
    """Never answers a call without claims, which kubelet does not make."""

    def prepare_call(self, api: Any, request: Any, context: Any) -> Any:
        while not request.claims and context.is_active():
            time.sleep(0.05)
        return super().prepare_call(api, request, context)


class UnpreparesNothing(RightDriver):
    """Fails every Unprepare, so that claims of one check would be in the way of the next ones."""

    def unprepare_call(self, api: Any, request: Any, context: Any) -> Any:
        del api, request
        context.abort(grpc.StatusCode.INTERNAL, "read-only file system")


class StartsOnce(RightDriver):
    """Cannot be started again."""

    starts = 0

    def start(self, instance: str = "") -> None:
        self.starts += 1
        if self.starts == 1:
            super().start(instance)


@pytest.mark.parametrize(
    ("driver", "names", "breaks"),
    [
        (faults_slices.NeverLooksAgain, ["slices-deleted", "slices-quiet"], "slices-deleted"),
        (SilentStream, ["health-*", "resources-streams"], "health-served"),
        (HangsWithoutClaims, ["prepare-succeeds", "prepare-empty-call"], "prepare-empty-call"),
        (UnpreparesNothing, ["unprepare-idempotent", "prepare-answers"], "unprepare-idempotent"),
        (StartsOnce, ["restart-registers", "restart-held", "restart-several"], "restart-held"),
    ],
)
def test_one_defect_is_waited_for_once_and_spoils_no_other_check(
    driver: type[RightDriver], names: list[str], breaks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_link, "NOTIFY_SECONDS", 1.0)
    monkeypatch.setattr(bench_module, "_LIMITS", ((10, 1.0),))
    checks = select(registered(), names, ["health-not-advertised"])
    with bench_of(driver) as bench:
        bench.begin()
        bench.eventually(bench.slices)
        bench.patience = 1.0
        outcomes = run_checks(bench, checks)
    assert [each.check.id for each in outcomes if each.verdict is Verdict.FAILED] == [breaks]


def test_a_driver_that_somebody_else_started_and_that_ended_is_waited_for_once() -> None:
    with bench_of(RightDriver) as bench:
        driver, bench.process = bench.started(), None
        driver.start()
        bench.begin()
        bench.patience = 0.1
        outcomes = run_checks(bench, [check(f"cdi-{name}", run=lambda _: driver.kill()) for name in "abc"])
    assert [each.verdict for each in outcomes] == [Verdict.FAILED, Verdict.SKIPPED, Verdict.SKIPPED]
    assert "afterwards the driver does not answer: no registration socket answers" in outcomes[0].text


class RunsAlone(RightDriver):
    """Does not run beside another instance."""

    def exited(self, instance: str = "") -> int | None:
        return 3 if instance else super().exited(instance)


def test_a_second_instance_that_ends_is_reported_with_its_status() -> None:
    with bench_of(RunsAlone) as bench:
        (outcome,) = run_checks(bench, select(registered(), ["rolling-endpoints"], []))
    assert outcome.text.startswith("a second instance ended with status 3; its log ends: ")


def test_what_did_not_come_the_last_time_or_three_times_is_waited_for_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float | None] = []

    def note(holds: Any, seconds: float | None = None) -> Any:
        given.append(seconds)
        return holds()

    with bench_of(RightDriver) as bench:
        monkeypatch.setattr(bench, "eventually", note)
        for seen in [False, True] * 4:
            bench.awaited("a socket", partial(bool, seen))
    assert given == [None, 5.0, None, 5.0, None, 5.0, 5.0, 5.0]


def test_a_driver_that_writes_without_end_does_not_use_up_the_memory() -> None:
    with ApiServer() as api:
        watched = api.objects.version
        for number in range(2500):
            api.note(SeenRequest("PUT", "slices", {}, {"number": number}, {}, 200, 0.0))
            api.put("namespaces", {"metadata": {"name": f"n{number}"}})
        assert (len(api.requests("PUT")), sum(seen.body is not None for seen in api.seen)) == (2500, 2000)
        assert len(api.objects.history) <= 2000
        with pytest.raises(StatusError, match="too old resource version"):
            api.objects.since(kind_of("namespaces"), watched)
