"""The rules of `dranode doctor`, in the order in which findings are reported.

A rule yields a fault for everything that is wrong, and nothing if the facts that it needs are unknown.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec

from dranode.tools.diagnosis import cluster, node, runtime, system
from dranode.tools.diagnosis.facts import Facts, Fault, Finding, Severity


class Rule(msgspec.Struct, frozen=True):
    """A rule: the code and severity of its findings, and the function that checks for faults."""

    code: str
    severity: Severity
    check: Callable[[Facts], Iterable[Fault]]


_STOPS, _WARNS = Severity.STOPS, Severity.WARNS

RULES: Final = (
    Rule("options-refused", _STOPS, node.options_refused),
    Rule("hardware-unread", _STOPS, node.hardware_unread),
    Rule("variable-unknown", _STOPS, system.unknown_variable),
    Rule("hardware-odd", _WARNS, node.hardware_odd),
    Rule("kubelet-config-invalid", _STOPS, node.config_invalid),
    Rule("kubelet-cpu-manager-static", _STOPS, node.cpu_manager_static),
    Rule("kubelet-root-differs", _STOPS, node.kubelet_root_differs),
    Rule("kubelet-gate-off", _STOPS, node.kubelet_gate_off),
    Rule("kubelet-memory-manager-static", _WARNS, node.memory_manager_static),
    Rule("kubelet-topology-manager-strict", _WARNS, node.topology_manager_strict),
    Rule("reserved-cpus-differ", _WARNS, node.reserved_differ),
    Rule("no-reserved-cpus", _WARNS, node.no_reserved),
    Rule("reserved-cpus-isolated", _WARNS, system.isolated_reserved),
    Rule("affinity-inherited", _WARNS, system.affinity_inherited),
    Rule("nohz-full-shared", _WARNS, system.nohz_shared),
    Rule("quiet-cpus-interrupted", _WARNS, system.interrupted),
    Rule("quiet-cpus-shared", _WARNS, system.shared_with_processes),
    Rule("settings-unrestorable", _WARNS, system.settings_lost),
    Rule("place-missing", _STOPS, node.place_missing),
    Rule("place-wrong", _STOPS, node.place_wrong),
    Rule("place-unusable", _STOPS, node.place_unusable),
    Rule("socket-path-too-long", _STOPS, node.socket_path_too_long),
    Rule("no-cpuset-controller", _STOPS, node.no_cpuset_controller),
    Rule("cgroup-v1", _WARNS, system.cgroup_v1),
    Rule("disk-full", _STOPS, system.disk_full),
    Rule("disk-low", _WARNS, system.disk_low),
    Rule("confined", _STOPS, system.confined),
    Rule("stale-socket", _WARNS, node.stale_sockets),
    Rule("second-driver", _STOPS, node.second_driver),
    Rule("foreign-endpoint", _STOPS, node.foreign_endpoint),
    Rule("not-serving", _STOPS, node.not_serving),
    Rule("ledger-unusable", _STOPS, node.ledger_unusable),
    Rule("ledger-newer", _STOPS, node.ledger_newer),
    Rule("records-missing", _STOPS, node.records_missing),
    Rule("record-quarantined", _STOPS, node.record_quarantined),
    Rule("cdi-spec-missing", _STOPS, node.cdi_spec_missing),
    Rule("cdi-spec-left-over", _WARNS, node.cdi_spec_left_over),
    Rule("cdi-conflict", _STOPS, system.cdi_conflict),
    Rule("cdi-invalid", _WARNS, system.cdi_invalid),
    Rule("runtime-config-invalid", _STOPS, runtime.config_unparsed),
    Rule("cri-off", _STOPS, runtime.cri_off),
    Rule("nri-off", _STOPS, runtime.nri_off),
    Rule("nri-connections-off", _STOPS, runtime.nri_connections_off),
    Rule("nri-socket-differs", _STOPS, runtime.nri_socket_differs),
    Rule("nri-unused", _STOPS, runtime.nri_unused),
    Rule("cdi-off", _STOPS, runtime.cdi_off),
    Rule("cdi-dir-not-read", _STOPS, runtime.cdi_dir_not_read),
    Rule("runtime-too-old", _STOPS, runtime.runtime_too_old),
    Rule("plugin-not-required", _WARNS, runtime.plugin_not_required),
    Rule("required-without-tolerance", _STOPS, runtime.required_without_tolerance),
    Rule("nri-timeout-short", _WARNS, runtime.nri_timeout_short),
    Rule("other-nri-plugin", _WARNS, runtime.other_nri_plugin),
    Rule("hugetlb-controller-off", _STOPS, runtime.hugetlb_controller_off),
    Rule("api-refused", _STOPS, cluster.api_refused),
    Rule("clock-skew", _WARNS, cluster.clocks_differ),
    Rule("driver-pod-missing", _STOPS, cluster.driver_pod_missing),
    Rule("pods-unseen", _WARNS, cluster.pods_unseen),
    Rule("driver-left-out", _WARNS, cluster.driver_left_out),
    Rule("two-daemonsets", _STOPS, cluster.two_daemonsets),
    Rule("dra-api-missing", _STOPS, cluster.dra_api_missing),
    Rule("kubelet-too-old", _STOPS, cluster.kubelet_too_old),
    Rule("kubelet-hangs", _STOPS, cluster.kubelet_hangs),
    Rule("device-plugin", _STOPS, cluster.device_plugin),
    Rule("node-missing", _STOPS, cluster.node_missing),
    Rule("rbac-missing", _STOPS, cluster.rbac_missing),
    Rule("feature-gate-off", _STOPS, cluster.feature_gate_off),
    Rule("class-missing", _STOPS, cluster.class_missing),
    Rule("class-wrong", _STOPS, cluster.class_wrong),
    Rule("no-slices", _STOPS, cluster.no_slices),
    Rule("two-pools", _STOPS, cluster.two_pools),
)


def diagnose(facts: Facts) -> tuple[Finding, ...]:
    """Return all findings; those that stop the driver come first."""
    return tuple(sorted(_findings(facts), key=lambda finding: finding.severity is not Severity.STOPS))


def _findings(facts: Facts) -> Iterator[Finding]:
    for rule in RULES:
        for fault in rule.check(facts):
            yield Finding(rule.code, fault.severity or rule.severity, fault)
    for problem in facts.options.problems:
        severity = Severity.STOPS if problem.stops else Severity.WARNS
        yield Finding(problem.code, severity, Fault(problem.what, problem.fix))
