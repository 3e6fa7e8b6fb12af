"""kubelet's own record of prepared claims, `dra_manager_state`: what it will want unprepared, and by whom.

Source: `pkg/kubelet/cm/dra/state` of Kubernetes 1.34 to 1.37, which write one form; 1.37 adds `skipNodeOperations`. The
file is no API: it is read for diagnosis alone, and a form that is not known is an error, never an empty list.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any, Final

from dranode.api.errors import DranodeError, in_words
from dranode.driver.claims.held import ClaimRef
from dranode.tools.diagnosis.draining import KeptClaim

NAME: Final = "dra_manager_state"
_LIST: Final = "ClaimInfoStateList"
# With either of them kubelet ends a pod without asking the driver (KEP-5945, DRAOptionalNodeOperations).
_SKIP_UNPREPARE: Final = frozenset(("NodeUnprepareResources", "*"))


def read_checkpoint(path: Path, driver: str) -> tuple[KeptClaim, ...] | None:
    """The claims that kubelet will ask `driver` to unprepare; None if there is no such file.

    A kubelet that runs has made the file at its start, so where it is missing, kubelet's folder is not to be seen.

    Args:
        path: the file `dra_manager_state` in kubelet's root.
        driver: the driver's name, as in ResourceSlices.

    Raises:
        DranodeError: the file cannot be read, is damaged or has another form than kubelet 1.34 to 1.37 writes.
    """
    try:
        data, checksum = _read(path)
        kept = _kept(json.loads(data)[_LIST], driver)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DranodeError(f"kubelet's record {path} cannot be read: {error.strerror}") from error
    except KeyError as error:
        raise DranodeError(
            f"kubelet's record {path} has no {error.args[0]}, which kubelet 1.34 to 1.37 writes, so its claims are not "
            "known; see which version of kubelet runs here"
        ) from error
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise DranodeError(f"kubelet's record {path} is not one of kubelet 1.34 to 1.37: {in_words(error)}") from error
    if zlib.crc32(data.encode()) != checksum:
        raise DranodeError(
            f"kubelet's record {path} is damaged: its checksum is wrong, and kubelet does not start with it"
        )
    return kept


def _read(path: Path) -> tuple[str, int]:
    # The data is JSON in a string, beside its checksum (kubelet's checkpoint manager).
    checkpoint = json.loads(path.read_bytes())
    return checkpoint["Data"], checkpoint["Checksum"]


def _kept(states: Any, driver: str) -> tuple[KeptClaim, ...]:
    # A list that was never made is null in Go.
    if not isinstance(states, list | None):
        raise TypeError(f"{_LIST} is a {type(states).__name__}, not a list")
    return tuple(
        KeptClaim(
            ClaimRef(str(state["Namespace"]), str(state["ClaimName"]), str(state["ClaimUID"])),
            tuple(sorted(state["PodUIDs"] or ())),
        )
        for state in states or ()
        if _unprepares(driver, state["DriverState"] or {})
    )


def _unprepares(driver: str, states: dict[str, Any]) -> bool:
    if driver not in states:
        return False
    skipped = states[driver].get("skipNodeOperations") or ()
    return _SKIP_UNPREPARE.isdisjoint(skipped)
