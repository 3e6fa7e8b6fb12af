"""The checks, a module for each subject; importing this registers all of them, and what comes first runs first."""
# ruff: noqa: F401

from dranode.sanity.checks import prepare

# The plainest claims come before those that are allocated otherwise.
# isort: split
from dranode.sanity.checks import (
    allocation,
    api_server,
    cdi,
    concurrency,
    configuration,
    health,
    metadata,
    prepare_refused,
    registration,
    resources,
    restart,
    slices,
    unprepare,
)
