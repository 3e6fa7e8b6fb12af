"""The checks, a module for each subject; importing this registers all of them."""

from dranode.sanity.checks import (
    allocation,
    cdi,
    concurrency,
    configuration,
    health,
    held,
    metadata,
    prepare,
    publishing,
    registration,
    restart,
    rolling,
    shutdown,
    slices,
    unprepare,
)

__all__ = [
    "allocation",
    "cdi",
    "concurrency",
    "configuration",
    "health",
    "held",
    "metadata",
    "prepare",
    "publishing",
    "registration",
    "restart",
    "rolling",
    "shutdown",
    "slices",
    "unprepare",
]
