"""Opaque configuration: whose it is, which requests it is for, and which of several counts."""

from collections.abc import Mapping
from typing import Any, Final

from dranode.api.errors import number_of
from dranode.sanity.bench import OTHER_DRIVER, Bench
from dranode.sanity.breach import Unable, expect, shown
from dranode.sanity.check import must, should
from dranode.sanity.claims import BenchClaim

_TYPES: Final = "k8s.io/api/resource/v1/types.go"
_OPAQUE: Final = f"{_TYPES}, OpaqueDeviceConfiguration"
_UNKNOWN: Final = {"apiVersion": "no-such-group.sanity.example.com/v1", "kind": "NoSuchKind", "noSuchField": True}


def _entry(parameters: Any, driver: str, source: str = "FromClaim", requests: tuple[str, ...] = ()) -> dict[str, Any]:
    listed = {"requests": list(requests)} if requests else {}
    return {"source": source, **listed, "opaque": {"driver": driver, "parameters": parameters}}


@must("configuration-other-driver", f"{_OPAQUE}.driver: which plugin the parameters are for")
def other_drivers_parameters_are_passed_over(bench: Bench) -> None:
    """Parameters for another driver are ignored.

    The parameters are unreadable, and are for another driver.
    """
    claim = bench.claim(bench.devices(), config=[_entry(_UNKNOWN, OTHER_DRIVER)])
    bench.prepared(claim)


@must("configuration-other-request", f"{_TYPES}, DeviceAllocationConfiguration.requests")
def other_requests_parameters_are_passed_over(bench: Bench) -> None:
    """Parameters for requests in which the driver has no device are ignored.

    The claim has a request for another driver, with parameters for this driver.
    """
    parameters = _distinct(bench)[0]
    (device,) = bench.devices()
    other = {"request": "other", "driver": OTHER_DRIVER, "pool": "elsewhere", "device": "its-own"}
    effects = []
    for config in ([], [_entry(parameters, bench.driver, requests=("other",))]):
        claim = bench.make_claim([device.result("mine"), other], config=config)
        (answer,) = bench.prepared(claim)
        effects.append(bench.edits(claim, answer))
        bench.unprepared(claim)
    seen = f"without: {effects[0]}; with parameters for another request: {effects[1]}"
    expect(effects[0] == effects[1], seen, "compare `requests` with the request of the result")


@should("configuration-unknown", f"{_OPAQUE}.parameters: validation is the driver's responsibility")
def unknown_parameters_are_refused(bench: Bench) -> None:
    """Parameters that the driver cannot read are refused: nobody else can validate them.

    Uses an API group and a kind that no driver has.
    """
    claim = bench.claim(bench.devices(), config=[_entry(_UNKNOWN, bench.driver)])
    expect(bench.refused(claim), "parameters of kind NoSuchKind were accepted", "refuse an unknown apiVersion or kind")


@should("configuration-unknown-named", "KEP-4381: kubelet puts the driver's error into an event of the pod")
def unknown_parameters_are_named(bench: Bench) -> None:
    """The error for parameters that cannot be read says what is wrong with them.

    Searches the text for the unknown kind or group.
    """
    claim = bench.claim(bench.devices(), config=[_entry(_UNKNOWN, bench.driver)])
    text = bench.refused(claim)
    if not text:
        raise Unable("the driver accepts such parameters")
    named = any(word in text for word in ("NoSuchKind", "no-such-group", "noSuchField"))
    expect(named, f'the error is "{text}"', "put group and kind, or the field, into the error")


@should(
    "configuration-misspelt",
    "KEP-4381: a strict decoder is recommended for opaque parameters, since nobody else checks them",
)
def misspelt_fields_are_refused(bench: Bench) -> None:
    """An unknown field in the parameters is refused, not ignored.

    Adds an unknown field to valid parameters.
    """
    parameters = {**_parameters(bench, 1)[0], "noSuchField": 1}
    claim = bench.claim(bench.devices(), config=[_entry(parameters, bench.driver)])
    expect(bench.refused(claim), 'parameters with a field "noSuchField" were accepted', "decode strictly")


@must("configuration-known", f"{_OPAQUE}.parameters")
def known_parameters_are_accepted(bench: Bench) -> None:
    """Parameters that the driver documents are accepted.

    Tries each entry of --configurations.
    """
    for parameters in _parameters(bench, 1):
        claim = bench.claim(bench.devices(), config=[_entry(parameters, bench.driver)])
        bench.prepared(claim)
        bench.unprepared(claim)


@must("configuration-class", f"{_TYPES}, DeviceAllocationConfiguration.source")
def class_parameters_have_effect(bench: Bench) -> None:
    """Parameters from the class have the same effect as from the claim.

    Compares a claim with only FromClass and one with only FromClaim.
    """
    (parameters, _) = _distinct(bench)
    by_class = _effect(bench, [_entry(parameters, bench.driver, "FromClass")])
    by_claim = _effect(bench, [_entry(parameters, bench.driver)])
    expect(by_class == by_claim, f"by class: {by_class}; by claim: {by_claim}", "treat both sources the same")


@must(
    "configuration-precedence", f"{_TYPES}, DeviceAllocationResult.config: class first, then claim; later ones override"
)
def claim_parameters_override(bench: Bench) -> None:
    """Parameters of the claim override those of the class.

    Compares a claim that has both with one that has only its own.
    """
    first, second = _distinct(bench)
    both = [_entry(first, bench.driver, "FromClass"), _entry(second, bench.driver)]
    seen, expected = _effect(bench, both), _effect(bench, [_entry(second, bench.driver)])
    expect(seen == expected, f"with both: {seen}; by the claim alone: {expected}", "let the last one that applies win")


@must("configuration-requests", f"{_TYPES}, DeviceAllocationConfiguration.requests")
def parameters_are_for_their_requests(bench: Bench) -> None:
    """Parameters for one request do not affect the devices of other requests.

    Compares the device's edits with and without parameters that name another request.
    """
    parameters = _distinct(bench)[0]
    devices = bench.devices(2)
    plain = _effect_of_second(bench, bench.claim(devices, requests=("first", "second")))
    config = [_entry(parameters, bench.driver, requests=("first",))]
    beside = _effect_of_second(bench, bench.claim(devices, requests=("first", "second"), config=config))
    expect(
        plain == beside,
        f"without: {plain}; beside the other's: {beside}",
        "compare `requests` with the request of the result",
    )


@must(
    "configuration-subrequest",
    f"KEP-4816; {_TYPES}, DeviceClaimConfiguration.requests: naming the main request includes every subrequest",
)
def parameters_reach_subrequests(bench: Bench) -> None:
    """Parameters for request `a` apply to a result of `a/b`, and so do those for `a/b`.

    Names no request, then the request, then the alternative.
    """
    parameters = _distinct(bench)[0]
    effects = [
        _effect(bench, [_entry(parameters, bench.driver, requests=names)], request="any/second")
        for names in ((), ("any",), ("any/second",))
    ]
    expect(
        len(set(effects)) == 1,
        f"by none, by any, by any/second: {'; '.join(effects)}",
        "compare with `a` and with `a/b`",
    )


@must(
    "configuration-repeated", "Kubernetes 1.34 to 1.36: an allocation has the class's parameters once for each request"
)
def repeated_parameters_are_accepted(bench: Bench) -> None:
    """The same parameters may be listed twice.

    The scheduler does this for two requests of one class.
    """
    parameters = _parameters(bench, 1)[0]
    entries = [_entry(parameters, bench.driver, "FromClass", ("r0",))] * 2
    bench.prepared(bench.claim(bench.devices(), config=entries))


def _parameters(bench: Bench, count: int) -> list[Mapping[str, Any]]:
    known = list(bench.configurations)
    if len(known) < count:
        raise Unable(f"the check needs {number_of(count, 'configuration')}; pass a file of them with --configurations")
    return known


def _distinct(bench: Bench) -> tuple[Any, Any]:
    """Two configurations of different effect on a container; the first also differs from none."""
    first, second = _parameters(bench, 2)[:2]
    effects = [_effect(bench, [_entry(parameters, bench.driver)]) for parameters in (first, second)]
    if effects[0] == effects[1]:
        raise Unable("the first two of --configurations have the same effect on CDI edits")
    return (second, first) if effects[0] == _effect(bench, []) else (first, second)


def _effect(bench: Bench, config: list[dict[str, Any]], request: str = "r0") -> str:
    """Return what a container gets from the driver's first device with such a configuration."""
    claim = bench.claim(bench.devices(), config=config, requests=(request,))
    (answer,) = bench.prepared(claim)
    effect = bench.edits(claim, answer)
    bench.unprepared(claim)
    return effect


def _effect_of_second(bench: Bench, claim: BenchClaim) -> str:
    (answer,) = bench.prepared(claim)
    names = [name for device in answer.devices if device.requests == ("second",) for name in device.cdi]
    effect = shown(bench.specs.edits(names)).replace(claim.uid, "<uid>").replace(claim.identity.name, "<name>")
    bench.unprepared(claim)
    return effect
