"""Credentials from a program in a kubeconfig, such as `aws eks get-token` (KEP-541, `client.authentication.k8s.io`).

The program gets its input in the variable KUBERNETES_EXEC_INFO and prints an ExecCredential, in JSON or YAML: a token,
a certificate with its key, or both, and when they expire.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import IO, Annotated, Any, Final

import msgspec

from dranode.api.documents import decode
from dranode.api.errors import DocumentError
from dranode.api.resource import APIDocument
from dranode.driver.kube.kubeconfig_file import ConfigExec
from dranode.driver.kube.server import UnreachableError
from dranode.driver.machine.yaml_files import parse_yaml

_GROUP: Final = "client.authentication.k8s.io"
_VERSIONS: Final = (f"{_GROUP}/v1", f"{_GROUP}/v1beta1")
_INFO: Final = "KUBERNETES_EXEC_INFO"
_MODES: Final = ("Never", "IfAvailable", "Always")
# How much of the program's error output goes into an error, in characters.
_LAST_WORDS: Final = 400
# The most that the program may print, in bytes. A certificate with its chain and key has a few thousand.
_MOST_OUTPUT: Final = 1 << 20
# How long to wait for the rest of its outputs after the program has ended, in seconds.
_LAST_SECONDS: Final = 1.0


class ExecCredentialStatus(APIDocument, frozen=True, kw_only=True):
    """`status` of an ExecCredential."""

    token: str | None = None
    client_certificate_data: str | None = None
    client_key_data: str | None = None
    expiration_timestamp: Annotated[datetime, msgspec.Meta(tz=True)] | None = None


class ExecCredential(APIDocument, frozen=True, kw_only=True):
    """The output of the program."""

    api_version: str = ""
    status: ExecCredentialStatus | None = None


class PairInPEM(msgspec.Struct, frozen=True):
    """A client's certificate and its key, each in PEM."""

    certificate: str
    key: str


class ExecCredentials:
    """The credentials from a program, which is run again when they have expired. Any thread may ask for them."""

    def __init__(
        self,
        program: ConfigExec,
        cluster: Mapping[str, Any],
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        seconds: float | None = None,
    ) -> None:
        """Name the program; it is not run yet.

        Args:
            program: the program.
            cluster: `spec.cluster`, which the program gets if the kubeconfig says `provideClusterInfo`.
            clock: returns the time.
            seconds: how long a run may take; None for no limit, because a person may have to log in with a browser.
        """
        self._program = program
        self._cluster = cluster
        self._clock = clock
        self._seconds = seconds
        self._lock = threading.Lock()
        self._status: ExecCredentialStatus | None = None
        self._until: datetime | None = None
        self._failures = 0
        self._failure: UnreachableError | None = None

    def headers(self) -> Mapping[str, str]:
        """Return the header with the token; none if the program gives a certificate alone.

        Raises:
            UnreachableError: the program fails.
        """
        token = self._current().token
        return {"Authorization": f"Bearer {token.strip()}"} if token else {}

    def pair(self) -> PairInPEM | None:
        """Return the certificate with its key; None if the program gives a token alone.

        Raises:
            UnreachableError: the program fails.
        """
        status = self._current()
        if not status.client_certificate_data or not status.client_key_data:
            return None
        return PairInPEM(status.client_certificate_data, status.client_key_data)

    def _current(self) -> ExecCredentialStatus:
        failures = self._failures
        with self._lock:
            # If the program has failed while this thread waited for the lock, it is not run again: otherwise every
            # waiting thread would run it once more, one after the other.
            if self._failure is not None and self._failures != failures:
                raise self._failure
            if self._status is None or (self._until is not None and self._until <= self._clock()):
                self._status = self._given()
                expiry = self._status.expiration_timestamp
                # A credential that has expired by this clock would make every request run the program. The clock may be
                # wrong, so the credential is used until the server refuses it.
                self._until = expiry if expiry is not None and expiry > self._clock() else None
            return self._status

    def _given(self) -> ExecCredentialStatus:
        try:
            return self._status_of(self._output())
        except UnreachableError as error:
            self._failure = error
            self._failures += 1
            raise

    def _output(self) -> bytes:
        """Run the program and return its output."""
        program = self._program
        interactive = self._interactive()
        variables = {variable.name: variable.value for variable in program.env}
        # The kubeconfig's variables win over those of the process, and KUBERNETES_EXEC_INFO over both, as for kubectl.
        environment = {**os.environ, **variables, _INFO: self._info(interactive=interactive)}
        printed, error_output = bytearray(), bytearray()
        killed = threading.Event()
        try:
            with (
                subprocess.Popen(  # noqa: S603 - the kubeconfig's own program, as kubectl runs it
                    [program.command, *program.args],
                    env=environment,
                    stdin=None if interactive else subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=None if interactive else subprocess.PIPE,
                    bufsize=0,
                    # With a time limit, it gets a process group of its own, so that its children can be killed too:
                    # they may keep the pipe open.
                    start_new_session=self._seconds is not None,
                ) as process,
                self._limited(process, killed),
            ):
                # Both outputs are read at the same time, because a program that has filled an unread pipe never ends.
                outputs = ((process.stdout, printed, False), (process.stderr, error_output, True))
                readers = [threading.Thread(target=_read, args=output, daemon=True) for output in outputs]
                for reader in readers:
                    reader.start()
                process.wait()
                # The wait is limited: a process that the program has left behind may keep the pipes open.
                for reader in readers:
                    reader.join(_LAST_SECONDS)
        except (OSError, ValueError) as error:  # a ValueError for an argument or a variable that no program can get
            hint = f"; {' '.join(program.install_hint.split())}" if program.install_hint else ""
            reason = getattr(error, "strerror", None) or str(error)
            if isinstance(error, FileNotFoundError) and shutil.which(program.command):
                reason = "the interpreter in its first line does not exist; check the end of that line, too"
            raise UnreachableError(
                f"{program.command}, which provides the credentials, cannot be run: {reason}{hint}"
            ) from error
        if killed.is_set():
            raise self._wrong(f"it took more than {self._seconds:.0f} s")
        if len(printed) > _MOST_OUTPUT:
            raise self._wrong(f"it printed more than {_MOST_OUTPUT >> 10} KiB")
        if process.returncode:
            words = " ".join(error_output.decode(errors="replace").split())[-_LAST_WORDS:]
            raise UnreachableError(
                f"{program.command}, which provides the credentials, ended with exit status {process.returncode}"
                f"{words and f': {words}'}"
            )
        return bytes(printed)

    @contextlib.contextmanager
    def _limited(self, process: subprocess.Popen[bytes], killed: threading.Event) -> Iterator[None]:
        """Kill the program, and set `killed`, if it takes longer than the limit."""
        if self._seconds is None:
            yield
            return

        def kill() -> None:
            killed.set()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

        timer = threading.Timer(self._seconds, kill)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _interactive(self) -> bool:
        program = self._program
        if program.api_version not in _VERSIONS:
            raise self._wrong(f'apiVersion "{program.api_version}" is not one of {", ".join(_VERSIONS)}')
        if program.interactive_mode not in _MODES:
            raise self._wrong(f'interactiveMode "{program.interactive_mode}" is not one of {", ".join(_MODES)}')
        terminal = sys.stdin is not None and sys.stdin.isatty()
        if program.interactive_mode == "Always" and not terminal:
            raise self._wrong("it has to ask at a terminal, but the standard input is not one")
        return terminal and program.interactive_mode != "Never"

    def _info(self, *, interactive: bool) -> str:
        spec: dict[str, Any] = {"interactive": interactive}
        if self._program.provide_cluster_info:
            spec["cluster"] = dict(self._cluster)
        return json.dumps({"kind": "ExecCredential", "apiVersion": self._program.api_version, "spec": spec})

    def _status_of(self, text: bytes) -> ExecCredentialStatus:
        try:
            # client-go reads YAML, too.
            credential = decode(ExecCredential, parse_yaml(text, "its output"))
        except DocumentError as error:
            raise self._wrong(f"it printed no ExecCredential: {error}") from error
        # client-go also refuses a program that answers in another version than the kubeconfig names.
        if credential.api_version != self._program.api_version:
            raise self._wrong(f'it is to print {self._program.api_version}, and printed "{credential.api_version}"')
        status = credential.status
        if status is None or not (status.token or status.client_certificate_data or status.client_key_data):
            raise self._wrong("it printed neither a token nor a certificate with its key")
        if bool(status.client_certificate_data) != bool(status.client_key_data):
            raise self._wrong("it printed only one of certificate and key")
        return status

    def _wrong(self, what: str) -> UnreachableError:
        return UnreachableError(f"{self._program.command}, which provides the credentials, cannot be used: {what}")


def _read(output: IO[bytes] | None, kept: bytearray, passed_on: bool) -> None:  # noqa: FBT001 - a thread's arguments
    """Read what a program prints. Errors are passed on as they come, for example the address of a login page."""
    with contextlib.suppress(OSError, ValueError):
        while output is not None and (piece := output.read(1024)):
            kept += piece
            if not passed_on and len(kept) > _MOST_OUTPUT:
                output.close()  # a program that goes on writing gets SIGPIPE
            if passed_on:
                # Only the end is kept, since that is where a program usually says why it failed.
                del kept[: -2 * _LAST_WORDS]
                sys.stderr.write(piece.decode(errors="replace"))
                sys.stderr.flush()
