"""Why kube-apiserver refuses a ResourceSlice, and why a scheduler ignores a pool.

Source: `k8s.io/api/resource/v1/types.go` and the validation of `resource.k8s.io/v1` in Kubernetes 1.37. These
functions judge documents from the wire.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dranode.api.documents import decode
from dranode.api.errors import DocumentError, number_of
from dranode.api.resource import ResourceSlice
from dranode.api.slice_validation import slice_errors


def slice_refusals(document: Mapping[str, Any]) -> tuple[str, ...]:
    """Return why kube-apiserver refuses a slice in its v1 form, each with its path; none if it accepts it."""
    try:
        slice_ = decode(ResourceSlice, document)
    except DocumentError as error:
        return (str(error),)
    return tuple(f"{error.path}: {error.message}" for error in slice_errors(slice_))


def pool_problems(slices: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return why a scheduler ignores a pool with these slices, all of one generation."""
    name = slices[0]["spec"]["pool"]["name"]
    counts = {document["spec"]["pool"]["resourceSliceCount"] for document in slices}
    problems = []
    if counts != {len(slices)}:
        said = ", ".join(map(str, sorted(counts)))
        problems.append(f'pool "{name}" has {number_of(len(slices), "slice")}, but resourceSliceCount is {said}')
    devices = [device for document in slices for device in document["spec"].get("devices") or ()]
    problems += _twice("device", name, (device["name"] for device in devices))
    sets = [counters for document in slices for counters in document["spec"].get("sharedCounters") or ()]
    problems += _twice("counter set", name, (counters["name"] for counters in sets))
    known = {(counters["name"], counter) for counters in sets for counter in counters.get("counters") or ()}
    for device in devices:
        for used in device.get("consumesCounters") or ():
            missing = {(used["counterSet"], counter) for counter in used.get("counters") or ()} - known
            problems += [
                f'device "{device["name"]}" consumes counter "{counter}" of set "{group}", which pool "{name}" lacks'
                for group, counter in sorted(missing)
            ]
    return tuple(problems)


def _twice(what: str, pool: str, names: Iterable[str]) -> list[str]:
    return [f'{what} "{name}" is listed twice in pool "{pool}"' for name, times in Counter(names).items() if times > 1]
