"""The release of kube-scheduler that answers: the API server's, as far as it is simulated."""

from __future__ import annotations

import re
from collections.abc import Callable

from dranode.driver.core.api.errors import DranodeError, UsageError
from dranode.sim.allocator.features import Features
from dranode.sim.allocator.releases import release


def features_of(version: Callable[[], str]) -> Features:
    """Return the features of the release that `version` returns (`v1.37.1`); of the newest stable one if unknown."""
    try:
        match = re.match(r"v?(\d+\.\d+\.\d+)", version())
        return Features.of(release(match[1])) if match else Features()
    except (UsageError, DranodeError):
        return Features()
