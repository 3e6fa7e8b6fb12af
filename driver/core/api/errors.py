"""The errors that people read, in `kubectl describe pod`, on stderr or in the log.

    DranodeError
    ├── UsageError            wrong option, configuration or input document (exit status 2)
    ├── DocumentError         a document does not decode; says file and path
    ├── MachineError          hardware files that are missing, unreadable or contradict each other
    ├── LedgerError           the record of claims cannot be read or written; nothing is handed out meanwhile
    │   └── UnreadError            it cannot be read, as was said in the log when it was noticed
    └── ClaimError            one claim cannot be prepared, for a reason that waiting does not cure
        ├── ClaimConflictError     what the claim needs is held by another claim, whose Unprepare may be on its way
        └── ClaimGoneError         the claim does not exist any more

Every message is one sentence: the cause first, with the value, the limit and the place, then what to do. Whoever wrote
the value, and whatever it is, the sentence stays one line that ends (`dranode.driver.core.api.sentence`).
"""

from __future__ import annotations

from dranode.driver.core.api.sentence import one_sentence


class DranodeError(Exception):
    """Something a person can act on; its text is the whole message."""

    def __init__(self, message: str) -> None:
        super().__init__(one_sentence(message))


class UsageError(DranodeError):
    """A command line or a configuration that cannot be meant."""


class DocumentError(DranodeError):
    """A document that does not decode.

    Attributes:
        path: where in the document, in JSON notation without the root (`spec.devices.requests[0].name`); may be empty.
    """

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.path = path


class MachineError(DranodeError):
    """Hardware files that cannot be believed."""


class LedgerError(DranodeError):
    """The ledger cannot be used; the driver hands out nothing new until it can."""


class UnreadError(LedgerError):
    """The ledger cannot be read. Whoever noticed has said so in the log, so that nobody else needs to."""


class ClaimError(DranodeError):
    """A claim that cannot be prepared as it is; kubelet shows the text on the pod."""


class ClaimConflictError(ClaimError):
    """A claim that needs what other claims hold.

    Attributes:
        holders: UIDs of the claims in the way.
    """

    def __init__(self, message: str, holders: frozenset[str] = frozenset()) -> None:
        super().__init__(message)
        self.holders = holders


class ClaimGoneError(ClaimError):
    """A claim that does not exist: whoever keeps claims has answered, and has none of that name."""


def in_words(error: BaseException) -> str:
    """An error of a program in words of ours: what it is, what it says, and the file that it is about, in one line."""
    # repr() leaves an OSError's file out.
    if isinstance(error, OSError) and error.filename is not None:
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    return repr(error)
