"""kubeconfig files as kubectl reads them: merged, with their paths resolved, and one context chosen.

The form and the rules are client-go's (tools/clientcmd): of several files the first that names a cluster, user, context
or current context wins, paths are relative to the file that has them, and data goes before a file. What kubectl passes
over, this does too.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from dranode.api.documents import decode, without_nulls
from dranode.api.errors import DocumentError
from dranode.driver.machine.presence import is_pipe, is_there
from dranode.driver.machine.yaml_files import read_yaml

_EXEC_EXTENSION: Final = "client.authentication.k8s.io/exec"


class ConfigDocument(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """The base of the parts of a kubeconfig."""


class ConfigExtension(ConfigDocument, frozen=True, kw_only=True):
    """`extensions[]`: what programs other than kubectl keep there."""

    name: str = ""
    extension: Any = None


class ConfigCluster(ConfigDocument, frozen=True, kw_only=True):
    """`clusters[].cluster`."""

    server: str = ""
    tls_server_name: str = ""
    insecure_skip_tls_verify: bool = False
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    proxy_url: str = ""
    extensions: tuple[ConfigExtension, ...] = ()


class ConfigVariable(ConfigDocument, frozen=True, kw_only=True):
    """`exec.env[]`."""

    name: str
    value: str = ""


class ConfigExec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`users[].user.exec`: the program that gives credentials (KEP-541)."""

    command: str
    api_version: str
    args: tuple[str, ...] = ()
    env: tuple[ConfigVariable, ...] = ()
    install_hint: str = ""
    provide_cluster_info: bool = False
    interactive_mode: str = "IfAvailable"


class ConfigUser(ConfigDocument, frozen=True, kw_only=True):
    """`users[].user`."""

    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    token: str = ""
    token_file: str = msgspec.field(default="", name="tokenFile")
    as_: str = msgspec.field(default="", name="as")
    as_uid: str = ""
    as_groups: tuple[str, ...] = ()
    as_user_extra: Mapping[str, tuple[str, ...]] = {}
    username: str = ""
    password: str = ""
    auth_provider: Mapping[str, Any] | None = None
    exec: ConfigExec | None = None


class ConfigContext(ConfigDocument, frozen=True, kw_only=True):
    """`contexts[].context`."""

    cluster: str = ""
    user: str = ""
    namespace: str = ""


class _NamedCluster(ConfigDocument, frozen=True, kw_only=True):
    name: str
    cluster: ConfigCluster = ConfigCluster()


class _NamedUser(ConfigDocument, frozen=True, kw_only=True):
    name: str
    user: ConfigUser = ConfigUser()


class _NamedContext(ConfigDocument, frozen=True, kw_only=True):
    name: str
    context: ConfigContext = ConfigContext()


class _File(ConfigDocument, frozen=True, kw_only=True):
    current_context: str = ""
    clusters: tuple[_NamedCluster, ...] = ()
    users: tuple[_NamedUser, ...] = ()
    contexts: tuple[_NamedContext, ...] = ()


class ChosenContext(msgspec.Struct, frozen=True):
    """A context with what it names.

    Attributes:
        name: the context's name.
        namespace: its namespace; `default` if it names none.
        cluster: its cluster, whose paths are absolute.
        user: its user, likewise; one without credentials if it names none.
    """

    name: str
    namespace: str
    cluster: ConfigCluster
    user: ConfigUser


T = TypeVar("T", _NamedCluster, _NamedUser, _NamedContext)


def chosen_context(paths: str, context: str = "") -> ChosenContext:
    """Read kubeconfig files and choose a context, the current one for an empty name.

    Args:
        paths: a file, or several as `KUBECONFIG` has them; those that are missing are passed over.
        context: the context's name.

    Raises:
        DocumentError: a file is no kubeconfig, or there is no such context, cluster or user.
    """
    files = [_resolved(Path(path)) for path in paths.split(os.pathsep) if path and not _is_missing(Path(path))]
    name = context or next((file.current_context for file in files if file.current_context), "")
    contexts = _first_of_each(each for file in files for each in file.contexts)
    if not name:
        raise DocumentError(f"no current-context is set; pass --context: {_names(contexts)}")
    if name not in contexts:
        raise DocumentError(f'there is no context "{name}"; there are {_names(contexts)}')
    chosen = contexts[name].context
    clusters = _first_of_each(each for file in files for each in file.clusters)
    users = _first_of_each(each for file in files for each in file.users)
    if chosen.cluster not in clusters:
        raise DocumentError(f'context "{name}" names cluster "{chosen.cluster}"; there are {_names(clusters)}')
    if chosen.user and chosen.user not in users:
        raise DocumentError(f'context "{name}" names user "{chosen.user}"; there are {_names(users)}')
    cluster = clusters[chosen.cluster].cluster
    if not cluster.server:
        raise DocumentError(f'cluster "{chosen.cluster}" has no server')
    user = users[chosen.user].user if chosen.user else ConfigUser()
    return ChosenContext(name, chosen.namespace or "default", cluster, user)


def exec_configuration(cluster: ConfigCluster) -> Any:
    """Return what a cluster has for the program that gives credentials; None for nothing."""
    return next((each.extension for each in cluster.extensions if each.name == _EXEC_EXTENSION), None)


def decoded(data: str, name: str) -> bytes:
    """Return what a field of a kubeconfig has in base64.

    Raises:
        DocumentError: it is not base64.
    """
    try:
        return base64.b64decode("".join(data.split()), validate=True)
    except binascii.Error as error:
        raise DocumentError(f"{name} is not base64: {error}") from error


# What pipes said: a shell makes one of `<(command)`, and a command reads its kubeconfig more than once.
_PIPED: Final[dict[Path, Any]] = {}


def _document(path: Path) -> Any:
    if path in _PIPED:
        return _PIPED[path]
    document = read_yaml(path)
    if is_pipe(path):
        _PIPED[path] = document
    return document


def _resolved(path: Path) -> _File:
    document = _document(path)
    try:
        file = decode(_File, without_nulls({} if document is None else document))
    except DocumentError as error:
        raise DocumentError(f"{path}: {error}") from error
    folder = path.parent.absolute()

    def absolute(name: str) -> str:
        return str(folder / name) if name else ""

    clusters = tuple(
        msgspec.structs.replace(
            each,
            cluster=msgspec.structs.replace(
                each.cluster, certificate_authority=absolute(each.cluster.certificate_authority)
            ),
        )
        for each in file.clusters
    )
    users = tuple(
        msgspec.structs.replace(
            each,
            user=msgspec.structs.replace(
                each.user,
                client_certificate=absolute(each.user.client_certificate),
                client_key=absolute(each.user.client_key),
                token_file=absolute(each.user.token_file),
                exec=_resolved_exec(each.user.exec, folder),
            ),
        )
        for each in file.users
    )
    return msgspec.structs.replace(file, clusters=clusters, users=users)


def _resolved_exec(program: ConfigExec | None, folder: Path) -> ConfigExec | None:
    """Resolve a command that is a path; one that is a name alone is looked for in PATH."""
    if program is None or os.sep not in program.command:
        return program
    return msgspec.structs.replace(program, command=str(folder / program.command))


def _is_missing(path: Path) -> bool:
    """Return whether there is no such file; one that may not be looked for is read, which says why it cannot be."""
    try:
        return not is_there(path)
    except OSError:
        return False


def _first_of_each(entries: Iterable[T]) -> dict[str, T]:
    first: dict[str, T] = {}
    for entry in entries:
        first.setdefault(entry.name, entry)
    return first


def _names(named: Mapping[str, Any]) -> str:
    return ", ".join(sorted(named)) or "none"
