"""The constraints of one claim together: a device is added to all of them, or to none."""

from __future__ import annotations

from collections.abc import Hashable

from dranode.api.resource import DeviceAttribute, ResourceClaim
from dranode.sim.allocator.constraints import Constraint, constraint, lookup
from dranode.sim.allocator.outcome import AllocationError, Reason
from dranode.sim.allocator.pools import Candidate
from dranode.sim.allocator.requests import Alternative
from dranode.sim.allocator.selectors import Selectors


class ClaimConstraints:
    """The constraints of a claim during a search.

    Attributes:
        remember: whether answers to `distinctAttribute` depend on devices that were tried and given back.
        refusal: why the claim cannot be allocated anywhere, if a constraint names no attribute.
    """

    def __init__(self, claim: ResourceClaim, name: str, selectors: Selectors) -> None:
        """Start without devices; `name` is the claim's, for messages."""
        self._selectors = selectors
        self.refusal: AllocationError | None = None
        self._constraints: list[Constraint] = []
        for index, spec in enumerate(claim.spec.devices.constraints):
            known = constraint(spec, selectors.features)
            if known is None:
                what = "names no attribute" if spec.distinct_attribute is None else "needs DRAConsumableCapacity"
                message = f"claim {name}, constraint #{index} {what}"
                self.refusal = AllocationError(message, Reason.INCOMPLETE_CLAIM)
                break
            self._constraints.append(known)
        self.remember = any(known.remembers for known in self._constraints)

    def bind(self, alternative: Alternative) -> bool:
        """Return whether any constraint applies to the alternative."""
        return any(known.applies(alternative.name) for known in self._constraints)

    def state(self) -> Hashable:
        """Return what later answers depend on."""
        return tuple(known.state() for known in self._constraints)

    def add(self, alternative: Alternative, candidate: Candidate) -> bool:
        """Add a device for the alternative; False, and nothing changes, if it violates a constraint.

        Raises:
            AllocationError: a derived attribute cannot be evaluated on the device.
        """
        added: list[Constraint] = []
        for known in self._constraints:
            if not known.applies(alternative.name):
                continue
            attribute = self._attribute(alternative, candidate, known.attribute)
            if attribute is None or not known.add(alternative.name, attribute):
                for undone in reversed(added):
                    undone.remove(alternative.name)
                return False
            added.append(known)
        return True

    def remove(self, alternative: Alternative) -> None:
        """Undo the last `add`, which was for this alternative."""
        for known in reversed(self._constraints):
            if known.applies(alternative.name):
                known.remove(alternative.name)

    def _attribute(self, alternative: Alternative, candidate: Candidate, name: str) -> DeviceAttribute | None:
        expression = alternative.derived.get(name)
        if expression is not None:
            return self._selectors.derived(name, expression, candidate)
        return lookup(candidate.device, candidate.pool.driver, name)
