"""The plug-in's sockets below kubelet's root: their names, and how they are bound.

The names are those of the Go helper (k8s.io/dynamic-resource-allocation/kubeletplugin), so that a driver in Go can
replace this one and vice versa. With a pod UID both names are unique to the pod, which a rolling update needs (kubelet
1.33 or newer).
"""

import base64
import contextlib
import hashlib
import os
import re
import socket
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias
from urllib.parse import quote

import grpc

from dranode.api.errors import DranodeError, UsageError

# sun_path holds 108 bytes with the NUL at the end (unix(7)).
MAX_SOCKET_PATH: Final = 107


# Device and inode; an inode is not used again while a server listens on its socket.
FileIdentity: TypeAlias = tuple[int, int]


class SocketError(DranodeError):
    """A socket cannot be bound."""


class Sockets(NamedTuple):
    """The two sockets of a driver.

    Attributes:
        dra: the DRA service, in the driver's own folder.
        registration: the registration service, in the folder that kubelet watches.
    """

    dra: Path
    registration: Path


def socket_paths(kubelet_root: Path, driver: str, pod_uid: str = "") -> Sockets:
    """Return the sockets of a driver; with `pod_uid` those for a rolling update.

    Raises:
        UsageError: a path is longer than the 107 bytes of a Unix socket's path (unix(7)).
    """
    data = kubelet_root / "plugins" / driver
    registry = kubelet_root / "plugins_registry"
    if not pod_uid:
        sockets = Sockets(data / "dra.sock", registry / f"{driver}-reg.sock")
    else:
        sockets = Sockets(data / f"dra-{pod_uid}.sock", _rolling(registry, driver, pod_uid))
    for path in (sockets.dra, sockets.registration):
        if _length(path) > MAX_SOCKET_PATH:
            raise UsageError(
                f"the socket path {path} has {_length(path)} bytes, but a Unix socket's may have {MAX_SOCKET_PATH}; "
                "choose a shorter --kubelet-root"
            )
    return sockets


def _rolling(registry: Path, driver: str, pod_uid: str) -> Path:
    """Return the registration socket of a pod: the first of three names that is short enough."""
    whole = registry / f"{driver}-{pod_uid}-reg.sock"
    if _length(whole) <= MAX_SOCKET_PATH:
        return whole
    shorter = registry / f"{driver}-{_short(pod_uid, 8)}-reg.sock"
    if _length(shorter) <= MAX_SOCKET_PATH:
        return shorter
    return registry / f"dra-{_short(chr(0).join((driver, pod_uid)), 16)}-reg.sock"


def _short(text: str, size: int) -> str:
    digest = hashlib.sha256(text.encode()).digest()[:size]
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _length(path: Path) -> int:
    return len(os.fsencode(path))


_UID: Final = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"


def remove_dead(sockets: Sockets, driver: str) -> None:
    """Remove the sockets of killed instances, whose pods had other UIDs; kubelet would go on connecting to them."""
    names = (f"dra-{_UID}.sock", f"{re.escape(driver)}-{_UID}-reg.sock")
    for own, name in zip(sockets, names, strict=True):
        with contextlib.suppress(OSError):
            for path in own.parent.iterdir():
                if path != own and re.fullmatch(name, path.name) and _is_dead(path):
                    path.unlink()


def bind(server: grpc.Server, path: Path) -> FileIdentity:
    """Have a server listen at a socket of mode 0600, and return which file that is; a stale socket is replaced.

    Clients can connect at once. Their calls wait until the server is started.

    Raises:
        UsageError: another process listens there.
        SocketError: the folder is missing or cannot be written, or the kernel refuses the socket.
    """
    # gRPC binds the path of a live server without an error, so this has to be checked first.
    if _answers(path):
        raise UsageError(f"another process listens on {path}; stop it first, or give each its own --pod-uid")
    # gRPC creates a socket whose mode follows the umask, and when it ends it removes whatever is at the path by then,
    # which may be a successor's socket. So it binds a hidden name, and the socket is renamed. kubelet's watcher ignores
    # names that begin with a dot.
    hidden = path.with_name(f".{_short(path.name, 4)}")
    try:
        with socket.socket(socket.AF_UNIX) as trial:  # to get the errno, which gRPC does not report
            hidden.unlink(missing_ok=True)
            trial.bind(os.fspath(hidden))
        server.add_insecure_port(uri(hidden))
        hidden.chmod(0o600)
        hidden.rename(path)
        return identity(path)
    except FileNotFoundError as error:
        raise SocketError(f"the socket {path} cannot be bound; its folder must exist and be writable") from error
    except OSError as error:
        raise SocketError(f"the socket {path} cannot be created: {error.strerror}") from error
    except RuntimeError as error:
        raise SocketError(f"the socket {path} cannot be created: {error}") from error


def uri(path: Path) -> str:
    """Return a socket's address for gRPC, which parses it as a URI (RFC 3986)."""
    return f"unix:{quote(os.fspath(path))}"


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as caller:
        try:
            caller.connect(os.fspath(path))
        except OSError:
            return False
        return True


def _is_dead(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as caller:
        # A stopped process (SIGSTOP) does not accept connections either, so only a refusal means that nobody listens.
        caller.settimeout(1.0)
        try:
            caller.connect(os.fspath(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
        return False


def identity(path: Path) -> FileIdentity:
    """Return which file is at a path.

    Raises:
        OSError: there is none, or it cannot be accessed.
    """
    status = path.lstat()
    return status.st_dev, status.st_ino


def unbind(path: Path, bound: FileIdentity) -> None:
    """Remove a socket's file if possible; kubelet deregisters a driver whose registration socket is removed.

    The socket of another program that has taken the path since `bind` is left alone.
    """
    with contextlib.suppress(OSError):
        if identity(path) == bound:
            path.unlink()
