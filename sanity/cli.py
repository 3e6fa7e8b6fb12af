"""`dranode sanity`: prove a DRA driver, in whatever language it is written."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click

import dranode.sanity.checks  # noqa: F401 - importing registers them
from dranode.sanity.bench import Bench
from dranode.sanity.breach import Breach
from dranode.sanity.check import Check, Level, registered
from dranode.sanity.setting import laid_out
from dranode.sanity.suite import (
    CheckOutcome,
    Verdict,
    capabilities,
    check_document,
    failed,
    report_document,
    run_checks,
    select,
    summary,
    unanswered,
    unproven,
)
from dranode.sanity.suite import junit as as_junit
from dranode.show.output import console, emit, fail, output_option, reporting
from dranode.show.terminal import columns

_SECONDS: Final[dict[str, Any]] = {"type": click.FloatRange(0), "show_default": True, "metavar": "SECONDS"}


@click.command(short_help="Check a DRA driver in any language: calls of kubelet, restarts, slices, CDI.")
@click.option("--registration-socket", metavar="PATH", help="The registration socket, or the folder it appears in.")
@click.option("--socket", default="", metavar="PATH", help="The DRA service's socket; default: what GetInfo names.")
@click.option("--claims", metavar="FOLDER", help="Allocated claims that the driver knows, in place of an API server.")
@click.option("--kubeconfig", metavar="PATH", help="Where to write the kubeconfig of the stand-in API server.")
@click.option("--cdi-dir", metavar="DIR", help="The folder into which the driver writes CDI specs.")
@click.option("--node-name", default="node", show_default=True, metavar="NAME", help="The node that the driver is on.")
@click.option(
    "--configurations",
    metavar="FILE",
    help="Opaque parameters that the driver accepts: the same fields with different values.",
)
@click.option("--focus", multiple=True, metavar="PATTERN", help="Run only checks or groups of this name (repeatable).")
@click.option("--skip", multiple=True, metavar="PATTERN", help="Skip checks or groups of this name (repeatable).")
@click.option("--strict", is_flag=True, help="Also fail if a SHOULD is broken.")
@click.option("--patience", default=120.0, help="How long to wait for what must happen.", **_SECONDS)
@click.option("--quiet", default=5.0, help="How long to watch for what must not happen.", **_SECONDS)
@click.option("--junit", metavar="FILE", help="Also write JUnit XML.")
@click.option("--state", metavar="DIR", help="Keep sockets, specs and the driver's log in DIR.")
@click.option("--list", "listing", is_flag=True, help="Only list the checks.")
@output_option
@click.argument("driver_command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
def command(
    *,
    driver_command: tuple[str, ...],
    focus: tuple[str, ...],
    skip: tuple[str, ...],
    output: str,
    junit: str | None,
    strict: bool,
    listing: bool,
    **options: Any,
) -> None:
    """Act as kubelet and as API server for a DRA driver, and check what it does.

    COMMAND starts the driver, so that it can be killed and started again. These names in it are replaced: {kubeconfig},
    {registry} (the folder for registration sockets), {plugins} (for the driver's data), {kubelet} (above both), {cdi},
    {node} and, for drivers that run in two instances during an update, {pod_uid}. Without COMMAND the driver must
    already run.

    The exit status is 1 if a MUST is broken, if the driver never answers, or if no claim could be tried. A check that
    could not be run is reported with its reason, and never counts as passed.

    \b
    Example:
      dranode sanity -- my-driver --kubeconfig {kubeconfig} --registry {registry} --plugins {plugins} --cdi {cdi}
      dranode sanity --registration-socket plugins_registry/my-driver-reg.sock --cdi-dir /var/run/cdi \\
        --kubeconfig kubeconfig --focus prepare --skip prepare-long-names
      dranode sanity --list
    """
    checks = select(registered(), focus, skip)
    if listing:
        if not emit([check_document(check) for check in checks], output):
            _draw_checks(checks)
        return
    # gRPC's messages about connections to a killed driver help nobody.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    breach = None
    with laid_out(driver_command, options) as bench, reporting() as progress:
        try:
            bench.begin()
            found = capabilities(bench)
            outcomes = run_checks(bench, checks, lambda check: progress(check.id))
            name = _name(bench)
        except Breach as never:
            # The report is written too, for those who read only that.
            breach, found, name = never, {}, _command_name(driver_command, bench)
            outcomes = unanswered(bench, checks, never)
    if junit is not None:
        Path(junit).write_text(as_junit(name, outcomes), encoding="utf-8")
    written = emit(report_document(name, found, outcomes), output)
    if breach is not None:
        fail(f"{breach.seen}; {breach.remedy}")
    if not written:
        _draw(outcomes)
        click.echo(summary(name, outcomes))
    if reason := unproven(bench, outcomes):
        fail(reason)
    if failed(outcomes, strict=strict):
        raise click.exceptions.Exit(1)


def _name(bench: Bench) -> str:
    return bench.driver if bench.places.registration is not None else bench.places.socket


def _command_name(driver_command: Sequence[str], bench: Bench) -> str:
    """Return a name for a driver that never registered one."""
    return driver_command[0] if driver_command else bench.places.socket or str(bench.places.registration)


def _draw_checks(checks: Sequence[Check]) -> None:
    table = columns("check", "level", "rule", "source")
    for check in checks:
        table.add_row(check.id, str(check.level), check.rule, check.source)
    console().print(table)


def _draw(outcomes: Sequence[CheckOutcome]) -> None:
    from rich.text import Text

    screen = console()
    table = columns("check", "level", "", "what was seen")
    for outcome in outcomes:
        lax = outcome.check.level is Level.SHOULD
        color = {Verdict.PASSED: "green", Verdict.SKIPPED: "dim"}.get(outcome.verdict, "yellow" if lax else "red")
        verdict = "not run" if outcome.verdict is Verdict.SKIPPED else str(outcome.verdict)
        table.add_row(outcome.check.id, str(outcome.check.level), Text(verdict, style=color), outcome.text)
    screen.print(table)
    for outcome in outcomes:
        if outcome.verdict is Verdict.FAILED:
            check = outcome.check
            screen.print(f"\n{check.id} ({check.level}): {check.rule}", markup=False, soft_wrap=True)
            screen.print(f"  source: {check.source}", markup=False, soft_wrap=True)
            screen.print(f"  seen: {outcome.text}", markup=False, soft_wrap=True)
            screen.print(f"  what to do: {outcome.remedy}", markup=False, soft_wrap=True)
