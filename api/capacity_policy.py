"""The rules for `capacity.*.requestPolicy` (KEP-5075), by which a driver limits the amounts that claims request."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from dranode.api.quantity import Quantity
from dranode.api.resource import CapacityRequestPolicy, CapacityRequestPolicyRange

# CapacityRequestPolicy.validValues of k8s.io/api, resource/v1.
MAX_VALID_VALUES: Final = 10


def policy_problems(value: Quantity, policy: CapacityRequestPolicy) -> Iterator[str]:
    """Yield the reasons why the API server would refuse a policy for a capacity of `value`.

    Each reason continues a sentence that begins with "the requestPolicy".
    """
    values, bounds, default = policy.valid_values, policy.valid_range, policy.default
    if values and bounds is not None:
        yield "has both validValues and validRange"
    if (values or bounds is not None) and default is None:
        yield "needs a default if it has validValues or validRange"
    if values:
        yield from _values_problems(value, values, default)
    if bounds is not None:
        yield from _range_problems(value, bounds, default)


def allowed_amounts(policy: CapacityRequestPolicy) -> str:
    """Return the amounts that a policy allows in words: `1 to 16 in steps of 2`, `one of 1Gi, 2Gi`."""
    if policy.valid_values:
        values = ", ".join(map(str, policy.valid_values))
        return f"one of {values}" if len(policy.valid_values) > 1 else values
    bounds = policy.valid_range
    if bounds is None:
        return "any amount"
    most = "or more" if bounds.max is None else f"to {bounds.max}"
    steps = f" in steps of {bounds.step}" if bounds.step is not None else ""
    return f"{bounds.min} {most}{steps}"


def _values_problems(value: Quantity, values: tuple[Quantity, ...], default: Quantity | None) -> Iterator[str]:
    if len(values) > MAX_VALID_VALUES:
        yield f"has {len(values)} validValues, more than {MAX_VALID_VALUES}"
    # Equal neighbors do not ascend either, so duplicates are found too.
    if any(value >= following for value, following in pairwise(values)):
        yield "has validValues that do not ascend"
    # The values ascend, so the last one is the largest.
    if values[-1] > value:
        yield f"allows {values[-1]}, more than the capacity of {value}"
    if default is not None and default not in values:
        yield f"has the default {default}, which is not one of its validValues"


def _range_problems(value: Quantity, bounds: CapacityRequestPolicyRange, default: Quantity | None) -> Iterator[str]:
    low, high, step = bounds.min, bounds.max, bounds.step
    if not 0 <= low.value <= value.value:
        yield f"has the minimum {low}, which is not within 0 and the capacity of {value}"
    if high is not None and not low.value <= high.value <= value.value:
        yield f"has the maximum {high}, which is not within the minimum {low} and the capacity of {value}"
    if default is not None and (default.value < low.value or (high is not None and default.value > high.value)):
        yield f"has the default {default}, which is not {low} or more{'' if high is None else f', up to {high}'}"
    if step is None:
        return
    if step.value <= 0:
        yield f"has the step {step}, which is not positive"
        return
    # A step has to fit at least once.
    if low.value + step.value > value.value:
        yield f"has the minimum {low} and the step {step}, together more than the capacity of {value}"
    for name, amount in (("default", default), ("maximum", high)):
        if amount is not None and (amount.value - low.value) % step.value:
            yield f"has the {name} {amount}, which is not a whole number of steps of {step} from {low}"
