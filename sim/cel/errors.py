"""The errors of expressions."""

from __future__ import annotations

from dranode.api.errors import DranodeError


class CELCompileError(DranodeError):
    """An expression that Kubernetes would not accept."""


class CELRuntimeError(DranodeError):
    """An expression that fails on a device; kube-scheduler gives the pod up."""


class CELCancelledError(CELRuntimeError):
    """An evaluation that costs more than Kubernetes or this program pays; no operator absorbs it."""
