"""Evaluates the selectors of classes and requests, once for all devices with the same content."""

from dataclasses import dataclass, field

import msgspec

from dranode.api.resource import Device, DeviceAttribute, DeviceClass, DeviceSelector
from dranode.sim.allocator.features import Features
from dranode.sim.allocator.pools import Candidate, Content
from dranode.sim.allocator.releases import Change
from dranode.sim.allocator.requests import AllocationError, Alternative, Reason
from dranode.sim.cel.expression import compile_attribute, compile_selector
from dranode.sim.cel.syntax import CELCompileError, CELRuntimeError


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A selector that does not match a device.

    Attributes:
        where: `class gpu` or `request r`.
        index: its index in the list, from 0.
        expression: its source.
    """

    where: str
    index: int
    expression: str


@dataclass(slots=True)
class Selectors:
    """The selectors that are evaluated for the devices of one `PoolIndex`, with the results so far.

    Attributes:
        features: the gates.
    """

    features: Features
    _answers: dict[tuple[str, int], bool] = field(default_factory=dict)
    _derived: dict[tuple[str, int], DeviceAttribute] = field(default_factory=dict)

    def exclusion(self, alternative: Alternative, candidate: Candidate, claim: str) -> Exclusion | None:
        """Return the first selector that excludes the device, class before request; None if all match.

        Raises:
            AllocationError: a selector cannot be compiled, or fails on this device.
        """
        name = alternative.device_class.metadata.name
        for selectors, owner, where in (
            (alternative.device_class.spec.selectors, f"class {name}", f"class {name}"),
            (alternative.selectors, f"claim {claim}", f"request {alternative.name}"),
        ):
            for index, selector in enumerate(selectors):
                if not self._holds(selector, candidate.content, candidate.device, f"{owner}: selector #{index}"):
                    return Exclusion(where, index, selector.cel.expression if selector.cel else "")
        return None

    def in_class(self, device_class: DeviceClass, content: Content) -> bool:
        """Return whether a class selects the device.

        Raises:
            AllocationError: a selector cannot be compiled, or fails on this device.
        """
        where = f"class {device_class.metadata.name}"
        return all(
            self._holds(selector, content, content.device, f"{where}: selector #{index}")
            for index, selector in enumerate(device_class.spec.selectors)
        )

    def derived(self, name: str, expression: str, candidate: Candidate) -> DeviceAttribute:
        """Return the value of the expression for the device, as an attribute.

        Raises:
            AllocationError: the expression cannot be compiled, or fails on this device.
        """
        content = candidate.content
        key = (expression, content.number)
        known = self._derived.get(key)
        if known is None:
            try:
                attribute = compile_attribute(expression, self.features.stored_expressions)
                known = self._derived[key] = attribute.of(content.driver, content.device)
            except CELCompileError as error:
                raise AllocationError(
                    f"derived attribute {name}: CEL compile error: {error}", Reason.CEL_COMPILE
                ) from error
            except CELRuntimeError as error:
                message = f"derived attribute {name}: CEL runtime error on device {candidate.device.name}: {error}"
                raise AllocationError(message, Reason.CEL_RUNTIME) from error
        return known

    def _holds(self, selector: DeviceSelector, content: Content, device: Device, where: str) -> bool:
        if selector.cel is None:
            raise AllocationError(f"{where} has no CEL expression", Reason.INCOMPLETE_CLAIM)
        key = (selector.cel.expression, content.number)
        known = self._answers.get(key)
        if known is None:
            known = self._answers[key] = self._evaluate(selector.cel.expression, content, device, where)
        return known

    def _evaluate(self, expression: str, content: Content, device: Device, where: str) -> bool:
        visible = content.device
        if not self.features.beyond_stable:
            # kube-scheduler's stable allocator does not pass this field to selectors.
            visible = msgspec.structs.replace(visible, allow_multiple_allocations=None)
        try:
            selector = compile_selector(expression, self.features.stored_expressions)
            lists_seen = self.features.list_type_attributes or self.features.has(Change.LISTS_ALWAYS_SEEN)
            return selector.matches(content.driver, visible, lists_seen=lists_seen)
        except CELCompileError as error:
            raise AllocationError(f"{where}: CEL compile error: {error}", Reason.CEL_COMPILE) from error
        except CELRuntimeError as error:
            raise AllocationError(
                f"{where}: CEL runtime error on device {device.name}: {error}", Reason.CEL_RUNTIME
            ) from error
