"""kubelet's own record of prepared claims, `dra_manager_state`: what it will want unprepared, and by whom.

Source: `pkg/kubelet/cm/dra/state` of Kubernetes. The file is no API: it is read for diagnosis alone.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dranode.driver.core.api.errors import DranodeError, in_words
from dranode.driver.core.claims.held import ClaimRef
from dranode.driver.core.diagnosis.draining import KeptClaim

NAME = "dra_manager_state"


def read_checkpoint(path: Path, driver: str) -> tuple[KeptClaim, ...]:
    """The claims with a device of `driver` that kubelet has prepared; none if there is no such file.

    Args:
        path: the file `dra_manager_state` in kubelet's root.
        driver: the driver's name, as in ResourceSlices.

    Raises:
        DranodeError: the file cannot be read or does not have its form; kubelet does not start with it either.
    """
    try:
        # The data is JSON in a string, beside its checksum (kubelet's checkpoint manager).
        entries = json.loads(json.loads(path.read_bytes())["Data"]).get("Entries") or ()
        return tuple(_kept(entry) for entry in entries if driver in (entry.get("DriverState") or {}))
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise DranodeError(f"kubelet's record {path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DranodeError(f"kubelet's record {path} is none: {in_words(error)}") from error


def _kept(entry: dict[str, Any]) -> KeptClaim:
    ref = ClaimRef(str(entry["Namespace"]), str(entry["ClaimName"]), str(entry["ClaimUID"]))
    return KeptClaim(ref, tuple(sorted(entry.get("PodUIDs") or ())))
