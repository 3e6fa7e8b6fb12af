"""Reports of users, rights and sandboxes."""

from __future__ import annotations

from pathlib import Path

import pytest

from dranode.show.cluster_option import named_kubeconfig


def test_a_user_without_home_and_name_has_no_kubeconfig(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("KUBECONFIG", raising=False)

    def unknown(user: int) -> None:
        raise KeyError(user)

    monkeypatch.setattr("pwd.getpwuid", unknown)
    with pytest.raises(RuntimeError):
        Path.home()
    assert named_kubeconfig() is None
