"""The cluster that a person means: `--kubeconfig`, `KUBECONFIG`, the pod's own, or ~/.kube/config, as kubectl looks."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from dranode.driver.kube.client import Client
from dranode.driver.kube.connection import Connection
from dranode.driver.kube.source import Credentials
from dranode.driver.machine.presence import is_file

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class NamedCluster:
    """A cluster, and the namespace that a name without one is in.

    Attributes:
        client: its API server.
        namespace: the namespace.
    """

    client: Client
    namespace: str


def cluster_options(function: F) -> F:
    """Add kubectl's options that say which cluster and namespace: `--kubeconfig`, `--context`, `-n`."""
    for option in reversed(
        (
            click.option(
                "--kubeconfig",
                default="",
                metavar="FILE",
                envvar=["DRANODE_KUBECONFIG", "KUBECONFIG"],
                help="Default: KUBECONFIG, in a pod its own account, else ~/.kube/config.",
            ),
            click.option("--context", default="", metavar="NAME", help="The kubeconfig's context."),
            click.option("-n", "--namespace", default="", metavar="NAME", help="Default: the context's, else default."),
        )
    ):
        function = option(function)
    return function


def named_kubeconfig() -> str | None:
    """Return the kubeconfig that kubectl would take: KUBECONFIG, else ~/.kube/config; None if there is none.

    One that may not be looked for is not missing: whoever uses it says why it cannot be.
    """
    named = os.environ.get("KUBECONFIG")
    if named:
        return named
    default = Path.home() / ".kube" / "config"
    try:
        return str(default) if is_file(default) else None
    except OSError:
        return str(default)


def named_cluster(kubeconfig: str, context: str, namespace: str, agent: str = "dranode") -> NamedCluster | None:
    """Return the cluster that is meant; None if nothing names one.

    Raises:
        UsageError: a kubeconfig that is named does not exist.
        UnreachableError: it cannot be used, or has no such context.
    """
    if not kubeconfig and not os.environ.get("KUBERNETES_SERVICE_HOST"):
        kubeconfig = named_kubeconfig() or ""
        if not kubeconfig:
            return None
    credentials = Credentials(kubeconfig, context=context)
    credentials.check()
    if not namespace and kubeconfig:
        from dranode.driver.kube.kubeconfig import kubeconfig_namespace

        namespace = kubeconfig_namespace(kubeconfig, context)
    return NamedCluster(Client(Connection(credentials), agent=agent), namespace or "default")
