"""Counts the huge pages that the containers of pods use or were promised, by the cgroup above all pods.

In cgroup v2 and v1 alike the file of those in use is `hugetlb.<size>.numa_stat`, with bytes a node:
`total=8388608 N0=8388608` (Documentation/admin-guide/cgroup-v2.rst; v1 adds lines that begin with
`hierarchical_total`, which count here). A page is promised when memory is mapped, and used when it is touched
(Documentation/admin-guide/mm/hugetlbpage.rst, `HugePages_Rsvd`); of which NUMA node it will be, nobody says.
"""

from __future__ import annotations

import re
from typing import Final

from dranode.api import page_size_name
from dranode.driver import Root, read_text

# cgroup v2, v1, and v2 beside v1; with the systemd driver and without, and as kind nests its kubelet.
_HIERARCHIES: Final = ("sys/fs/cgroup", "sys/fs/cgroup/hugetlb", "sys/fs/cgroup/unified")
# Bytes that were promised, and bytes in use: in cgroup v2, and in v1.
_PROMISED: Final = (("rsvd.current", "current"), ("rsvd.usage_in_bytes", "usage_in_bytes"))
_ABOVE_PODS: Final = ("kubepods.slice", "kubepods", "kubelet.slice/kubelet-kubepods.slice", "kubelet/kubepods")


def pod_pages(root: Root, size: int, node: int) -> int | None:
    """Return how many pages of a size pods use on a NUMA node; None if no cgroup says it."""
    name = f"hugetlb.{page_size_name(size)}.numa_stat"
    for hierarchy in _HIERARCHIES:
        for folder in _ABOVE_PODS:
            used = _bytes(root, f"{hierarchy}/{folder}/{name}", node)
            if used is not None:
                return used // size
    return None


def pods_promised(root: Root, size: int) -> int:
    """Return how many pages of a size pods were promised and have not used yet; 0 if no cgroup says it."""
    name = f"hugetlb.{page_size_name(size)}"
    for hierarchy in _HIERARCHIES:
        for folder in _ABOVE_PODS:
            for files in _PROMISED:
                promised, used = (_number(root, f"{hierarchy}/{folder}/{name}.{file}") for file in files)
                if promised is not None and used is not None:
                    return max(0, promised - used) // size
    return 0


def _number(root: Root, path: str) -> int | None:
    try:
        text = read_text(root, path)
    except OSError:
        return None
    return int(text) if re.fullmatch("[0-9]{1,18}", text, re.ASCII) else None


def _bytes(root: Root, path: str, node: int) -> int | None:
    try:
        lines = read_text(root, path).splitlines()
    except OSError:
        return None
    # Of v1's two lines the last one counts the cgroups below too.
    match = re.search(rf"\bN{node}=([0-9]{{1,18}})\b", lines[-1], re.ASCII) if lines else None
    return int(match[1]) if match else None
