"""`dranode check`: whether the API server and the drivers would accept these documents."""

from collections.abc import Mapping
from typing import Any

import click

from dranode.api.errors import DocumentError
from dranode.api.field_errors import FieldError
from dranode.api.manifests import SourceDocument, custom_group
from dranode.driver.claims.plugin import Plugin
from dranode.driver.plugins import load_installed
from dranode.driver.slices.publishable import publishable
from dranode.show.output import console, emit, output_option
from dranode.show.terminal import columns
from dranode.sim.allocator.features import Features
from dranode.sim.cli.documents import asked_features, release_options, report_notes
from dranode.sim.cluster.across import PublishedDevice
from dranode.sim.cluster.check import CheckResult, check, check_parameters, nothing_checked
from dranode.sim.cluster.pod_templates import ignored_documents
from dranode.sim.machines.forms import open_machine


@click.command(short_help="Check claims, templates, classes and configurations, and what they count against a quota.")
@release_options
@output_option
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
def command(*, files: tuple[str, ...], kubernetes: str | None, feature_gates: str, output: str) -> None:
    """Check ResourceClaims, ResourceClaimTemplates, DeviceClasses, Pods and opaque configurations in FILEs.

    A FILE of - is the standard input. All errors are shown, each with its path: those of the API server, of the CEL
    selectors, and of the installed drivers for their own configurations. For Pods and pod templates (Deployment,
    Job ...), what decides where they run is checked, and the use of claims against the claims in FILEs. The quota
    shows what a claim counts against a ResourceQuota, by class. Warnings are about valid documents that do not fit
    the other documents or the devices; they do not change the exit status. --kubernetes and its gates decide what a
    selector may use.

    \b
    Example:
      dranode check claim.yaml
      dranode check -o json *.yaml
    """
    verdicts = _verdicts(files, asked_features(kubernetes, feature_gates))
    if not emit([_document(verdict) for verdict in verdicts], output):
        _draw(verdicts)
    if any(verdict.errors for verdict in verdicts):
        raise click.exceptions.Exit(1)


def _verdicts(files: tuple[str, ...], features: Features) -> list[CheckResult]:
    from dranode.driver.machine.yaml_files import read_each_document

    plugins = _plugins()
    verdicts: list[CheckResult] = []
    documents: list[SourceDocument] = []
    for file in files:
        try:
            readable, problems = read_each_document(file)
        except DocumentError as error:
            readable, problems = (), (error,)
        documents += readable
        if problems:
            # A file without a Kubernetes document may hold the bare parameters of a driver.
            parameters = check_parameters(file, plugins) if not readable else None
            errors = tuple(FieldError("", str(problem)) for problem in problems)
            verdicts.append(parameters or CheckResult(file, "", "", errors))
    verdicts += check(documents, plugins, _published(plugins), features.new_expressions)
    refused = {(verdict.file, verdict.kind, verdict.name) for verdict in verdicts if verdict.errors}
    accepted = [source for source in documents if (source.file, source.kind, source.name) not in refused]
    custom = ((source, custom_group(source.document.get("apiVersion"))) for source in accepted)
    report_notes(ignored_documents(source for source, group in custom if group and group not in plugins))
    order = {file: number for number, file in enumerate(files)}
    return sorted(verdicts, key=lambda verdict: order[verdict.file]) or [nothing_checked(files)]


def _plugins() -> dict[str, Plugin]:
    """Return the installed drivers by name; they only check configurations, so any machine will do."""
    machine = open_machine("sockets=1,numa=1,l3=1,cores=2,threads=1")
    return {plugin.driver: plugin for plugin in load_installed(machine)}


def _published(plugins: Mapping[str, Plugin]) -> list[PublishedDevice]:
    """Return sample devices of the installed drivers, which show their capacities and whether they can be shared."""
    return [
        PublishedDevice(driver, device)
        for driver, plugin in plugins.items()
        for device in publishable(plugin.discover()).devices
    ]


def _document(verdict: CheckResult) -> dict[str, Any]:
    return {
        "file": verdict.file,
        "kind": verdict.kind,
        "name": verdict.name,
        "ok": not verdict.errors,
        "errors": [{"path": error.path, "message": error.message} for error in verdict.errors],
        "quota": dict(verdict.quota),
        "warnings": [{"path": warning.path, "message": warning.message} for warning in verdict.warnings],
    }


def _draw(verdicts: list[CheckResult]) -> None:
    from rich.text import Text

    screen = console()
    table = columns("file", "kind", "name", "valid", "counts")
    for verdict in verdicts:
        counts = ", ".join(f"{name}: {count}" for name, count in verdict.quota.items())
        valid = Text("no", style="red") if verdict.errors else Text("yes", style="green")
        table.add_row(verdict.file, verdict.kind, verdict.name, valid, counts)
    screen.print(table)
    for verdict in verdicts:
        if verdict.errors or verdict.warnings:
            screen.print(f"\n{verdict.file} {verdict.kind} {verdict.name}".rstrip(), markup=False)
        for error in verdict.errors:
            screen.print(f"  {': '.join(filter(None, (error.path, error.message)))}", markup=False, soft_wrap=True)
        for warning in verdict.warnings:
            screen.print(f"  warning: {warning.path}: {warning.message}", markup=False, soft_wrap=True)
