"""kubelet's pod-resources socket, when kubelet is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from dranode.driver.kubelet.podresources import PodResources, PodResourcesError


def test_a_kubelet_that_is_away_is_told_in_one_line(tmp_path: Path) -> None:
    asked = PodResources(tmp_path / "kubelet.sock")
    with pytest.raises(PodResourcesError, match=r"^kubelet's pod-resources at \S+ does not answer: [^\n<]+$"):
        asked.claims("dra.cpu")
    asked.close()
