"""The health stream of devices (KEP-4680)."""

import time
from itertools import islice
from typing import Final

from dranode.api.errors import number_of
from dranode.sanity.bench import Bench
from dranode.sanity.breach import Breach, Unable, expect, listed
from dranode.sanity.check import must, should
from dranode.sanity.kubelet import HEALTH_SERVICES, DriverCallError, ReportedHealth

_PROTO: Final = "k8s.io/kubelet/pkg/apis/dra-health/v1/api.proto"
_LEASE: Final = 30
_MESSAGE: Final = 1024
_TOO_MANY: Final = 50
# The years 2001 to 2286 in seconds; milliseconds and nanoseconds are beyond.
_SECONDS: Final = range(10**9, 10**10)


def _services(bench: Bench) -> list[str]:
    services = [service for service in HEALTH_SERVICES if service in bench.info.versions]
    if not services:
        raise Unable("the driver advertises no health service")
    return services


def _reports(bench: Bench, service: str, count: int, seconds: float) -> list[tuple[ReportedHealth, ...]]:
    """The first messages of a new stream."""
    client = bench.another_connection()
    return list(islice(client.health(service, seconds), count))


def first_report(bench: Bench, service: str = "") -> tuple[ReportedHealth, ...]:
    """Return the first message of a new stream.

    Raises:
        Breach: none comes.
        Unable: none came before, which one check has reported.
    """
    service = service or _services(bench)[0]
    if service in bench.broken_streams:
        raise Unable(f"{bench.broken_streams[service]} (health-served)")
    began, seconds = time.monotonic(), min(bench.patience, _LEASE)
    remedy = "send the health of all devices when a stream begins"
    try:
        reports = _reports(bench, service, 1, seconds)
        took = time.monotonic() - began
        waited = took >= seconds
        seen = f"sent nothing within {seconds:g} s" if waited else f"ended after {took:.1f} s without a message"
    except DriverCallError as error:
        reports, seen = [], f"failed: {error}"
        if error.code == "UNIMPLEMENTED":
            remedy = "serve it, or leave it out of supported_versions"
    if not reports:
        bench.broken_streams[service] = f"{service} {seen}"
        raise Breach(f"{service} {seen}", remedy)
    return reports[0]


@must("health-served", f"{_PROTO}, DRAResourceHealth; kubelet stops watching an instance that answers UNIMPLEMENTED")
def health_is_served(bench: Bench) -> None:
    """An advertised health service is served, and its stream begins with a message.

    Tries each service that is advertised.
    """
    for service in _services(bench):
        first_report(bench, service)


@must("health-devices", f"{_PROTO}, DeviceIdentifier: pool and unique name of the device")
def health_is_of_published_devices(bench: Bench) -> None:
    """The stream reports only published devices, each of them once.

    Compares pool and name with the slices.
    """
    reported = [(report.pool, report.device) for report in first_report(bench)]
    known = {(device.pool, device.name) for device in bench.offers()}
    expect(set(reported) <= known, f"{listed(set(reported) - known)} is not published", "use the names of the slices")
    expect(len(set(reported)) == len(reported), "a device is reported twice in one message", "report each once")


@should("health-complete", f"{_PROTO}, NodeWatchResourcesResponse: a complete list; what is missing becomes Unknown")
def health_is_complete(bench: Bench) -> None:
    """Every message contains all published devices.

    Looks for published devices without a report.
    """
    reported = {(report.pool, report.device) for report in first_report(bench)}
    missing = {(device.pool, device.name) for device in bench.offers()} - reported
    expect(not missing, f"{listed(sorted(missing)[:5])} is missing", "report all devices in every message")


@must("health-values", f"{_PROTO}, HealthStatus; DeviceHealth.health_check_timeout_seconds")
def health_has_valid_values(bench: Bench) -> None:
    """Health is one of the enum's values, and timeouts are not negative.

    Looks at every device of a message.
    """
    for report in first_report(bench):
        expect(report.health in (0, 1, 2), f"the health of {report.device} is {report.health}", "use the enum")
        expect(
            report.timeout >= 0,
            f"the timeout of {report.device} is {report.timeout}",
            "leave it at 0 for kubelet's default of 30 s",
        )


@should("health-time", f"{_PROTO}, DeviceHealth.last_updated_time: Unix time in seconds")
def health_has_seconds(bench: Bench) -> None:
    """last_updated_time is in seconds.

    Tells them from milliseconds and nanoseconds; 0 means unknown.
    """
    for report in first_report(bench):
        right = report.updated == 0 or report.updated in _SECONDS
        expect(right, f"last_updated_time of {report.device} is {report.updated}", "send whole seconds since 1970")


@should("health-message", f"{_PROTO}, DeviceHealth.message: longer ones are cut")
def health_messages_are_short(bench: Bench) -> None:
    """A message about a device has at most 1024 characters.

    Looks at every device of a message.
    """
    for report in first_report(bench):
        size = len(report.message)
        expect(size <= _MESSAGE, f"the message of {report.device} has {size} characters", "shorten it")


@must(
    "health-renewed", f"{_PROTO}, DeviceHealth.health_check_timeout_seconds: 30 s by default; then a device is Unknown"
)
def health_is_renewed(bench: Bench) -> None:
    """The state is sent again before its lease ends, even if nothing changes.

    Waits for a second message within the lease.
    """
    service = _services(bench)[0]
    began = time.monotonic()
    reports = _reports(bench, service, 2, _longest_lease(bench))
    expect(
        len(reports) > 1,
        f"{number_of(len(reports), 'message')} within {time.monotonic() - began:.0f} s",
        "send the state again well before health_check_timeout_seconds are over",
    )


def _longest_lease(bench: Bench) -> float:
    leases = [report.timeout or _LEASE for report in first_report(bench)]
    return min(min(leases, default=_LEASE), max(bench.patience, 1.0))


@must(
    "health-stays-open",
    f"{_PROTO}, NodeWatchResources: a stream; kubelet drops what it knows when it ends, and redials after 5 s",
)
def health_stays_open(bench: Bench) -> None:
    """The stream stays open.

    Keeps the stream open for a while.
    """
    service = _services(bench)[0]
    first_report(bench)
    began = time.monotonic()
    try:
        for _ in bench.another_connection().health(service, bench.quiet):
            pass
    except DriverCallError as error:
        raise Breach(f"the stream ended: {error}", "send until kubelet ends the call") from error
    open_for = time.monotonic() - began
    expect(
        open_for >= bench.quiet * 0.9, f"the stream ended after {open_for:.1f} s", "send until kubelet ends the call"
    )


@must("health-again", f"{_PROTO}, NodeWatchResources; KEP-4680")
def health_begins_again(bench: Bench) -> None:
    """A second stream begins with the state too: a restarted kubelet knows nothing.

    Opens two streams, one after the other.
    """
    first, second = first_report(bench), first_report(bench)
    names = [sorted((report.pool, report.device) for report in reports) for reports in (first, second)]
    expect(names[0] == names[1], f"first {names[0]}, then {names[1]}", "begin each stream with all devices")


@must("health-beside-calls", "kubelet e2e_node, dra_test.go: concurrent DRA operations and health monitoring")
def streams_leave_calls_alone(bench: Bench) -> None:
    """Open streams do not disturb Prepare and Unprepare.

    Opens eight streams and prepares a claim meanwhile.
    """
    service = _services(bench)[0]
    first_report(bench)
    streams = [bench.another_connection().health(service, 2 * _LEASE) for _ in range(8)]
    claim = bench.claim()
    try:
        for number, stream in enumerate(streams):
            seen = f"beside {number_of(number, 'open stream')} another one sent nothing within {2 * _LEASE} s"
            expect(next(stream, None) is not None, seen, "serve streams in threads of their own")
            bench.prepare(claim, most=min(bench.patience, 10))
    except DriverCallError as error:
        seen = f"beside {number_of(number + 1, 'open stream')} a call failed: {error}"
        raise Breach(seen, "serve streams in threads of their own") from error
    finally:
        for stream in streams:
            stream.close()
    bench.prepared(claim)


@should("health-versions-agree", "kubelet 1.34 to 1.36 use v1alpha1, later ones v1")
def health_versions_agree(bench: Bench) -> None:
    """Both versions of the service report the same.

    Compares device and health in both.
    """
    services = _services(bench)
    if len(services) < len(HEALTH_SERVICES):
        raise Unable(f"the driver serves only {services[0]}")
    reports = [first_report(bench, service) for service in services]
    seen = [sorted((report.pool, report.device, report.health) for report in first) for first in reports]
    expect(seen[0] == seen[1], f"{services[0]}: {seen[0]}; {services[1]}: {seen[1]}", "serve both from one source")


@should("health-not-advertised", "kubelet 1.34 to 1.36 open the stream whatever is advertised")
def health_is_refused_at_once(bench: Bench) -> None:
    """A driver that advertises no health service answers UNIMPLEMENTED, and does not leave kubelet waiting.

    Opens the stream although the driver advertises none.
    """
    missing = [service for service in HEALTH_SERVICES if service not in bench.info.versions]
    if len(missing) < len(HEALTH_SERVICES):
        raise Unable("the driver advertises a health service")
    try:
        _reports(bench, missing[-1], 1, min(bench.patience, 5))
    except DriverCallError as error:
        expect(error.code == "UNIMPLEMENTED", f"{missing[-1]}: {error}", "leave the answer to the gRPC library")
    else:
        raise Breach(f"{missing[-1]} is served, but not advertised", "advertise it, or do not serve it")


@should(
    "health-unhurried",
    f"{_PROTO}, NodeWatchResources: the plugin sends a message when something has changed, or a lease would end",
)
def health_is_not_repeated_at_once(bench: Bench) -> None:
    """While nothing changes, messages are not repeated over and over: fifty per second are too many.

    Counts the messages within one second.
    """
    (service, *_) = _services(bench)
    first_report(bench)
    count = len(_reports(bench, service, _TOO_MANY + 1, 1.0))
    expect(count <= _TOO_MANY, f"{service} sent more than {_TOO_MANY} messages within 1 s", "wait for a change")
