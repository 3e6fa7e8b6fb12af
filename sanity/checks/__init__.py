"""The checks, a module for each subject; importing this registers all of them, and what comes first runs first."""
# ruff: noqa: F401

from dranode.sanity.checks import prepare

# The plainest claims come before those that are allocated otherwise.
# isort: split
from dranode.sanity.checks import (
    allocation,
    cdi,
    claim_objects,
    concurrency,
    configuration,
    health,
    held,
    metadata,
    neighbours,
    prepare_refused,
    publishing,
    publishing_api,
    registration,
    resources,
    restart,
    rolling,
    slices,
    unprepare,
)
