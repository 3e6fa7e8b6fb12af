"""The feature gates that change what the allocator answers, with the defaults of Kubernetes 1.36."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Final, Self

from dranode.driver.core.api.errors import UsageError


@dataclass(frozen=True, slots=True)
class Features:
    """One field for each gate, named as the gate is without its prefix DRA."""

    admin_access: bool = True
    consumable_capacity: bool = True
    device_binding_conditions: bool = True
    device_taints: bool = True
    partitionable_devices: bool = True
    prioritized_list: bool = True
    list_type_attributes: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `NAME=BOOL,...` with the names of `--feature-gates`.

        Raises:
            UsageError: a gate is unknown here, or its value is neither true nor false.
        """
        features = cls()
        for item in filter(None, text.split(",")):
            name, _, value = item.partition("=")
            if name not in GATES:
                raise UsageError(f'the feature gate "{name}" is unknown; there are {", ".join(GATES)}')
            if value not in _BOOLEANS:
                raise UsageError(f'the feature gate {name} is true or false, not "{value}"')
            features = replace(features, **{GATES[name]: _BOOLEANS[value]})
        return features


_BOOLEANS: Final = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
GATES: Final = {
    "DRA" + "".join(part.capitalize() for part in field.name.split("_")): field.name for field in fields(Features)
}
