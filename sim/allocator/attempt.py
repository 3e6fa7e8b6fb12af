"""One attempt to allocate: which devices it has taken so far, and whether one more can be taken.

Sets of devices are integers here, bit n for candidate n. The checks come in the order of kube-scheduler 1.36.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from dranode.driver.core.api.quantity import Quantity
from dranode.driver.core.api.resource import ResourceClaim
from dranode.driver.core.claims.configs import applies
from dranode.sim.allocator.capacity import consumptions, shortage
from dranode.sim.allocator.constraints import Constraint, constraint
from dranode.sim.allocator.counters import Counters, counters_left
from dranode.sim.allocator.outcome import AllocationError, Reason
from dranode.sim.allocator.pools import Candidate, Pool
from dranode.sim.allocator.requests import Alternative, claim_name
from dranode.sim.allocator.selectors import Selectors
from dranode.sim.allocator.state import Allocated, Amount, PoolID
from dranode.sim.allocator.taints import untolerated


@dataclass(frozen=True, slots=True)
class DevicePick:
    """One device for one request.

    Attributes:
        alternative: the request or the alternative that it is for.
        number: the candidate's number in the attempt.
        candidate: the device.
        share: what a share of it consumes by capacity; None if it is taken as a whole.
    """

    alternative: Alternative
    number: int
    candidate: Candidate
    share: Mapping[str, Quantity] | None


class Oddity(Enum):
    """What kube-scheduler does and one would not expect, and what may have decided the answer."""

    ADMIN_BLOCKS = auto()
    ADMIN_NEEDS_CAPACITY = auto()


@dataclass(frozen=True, slots=True)
class _Undo:
    """What giving a device back restores beyond constraints and the device itself.

    Attributes:
        drawn: whether its counters were drawn for it: for a shared device only the first share draws them.
        consumed: what shares consumed of it before; None if there was no share.
    """

    drawn: bool
    consumed: dict[str, Amount] | None


class Attempt:
    """Devices taken for some claims on one node; `take` and `give_back` are called like a stack.

    Attributes:
        names: the claims' names, for messages.
        candidates: the devices in the order of search.
        picks: what each claim has so far.
        oddities: what was met so far.
    """

    def __init__(
        self, claims: Sequence[ResourceClaim], pools: Sequence[Pool], allocated: Allocated, selectors: Selectors
    ) -> None:
        """Start with nothing taken.

        Raises:
            AllocationError: a constraint names no attribute.
        """
        self.features = selectors.features
        self.names = tuple(map(claim_name, claims))
        self.candidates = [candidate for pool in pools if pool.usable for candidate in pool.candidates]
        self.picks: tuple[list[DevicePick], ...] = tuple([] for _ in claims)
        self.oddities: set[Oddity] = set()
        self._pools = {pool.id: pool for pool in pools}
        self._allocated = allocated
        self._selectors = selectors
        self._constraints = [
            self._made_constraints(claim, name) for claim, name in zip(claims, self.names, strict=True)
        ]
        self._everything = (1 << len(self.candidates)) - 1
        self._chosen: dict[int, int] = {}  # by the identity of an alternative: what it is known to choose
        self._unchosen: dict[int, int] = {}  # and what it is known not to choose
        self._in_use = 0
        # By candidate; a device is in here from its first share on, even if that consumes no capacity.
        self._consumed: dict[int, dict[str, Amount]] = {}
        self._undo: tuple[list[_Undo], ...] = tuple([] for _ in claims)
        self._enter_allocated({pool.id for pool in pools})
        self._taken = [0] * len(claims)
        self._admin_taken = 0
        self._counters: dict[str, Counters] = {}

    def _made_constraints(self, claim: ResourceClaim, name: str) -> list[Constraint]:
        made = []
        for index, spec in enumerate(claim.spec.devices.constraints):
            one = constraint(spec, lists=self.features.list_type_attributes)
            if one is None:
                raise AllocationError(f"claim {name}, constraint #{index} names no attribute", Reason.INCOMPLETE_CLAIM)
            made.append(one)
        return made

    def _enter_allocated(self, pools: set[PoolID]) -> None:
        states = {pool: self._allocated.pool(pool) for pool in pools if pool in self._allocated.pools}
        if not states:
            return
        for number, candidate in enumerate(self.candidates):
            if candidate.pool not in states:
                continue
            state = states[candidate.pool]
            if candidate.device.name in state.devices:
                self._in_use |= 1 << number
            if candidate.device.name in state.shared:
                amounts = state.consumed_of(candidate.device, candidate.pool.driver)
                if amounts:
                    self._consumed[number] = amounts

    # --- questions ---

    def free(self, claim: int, alternative: Alternative) -> int:
        """The devices that are not in use; admin access minds only what this very claim has taken."""
        if alternative.admin:
            return self._everything & ~self._taken[claim]
        taken = 0
        for devices in self._taken:
            taken |= devices
        if self._admin_taken & taken & ~self._in_use:
            self.oddities.add(Oddity.ADMIN_BLOCKS)
        return self._everything & ~(self._in_use | taken)

    def chooses(self, claim: int, alternative: Alternative, number: int) -> bool:
        """Whether class, request and node selection choose the device, whoever uses it.

        Raises:
            AllocationError: a selector cannot be evaluated.
        """
        key = id(alternative)
        if self._chosen.get(key, 0) >> number & 1:
            return True
        if self._unchosen.get(key, 0) >> number & 1:
            return False
        candidate = self.candidates[number]
        chosen = (
            (self.features.device_binding_conditions or not candidate.device.binding_conditions)
            and self._selectors.exclusion(alternative, candidate.content, self.names[claim]) is None
            and candidate.reachable
        )
        answers = self._chosen if chosen else self._unchosen
        answers[key] = answers.get(key, 0) | 1 << number
        return chosen

    def maybe_chosen(self, alternatives: Iterable[Alternative]) -> int:
        """The devices that are not known to be chosen by none of these."""
        devices = 0
        for alternative in alternatives:
            devices |= self._everything & ~self._unchosen.get(id(alternative), 0)
        return devices

    def equals(self, number: int) -> Hashable:
        """Equal for devices that are as good as each other: the same but for the name, with the same left."""
        amounts = self._consumed.get(number)
        content = self.candidates[number].content.number
        return content if amounts is None else (content, tuple(sorted(amounts.items())))

    def has_capacity(self, alternative: Alternative, number: int) -> bool:
        """Whether what the request wants of the device's capacities is left."""
        if not self.features.consumable_capacity:
            return True
        device = self.candidates[number].device
        short = shortage(device, alternative.capacity, self._consumed.get(number))
        if short is not None and alternative.admin and short.left is not None:
            self.oddities.add(Oddity.ADMIN_NEEDS_CAPACITY)
        return short is None

    def state(self, claim: int, relevant: int) -> Hashable:
        """All that the rest of the search depends on, as far as it looks at the devices in `relevant`."""
        return (
            tuple(taken & relevant for taken in self._taken[: claim + 1]),
            tuple(
                (number, tuple(sorted(amounts.items())))
                for number, amounts in sorted(self._consumed.items())
                if relevant >> number & 1
            ),
            tuple(one.state() for one in self._constraints[claim]),
            len(self.picks[claim]),
        )

    def binds(self, claim: int, alternative: Alternative) -> bool:
        """Whether a constraint of the claim applies to the alternative."""
        return any(applies(one.spec.requests, alternative.name) for one in self._constraints[claim])

    @property
    def forgets(self) -> bool:
        """Whether what was tried before, or devices that nobody asks about, decide nothing.

        They do with common values of lists, which giving back does not widen again, and with counters, which tie the
        devices of a pool together.
        """
        lists = self.features.list_type_attributes and any(
            one.spec.match_attribute is not None for constraints in self._constraints for one in constraints
        )
        return not lists and not any(candidate.device.consumes_counters for candidate in self.candidates)

    @property
    def distinct(self) -> bool:
        """Whether a constraint wants different values, which depends on what was tried before."""
        return any(one.spec.distinct_attribute is not None for constraints in self._constraints for one in constraints)

    # --- changes ---

    def take(self, claim: int, alternative: Alternative, number: int, *, must: bool) -> bool:
        """Take a device that is free and chosen, if counters, taints, constraints and capacity allow it.

        Raises:
            AllocationError: it must be taken, and a constraint of the claim forbids it.
        """
        candidate = self.candidates[number]
        device = candidate.device
        shareable = self.features.consumable_capacity and bool(device.allow_multiple_allocations)
        if not self.features.partitionable_devices and device.consumes_counters:
            return False
        drawn = bool(device.consumes_counters) and not (shareable and number in self._consumed)
        if drawn and self._counters_of(candidate).draw(device) is not None:
            return False
        if not self._admissible(claim, alternative, number, must=must):
            if drawn:
                self._counters_of(candidate).give_back(device)
            return False
        self._undo[claim].append(_Undo(drawn, self._consumed.get(number)))
        share = self._take_share(alternative, number) if shareable else None
        if not shareable:
            self._taken[claim] |= 1 << number
            if alternative.admin:
                self._admin_taken |= 1 << number
        self.picks[claim].append(DevicePick(alternative, number, candidate, share))
        return True

    def give_back(self, claim: int) -> None:
        """Undo the last `take` of the claim."""
        pick, undo = self.picks[claim].pop(), self._undo[claim].pop()
        self._release(claim, pick.alternative)
        if undo.drawn:
            self._counters_of(pick.candidate).give_back(pick.candidate.device)
        if pick.share is None:
            self._taken[claim] &= ~(1 << pick.number)
            self._admin_taken &= ~(1 << pick.number)
        elif undo.consumed is None:
            del self._consumed[pick.number]
        else:
            self._consumed[pick.number] = undo.consumed

    def _admissible(self, claim: int, alternative: Alternative, number: int, *, must: bool) -> bool:
        """Whether taints, constraints and capacity allow the device; if so, the constraints have it."""
        candidate = self.candidates[number]
        if self.features.device_taints and untolerated(candidate.device, alternative.tolerations):
            return False
        if not self._constrain(claim, alternative, candidate, must=must):
            return False
        if not self.has_capacity(alternative, number):
            self._release(claim, alternative)
            return False
        return True

    def _release(self, claim: int, alternative: Alternative) -> None:
        for one in reversed(self._constraints[claim]):
            one.remove(alternative.name)

    def _constrain(self, claim: int, alternative: Alternative, candidate: Candidate, *, must: bool) -> bool:
        constraints = self._constraints[claim]
        for index, one in enumerate(constraints):
            if not one.add(alternative.name, candidate.pool.driver, candidate.device):
                if must:
                    raise AllocationError(
                        f"claim {self.names[claim]}, request {alternative.name} wants all devices, but a constraint of "
                        f"the claim forbids {candidate.pool}/{candidate.device.name}",
                        Reason.CONSTRAINT_ON_ALL,
                    )
                for added in reversed(constraints[:index]):
                    added.remove(alternative.name)
                return False
        return True

    def _take_share(self, alternative: Alternative, number: int) -> Mapping[str, Quantity]:
        share = consumptions(self.candidates[number].device, alternative.capacity)
        amounts = dict(self._consumed.get(number, {}))
        for name, quantity in share.items():
            amounts[name] = amounts.get(name, 0) + quantity.value
        self._consumed[number] = amounts
        return share

    def _counters_of(self, candidate: Candidate) -> Counters:
        found = self._counters.get(candidate.pool.pool)
        if found is None:
            pool = self._pools[candidate.pool]
            found = Counters(counters_left(pool, self._allocated.pool(candidate.pool)))
            self._counters[candidate.pool.pool] = found
        return found
