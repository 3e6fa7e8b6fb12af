"""The CPU driver's options, for the entry point group `dranode.options`, with dra-driver-cpu's flags and keys."""

from typing import Final

from dranode.driver.claims.options import Option

OPTIONS: Final = (
    Option(
        "device-mode",
        "One device for each group of CPUs, or for each CPU.",
        default="grouped",
        choices=("grouped", "individual"),
        unshared="individual",
        top_key="cpuDeviceMode",
    ),
    Option(
        "group-by",
        "What a group of CPUs covers: a NUMA node, a socket or the machine.",
        default="numanode",
        choices=("numanode", "socket", "machine"),
        flag="--group-by",
        top_key="groupBy",
    ),
    Option(
        "reserved-cpus",
        "CPUs for the system, which no claim gets (0-1,8).",
        metavar="LIST",
        reserves=True,
        flag="--reserved-cpus",
        top_key="reservedCPUs",
    ),
    Option(
        "threads",
        "full-core hands out whole physical cores: requests are for multiples of a core, or each device is a core.",
        default="any",
        choices=("any", "full-core"),
        flag="--threads",
        top_key="threads",
    ),
    Option(
        "order",
        "Which cores single threads come from; reference prefers cores that other claims use in part.",
        default="untouched-first",
        choices=("untouched-first", "reference"),
        flag="--order",
        top_key="order",
    ),
    Option(
        "max-isolation",
        "How far claims may isolate their CPUs: from other containers (cpuset), also from interrupts and host services "
        "(quiet), or also from the scheduler's load balancing (partition). Beyond cpuset the driver changes the "
        "node's settings.",
        default="cpuset",
        choices=("cpuset", "quiet", "partition"),
        flag="--max-isolation",
        top_key="maxIsolation",
    ),
    Option(
        "host-root",
        "Where the node's own /proc and /sys are mounted, for isolation beyond cpuset.",
        default="/",
        metavar="DIR",
    ),
    Option(
        "expose-pcie-roots",
        "Publish the PCIe roots near a group (needs DRAListTypeAttributes).",
        default=False,
        gate="DRAListTypeAttributes",
        flag="--expose-pcie-roots",
        top_key="exposePCIeRoots",
    ),
    Option(
        "compat-attributes",
        "Publish dra-driver-cpu's deprecated attributes too.",
        default=False,
        flag="--compat-attributes",
        top_key="compatAttributes",
    ),
    Option(
        "node-allocatable-mapping",
        "Publish nodeAllocatableResources (needs DRANodeAllocatableResources).",
        default=False,
        gate="DRANodeAllocatableResources",
        flag="--node-allocatable-mapping",
        top_key="publishNodeAllocatableResourceMapping",
    ),
)
