"""Unpacks xz and lzma streams within a bound of memory, which Python's own file of that kind does not know.

A stream says itself how large a dictionary its decoder has to keep, up to 4 GiB (The .xz File Format, 5.3.1).
"""

from __future__ import annotations

import io
import lzma
from typing import IO, Final

from dranode.driver.core.api.errors import MachineError

# `xz -9` needs 65 MiB.
_MAX_MEMORY: Final = 128 << 20
_CHUNK: Final = 64 << 10


class UnpackedXZ(io.RawIOBase):
    """The unpacked bytes of a file, from the beginning to the end: it can skip ahead and not go back."""

    def __init__(self, packed: IO[bytes]) -> None:
        """Unpack that file from where it is; several streams may follow each other."""
        self._packed = packed
        self._decoder = _decoder()
        self._pending = b""
        self._at = 0

    def readable(self) -> bool:
        """Return that it can be read."""
        return True

    def seekable(self) -> bool:
        """Return that it can skip ahead."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Skip ahead to that byte, or to the end if it comes first; return where it is, as io asks for every position.

        Raises:
            OSError: it lies behind.
        """
        target = offset + (self._at if whence == io.SEEK_CUR else 0)
        if whence == io.SEEK_END or target < self._at:
            raise io.UnsupportedOperation("an xz stream is unpacked from the beginning to the end")
        while self._at < target and self.read(min(_CHUNK, target - self._at)):
            pass
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override] # what io passes
        """Unpack into the buffer; 0 at the end.

        Raises:
            MachineError: unpacking takes more memory than any archive of a machine needs.
            EOFError: a stream is cut short.
            lzma.LZMAError: the bytes are no such stream.
        """
        data = b""
        while not data:
            if self._decoder.eof and not self._begin_stream():
                return 0
            if self._decoder.needs_input and not self._pending:
                self._pending = self._packed.read(_CHUNK)
                if not self._pending:
                    raise EOFError("a compressed stream is cut short")
            data, self._pending = self._unpacked(len(buffer)), b""
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def _begin_stream(self) -> bool:
        """Go on to the next stream, behind the zeros that may pad the last one; False if there is none."""
        self._pending = self._decoder.unused_data.lstrip(b"\0")
        while not self._pending and (chunk := self._packed.read(_CHUNK)):
            self._pending = chunk.lstrip(b"\0")
        if self._pending:
            self._decoder = _decoder()
        return bool(self._pending)

    def _unpacked(self, most: int) -> bytes:
        try:
            return self._decoder.decompress(self._pending, most)
        except lzma.LZMAError as error:
            if "emory" not in str(error):
                raise
            raise MachineError(
                f"an archive takes more than {_MAX_MEMORY >> 20} MiB of memory to unpack; pack it with xz -9 or less"
            ) from error


def _decoder() -> lzma.LZMADecompressor:
    return lzma.LZMADecompressor(memlimit=_MAX_MEMORY)
