"""Reads kubeconfig files as kubectl does: merges them, resolves their paths, and chooses one context.

The rules are those of client-go (tools/clientcmd): of several files, the first one that has a cluster, user, context or
current context wins; paths are relative to the file that they are in; `*-data` fields win over files. Fields that
kubectl ignores are ignored here too, and so are documents after a file's first one.
"""

import base64
import binascii
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar

import msgspec

from dranode.api.documents import decode, without_nulls
from dranode.api.errors import DocumentError
from dranode.driver.machine.presence import is_pipe, is_there
from dranode.driver.machine.yaml_files import read_yaml

# The extension of a cluster whose content goes to exec programs as `spec.cluster.config` (KEP-541).
_EXEC_EXTENSION: Final = "client.authentication.k8s.io/exec"


class ConfigDocument(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """The base of the parts of a kubeconfig. Unknown fields are ignored, as kubectl ignores them."""


class ConfigExtension(ConfigDocument, frozen=True, kw_only=True):
    """`extensions[]`: data of other programs."""

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
    # client-go spells this field in camel case, unlike its neighbors.
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
    """A context with its cluster and its user.

    Attributes:
        name: the context's name.
        namespace: its namespace; empty if it has none.
        cluster: its cluster, with absolute paths.
        user: its user, with absolute paths; if it has none, one without credentials.
    """

    name: str
    namespace: str
    cluster: ConfigCluster
    user: ConfigUser


T = TypeVar("T", _NamedCluster, _NamedUser, _NamedContext)
Part = TypeVar("Part", ConfigCluster, ConfigUser, ConfigContext)
# With one of these, the user's own credentials do not count.
_LOGINS: Final = {"token", "username", "client_certificate"}


def chosen_context(paths: str, context: str = "", flags: Mapping[str, Any] = MappingProxyType({})) -> ChosenContext:
    """Read kubeconfig files and choose a context.

    Args:
        paths: a file, or several separated by colons as in `KUBECONFIG`; missing files are ignored.
        context: the context's name; empty for the current context.
        flags: what replaces fields of its cluster and its user, by the names here; `cluster` and `user` choose others.

    Raises:
        DocumentError: a file is not a kubeconfig, or there is no such context, cluster or user.
    """
    # kubectl ignores missing files too: KUBECONFIG often lists files that a tool creates later.
    files = [_resolved(Path(path)) for path in paths.split(os.pathsep) if path and not _is_missing(Path(path))]
    name = context or next((file.current_context for file in files if file.current_context), "")
    # Cluster and user may be in other files than the context that names them.
    contexts = _first_of_each(entry for file in files for entry in file.contexts)
    if not contexts and flags.get("server"):
        return ChosenContext(name, "", _with(ConfigCluster(), flags), _with(ConfigUser(), flags))
    if not contexts:
        raise DocumentError("it has no contexts, so it names no cluster; name another file with --kubeconfig")
    if not name:
        hint = "pass --context, or set it with kubectl config use-context"  # serve has no such option
        raise DocumentError(f"no current-context is set; {hint}: {_names(contexts)}")
    if name not in contexts:
        raise DocumentError(f'there is no context "{name}"; there are {_names(contexts)}')
    chosen = _with(contexts[name].context, flags)
    clusters = _first_of_each(entry for file in files for entry in file.clusters)
    users = _first_of_each(entry for file in files for entry in file.users)
    if chosen.cluster not in clusters:
        raise DocumentError(f'context "{name}" names cluster "{chosen.cluster}"; there are {_names(clusters)}')
    if chosen.user and chosen.user not in users:
        raise DocumentError(f'context "{name}" names user "{chosen.user}"; there are {_names(users)}')
    cluster = _with(clusters[chosen.cluster].cluster, flags)
    if not cluster.server:
        raise DocumentError(f'cluster "{chosen.cluster}" has no server')
    user = users[chosen.user].user if chosen.user and not _LOGINS & flags.keys() else ConfigUser()
    return ChosenContext(name, chosen.namespace, cluster, _with(user, flags))


def _with(part: Part, flags: Mapping[str, Any]) -> Part:
    """Return the part with what flags replace; a file takes the place of data."""
    given = {**flags, **{f"{name}_data": "" for name in flags}}
    return msgspec.structs.replace(part, **{name: given[name] for name in part.__struct_fields__ if name in given})


def exec_configuration(cluster: ConfigCluster) -> Any:
    """Return the configuration that a cluster has for exec programs; None if it has none."""
    extensions = (entry.extension for entry in cluster.extensions if entry.name == _EXEC_EXTENSION)
    return next(extensions, None)


def decoded(data: str, name: str) -> bytes:
    """Decode a base64 field of a kubeconfig; `name` is the field's name.

    Raises:
        DocumentError: the field is not valid base64.
    """
    # Line breaks are allowed, because Go's decoder ignores them.
    try:
        return base64.b64decode("".join(data.split()), validate=True)
    except binascii.Error as error:
        raise DocumentError(f"{name} is not base64: {error}") from error


# The contents of pipes. A shell passes `<(command)` as a pipe, which can be read only once, but a command may read its
# kubeconfig several times.
_PIPED: Final[dict[Path, Any]] = {}


def _document(path: Path) -> Any:
    if path in _PIPED:
        return _PIPED[path]
    document = read_yaml(path, first=True)
    if is_pipe(path):
        _PIPED[path] = document
    return document


def _resolved(path: Path) -> _File:
    """Read a file and make its paths absolute."""
    document = _document(path)
    try:
        # An empty file is a kubeconfig without entries, and null means "not set", as in Go.
        file = decode(_File, without_nulls({} if document is None else document))
    except DocumentError as error:
        raise DocumentError(f"{path} is not a kubeconfig: {error}") from error
    # Relative paths are relative to the file, not to the working directory (clientcmd, ResolveLocalPaths).
    folder = path.parent.absolute()

    def absolute(name: str) -> str:
        return str(folder / name) if name else ""

    def resolved_cluster(cluster: ConfigCluster) -> ConfigCluster:
        return msgspec.structs.replace(cluster, certificate_authority=absolute(cluster.certificate_authority))

    def resolved_user(user: ConfigUser) -> ConfigUser:
        return msgspec.structs.replace(
            user,
            client_certificate=absolute(user.client_certificate),
            client_key=absolute(user.client_key),
            token_file=absolute(user.token_file),
            exec=_resolved_exec(user.exec, folder),
        )

    return msgspec.structs.replace(
        file,
        clusters=tuple(
            _NamedCluster(name=entry.name, cluster=resolved_cluster(entry.cluster)) for entry in file.clusters
        ),
        users=tuple(_NamedUser(name=entry.name, user=resolved_user(entry.user)) for entry in file.users),
    )


def _resolved_exec(program: ConfigExec | None, folder: Path) -> ConfigExec | None:
    """Resolve a command that is a path; a plain name is looked up in PATH when the program is run."""
    # As for kubectl: `./get-token` is relative to the kubeconfig, `get-token` is a command of the system.
    if program is None or os.sep not in program.command:
        return program
    return msgspec.structs.replace(program, command=str(folder / program.command))


def _is_missing(path: Path) -> bool:
    """Return whether the file does not exist. If that cannot be determined, reading it reports a better error."""
    try:
        return not is_there(path)
    except OSError:
        return False


def _first_of_each(entries: Iterable[T]) -> dict[str, T]:
    # As in client-go, the first file wins for an entry as a whole; entries are not merged field by field.
    first: dict[str, T] = {}
    for entry in entries:
        first.setdefault(entry.name, entry)
    return first


def _names(named: Mapping[str, Any]) -> str:
    return ", ".join(sorted(named)) or "none"
