"""Scales raw scores to scores from 0 to 100 (`DefaultNormalizeScore` of kube-scheduler)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

K = TypeVar("K")
MAX_SCORE: Final = 100


def normalized(raws: Mapping[K, int], *, reverse: bool = False) -> dict[K, int]:
    """100 times raw over the greatest raw, rounded down; `reverse` takes that from 100."""
    most = max(raws.values(), default=0)
    shares = {name: MAX_SCORE * raw // most if most else 0 for name, raw in raws.items()}
    return {name: MAX_SCORE - share for name, share in shares.items()} if reverse else shares
