"""The outcomes of a run as a document, as JUnit XML, and in one line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree as ET

from dranode.api.errors import printable
from dranode.sanity.bench import Bench
from dranode.sanity.breach import Breach, Unable
from dranode.sanity.check import Check, Level
from dranode.sanity.kubelet import DRA_SERVICES, HEALTH_SERVICES, DriverCallError
from dranode.sanity.suite import CheckOutcome, Verdict


def summary(driver: str, outcomes: Sequence[CheckOutcome]) -> str:
    """One line, such as `dra.cpu: 98 of 98 MUST, 19 of 21 SHOULD passed; 7 not run`."""
    parts = []
    for level in Level:
        verdicts = Counter(outcome.verdict for outcome in outcomes if outcome.check.level is level)
        ran = verdicts[Verdict.PASSED] + verdicts[Verdict.FAILED]
        parts.append(f"{verdicts[Verdict.PASSED]} of {ran} {level}")
    skipped = sum(outcome.verdict is Verdict.SKIPPED for outcome in outcomes)
    return f"{driver}: {', '.join(parts)} passed; {skipped} not run"


def failed(outcomes: Sequence[CheckOutcome], *, strict: bool) -> bool:
    """Return whether a run has failed: by a MUST, or by a SHOULD too if it is strict."""
    return any(
        outcome.verdict is Verdict.FAILED and (strict or outcome.check.level is Level.MUST) for outcome in outcomes
    )


def report_document(driver: str, capabilities: dict[str, Any], outcomes: Sequence[CheckOutcome]) -> dict[str, Any]:
    """The plain document of a run."""
    return {
        "driver": driver,
        "summary": summary(driver, outcomes),
        "capabilities": capabilities,
        "checks": [{**check_document(outcome.check), **_outcome(outcome)} for outcome in outcomes],
    }


def check_document(check: Check) -> dict[str, Any]:
    """The plain document of a check."""
    return {
        "id": check.id,
        "group": str(check.group),
        "level": str(check.level),
        "rule": check.rule,
        "source": check.source,
    }


def junit(driver: str, outcomes: Sequence[CheckOutcome]) -> str:
    """JUnit XML: a suite for each group; a SHOULD that is not kept counts as skipped, with what was seen."""
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
    """Return what the driver says and publishes, as a plain document."""
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
