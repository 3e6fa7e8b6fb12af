"""Bytes of a container runtime on the NRI socket: multiplexer, ttrpc, and what calls mean."""

import contextlib

from fuzz.harness import fuzz, instrumented

with instrumented():
    from dranode.driver.nri.events import CreateRequest, StopRequest, SynchronizeRequest, UpdateRequest
    from dranode.driver.nri.session import Session
    from dranode.driver.nri.ttrpc import ProtocolError
    from dranode.driver.pinning.containers import Resources


def test_one_input(data: bytes) -> None:
    """Feed the bytes in two pieces, and answer each request."""
    session = Session("dra.cpu", "00")
    session.register()
    half = len(data) // 2
    with contextlib.suppress(ProtocolError):
        for piece in (data[:half], data[half:]):
            for event in session.receive_data(piece):
                match event:
                    case CreateRequest():
                        session.adjust(event, Resources())
                    case UpdateRequest() | StopRequest():
                        session.update(event)
                    case SynchronizeRequest():
                        session.synchronize(event)
                    case _:
                        pass
        session.receive_end()
    session.data_to_send()


if __name__ == "__main__":
    fuzz(test_one_input)
