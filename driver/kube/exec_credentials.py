"""Credentials from a program that a kubeconfig names (KEP-541, `client.authentication.k8s.io`): `aws eks get-token`.

The program reads what it is asked in KUBERNETES_EXEC_INFO and prints an ExecCredential: a token, a certificate with its
key, or both, and until when they hold.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from dranode.driver.core.api.documents import decode_json
from dranode.driver.core.api.errors import DocumentError
from dranode.driver.core.api.resource import APIDocument
from dranode.driver.kube.kubeconfig_file import ConfigExec
from dranode.driver.kube.server import UnreachableError

_GROUP: Final = "client.authentication.k8s.io"
_VERSIONS: Final = (f"{_GROUP}/v1", f"{_GROUP}/v1beta1")
_INFO: Final = "KUBERNETES_EXEC_INFO"
_MODES: Final = ("Never", "IfAvailable", "Always")


class ExecCredentialStatus(APIDocument, frozen=True, kw_only=True):
    """`status` of an ExecCredential."""

    token: str | None = None
    client_certificate_data: str | None = None
    client_key_data: str | None = None
    expiration_timestamp: datetime | None = None


class ExecCredential(APIDocument, frozen=True, kw_only=True):
    """The output of the program."""

    api_version: str = ""
    status: ExecCredentialStatus | None = None


class PairInPEM(msgspec.Struct, frozen=True):
    """A client's certificate and its key, each in PEM."""

    certificate: str
    key: str


class ExecCredentials:
    """The credentials of a program, which is run again once they have expired. Any thread may ask."""

    def __init__(
        self, program: ConfigExec, cluster: Mapping[str, Any], clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        """Name the program; it is not run yet. `cluster` is what it is told if it wants to know."""
        self._program = program
        self._cluster = cluster
        self._clock = clock
        self._lock = threading.Lock()
        self._status: ExecCredentialStatus | None = None

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
        with self._lock:
            if self._status is None or self._expired(self._status):
                self._status = self._run()
            return self._status

    def _expired(self, status: ExecCredentialStatus) -> bool:
        expiry = status.expiration_timestamp
        return expiry is not None and expiry <= self._clock()

    def _run(self) -> ExecCredentialStatus:
        program = self._program
        interactive = self._interactive()
        variables = {each.name: each.value for each in program.env}
        environment = {**os.environ, **variables, _INFO: self._info(interactive=interactive)}
        try:
            # What the program has to say goes to the terminal; a login in a browser takes as long as it takes.
            done = subprocess.run(  # noqa: S603 - the kubeconfig's own program, as kubectl runs it
                [program.command, *program.args],
                env=environment,
                stdin=None if interactive else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                check=False,
            )
        except OSError as error:
            hint = f"; {' '.join(program.install_hint.split())}" if program.install_hint else ""
            raise UnreachableError(
                f"{program.command}, which gives the credentials, cannot be run: {error.strerror}{hint}"
            ) from error
        if done.returncode:
            raise UnreachableError(
                f"{program.command}, which gives the credentials, ended with exit status {done.returncode}"
            )
        return self._status_of(done.stdout)

    def _interactive(self) -> bool:
        program = self._program
        if program.api_version not in _VERSIONS:
            raise self._wrong(f'apiVersion "{program.api_version}" is none of {", ".join(_VERSIONS)}')
        if program.interactive_mode not in _MODES:
            raise self._wrong(f'interactiveMode "{program.interactive_mode}" is none of {", ".join(_MODES)}')
        terminal = sys.stdin is not None and sys.stdin.isatty()
        if program.interactive_mode == "Always" and not terminal:
            raise self._wrong("it wants to ask at a terminal, and the standard input is none")
        return terminal and program.interactive_mode != "Never"

    def _info(self, *, interactive: bool) -> str:
        spec: dict[str, Any] = {"interactive": interactive}
        if self._program.provide_cluster_info:
            spec["cluster"] = dict(self._cluster)
        return json.dumps({"kind": "ExecCredential", "apiVersion": self._program.api_version, "spec": spec})

    def _status_of(self, text: bytes) -> ExecCredentialStatus:
        try:
            credential = decode_json(ExecCredential, text)
        except DocumentError as error:
            raise self._wrong(f"it printed no ExecCredential: {error}") from error
        if credential.api_version != self._program.api_version:
            raise self._wrong(f'it is to print {self._program.api_version}, and printed "{credential.api_version}"')
        status = credential.status
        if status is None or not (status.token or status.client_certificate_data or status.client_key_data):
            raise self._wrong("it printed neither a token nor a certificate with its key")
        if bool(status.client_certificate_data) != bool(status.client_key_data):
            raise self._wrong("it printed only one of certificate and key")
        return status

    def _wrong(self, what: str) -> UnreachableError:
        return UnreachableError(f"{self._program.command}, which gives the credentials, cannot be used: {what}")
