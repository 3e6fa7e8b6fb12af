"""Runs a program in a terminal of a given width, and shows the final screen."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from pathlib import Path

from tests.fakes.waiting import PATIENCE

_ROWS = 50
_SEQUENCE = re.compile(r"\x1b\[(\??)(\d*)(?:;\d+)*([A-Za-z])|\r|\n|[^\x00-\x1f]")


def in_terminal(arguments: list[str | Path], width: int, cwd: Path, end_after: str = "") -> tuple[int, Screen]:
    """Run a program in a pseudo-terminal; returns its exit status and its screen.

    Args:
        end_after: the program gets SIGTERM once it has written this, if it is not empty.
    """
    main, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, width, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "COLUMNS", "CI"}}
    with subprocess.Popen(
        arguments, stdin=side, stdout=side, stderr=side, cwd=cwd, env=environment | {"TERM": "xterm-256color"}
    ) as program:
        os.close(side)
        written = bytearray()
        try:
            while chunk := os.read(main, 65536):
                written += chunk
                if end_after and end_after.encode() in written:
                    program.terminate()
                    end_after = ""
        except OSError:
            pass  # Linux's error when the other side is closed
        os.close(main)
        status = program.wait(PATIENCE)
    return status, Screen(width, written.decode())


class Screen:
    """The lines of an endlessly long terminal; output beyond its width continues on a new line."""

    def __init__(self, width: int, written: str) -> None:
        self.written = written
        self._cells: list[list[str]] = [[]]
        self._row = self._column = 0
        self._width = width
        for match in _SEQUENCE.finditer(written):
            self._apply(match)
        self.lines = ["".join(line).rstrip() for line in self._cells]

    def _apply(self, match: re.Match[str]) -> None:
        private, number, command = match.groups()
        if match[0] == "\r":
            self._column = 0
        elif match[0] == "\n":
            self._move_down()
        elif command == "A":
            self._row = max(0, self._row - int(number or 1))
        elif command == "K":
            assert number == "2"
            self._cells[self._row] = []
        elif command is None:
            self._put(match[0])
        else:
            assert command == "m" or private, f"unexpected {match[0]!r}"

    def _move_down(self) -> None:
        self._row += 1
        if self._row == len(self._cells):
            self._cells.append([])

    def _put(self, character: str) -> None:
        if self._column == self._width:
            self._column = 0
            self._move_down()
        line = self._cells[self._row]
        line += " " * (self._column + 1 - len(line))
        line[self._column] = character
        self._column += 1
