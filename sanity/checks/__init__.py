"""The checks, a module for each subject; importing this registers all of them, and what comes first runs first."""

from dranode.sanity.checks import prepare

# The plainest claims come before those that are allocated otherwise.
# isort: split
from dranode.sanity.checks import (
    allocation,
    cdi,
    cdi_files,
    claim_objects,
    concurrency,
    configuration,
    health,
    held,
    identity,
    metadata,
    neighbours,
    prepare_refused,
    prepare_replaced,
    publishing,
    publishing_api,
    registration,
    resources,
    restart,
    rolling,
    shutdown,
    slices,
    unprepare,
)

__all__ = [
    "allocation",
    "cdi",
    "cdi_files",
    "claim_objects",
    "concurrency",
    "configuration",
    "health",
    "held",
    "identity",
    "metadata",
    "neighbours",
    "prepare",
    "prepare_refused",
    "prepare_replaced",
    "publishing",
    "publishing_api",
    "registration",
    "resources",
    "restart",
    "rolling",
    "shutdown",
    "slices",
    "unprepare",
]
