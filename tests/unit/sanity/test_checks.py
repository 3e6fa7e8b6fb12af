"""Every check passes with a correct driver, and finds the faulty driver that was written for it."""

import threading
import time
from collections.abc import Iterator
from http import HTTPStatus
from importlib import import_module
from pathlib import Path
from typing import Any

import grpc
import pytest

from dranode.sanity.bench import Bench, calling
from dranode.sanity.breach import Breach, Unable
from dranode.sanity.check import Check, Level, registered
from dranode.sanity.checks import prepare_refused
from dranode.sanity.kubelet import DriverCallError
from dranode.sanity.suite import Verdict, run_checks
from tests.fakes.sanity import faults_allocation, faults_cdi, faults_registration, faults_slices
from tests.fakes.sanity.bench import bench_of
from tests.fakes.sanity.driver import CONFIGURATIONS, Document, DriverWithoutHealth, Instance, Refused, RightDriver
from tests.fakes.sanity.fault import FAULTS, Fault
from tests.fakes.sanity.publisher import Publisher
from tests.fakes.waiting import PATIENCE

CHECKS = {check.id: check for check in registered()}
# Each module registers its drivers.
for path in sorted(Path(faults_cdi.__file__).parent.glob("faults_*.py")):
    import_module(f"{faults_cdi.__package__}.{path.stem}")
# How long to wait for what a faulty driver never does; the correct driver gets as long as it needs.
SHORT = 0.4
ATTEMPTS = 6


@pytest.fixture(scope="module")
def right() -> Iterator[Bench]:
    with bench_of(RightDriver) as bench:
        yield bench


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS.keys())
def test_a_correct_driver_passes(right: Bench, check: Check) -> None:
    if check.id == "health-not-advertised":
        pytest.skip("it is for drivers without health, and has a test of its own")
    (outcome,) = run_checks(right, [check])
    assert (outcome.verdict, outcome.text) == (Verdict.PASSED, "")


class LooksAtItsStart(RightDriver):
    """Repairs its slices when it starts, and never again."""

    def publishes(self, stopped: threading.Event) -> Publisher:
        return faults_slices.Once(self, stopped)


def _drop_attributes(document: Document) -> None:
    for device in document["spec"]["devices"]:
        device.pop("attributes", None)


@pytest.mark.parametrize("check", ["slices-v1beta2", "slices-v1beta1", "slices-after-restart"])
def test_slices_damaged_before_a_start_are_not_the_drivers_fault(check: str) -> None:
    with bench_of(LooksAtItsStart, patience=5.0) as bench:
        bench.begin()
        assert bench.eventually(lambda: len(bench.slices()) > 2, PATIENCE)
        (name,) = (each["metadata"]["name"] for each in bench.slices() if "dev-0" in str(each["spec"].get("devices")))
        bench.server().objects.edit("resourceslices", name, _drop_attributes)
        (outcome,) = run_checks(bench, [CHECKS[check]])
    assert (outcome.verdict, outcome.text) == (Verdict.PASSED, "")


def test_a_driver_without_health_passes() -> None:
    with bench_of(DriverWithoutHealth) as bench:
        (outcome,) = run_checks(bench, [CHECKS["health-not-advertised"]])
    assert (outcome.verdict, outcome.text) == (Verdict.PASSED, "")


class KeepsToDeadlines(RightDriver):
    """Ends a call just before its deadline with a status of its own, as gRPC's server in Go may do."""

    def watch(self, api: Any, context: Any, instance: Instance) -> Any:
        yield self.health(api)
        # Without a deadline it is a very long time.
        if (seconds := context.time_remaining()) < PATIENCE:
            time.sleep(max(0.0, seconds - 0.05))
            context.abort(grpc.StatusCode.CANCELLED, "the deadline is over")
        yield from super().watch(api, context, instance)


def test_streams_have_no_deadline_by_which_a_driver_could_end_them() -> None:
    with bench_of(KeepsToDeadlines) as bench:
        (outcome,) = run_checks(bench, [CHECKS["health-stays-open"]])
    assert (outcome.verdict, outcome.text) == (Verdict.PASSED, "")


class ClosesItsFolder(RightDriver):
    """Makes a file writable by everybody, below a directory that only the owner can enter."""

    def save(self, records: dict[str, Document]) -> None:
        super().save(records)
        state = self.folder / "plugins" / "closed" / "open" / "state"
        state.parent.mkdir(parents=True, exist_ok=True)
        state.parent.parent.chmod(0o700)
        state.touch()
        state.chmod(0o666)


def test_files_in_a_directory_that_only_the_owner_enters_may_have_any_mode() -> None:
    with bench_of(ClosesItsFolder) as bench:
        (outcome,) = run_checks(bench, [CHECKS["restart-state-not-writable"]])
        assert list(bench.places.data.rglob("state")) if bench.places.data else False
    assert (outcome.verdict, outcome.text) == (Verdict.PASSED, "")


class WaitsForTheServer(RightDriver):
    """Tries for a while to get the claim before it refuses, or answers from its record."""

    seconds = 0.6

    def prepare(self, claim: Any) -> list[Document]:
        try:
            self.claim(claim)
        except Refused:
            time.sleep(self.seconds)
        return super().prepare(claim)


@pytest.mark.parametrize("check", ["prepare-server-error", "prepare-server-away"])
def test_a_driver_that_waits_longer_for_the_server_than_kubelet_waits_is_found(
    check: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare_refused, "CALL_SECONDS", WaitsForTheServer.seconds / 2)
    with bench_of(WaitsForTheServer) as bench:
        (outcome,) = run_checks(bench, [CHECKS[check]])
    assert (outcome.verdict, outcome.text[:13]) == (Verdict.FAILED, "the call took")


class FailsGetInfo(RightDriver):
    def info(self, instance: Instance) -> Any:
        raise OSError(instance.endpoint)


def test_a_failed_registration_is_reported_with_the_drivers_words() -> None:
    said = r"GetInfo at right-reg.sock failed: .*dra\.sock"
    with bench_of(FailsGetInfo, patience=1.0) as bench, pytest.raises(Breach, match=said):
        bench.begin()


class AnswersNoDevices(RightDriver):
    """Provides its devices by other means, as drivers that only use NRI do."""

    def prepare(self, claim: Any) -> list[Document]:
        super().prepare(claim)
        return []


def test_a_driver_that_answers_without_devices_breaks_no_must() -> None:
    musts = [check for check in CHECKS.values() if check.level is Level.MUST]
    with bench_of(AnswersNoDevices) as bench:
        outcomes = run_checks(bench, musts)
    assert {each.check.id: each.text for each in outcomes if each.verdict is Verdict.FAILED} == {}
    assert sum(each.verdict is Verdict.PASSED for each in outcomes) > len(musts) / 2


class PreparesNothing(RightDriver):
    def grant(self, document: Document) -> list[Document]:
        raise Refused(f"device of {document['metadata']['name']} is busy")


def test_a_few_checks_report_why_nothing_is_prepared_and_the_others_are_not_run() -> None:
    with bench_of(PreparesNothing) as bench:
        begin(bench)
        outcomes = run_checks(bench, [check for check in CHECKS.values() if check.group == "cdi"])
    assert sum(outcome.verdict is Verdict.FAILED for outcome in outcomes) == 3


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.check}-{fault.driver.__name__}")
def test_a_faulty_driver_is_found(fault: Fault) -> None:
    with bench_of(fault.driver) as bench:
        bench.begin()
        bench.eventually(
            lambda: len(bench.server().objects.all("resourceslices")) > 2, PATIENCE if fault.publishes else 0
        )
        bench.patience = SHORT
        # On a busy machine the driver may do what it should not only after the check has looked.
        for _ in range(ATTEMPTS):
            (outcome,) = run_checks(bench, [CHECKS[fault.check]])
            if outcome.verdict is Verdict.FAILED and fault.says in outcome.text:
                break
            bench.quiet, bench.patience = 2 * bench.quiet, 2 * bench.patience
    assert outcome.verdict is Verdict.FAILED, outcome.text
    assert fault.says in outcome.text
    assert outcome.remedy


def test_every_check_has_a_faulty_driver() -> None:
    assert sorted(CHECKS.keys() - {fault.check for fault in FAULTS}) == []


def begin(bench: Bench) -> None:
    bench.begin()
    bench.eventually(lambda: bench.server().objects.all("resourceslices"), PATIENCE)


def test_slices_under_another_name_than_the_registered_one_are_explained() -> None:
    with bench_of(faults_registration.WrongName) as bench:
        begin(bench)
        bench.patience = SHORT
        with pytest.raises(Unable, match=r"registered as Right_Driver, and the slices are those of right\.example"):
            bench.offers()


@pytest.mark.parametrize(
    ("check", "driver", "remedy"),
    [
        ("unprepare-unknown", faults_allocation.KnownOnly, "also for a claim that is not prepared"),
        ("cdi-resolves", faults_cdi.UnknownVersion, "fix what `dranode cdi validate` reports"),
    ],
)
def test_the_remedy_is_about_what_was_seen(check: str, driver: type[RightDriver], remedy: str) -> None:
    with bench_of(driver) as bench:
        begin(bench)
        (outcome,) = run_checks(bench, [CHECKS[check]])
    assert remedy in outcome.remedy, outcome


def test_parameters_that_change_nothing_hide_no_fault() -> None:
    with bench_of(faults_allocation.WholeNamesOnly) as bench:
        bench.configurations = ({**CONFIGURATIONS[0], "color": "none"}, CONFIGURATIONS[0])
        (outcome,) = run_checks(bench, [CHECKS["configuration-subrequest"]])
    assert (outcome.verdict, outcome.text[:16]) == (Verdict.FAILED, "by none, by any,")


def test_a_refusal_that_happens_twice_is_reported_once() -> None:
    with bench_of(faults_slices.RefusedFirst) as bench:
        begin(bench)
        refusals = [write for write in bench.server().writes() if write.status == HTTPStatus.UNPROCESSABLE_ENTITY]
        (outcome,) = run_checks(bench, [CHECKS["slices-taken"]])
    assert (len(refusals), outcome.text.count("is not a semantic version")) == (2, 1)


def test_a_call_that_takes_too_long_has_its_own_explanation() -> None:
    class TooLate(grpc.RpcError):  # type: ignore[misc] # grpcio has no types
        def code(self) -> grpc.StatusCode:
            return grpc.StatusCode.DEADLINE_EXCEEDED

        def details(self) -> str:
            return "Deadline Exceeded"

    with pytest.raises(Breach) as late, calling("NodePrepareResources"):
        raise DriverCallError(TooLate())
    assert "45 s" in late.value.remedy
