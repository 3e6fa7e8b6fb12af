"""kubelet's own record of prepared claims is read in the format of each release."""

import json
import os
import zlib
from pathlib import Path
from typing import Any

import pytest

from dranode.api.errors import DranodeError
from dranode.tools.readers.checkpoint import KeptClaim, read_checkpoint

VECTORS = Path(__file__).parents[3] / "vectors" / "kubelet"
RELEASES = sorted(VECTORS.glob("dra_manager_state-*.json"))
PODS = ("2e2e2e2e-0000-4000-8000-000000000001", "2e2e2e2e-0000-4000-8000-000000000002")


def claims(path: Path, driver: str = "dra.cpu") -> dict[str, tuple[str, ...]]:
    kept: tuple[KeptClaim, ...] | None = read_checkpoint(path, driver)
    assert kept is not None
    return {f"{claim.ref.namespace}/{claim.ref.name}": claim.pods for claim in kept}


def written(folder: Path, data: Any, checksum: int | None = None) -> Path:
    text = data if isinstance(data, str) else json.dumps(data)
    path = folder / "dra_manager_state"
    path.write_text(json.dumps({"Data": text, "Checksum": zlib.crc32(text.encode()) if checksum is None else checksum}))
    return path


def test_every_supported_release_has_a_recorded_file() -> None:
    assert [path.stem.split("-")[1].rpartition(".")[0] for path in RELEASES] == ["1.34", "1.35", "1.36", "1.37"]


@pytest.mark.parametrize("path", RELEASES, ids=lambda path: path.stem)
def test_the_claims_of_a_driver_are_read_with_their_pods(path: Path) -> None:
    assert claims(path)["default/both-x7k2p"] == PODS
    assert claims(path, "gpu.example.com") == {"default/both-x7k2p": PODS, "team/other": ()}
    assert claims(path, "dra.memory") == {}


def test_a_claim_that_kubelet_unprepares_without_the_driver_is_left_out() -> None:
    kept = claims(VECTORS / "dra_manager_state-1.37.2.json")
    assert set(kept) == {"default/both-x7k2p", "default/skips-prepare"}


def test_a_missing_file_says_nothing_about_claims(tmp_path: Path) -> None:
    assert read_checkpoint(tmp_path / "dra_manager_state", "dra.cpu") is None


def test_a_record_without_claims_is_an_empty_list(tmp_path: Path) -> None:
    # Go encodes a nil slice as null.
    assert claims(written(tmp_path, {"kind": "DRACheckpoint", "ClaimInfoStateList": None})) == {}
    assert claims(written(tmp_path, {"kind": "DRACheckpoint", "ClaimInfoStateList": []})) == {}


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        pytest.param({"Entries": []}, "has no ClaimInfoStateList", id="another form"),
        pytest.param({"ClaimInfoStateList": [{"ClaimName": "a"}]}, "has no DriverState", id="a claim without drivers"),
        pytest.param({"ClaimInfoStateList": {}}, "does not have the format of kubelet", id="no list"),
        pytest.param([], "does not have the format of kubelet", id="a list"),
        pytest.param("{", "does not have the format of kubelet", id="no JSON"),
    ],
)
def test_a_record_in_another_format_is_an_error(tmp_path: Path, data: Any, sentence: str) -> None:
    with pytest.raises(DranodeError, match=sentence):
        claims(written(tmp_path, data))


WHOLE = RELEASES[-1].read_bytes()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param(b"", "it is not JSON", id="empty"),
        pytest.param(WHOLE[: len(WHOLE) // 2], "it is not JSON", id="truncated"),
        pytest.param(bytes(len(WHOLE)), "it is not JSON", id="zeros, as a power cut leaves them"),
        pytest.param(b"\0\xff\0garbage", "it is not JSON", id="garbage"),
        pytest.param(WHOLE.replace(b"default", b"DEFAULT"), "its checksum is wrong", id="altered"),
    ],
)
def test_a_damaged_record_is_an_error_that_says_what_to_do(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "dra_manager_state"
    path.write_bytes(content)
    with pytest.raises(DranodeError, match=f"is damaged .{reason}., .* remove the file and restart kubelet"):
        claims(path)


def test_a_named_pipe_in_place_of_the_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "dra_manager_state")
    with pytest.raises(DranodeError, match=r"dra_manager_state cannot be read: it is not a regular file"):
        read_checkpoint(tmp_path / "dra_manager_state", "dra.cpu")


def test_invalid_utf8_counts_as_damage(tmp_path: Path) -> None:
    (tmp_path / "dra_manager_state").write_text(
        json.dumps({"Data": '{"ClaimInfoStateList": null, "kind": "\ud800"}', "Checksum": 1})
    )
    with pytest.raises(DranodeError, match="is damaged"):
        read_checkpoint(tmp_path / "dra_manager_state", "dra.cpu")
