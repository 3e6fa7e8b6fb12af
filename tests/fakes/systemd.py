"""A stand-in for systemd on its own system bus: AllowedCPUs of units, and the effect of `daemon-reload` on cgroups."""

import socket
from pathlib import Path
from typing import Any

from jeepney import HeaderFields, Message, MessageType
from jeepney.low_level import Header, MessageFlag, Parser

from tests.fakes.unix_server import UnixServer


class FakeSystemd(UnixServer):
    """One systemd.

    Attributes:
        allowed: the AllowedCPUs mask of each unit that has one.
        cgroups: the units' cgroup masks, while other units keep the cpuset controller enabled.
        refuses: the error with which it refuses to set properties; None if it does not.
        hangs: the method that it never answers; `AUTH` for the handshake, empty for none.
        calls: the number of connections.
    """

    def __init__(self, bus: Path) -> None:
        self.allowed: dict[str, bytes] = {}
        self.cgroups: dict[str, bytes] = {}
        self.refuses: str | None = None
        self.hangs = ""
        self.calls = 0
        self._serials = 0
        super().__init__(bus, "systemd")

    def converse(self, connection: socket.socket) -> None:
        """Authenticate a caller, and answer its calls."""
        self.calls += 1
        greeting = b""
        while b"BEGIN\r\n" not in greeting:
            data = connection.recv(4096)
            if not data:
                return
            greeting += data
            if self.hangs != "AUTH" and greeting.endswith(b"\r\n") and b"AUTH" in greeting and b"BEGIN" not in greeting:
                connection.sendall(b"OK 1234567890abcdef1234567890abcdef\r\n")
        parser = Parser()
        parser.add_data(greeting.partition(b"BEGIN\r\n")[2])
        while True:
            while (message := parser.get_next_message()) is not None:
                if message.header.fields[HeaderFields.member] != self.hangs:
                    connection.sendall(self._answer(message))
            data = connection.recv(4096)
            if not data:
                return
            parser.add_data(data)

    def _answer(self, asked: Message) -> bytes:
        self._serials += 1
        member = asked.header.fields[HeaderFields.member]
        fields: dict[Any, Any] = {HeaderFields.reply_serial: asked.header.serial}
        kind, (signature, body) = MessageType.method_return, self._body(member, asked)
        if member == "SetUnitProperties" and self.refuses is not None:
            kind, signature, body = MessageType.error, "s", (self.refuses,)
            fields[HeaderFields.error_name] = "org.freedesktop.DBus.Error.AccessDenied"
        if signature:
            fields[HeaderFields.signature] = signature
        header = Header(asked.header.endianness, kind, MessageFlag(0), 1, -1, self._serials, fields)
        return bytes(Message(header, body).serialise())

    def _body(self, member: str, asked: Message) -> tuple[str, tuple[Any, ...]]:
        match member:
            case "Hello":
                return "s", (":1.1",)
            case "LoadUnit":
                return "o", (f"/unit/{asked.body[0].replace('.', '_2e')}",)
            case "Get":
                unit = asked.header.fields[HeaderFields.path].rpartition("/")[2].replace("_2e", ".")
                return "v", (("ay", self.allowed.get(unit, b"")),)
            case "SetUnitProperties" if self.refuses is None:
                unit, runtime, (((_, (_, mask))),) = asked.body
                assert runtime, "it would outlive the boot"
                self.allowed[unit] = mask
                self.cgroups[unit] = mask or self.cgroups.get(unit, b"")
        return "", ()
