"""The cluster to use, chosen like kubectl: `--kubeconfig`, `KUBECONFIG`, ~/.kube/config, or in a pod its own."""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource

from dranode.api.errors import UsageError
from dranode.cdi.regular_file import read_given
from dranode.driver.kube.client import Client
from dranode.driver.kube.connection import Connection
from dranode.driver.kube.server import SERVICE_ACCOUNT, Credentials
from dranode.driver.machine.presence import is_file
from dranode.show.output import ProgressReporter, reporting

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class NamedCluster:
    """A cluster and its default namespace.

    Attributes:
        client: its API server.
        namespace: the namespace for names without one.
        name: the name of the context, for titles.
        place: a description for people: `context prod of ~/.kube/config (https://10.0.0.1:6443)`.
    """

    client: Client
    namespace: str
    name: str
    place: str

    def show(self, progress: ProgressReporter) -> None:
        """From now on, show the request that is waited for."""
        show_waiting(self.client, self.place, progress)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Show the requests that are waited for, if nothing else is shown meanwhile."""
        with reporting() as progress:
            self.show(progress)
            yield


def show_waiting(client: Client, place: str, progress: ProgressReporter) -> None:
    """From now on, show which request of a client is waited for; of several, the one that was sent first."""
    waiting: list[str] = []

    @contextmanager
    def asking(request: str) -> Iterator[None]:
        waiting.append(request)
        progress(f"{place}: {next(iter(waiting), request)}")
        try:
            yield
        finally:
            waiting.remove(request)
            for first in tuple(waiting[:1]):
                progress(f"{place}: {first}")

    client.asking = asking


# The fields of a kubeconfig that kubectl's other options for the connection replace. As for kubectl, `--help` of a
# command does not list these options.
_FIELDS: Final = (
    *("cluster", "server", "certificate_authority", "tls_server_name", "insecure_skip_tls_verify"),
    *("user", "token", "username", "password", "client_certificate", "client_key", "as_", "as_uid", "as_groups"),
)
_META: Final = "dranode.connection"
_TIMEOUT: Final = "dranode.timeout"
_UNITS: Final = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0}
# For `--request-timeout 0`, which is no limit for kubectl.
_NO_LIMIT: Final = 86400.0


def _keep(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value:
        ctx.meta.setdefault(_META, {})[str(parameter.name)] = value


def _keep_timeout(ctx: click.Context, parameter: click.Parameter, value: str) -> None:
    time = re.fullmatch(r"([0-9]+)(ms|s|m|h|)", value)
    if value and time is None:
        raise click.BadParameter(f'"{value}" is not a number of seconds or a time such as 5s or 2m', ctx, parameter)
    if time is not None:
        ctx.meta[_TIMEOUT] = int(time[1]) * _UNITS[time[2]] or _NO_LIMIT


def _name(field: str) -> str:
    return f"--{field.rstrip('_').replace('groups', 'group').replace('_', '-')}"


def kubeconfig_options(function: F) -> F:
    """Add kubectl's options for the cluster: `--kubeconfig`, `--context`, `_FIELDS`, and `--request-timeout`."""
    timeout = click.option("--request-timeout", default="", expose_value=False, callback=_keep_timeout, hidden=True)
    function = timeout(function)
    for field in _FIELDS:
        names = [_name(field), field]
        function = click.option(
            *(names if field != "server" else ["-s", *names]),
            expose_value=False,
            callback=_keep,
            hidden=True,
            multiple=field == "as_groups",
            is_flag=field == "insecure_skip_tls_verify",
        )(function)
    kubeconfig = click.option(
        "--kubeconfig",
        default="",
        metavar="FILE",
        envvar=["DRANODE_KUBECONFIG", "KUBECONFIG"],
        help="The kubeconfig (default: KUBECONFIG, otherwise ~/.kube/config; in a pod without either, its account).",
    )
    return kubeconfig(
        click.option("--context", default="", metavar="NAME", help="The context of the kubeconfig.")(function)
    )


def cluster_options(function: F) -> F:
    """Add kubectl's options for cluster and namespace: `--kubeconfig`, `--context`, `-n`."""
    namespace = click.option(
        "-n",
        "--namespace",
        default="",
        metavar="NAME",
        help="The namespace (default: the context's, or in a pod its own, or default).",
    )
    return kubeconfig_options(namespace(function))


def is_given(ctx: click.Context, *options: str) -> bool:
    """Return whether one of these options is on the command line; the environment may be meant for other commands."""
    return any(ctx.get_parameter_source(option) is ParameterSource.COMMANDLINE for option in options)


def names_cluster(ctx: click.Context) -> bool:
    """Return whether the command line has any of `kubeconfig_options`."""
    return _META in ctx.meta or is_given(ctx, "kubeconfig", "context")


def named_kubeconfig() -> str | None:
    """Return the kubeconfig that kubectl would use: KUBECONFIG, else ~/.kube/config; None if there is none.

    A path that may not be searched is returned, too, so that reading it reports the error.
    """
    named = os.environ.get("KUBECONFIG")
    if named:
        return named
    try:
        default = Path.home() / ".kube" / "config"
    except RuntimeError:
        return None  # this user has neither HOME nor a name, as in a pod of OpenShift
    try:
        return str(default) if is_file(default) else None
    except OSError:
        return str(default)


def _pods_namespace() -> str:
    """Return the namespace of the pod in which this runs, found as kubectl finds it; `default` outside of a pod."""
    named = ""
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        named = os.environ.get("POD_NAMESPACE", "")
        with suppress(OSError):
            named = named or read_given(SERVICE_ACCOUNT / "namespace").decode().strip()
    return named or "default"


def named_cluster(kubeconfig: str, context: str, namespace: str, agent: str = "dranode") -> NamedCluster | None:
    """Return the configured cluster, with its credentials read; None if none is configured.

    Raises:
        UsageError: the given kubeconfig does not exist, or a pod's account would ignore an option.
        UnreachableError: it cannot be used, or has no such context.
    """
    ctx = click.get_current_context(silent=True)
    given = ctx.meta if ctx is not None else {}
    flags = given.get(_META, {})
    # As for kubectl, a server needs no kubeconfig.
    kubeconfig = kubeconfig or named_kubeconfig() or (os.devnull if "server" in flags else "")
    if not kubeconfig and (context or not os.environ.get("KUBERNETES_SERVICE_HOST")):
        return None
    if flags and not kubeconfig:
        raise UsageError(
            f"{_name(next(iter(flags)))} changes what a kubeconfig says, and this pod has none; pass --kubeconfig, too"
        )
    credentials = Credentials(kubeconfig, context=context, flags=flags)
    credentials.check()
    chosen = None
    if kubeconfig:
        from dranode.driver.kube.kubeconfig import kubeconfig_context

        chosen = kubeconfig_context(kubeconfig, context, flags)
        namespace = namespace or chosen.namespace
    connection = Connection(credentials)
    client = Client(connection, agent=agent, limit=given.get(_TIMEOUT))
    server = connection.log_in()
    name = chosen.name if chosen is not None else "this pod's cluster"
    place = f"{name} ({server.url})" if chosen is None else f"context {name} of {kubeconfig} ({server.url})"
    if chosen is not None and not chosen.name:  # the server of --server, without a context
        name = place = server.url
    return NamedCluster(client, namespace or _pods_namespace(), name, place)
