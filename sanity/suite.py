"""Runs checks one after another and reports their outcomes: as a document, as JUnit XML, and in one line."""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any, Final
from xml.etree import ElementTree as ET

from dranode.api.errors import DranodeError, UsageError, one_sentence, printable
from dranode.sanity.bench import Bench
from dranode.sanity.breach import Breach, Unable
from dranode.sanity.check import Check, CheckGroup, Level
from dranode.sanity.kubelet import DRA_SERVICES, HEALTH_SERVICES, DriverCallError

# The groups in which most checks need a claim.
_CLAIM_GROUPS: Final = frozenset((CheckGroup.PREPARE, CheckGroup.UNPREPARE, CheckGroup.CDI))
_LONGEST: Final = 4000
_UNSTARTED: Final = (
    "read the driver's log; write whole files (a temporary name, then a rename), and detect damaged ones"
)
# The checks that only need a registration socket that answers.
OF_GET_INFO: Final = frozenset(
    f"registration-{rule}"
    for rule in ("get-info", "type", "name", "endpoint", "versions", "versions-order", "versions-unique")
)


class Verdict(StrEnum):
    """The outcome of a check."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class CheckOutcome:
    """The outcome of a check.

    Attributes:
        text: what was seen, or why the check could not be run; empty if it passed.
        remedy: what the driver's author can do if it failed.
        seconds: how long it took.
    """

    check: Check
    verdict: Verdict
    text: str = ""
    remedy: str = ""
    seconds: float = 0.0


def select(checks: Sequence[Check], focus: Iterable[str], skip: Iterable[str]) -> list[Check]:
    """Return the checks whose ids match a pattern of `focus` (all, if it is empty) and no pattern of `skip`.

    Raises:
        UsageError: a pattern matches no check.
    """
    focus, skip = tuple(focus), tuple(skip)
    for option, patterns in (("--focus", focus), ("--skip", skip)):
        for pattern in patterns:
            if not any(_matches(check, pattern) for check in checks):
                raise UsageError(f'{option} "{pattern}" matches no check; `dranode sanity --list` shows them')
    return [
        check
        for check in checks
        if (not focus or any(_matches(check, pattern) for pattern in focus))
        and not any(_matches(check, pattern) for pattern in skip)
    ]


def _matches(check: Check, pattern: str) -> bool:
    return fnmatchcase(check.id, pattern) or check.group == pattern


def run_checks(
    bench: Bench, checks: Sequence[Check], progress: Callable[[Check], None] = lambda _: None
) -> list[CheckOutcome]:
    """Run checks in order, and undo the effects of each before the next.

    If the driver does not start again after a check, that check has failed, and the driver gets an empty folder.
    """
    outcomes = []
    gone = ""
    for check in checks:
        if gone:
            outcomes.append(CheckOutcome(check, Verdict.SKIPPED, gone))
            continue
        progress(check)
        began = time.monotonic()
        verdict, text, remedy = _verdict(bench, check)
        seconds = time.monotonic() - began
        why, gone = _kept_from_starting(bench)
        if why:
            text = f"{text}; {why}" if verdict is Verdict.FAILED else why
            remedy = f"{remedy}; {_UNSTARTED}" if remedy else _UNSTARTED
            verdict = Verdict.FAILED
        outcomes.append(_outcome_of(check, verdict, text, remedy, seconds))
    return outcomes


def _kept_from_starting(bench: Bench) -> tuple[str, str]:
    """Start a driver with an empty folder if it does not start otherwise.

    Returns why it does not, and why no other check can be run if it never answers again; empty strings otherwise.
    """
    try:
        bench.see_it_answers()
    except (Breach, DriverCallError, DranodeError) as error:
        with contextlib.suppress(Breach, DriverCallError, DranodeError, Unable):
            bench.start_afresh()
            return f"afterwards the driver starts only with an empty folder: {error}", ""
        return f"afterwards the driver does not answer: {error}", "the driver no longer answers"
    return "", ""


def unanswered(bench: Bench, checks: Sequence[Check], breach: Breach) -> list[CheckOutcome]:
    """Return the outcomes for a driver that never answered: only the checks of GetInfo can be run and may show why.

    If they do not show it, the first check fails.
    """
    registers = bench.places.registration is not None and bench.registration_sockets()
    runs = OF_GET_INFO if registers else frozenset(("registration-get-info",))
    outcomes = [
        _outcome_of(check, *_looked(bench, check))
        if check.id in runs
        else CheckOutcome(check, Verdict.SKIPPED, "the driver never answered")
        for check in sorted(checks, key=lambda check: check.level is not Level.MUST)
    ]
    if outcomes and not any(outcome.verdict is Verdict.FAILED for outcome in outcomes):
        reason = f"the driver never answered: {breach.seen}"
        outcomes[0] = _outcome_of(outcomes[0].check, Verdict.FAILED, reason, breach.remedy)
    return outcomes


def _outcome_of(check: Check, verdict: Verdict, text: str, remedy: str, seconds: float = 0.0) -> CheckOutcome:
    """Return an outcome whose text, which may be the driver's, is one line of limited length."""
    return CheckOutcome(check, verdict, one_sentence(text, _LONGEST), remedy, seconds)


def unproven(bench: Bench, outcomes: Sequence[CheckOutcome]) -> str:
    """Return why a run proves nothing, because no claim could be tried; empty if it proves something."""
    of_claims = [outcome for outcome in outcomes if outcome.check.group in _CLAIM_GROUPS]
    reasons = [outcome.text for outcome in of_claims if outcome.verdict is Verdict.SKIPPED]
    return f"no claim was tested: {reasons[0]}" if reasons and not bench.claims_tried else ""


def _verdict(bench: Bench, check: Check) -> tuple[Verdict, str, str]:
    try:
        bench.begin()
    except (Breach, DriverCallError, DranodeError) as error:
        remedy = error.remedy if isinstance(error, Breach) else "read the driver's log"
        return Verdict.FAILED, f"the driver does not answer: {error}", remedy
    try:
        verdict, text, remedy = _looked(bench, check)
        ended = bench.ended_unasked()
    finally:
        bench.clean()
    if ended := ended or bench.ended_unasked():
        log = f"; its log ends: {bench.started().log()[-300:]}" if bench.started().log() else ""
        before = f"{text}; " if verdict is Verdict.FAILED else ""
        return Verdict.FAILED, f"{before}{ended} during the check{log}", remedy or "handle the call's error"
    return verdict, text, remedy


def _looked(bench: Bench, check: Check) -> tuple[Verdict, str, str]:
    try:
        check.run(bench)
    except Unable as reason:
        return Verdict.SKIPPED, str(reason), ""
    except Breach as finding:
        return Verdict.FAILED, finding.seen, finding.remedy
    except DriverCallError as error:
        remedy = "answer kubelet's calls; put an error into the entry of the claim it is about"
        return Verdict.FAILED, f"a call failed: {error}", remedy
    except Exception as error:  # noqa: BLE001 - whatever a driver says, the other checks are run
        what = f"the check itself failed: {type(error).__name__}: {error}"
        return Verdict.FAILED, what, "see what the driver answered; if that is right, report a bug in the check"
    return Verdict.PASSED, "", ""


def summary(driver: str, outcomes: Sequence[CheckOutcome]) -> str:
    """Return one line, such as `dra.cpu: 98 of 98 MUST, 19 of 21 SHOULD passed; 7 not run`."""
    parts = []
    for level in Level:
        verdicts = Counter(outcome.verdict for outcome in outcomes if outcome.check.level is level)
        ran = verdicts[Verdict.PASSED] + verdicts[Verdict.FAILED]
        parts.append(f"{verdicts[Verdict.PASSED]} of {ran} {level}")
    skipped = sum(outcome.verdict is Verdict.SKIPPED for outcome in outcomes)
    return f"{printable(driver)}: {', '.join(parts)} passed; {skipped} not run"


def failed(outcomes: Sequence[CheckOutcome], *, strict: bool) -> bool:
    """Return whether a run has failed: by a MUST or, if it is strict, also by a SHOULD."""
    return any(
        outcome.verdict is Verdict.FAILED and (strict or outcome.check.level is Level.MUST) for outcome in outcomes
    )


def report_document(driver: str, capabilities: dict[str, Any], outcomes: Sequence[CheckOutcome]) -> dict[str, Any]:
    """Return a run as a plain document."""
    return {
        "driver": driver,
        "summary": summary(driver, outcomes),
        "capabilities": capabilities,
        "checks": [{**check_document(outcome.check), **_outcome(outcome)} for outcome in outcomes],
    }


def check_document(check: Check) -> dict[str, Any]:
    """Return a check as a plain document."""
    return {
        "id": check.id,
        "group": str(check.group),
        "level": str(check.level),
        "rule": check.rule,
        "source": check.source,
    }


def junit(driver: str, outcomes: Sequence[CheckOutcome]) -> str:
    """Return JUnit XML with a suite for each group; a broken SHOULD counts as skipped, with what was seen."""
    root = ET.Element("testsuites", {"name": printable(f"dranode sanity {driver}"), **_counts(outcomes)})
    for group in dict.fromkeys(outcome.check.group for outcome in outcomes):
        cases = [outcome for outcome in outcomes if outcome.check.group is group]
        suite = ET.SubElement(root, "testsuite", {"name": str(group), **_counts(cases)})
        for outcome in cases:
            _case(suite, outcome)
    return ET.tostring(root, encoding="unicode", xml_declaration=True)


def _counts(outcomes: Sequence[CheckOutcome]) -> dict[str, str]:
    skipped = sum(outcome.verdict is not Verdict.PASSED and not _fails(outcome) for outcome in outcomes)
    counts = {"tests": len(outcomes), "failures": sum(map(_fails, outcomes)), "errors": 0, "skipped": skipped}
    return {**{key: str(count) for key, count in counts.items()}, "time": _seconds(outcomes)}


def _outcome(outcome: CheckOutcome) -> dict[str, Any]:
    return {
        "verdict": str(outcome.verdict),
        "text": outcome.text or None,
        "remedy": outcome.remedy or None,
        "seconds": round(outcome.seconds, 3),
    }


def _fails(outcome: CheckOutcome) -> bool:
    return outcome.verdict is Verdict.FAILED and outcome.check.level is Level.MUST


def _seconds(outcomes: Sequence[CheckOutcome]) -> str:
    return f"{sum(outcome.seconds for outcome in outcomes):.3f}"


def _case(suite: ET.Element, outcome: CheckOutcome) -> None:
    name = {"classname": f"{outcome.check.level}", "name": outcome.check.id}
    case = ET.SubElement(suite, "testcase", {**name, "time": _seconds([outcome])})
    if outcome.verdict is Verdict.PASSED:
        return
    kind = "failure" if _fails(outcome) else "skipped"
    level = "" if outcome.verdict is Verdict.SKIPPED or _fails(outcome) else "SHOULD not kept: "
    found = ET.SubElement(case, kind, message=printable(level + outcome.text))
    check = outcome.check
    found.text = "\n".join(filter(None, (check.rule, check.source, printable(outcome.remedy))))


def capabilities(bench: Bench) -> dict[str, Any]:
    """Return what the driver reports and publishes, as a plain document."""
    info = bench.info if bench.places.registration is not None else None
    versions = info.versions if info else (bench.version,)
    return {
        "services": [version for version in versions if version in DRA_SERVICES],
        "health": [version for version in versions if version in HEALTH_SERVICES],
        **_published(bench),
        "startedBySuite": bench.process is not None,
        "rollingUpdate": bench.process is not None and bench.process.rolling,
        "configurations": len(bench.configurations),
    }


def _published(bench: Bench) -> dict[str, Any]:
    try:
        devices = bench.offers()
    except (Unable, Breach, DriverCallError):
        devices = []
    return {
        "pools": sorted({device.pool for device in devices}),
        "devices": len(devices),
        "shareableDevices": sum(device.shareable for device in devices),
        "taints": any(device.document.get("taints") for device in devices),
        "counters": any(device.document.get("consumesCounters") for device in devices),
    }
