"""The errors that people read in `kubectl describe pod`, on stderr or in the log.

    DranodeError
    ├── UsageError            wrong option, configuration or input document (exit status 2)
    ├── DocumentError         a document does not decode; the message names file and path
    ├── MachineError          hardware files that are missing, unreadable or contradict each other
    ├── LedgerError           the ledger cannot be read or written; no new claims are prepared until it can be used
    ├── UnreadError           ledger or hardware cannot be read; the reason was logged already
    └── ClaimError            one claim cannot be prepared; kubelet shows the reason on the pod
        ├── ClaimConflictError     another claim holds what the claim needs; it may be unprepared soon
        └── ClaimGoneError         the claim no longer exists

An error of only one layer is defined there, as a subclass of one of these: `ApiError`, `SpecError`,
`CorruptLedgerError` and so on.

Every message is one sentence: first the cause, with the value, the limit and where it was found, then what to do. It is
always one printable line of limited length, even if the values in it are not.
"""

import re
from typing import Final, Self


class DranodeError(Exception):
    """An error that a person can act on; its text is the whole message."""

    def __init__(self, message: str) -> None:
        super().__init__(one_sentence(message))


class UsageError(DranodeError):
    """A command line or a configuration is invalid."""


class DocumentError(DranodeError):
    """A document does not decode.

    Attributes:
        path: the field, in JSON notation without the root (`spec.devices.requests[0].name`); may be empty.
        problem: the message without the path.
    """

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.path = path
        self.problem = message

    def below(self, head: str) -> Self:
        """Return the error of a document that is a part of another one; `head` is its path there."""
        return type(self)(self.problem, ".".join(filter(None, (head, self.path))))


class MachineError(DranodeError):
    """Hardware files are missing, unreadable or contradict each other."""


class LedgerError(DranodeError):
    """The ledger cannot be used; the driver prepares no new claims until it can be used."""


class UnreadError(DranodeError):
    """Ledger or hardware cannot be read. The reason was logged where it was noticed, so callers need not log it."""


class ClaimError(DranodeError):
    """A claim cannot be prepared in its present form; kubelet shows the text on the pod."""


class ClaimConflictError(ClaimError):
    """Other claims hold what a claim needs. The node waits a while for them to be unprepared before it refuses."""


class ClaimGoneError(ClaimError):
    """A claim does not exist, according to the API server or the store."""


# Python's message if a thread cannot be created: clone(2) fails with EAGAIN if a limit on tasks is reached.
_NO_THREAD = "can't start new thread"


def is_out_of_threads(error: BaseException) -> bool:
    """Return whether a thread could not be started."""
    return isinstance(error, RuntimeError) and _NO_THREAD in str(error)


def in_words(error: BaseException) -> str:
    """Describe any exception in one line: its class, its message, and the file that it is about."""
    if is_out_of_threads(error):
        return (
            "no thread can be started, because the limit on tasks is reached; raise pids.max of the process's cgroup "
            "(in a pod kubelet's podPidsLimit) or its ulimit -u"
        )
    # repr() of an OSError omits the file.
    if isinstance(error, OSError) and error.filename is not None:
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    return repr(error)


# A text from outside may contain line breaks and control characters, which could fake lines of the log or control a
# terminal. The functions below make it one printable line of limited length.

# An Event's note has 1,024 characters.
LONGEST: Final = 1000
# Compiled at the first use, since a start seldom needs it.
_BREAKS: Final = r"\s*[\r\n]+\s*"


def printable(text: str) -> str:
    r"""Escape every character that does not print, as Python does: `\n`, `\x1b`, `\u202e`."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def one_sentence(text: str, longest: int = LONGEST) -> str:
    """Put a text on one line of printable characters; a long text keeps its beginning and its end."""
    line = printable(re.sub(_BREAKS, " ", text))
    if len(line) <= longest:
        return line
    start, end = longest * 6 // 10, longest * 3 // 10
    return f"{line[:start]} ... ({len(line) - start - end} characters left out) ... {line[-end:]}"


def capitalized(text: str) -> str:
    """Return the text with a capital first letter."""
    return text[:1].upper() + text[1:]


def number_of(number: int, noun: str) -> str:
    """Return a number with its noun: `1 move`, `2 moves`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
