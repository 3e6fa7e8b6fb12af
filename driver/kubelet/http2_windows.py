"""HTTP/2's flow control (RFC 9113, section 5.2): how much may be sent and may come, on a connection and its streams."""

from __future__ import annotations

from typing import Final

from dranode.driver.kubelet.http2_frames import ErrorCode, HTTP2Error

_INITIAL: Final = 65_535
_CONNECTION: Final = 0
_LARGEST: Final = (1 << 31) - 1


class Windows:
    """The windows of one connection. Those of a stream are there as long as somebody may send on it."""

    def __init__(self) -> None:
        """No stream is open."""
        # What may still be sent, and what may still come, by stream.
        self._rooms = {_CONNECTION: _INITIAL}
        self._credits = {_CONNECTION: _INITIAL}
        self._initial = _INITIAL

    def __len__(self) -> int:
        """Return how many streams this end has not ended."""
        return len(self._rooms) - 1

    def begin(self, stream: int) -> None:
        """Open a stream at both ends."""
        self._rooms[stream], self._credits[stream] = self._initial, _INITIAL

    def forget(self, stream: int) -> None:
        """Close a stream at both ends."""
        self.end_sending(stream)
        self.end_receiving(stream)

    # --- what is sent ---

    def sends(self, stream: int) -> bool:
        """Return whether something may still be sent on a stream."""
        return stream in self._rooms

    def end_sending(self, stream: int) -> None:
        """Note that nothing more is sent on a stream."""
        self._rooms.pop(stream, None)

    def room(self, stream: int) -> int:
        """Return how many bytes the peer takes now; it is below 0 after the peer has made its windows smaller."""
        return min(self._rooms[_CONNECTION], self._rooms.get(stream, 0))

    def sent(self, stream: int, size: int) -> None:
        """Note what was sent."""
        self._rooms[_CONNECTION] -= size
        self._rooms[stream] -= size

    def grow(self, stream: int, more: int) -> None:
        """Let more be sent, on a stream or, with 0, on the connection.

        Raises:
            HTTP2Error: above what a window may have.
        """
        room = self._rooms.get(stream)
        if room is None:
            return
        if room + more > _LARGEST:
            raise HTTP2Error(ErrorCode.FLOW_CONTROL_ERROR, f"the window of stream {stream} is to grow by {more}")
        self._rooms[stream] = room + more

    def begin_with(self, initial: int) -> None:
        """Let the windows of all streams, those that are open too, have begun with as much (section 6.9.2).

        Raises:
            HTTP2Error: that is above what a window may have.
        """
        more = initial - self._initial
        grown = {stream: room + more for stream, room in self._rooms.items() if stream}
        if max(initial, *grown.values(), 0) > _LARGEST:
            raise HTTP2Error(ErrorCode.FLOW_CONTROL_ERROR, f"windows are to begin with {initial}")
        self._rooms |= grown
        self._initial = initial

    # --- what comes ---

    def receives(self, stream: int) -> bool:
        """Return whether something may still come on a stream."""
        return stream in self._credits

    def end_receiving(self, stream: int) -> None:
        """Note that nothing more comes on a stream."""
        self._credits.pop(stream, None)

    def spend(self, stream: int, size: int) -> int:
        """Note what has come, on a stream or, with 0, on the connection.

        A peer that sends more than it was allowed goes unseen: what it may send is enlarged long before it is used up.

        Returns:
            By how much the peer's window is to be enlarged now; 0 while it has enough.
        """
        credit = self._credits[stream] - size
        if credit > _INITIAL // 2:
            self._credits[stream] = credit
            return 0
        self._credits[stream] = _INITIAL
        return _INITIAL - credit
