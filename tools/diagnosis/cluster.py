"""Rules about what the API server says, and the check of its DeviceClasses against the devices of one node."""

import contextlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from dranode.api.documents import decode, to_v1
from dranode.api.errors import DocumentError, DranodeError
from dranode.api.resource import Device, DeviceClass
from dranode.driver.claims.grant import Config
from dranode.driver.claims.plugin import Plugin
from dranode.sim.cel.expression import compile_selector
from dranode.sim.cel.syntax import CELCompileError, CELRuntimeError
from dranode.tools.diagnosis.facts import ClassProblem, ClassTrouble, ClusterFacts, Facts, Fault

_VERSIONS: Final = ("v1", "v1beta2", "v1beta1")
_OLDEST_KUBELET: Final = (1, 34)
_HANGING_KUBELETS: Final = ((1, 34, 0), (1, 34, 1))
_SHARED: Final = "DRAConsumableCapacity"
# The extended resources of device plugins that manage the same devices as one of our drivers; prefixes of names.
_DEVICE_PLUGINS: Final = {"dra.gpu": ("nvidia.com/gpu", "nvidia.com/mig-", "amd.com/gpu", "gpu.intel.com/")}
# In seconds. The server's header has whole seconds, and the answer takes a moment.
_MOST_SKEW: Final = 10


def _cluster(facts: Facts) -> ClusterFacts:
    return facts.cluster if facts.cluster is not None else ClusterFacts()


def dra_api_missing(facts: Facts) -> Iterator[Fault]:
    """The server does not serve DRA in a version that dranode supports."""
    versions = _cluster(facts).versions
    if versions is not None and not set(versions) & set(_VERSIONS):
        offered = f"only {', '.join(versions)}" if versions else "nothing"
        yield Fault(
            f"the API server serves {offered} of resource.k8s.io, but one of {', '.join(_VERSIONS)} is needed",
            "upgrade to Kubernetes 1.34 or newer, or start the API server with --runtime-config=resource.k8s.io/v1beta1"
            " and the feature gate DynamicResourceAllocation",
        )


def kubelet_too_old(facts: Facts) -> Iterator[Fault]:
    """The node's kubelet is older than the oldest supported version."""
    version = _cluster(facts).kubelet
    if version is not None and version < _OLDEST_KUBELET:
        yield Fault(
            f"kubelet on this node is {version[0]}.{version[1]}, but dranode needs 1.34 or newer",
            "upgrade the node; until then, pods with claims may not work there",
        )


def kubelet_hangs(facts: Facts) -> Iterator[Fault]:
    """The node's kubelet deadlocks on the idle connection to a plug-in (kubernetes/kubernetes#133920)."""
    version = _cluster(facts).kubelet
    if version in _HANGING_KUBELETS:
        text = ".".join(map(str, version))
        yield Fault(
            f"kubelet on this node is {text}, which stops talking to DRA drivers after 30 minutes without a call, so "
            "pods with claims wait until kubelet is restarted",
            "upgrade kubelet to 1.34.2 or newer; until then restart it when pods wait",
        )


def device_plugin(facts: Facts) -> Iterator[Fault]:
    """A device plugin manages the same devices as the driver, so two pods may get the same device."""
    cluster = facts.cluster
    published = {slice_.driver for slice_ in cluster.slices or () if slice_.devices} if cluster is not None else set()
    for driver, beginnings in _DEVICE_PLUGINS.items():
        resources = cluster.extended if cluster is not None and driver in published else ()
        if same := [name for name in resources if name.startswith(beginnings)]:
            yield Fault(
                f"a device plugin on this node hands out {', '.join(same)}, the same devices as {driver}, and neither "
                "knows what the other one hands out",
                f"run one of them on a node: stop the device plugin, or leave {driver} out of --drivers",
            )


def node_missing(facts: Facts) -> Iterator[Fault]:
    """The API server has no Node of this name."""
    if _cluster(facts).node is False:
        yield Fault(
            f'there is no Node "{facts.options.node}", so no slice can be published for it',
            "set NODE_NAME from spec.nodeName as deploy/daemonset.yaml does, or pass --node-name",
        )


def rbac_missing(facts: Facts) -> Iterator[Fault]:
    """The account may not do what the driver does."""
    cluster = _cluster(facts)
    account = f"the service account {cluster.account}" if cluster.account else "this account"
    for right in cluster.denied or ():
        yield Fault(
            f"RBAC does not allow {account} to {right}",
            "apply deploy/rbac.yaml, and check that its binding names the driver's service account",
        )


def feature_gate_off(facts: Facts) -> Iterator[Fault]:
    """The server drops fields that the driver publishes."""
    dropped = _cluster(facts).dropped
    for gate in dropped or ():
        if gate == _SHARED and facts.options.shares:
            yield Fault(
                "the API server drops allowMultipleAllocations, so a single claim would take all of a shared device, "
                "and the driver publishes none of them",
                f"enable the feature gate {_SHARED} in kube-apiserver, kube-scheduler and kubelet (it is on since "
                f"1.36){', or use ' if facts.options.unshared else ''}{' '.join(facts.options.unshared)}",
            )
            continue
        options = " and ".join(option for option, needed in facts.options.gated.items() if needed == gate)
        yield Fault(
            f"the API server drops what {options or 'the driver'} publishes",
            f"enable the feature gate {gate} in kube-apiserver and kube-scheduler"
            + (f", or leave out {options}" if options else ""),
        )


def class_missing(facts: Facts) -> Iterator[Fault]:
    """A class is missing, so claims cannot name it."""
    missing = _cluster(facts).missing_classes
    for name in missing or ():
        yield Fault(f'there is no DeviceClass "{name}", which claims refer to', "apply deploy/deviceclasses.yaml")


_TROUBLES: Final = {
    ClassTrouble.INVALID: (
        "the API server rejects a selector of the DeviceClass {name}: {what}",
        "correct the expression and apply the class again",
    ),
    ClassTrouble.FAILS: (
        "a selector of the DeviceClass {name} fails on a device of this node, so none of its pods is scheduled: {what}",
        "use has() or .orValue() for attributes that a device may lack",
    ),
    ClassTrouble.SELECTS_NOTHING: (
        "the DeviceClass {name} selects no device that the driver publishes on this node: {what}",
        "apply deploy/deviceclasses.yaml, or correct its selectors; dranode slices shows the devices",
    ),
    ClassTrouble.CONFIG: (
        "the driver refuses the configuration of the DeviceClass {name}, so none of its claims is prepared: {what}",
        "correct spec.config of the class; dranode check lists everything that is wrong with it",
    ),
    ClassTrouble.SAME_RESOURCE: (
        "the DeviceClasses {name} all map to the extended resource {what}, and kube-scheduler uses the newest",
        "set extendedResourceName on only one of them",
    ),
}


def class_wrong(facts: Facts) -> Iterator[Fault]:
    """A class makes its claims fail, or provides the same extended resource as another class."""
    for problem in _cluster(facts).class_problems:
        what, fix = _TROUBLES[problem.trouble]
        yield Fault(what.format(name=problem.name, what=problem.what), fix)


def api_refused(facts: Facts) -> Iterator[Fault]:
    """The API server refused a request, or did not answer it."""
    for sentence in _cluster(facts).refused:
        yield Fault(
            sentence,
            "apply deploy/rbac.yaml and the admission policies again, and check the account's name and token; if "
            "there is no answer, check the server's address and the network policies",
        )


def clocks_differ(facts: Facts) -> Iterator[Fault]:
    """The clocks of node and API server differ, and both judge tokens, certificates and the times of Events."""
    skew = _cluster(facts).skew
    if skew is not None and abs(skew) > _MOST_SKEW:
        yield Fault(
            f"the API server's clock is {abs(skew)} s {'ahead of' if skew > 0 else 'behind'} this node's",
            "synchronize both clocks with chrony or systemd-timesyncd; timedatectl shows whether one runs",
        )


def driver_pod_missing(facts: Facts) -> Iterator[Fault]:
    """With `--all-nodes`: the driver's own pod is missing on the node, or does not serve."""
    reason = _cluster(facts).driver_pod
    if reason:
        yield Fault(
            f"node {facts.options.node}: {reason}",
            "kubectl describe the driver's DaemonSet and, with --field-selector "
            f"spec.nodeName={facts.options.node}, its pod, and read the pod's log; if neither exists, install the "
            "driver (docs/install.md)",
        )


def pods_unseen(facts: Facts) -> Iterator[Fault]:
    """The account may not list pods, so it is unknown whether the driver runs there."""
    reason = _cluster(facts).pods_unseen
    if reason:
        yield Fault(
            f"it is unknown whether the driver runs on node {facts.options.node}: {reason}",
            "kubectl apply -k deploy/reader, and bind the ClusterRole dranode-reader to this account",
        )


def driver_left_out(facts: Facts) -> Iterator[Fault]:
    """No DaemonSet of the driver selects the node."""
    reason = _cluster(facts).left_out
    if reason:
        yield Fault(
            f"no DaemonSet of the driver covers node {facts.options.node}: {reason}",
            "if pods with claims should run there, correct nodeSelector, affinity or tolerations of the DaemonSet",
        )


def two_daemonsets(facts: Facts) -> Iterator[Fault]:
    """Two DaemonSets run the driver on one node, and one permanently blocks the other."""
    names = _cluster(facts).daemonsets
    if len(names) > 1:
        yield Fault(
            f"the DaemonSets {' and '.join(names)} both run the driver on node {facts.options.node}",
            "delete all but one: two DaemonSets are not a rolling update, and both stay",
        )


def no_slices(facts: Facts) -> Iterator[Fault]:
    """The driver publishes nothing, so nothing can be allocated on this node."""
    cluster = _cluster(facts)
    # If the driver has no pod on the node, another rule reports that.
    if cluster.slices is None or cluster.node is False or cluster.driver_pod:
        return
    for driver in facts.options.drivers:
        if not any(slice_.driver == driver and slice_.devices for slice_ in cluster.slices):
            yield Fault(
                f"{driver} has published no device of node {facts.options.node}, so no claim is allocated there",
                "start the driver on this node; if it runs already, its log says why it published nothing",
            )


def two_pools(facts: Facts) -> Iterator[Fault]:
    """Slices of one driver are in several pools of a node, so something else publishes under its name."""
    slices = _cluster(facts).slices
    for driver in facts.options.drivers:
        pools = sorted({slice_.pool for slice_ in slices or () if slice_.driver == driver})
        others = [pool for pool in pools if pool != facts.options.node]
        if others:
            yield Fault(
                f"{driver} has slices of this node in the pool {', '.join(others)}, which dranode does not write",
                "remove the other driver of that name, and the ResourceSlices that it left",
            )


def with_class_problems(facts: Facts, plugins: Sequence[Plugin]) -> Facts:
    """Return the facts with the problems of the API server's DeviceClasses added."""
    if facts.cluster is None or not facts.cluster.classes:
        return facts
    classes = []
    for document in facts.cluster.classes:
        try:
            classes.append(decode(DeviceClass, to_v1(document)))
        except DocumentError:
            continue  # the document is not a DeviceClass, so nothing can be said about the class
    devices: dict[str, Sequence[Device]] = {}
    for plugin in plugins:
        with contextlib.suppress(DranodeError):
            devices[plugin.driver] = plugin.discover().devices
    problems = tuple(class_problems(classes, plugins, devices))
    return replace(facts, cluster=replace(facts.cluster, class_problems=problems))


def class_problems(
    classes: Iterable[DeviceClass], plugins: Sequence[Plugin], devices: Mapping[str, Sequence[Device]]
) -> Iterator[ClassProblem]:
    """Yield the problems of DeviceClasses that concern the drivers.

    Args:
        classes: all classes that could be read.
        plugins: the drivers.
        devices: the devices that each driver publishes on this node, by the driver's name.
    """
    classes = tuple(classes)
    for device_class in classes:
        yield from _selectors(device_class, devices)
        yield from _configs(device_class, plugins)
    yield from _disagreements(classes)


def _selectors(device_class: DeviceClass, devices: Mapping[str, Sequence[Device]]) -> Iterator[ClassProblem]:
    name = device_class.metadata.name
    try:
        selected = [
            driver for driver in devices for device in devices[driver] if _selects(device_class, driver, device)
        ]
    except CELCompileError as error:
        yield ClassProblem(name, ClassTrouble.INVALID, str(error))
        return
    except CELRuntimeError as error:
        if _is_ours(device_class, devices):
            yield ClassProblem(name, ClassTrouble.FAILS, str(error))
        return
    if not selected and _is_ours(device_class, devices) and any(devices.values()):
        expressions = " && ".join(
            selector.cel.expression for selector in device_class.spec.selectors if selector.cel is not None
        )
        yield ClassProblem(name, ClassTrouble.SELECTS_NOTHING, expressions)


def _selects(device_class: DeviceClass, driver: str, device: Device) -> bool:
    return all(
        compile_selector(selector.cel.expression).matches(driver, device)
        for selector in device_class.spec.selectors
        if selector.cel is not None
    )


def _is_ours(device_class: DeviceClass, devices: Mapping[str, Sequence[Device]]) -> bool:
    """Return whether a class names one of the drivers, by its own name or in a selector."""
    texts = (
        device_class.metadata.name,
        *(selector.cel.expression for selector in device_class.spec.selectors if selector.cel),
    )
    return any(driver in text for driver in devices for text in texts)


def _configs(device_class: DeviceClass, plugins: Sequence[Plugin]) -> Iterator[ClassProblem]:
    for index, entry in enumerate(device_class.spec.config):
        for plugin in plugins:
            if entry.opaque is None or entry.opaque.driver != plugin.driver:
                continue
            try:
                plugin.parse_config(
                    Config("FromClass", entry.opaque.parameters, f"spec.config[{index}].opaque.parameters")
                )
            except DranodeError as error:
                yield ClassProblem(device_class.metadata.name, ClassTrouble.CONFIG, str(error))


def _disagreements(classes: Sequence[DeviceClass]) -> Iterator[ClassProblem]:
    """Yield classes for the same extended resource: kube-scheduler uses the newest of them."""
    extended: defaultdict[str, list[str]] = defaultdict(list)
    for device_class in classes:
        if device_class.spec.extended_resource_name:
            extended[device_class.spec.extended_resource_name].append(device_class.metadata.name)
    for resource, names in extended.items():
        if len(names) > 1:
            yield ClassProblem(" and ".join(sorted(names)), ClassTrouble.SAME_RESOURCE, resource)
