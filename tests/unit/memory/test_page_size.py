import pytest

from dranode.api.quantity import page_size_name, page_size_of
from dranode.memory.machine import folder_of, resource_name, short_name, size_of_folder, size_of_resource

# Sizes of x86_64, arm64 with pages of 4, 16 and 64 KiB, POWER and s390x, in each naming.
NAMES = [
    (64 << 10, "hugepages-64kB", "64KB", "64k", "hugepages-64Ki"),
    (1 << 20, "hugepages-1024kB", "1MB", "1m", "hugepages-1Mi"),
    (2 << 20, "hugepages-2048kB", "2MB", "2m", "hugepages-2Mi"),
    (32 << 20, "hugepages-32768kB", "32MB", "32m", "hugepages-32Mi"),
    (512 << 20, "hugepages-524288kB", "512MB", "512m", "hugepages-512Mi"),
    (1 << 30, "hugepages-1048576kB", "1GB", "1g", "hugepages-1Gi"),
    (16 << 30, "hugepages-16777216kB", "16GB", "16g", "hugepages-16Gi"),
]


@pytest.mark.parametrize(("size", "folder", "cgroup", "short", "resource"), NAMES)
def test_a_page_size_has_its_name_in_each_naming(
    size: int, folder: str, cgroup: str, short: str, resource: str
) -> None:
    assert (folder_of(size), page_size_name(size), short_name(size), resource_name(size)) == (
        folder,
        cgroup,
        short,
        resource,
    )
    assert (size_of_folder(folder), page_size_of(cgroup), size_of_resource(resource)) == (size, size, size)


def test_an_invalid_page_size_is_refused() -> None:
    assert [size_of_folder(name) for name in ("hugepages", "hugepages-0kB", "hugepages-2MB", "x")] == [None] * 4
    assert [page_size_of(name) for name in ("2M", "0MB", "MB", "-2MB", "2mb", "")] == [None] * 6
    assert [size_of_resource(name) for name in ("memory", "hugepages-", "hugepages-0", "hugepages-100m")] == [None] * 4
