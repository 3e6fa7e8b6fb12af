"""The cluster that a person means: `--kubeconfig`, `KUBECONFIG`, the pod's own, or ~/.kube/config, as kubectl looks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from dranode.driver.kube.client import Client
from dranode.driver.kube.connection import Connection
from dranode.driver.kube.server import Credentials
from dranode.driver.machine.presence import is_file
from dranode.show.output import ProgressReporter, reporting

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class NamedCluster:
    """A cluster, and the namespace that a name without one is in.

    Attributes:
        client: its API server.
        namespace: the namespace.
        name: the context's name; for titles.
        place: what names it, for people: `context prod of ~/.kube/config (https://10.0.0.1:6443)`.
    """

    client: Client
    namespace: str
    name: str
    place: str

    def show(self, progress: ProgressReporter) -> None:
        """Say from now on what is waited for."""
        show_waiting(self.client, self.place, progress)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Show what is waited for, where nothing else is shown meanwhile."""
        with reporting() as progress:
            self.show(progress)
            yield


def show_waiting(client: Client, place: str, progress: ProgressReporter) -> None:
    """Say from now on which of a client's requests is waited for, of several at a time the one that was sent first."""
    waiting: list[str] = []

    @contextmanager
    def asking(what: str) -> Iterator[None]:
        waiting.append(what)
        progress(f"{place}: {next(iter(waiting), what)}")
        try:
            yield
        finally:
            waiting.remove(what)
            for first in tuple(waiting[:1]):
                progress(f"{place}: {first}")

    client.asking = asking


def kubeconfig_options(function: F) -> F:
    """Add kubectl's options that say which cluster: `--kubeconfig`, `--context`."""
    kubeconfig = click.option(
        "--kubeconfig",
        default="",
        metavar="FILE",
        envvar=["DRANODE_KUBECONFIG", "KUBECONFIG"],
        help="The kubeconfig (default: KUBECONFIG; in a pod, its account; otherwise ~/.kube/config).",
    )
    return kubeconfig(
        click.option("--context", default="", metavar="NAME", help="The context of the kubeconfig.")(function)
    )


def cluster_options(function: F) -> F:
    """Add kubectl's options that say which cluster and namespace: `--kubeconfig`, `--context`, `-n`."""
    namespace = click.option(
        "-n", "--namespace", default="", metavar="NAME", help="The namespace (default: the context's, or default)."
    )
    return kubeconfig_options(namespace(function))


def is_given(ctx: click.Context, *options: str) -> bool:
    """Return whether an option of these is on the command line: what the environment says may be for other commands."""
    return any(ctx.get_parameter_source(option) is ParameterSource.COMMANDLINE for option in options)


def named_kubeconfig() -> str | None:
    """Return the kubeconfig that kubectl would take: KUBECONFIG, else ~/.kube/config; None if there is none.

    One that may not be looked for is not missing: whoever uses it says why it cannot be.
    """
    named = os.environ.get("KUBECONFIG")
    if named:
        return named
    try:
        default = Path.home() / ".kube" / "config"
    except RuntimeError:
        return None  # neither HOME nor a name for this user, as in a pod of OpenShift
    try:
        return str(default) if is_file(default) else None
    except OSError:
        return str(default)


def named_cluster(kubeconfig: str, context: str, namespace: str, agent: str = "dranode") -> NamedCluster | None:
    """Return the cluster that is meant, with the credentials read; None if nothing names one.

    Raises:
        UsageError: a kubeconfig that is named does not exist.
        UnreachableError: it cannot be used, or has no such context.
    """
    if not kubeconfig and (context or not os.environ.get("KUBERNETES_SERVICE_HOST")):
        kubeconfig = named_kubeconfig() or ""
        if not kubeconfig:
            return None
    credentials = Credentials(kubeconfig, context=context)
    credentials.check()
    chosen = None
    if kubeconfig:
        from dranode.driver.kube.kubeconfig import kubeconfig_context

        chosen = kubeconfig_context(kubeconfig, context)
        namespace = namespace or chosen.namespace
    connection = Connection(credentials)
    server = connection.log_in()
    name = chosen.name if chosen is not None else "this pod's cluster"
    place = f"context {name} of {kubeconfig} ({server.url})" if chosen is not None else f"{name} ({server.url})"
    return NamedCluster(Client(connection, agent=agent), namespace or "default", name, place)
