"""One attempt to allocate: the devices it has taken so far, and whether it can take one more.

Sets of devices are integers, with bit n for candidate n. The checks are in the order of kube-scheduler.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from dranode.api.quantity import Quantity
from dranode.api.resource import PoolID, ResourceClaim
from dranode.sim.allocator.capacity import CounterLedger, Drawn, consumptions, shortage
from dranode.sim.allocator.constraints import ClaimConstraints
from dranode.sim.allocator.pools import Pool
from dranode.sim.allocator.releases import Change
from dranode.sim.allocator.requests import AllocationError, Alternative, Reason, claim_name
from dranode.sim.allocator.result import DevicePick, Oddity
from dranode.sim.allocator.selectors import Selectors
from dranode.sim.allocator.state import Allocated, Amount
from dranode.sim.allocator.taint_rules import untolerated


@dataclass(frozen=True, slots=True)
class _Undo:
    """The counters and capacity to restore when a device is given back.

    Attributes:
        drawn: the counters drawn for it; only the first share of a device draws.
        consumed: the consumed capacity before; None if there was no share.
    """

    drawn: Drawn | None
    consumed: dict[str, Amount] | None


class Attempt:
    """The devices taken for some claims on one node; `take` and `give_back` work like a stack.

    Attributes:
        names: the claims' names, for messages.
        candidates: the devices in search order.
        picks: the devices of each claim so far.
        oddities: surprising behavior of kube-scheduler so far.
        tied: whether devices depend on each other through shared counters.
    """

    def __init__(
        self, claims: Sequence[ResourceClaim], pools: Sequence[Pool], allocated: Allocated, selectors: Selectors
    ) -> None:
        """Start with nothing taken."""
        self.features = selectors.features
        self.names = tuple(map(claim_name, claims))
        self.candidates = [candidate for pool in pools if pool.usable for candidate in pool.candidates]
        self.picks: tuple[list[DevicePick], ...] = tuple([] for _ in claims)
        self.oddities: set[Oddity] = set()
        self._ledger = CounterLedger({pool.id: pool for pool in pools}, allocated, self.features)
        self._allocated = allocated
        self._selectors = selectors
        self._constraints = [
            ClaimConstraints(claim, name, selectors) for claim, name in zip(claims, self.names, strict=True)
        ]
        self._everything = (1 << len(self.candidates)) - 1
        # By the identity of an alternative: the devices that it chooses, does not choose, or was checked on.
        self._chosen: dict[int, int] = {}
        self._unchosen: dict[int, int] = {}
        self._checked: dict[int, int] = {}
        self._in_use = 0
        # By candidate. A device has an entry as soon as a share is allocated, even if that consumes no capacity.
        self._consumed: dict[int, dict[str, Amount]] = {}
        self._undo: tuple[list[_Undo], ...] = tuple([] for _ in claims)
        self._enter_allocated({pool.id for pool in pools})
        self._taken = [0] * len(claims)
        self._admin_taken = 0
        # Counters tie the devices of a pool together: one that no request chooses can make others unavailable.
        self._counters_return = self.features.has(Change.COUNTERS_RETURN)
        self.tied = any(candidate.device.consumes_counters for candidate in self.candidates)

    def _enter_allocated(self, pools: set[PoolID]) -> None:
        states = {pool: self._allocated.pool(pool) for pool in pools if pool in self._allocated.pools}
        if not states:
            return
        shares_count = self.features.has(Change.SHARES_WITHOUT_CAPACITY)
        for number, candidate in enumerate(self.candidates):
            if candidate.pool not in states:
                continue
            state = states[candidate.pool]
            if candidate.device.name in state.devices:
                self._in_use |= 1 << number
            if candidate.device.name in state.shared:
                amounts = state.consumed_of(candidate.device, candidate.pool.driver)
                if amounts or shares_count:
                    self._consumed[number] = amounts

    def refusal(self, claim: int) -> AllocationError | None:
        """Return the error of a constraint of the claim that no devices can satisfy, if any."""
        return self._constraints[claim].refusal

    def free(self, claim: int, alternative: Alternative) -> int:
        """Return the free devices; for admin access, only devices of this very claim are not free."""
        if alternative.admin:
            return self._everything & ~self._taken[claim]
        taken = 0
        for devices in self._taken:
            taken |= devices
        if self._admin_taken & taken & ~self._in_use:
            self.oddities.add(Oddity.ADMIN_BLOCKS)
        return self._everything & ~(self._in_use | taken)

    def chooses(self, claim: int, alternative: Alternative, number: int) -> bool:
        """Return whether class, request and node selection choose the device, whether or not it is in use.

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
            (self.features.binding or not candidate.device.binding_conditions)
            and self._selectors.exclusion(alternative, candidate, self.names[claim]) is None
            and candidate.reachable
        )
        answers = self._chosen if chosen else self._unchosen
        answers[key] = answers.get(key, 0) | 1 << number
        return chosen

    def check(self, claim: int, alternative: Alternative, devices: int) -> None:
        """Evaluate selectors and amounts on these devices in their order, only to raise their errors.

        Raises:
            AllocationError: an evaluation fails.
        """
        key = id(alternative)
        unchecked = devices & ~self._checked.get(key, 0)
        while unchecked:
            lowest = unchecked & -unchecked
            unchecked ^= lowest
            number = lowest.bit_length() - 1
            if self.chooses(claim, alternative, number):
                self.has_capacity(alternative, number)
        self._checked[key] = self._checked.get(key, 0) | devices

    def maybe_chosen(self, alternatives: Iterable[Alternative]) -> int:
        """Return all devices except those that none of the alternatives chooses."""
        devices = 0
        for alternative in alternatives:
            devices |= self._everything & ~self._unchosen.get(id(alternative), 0)
        return devices

    def equals(self, number: int) -> Hashable:
        """Return a value that is equal for interchangeable devices: they differ only in name and have the same free."""
        amounts = self._consumed.get(number)
        candidate = self.candidates[number]
        content: Hashable = candidate.content.number
        if candidate.device.consumes_counters:
            content = (content, candidate.pool)  # counters belong to a pool
        return content if amounts is None else (content, tuple(sorted(amounts.items())))

    def could_have_capacity(self, alternative: Alternative, number: int) -> bool:
        """Return whether a request for all devices includes this one: since 1.37, even if its capacity is used up.

        Raises:
            AllocationError: the amount cannot be reckoned with.
        """
        if not self.features.consumable_capacity or not self.features.has(Change.ALL_NEEDS_EVERY_DEVICE):
            return self.has_capacity(alternative, number)
        return shortage(self.candidates[number], alternative.capacity, None, self.features) is None

    def has_capacity(self, alternative: Alternative, number: int) -> bool:
        """Return whether the requested amounts of the device's capacities are available.

        Raises:
            AllocationError: the amount cannot be reckoned with.
        """
        if not self.features.consumable_capacity:
            return True
        short = shortage(self.candidates[number], alternative.capacity, self._consumed.get(number), self.features)
        if short is not None and alternative.admin and short.available is not None:
            self.oddities.add(Oddity.ADMIN_NEEDS_CAPACITY)
        return short is None

    def state(self, claim: int, relevant: int) -> Hashable:
        """Return everything that the rest of the search depends on, limited to the devices in `relevant`."""
        return (
            tuple(devices & relevant for devices in self._taken[: claim + 1]),
            tuple(
                (number, tuple(sorted(amounts.items())))
                for number, amounts in sorted(self._consumed.items())
                if relevant >> number & 1
            ),
            self._constraints[claim].state(),
            len(self.picks[claim]),
            self._ledger.state() if self.tied else None,
        )

    def binds(self, claim: int, alternative: Alternative) -> bool:
        """Return whether a constraint of the claim applies to the alternative."""
        return self._constraints[claim].bind(alternative)

    @property
    def forgets(self) -> bool:
        """Return whether devices that were given back leave no trace; counters that stay drawn would."""
        return self._counters_return or not self.tied

    @property
    def constraints_depend_on_history(self) -> bool:
        """Return whether answers of a constraint depend on devices that were given back."""
        return any(constraints.depend_on_history for constraints in self._constraints)

    def take(self, claim: int, alternative: Alternative, number: int, *, must: bool) -> bool:
        """Take a free and chosen device if counters, taints, constraints and capacity allow it; `must` is set for All.

        Raises:
            AllocationError: a constraint forbids a device that must be taken, or an attribute or amount is invalid.
        """
        candidate = self.candidates[number]
        device = candidate.device
        shareable = self.features.consumable_capacity and bool(device.allow_multiple_allocations)
        if not candidate.servable or (not self.features.partitionable_devices and device.consumes_counters):
            return False
        drawn = None
        if device.consumes_counters and not (shareable and number in self._consumed):
            if must and not self.features.has(Change.ALL_WITH_COUNTERS):
                raise AllocationError(
                    f"claim {self.names[claim]}, request {alternative.name} asks for all devices, and "
                    f"{candidate.pool}/{device.name} consumes counters: kube-scheduler {self.features.release.version} "
                    "panics; ask for a number of devices, or update it",
                    Reason.SCHEDULER_PANICS,
                )
            drawn = self._ledger.draw(candidate)
            if drawn is None:
                return False
        if not self._admissible(claim, alternative, number, must=must):
            if drawn is not None and self._counters_return:
                drawn.give_back(device)
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
        self._constraints[claim].remove(pick.alternative)
        if undo.drawn is not None and (self._counters_return or pick.share is None):
            undo.drawn.give_back(pick.candidate.device)
        if pick.share is None:
            self._taken[claim] &= ~(1 << pick.number)
            self._admin_taken &= ~(1 << pick.number)
        elif undo.consumed is None:
            del self._consumed[pick.number]
        else:
            self._consumed[pick.number] = undo.consumed

    def _admissible(self, claim: int, alternative: Alternative, number: int, *, must: bool) -> bool:
        """Return whether taints, constraints and capacity allow the device; if so, it is added to the constraints."""
        candidate = self.candidates[number]
        if self.features.device_taints and untolerated(candidate.device.taints, alternative.tolerations):
            return False
        if not self._constraints[claim].add(alternative, candidate):
            if must:
                raise AllocationError(
                    f"claim {self.names[claim]}, request {alternative.name} asks for all devices, but a constraint of "
                    f"the claim forbids {candidate.pool}/{candidate.device.name}",
                    Reason.CONSTRAINT_ON_ALL,
                )
            return False
        if not self.has_capacity(alternative, number):
            self._constraints[claim].remove(alternative)
            return False
        return True

    def _take_share(self, alternative: Alternative, number: int) -> Mapping[str, Quantity]:
        share = consumptions(self.candidates[number], alternative.capacity, self.features)
        amounts = dict(self._consumed.get(number, {}))
        for name, quantity in share.items():
            amounts[name] = amounts.get(name, 0) + quantity.value
        self._consumed[number] = amounts
        return share
