"""The memory driver's options, as `dranode.options` lists them."""

from typing import Final

from dranode.driver import Option

OPTIONS: Final = (
    Option(
        "group-by",
        "What a device of memory covers: a NUMA node, a socket or the machine.",
        default="numa",
        choices=("numa", "socket", "machine"),
    ),
    Option(
        "reserved-memory",
        "Memory for the system, which no claim gets, by NUMA node (0:1Gi,1:1Gi or 0:memory=1Gi,hugepages-2Mi=64Mi).",
        metavar="LIST",
        flag="--reserved-memory",
    ),
    Option(
        "hugepages-exclusive",
        "Containers get only the huge pages of their claims, and none without a claim.",
        default=False,
        flag="--hugepages-exclusive",
    ),
    Option(
        "numa-node-list",
        "Publish numaNode as a list that includes near nodes of the socket (KEP-6072; needs DRAListTypeAttributes).",
        default=False,
        gate="DRAListTypeAttributes",
    ),
    Option(
        "compat-attributes",
        "Publish the attribute names of dra-driver-memory and of older dra-driver-cpu and DraNet too.",
        default=False,
    ),
    Option(
        "node-allocatable-mapping",
        "Publish nodeAllocatableResources (needs DRANodeAllocatableResources).",
        default=False,
        gate="DRANodeAllocatableResources",
    ),
)
