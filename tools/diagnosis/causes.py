"""The causes for which a pod with claims does not start, or not as it should: one stable name each.

`docs/pod-does-not-start.md` has a row for each of them.
"""

from __future__ import annotations

from enum import StrEnum


class StopCause(StrEnum):
    """A cause, by its stable name. Groups follow the way of a pod: itself, claims, scheduler, node, containers."""

    POD_MISSING = "pod-missing"
    POD_ENDED = "pod-ended"
    POD_EVICTED = "pod-evicted"
    POD_REJECTED = "pod-rejected"
    DEVICE_TAINT_EVICTION = "device-taint-eviction"
    POD_NOT_ENDING = "pod-not-ending"
    UNPREPARE_WAITS = "unprepare-waits"

    TEMPLATE_MISSING = "template-missing"
    QUOTA_EXCEEDED = "quota-exceeded"
    CLAIM_REFUSED = "claim-refused"
    CLAIM_NOT_CREATED = "claim-not-created"
    CLAIM_MISSING = "claim-missing"
    CLAIM_BEING_DELETED = "claim-being-deleted"
    CLAIM_OF_ANOTHER_POD = "claim-of-another-pod"
    CLAIM_UNUSED = "claim-unused"

    SCHEDULING_GATED = "scheduling-gated"
    NO_SCHEDULER = "no-scheduler"
    CLASS_MISSING = "class-missing"
    NOTHING_PUBLISHED = "nothing-published"
    POOL_INCOMPLETE = "pool-incomplete"
    SELECTOR_FAILS = "selector-fails"
    RESOURCE_MISSING = "resource-missing"
    DEVICES_DO_NOT_FIT = "devices-do-not-fit"
    DEVICES_IN_USE = "devices-in-use"
    DEVICES_TAINTED = "devices-tainted"
    CONSTRAINT_UNMET = "constraint-unmet"
    CLAIM_ON_ANOTHER_NODE = "claim-on-another-node"
    CLAIM_FULL = "claim-full"
    NODES_EXCLUDED = "nodes-excluded"
    UNSCHEDULABLE = "unschedulable"
    BINDING_WAITS = "binding-waits"

    NODE_MISSING = "node-missing"
    NODE_NOT_READY = "node-not-ready"
    CLAIM_NOT_ALLOCATED = "claim-not-allocated"
    CLAIM_NOT_RESERVED = "claim-not-reserved"
    DRIVER_NOT_REGISTERED = "driver-not-registered"
    DRIVER_NOT_ANSWERING = "driver-not-answering"
    PREPARE_REFUSED = "prepare-refused"
    NOT_PREPARED = "not-prepared"
    CLAIM_REPLACED = "claim-replaced"
    KUBELET_ERROR = "kubelet-error"
    RECORD_UNUSABLE = "record-unusable"
    CDI_SPEC_UNUSABLE = "cdi-spec-unusable"

    SANDBOX_FAILED = "sandbox-failed"
    VOLUME_FAILED = "volume-failed"
    IMAGE_MISSING = "image-missing"
    CONTAINER_CONFIG = "container-config"
    CDI_OFF = "cdi-off"
    CDI_UNRESOLVABLE = "cdi-unresolvable"
    NRI_OFF = "nri-off"
    NRI_PLUGIN_MISSING = "nri-plugin-missing"
    CLAIM_IN_USE = "claim-in-use"
    NO_SHARED_CPUS = "no-shared-cpus"
    CONTAINER_REFUSED = "container-refused"
    CONTAINER_ENDS = "container-ends"
    CONTAINER_NOT_READY = "container-not-ready"
    CLAIM_UNNAMED = "claim-unnamed"
    WRONG_CPUS = "wrong-cpus"
    WRONG_MEMORY = "wrong-memory"
    DEVICE_UNHEALTHY = "device-unhealthy"
