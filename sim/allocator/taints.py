"""Device taints and who tolerates them (KEP-5055)."""

from __future__ import annotations

from typing import Final

from dranode.api.resource import Device, DeviceTaint, DeviceToleration

# Other effects, None among them, keep no pod away.
_EFFECTS: Final = frozenset({"NoSchedule", "NoExecute"})


def untolerated(device: Device, tolerations: tuple[DeviceToleration, ...]) -> DeviceTaint | None:
    """The first taint that keeps the device from being allocated, if there is one."""
    return next(
        (
            taint
            for taint in device.taints
            if taint.effect in _EFFECTS and not any(tolerates(toleration, taint) for toleration in tolerations)
        ),
        None,
    )


def tolerates(toleration: DeviceToleration, taint: DeviceTaint) -> bool:
    """An empty effect or key means any; the operator is Exists or, by default, Equal."""
    if toleration.effect not in ("", taint.effect) or toleration.key not in ("", taint.key):
        return False
    match toleration.operator:
        case "Exists":
            return True
        case "" | "Equal":
            return toleration.value == taint.value
        case _:
            return False
