"""What the local run says where it cannot start."""

from __future__ import annotations

from pathlib import Path

import pytest

from dranode.driver.core.errors import DranodeError
from dranode.driver.local import start
from dranode.driver.local.allocator.features import Features
from tests.fakes import Lamps


def test_sockets_that_find_no_short_folder_are_a_sentence_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "_SHORT", str(tmp_path / "missing"))
    begun = start.local_run([Lamps()], "node", tmp_path / ("deep" * 30), Features(), lambda _: None)
    with pytest.raises(DranodeError, match=r"made in .*missing: No such file or directory; name a short one"), begun:
        pass
