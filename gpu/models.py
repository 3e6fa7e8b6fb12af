"""Names of common GPUs by PCI id, for where no driver says one (ids: the public PCI ID repository)."""

from __future__ import annotations

from typing import Final

from dranode.gpu.inventory import AMD, INTEL, NVIDIA

_NAMES: Final = {
    NVIDIA: {
        0x1DB1: "Tesla V100-SXM2-16GB",
        0x1DB4: "Tesla V100-PCIE-16GB",
        0x1DB5: "Tesla V100-SXM2-32GB",
        0x1DB6: "Tesla V100-PCIE-32GB",
        0x1EB8: "Tesla T4",
        0x20B0: "A100-SXM4-40GB",
        0x20B2: "A100-SXM4-80GB",
        0x20B5: "A100 80GB PCIe",
        0x20B7: "A30",
        0x20F1: "A100-PCIE-40GB",
        0x2235: "A40",
        0x2236: "A10",
        0x2237: "A10G",
        0x2321: "H100 NVL",
        0x2330: "H100 80GB HBM3",
        0x2331: "H100 PCIe",
        0x2335: "H200",
        0x233B: "H200 NVL",
        0x2342: "GH200",
        0x26B5: "L40",
        0x26B9: "L40S",
        0x27B8: "L4",
        0x2901: "B200",
        0x2941: "GB200",
        0x3182: "B300",
        0x31C2: "GB300",
    },
    AMD: {
        0x738C: "Instinct MI100",
        0x7408: "Instinct MI250X",
        0x740C: "Instinct MI250X/MI250",
        0x740F: "Instinct MI210",
        0x74A0: "Instinct MI300A",
        0x74A1: "Instinct MI300X",
        0x74A2: "Instinct MI308X",
        0x74A5: "Instinct MI325X",
        0x74B5: "Instinct MI300X VF",
        0x75A0: "Instinct MI350X",
        0x75A3: "Instinct MI355X",
        0x1681: "Radeon 680M",
        0x150E: "Radeon 880M/890M",
    },
    INTEL: {
        0x0BD5: "Data Center GPU Max 1550",
        0x0BD6: "Data Center GPU Max 1550",
        0x0BD9: "Data Center GPU Max 1100",
        0x0BDA: "Data Center GPU Max 1100",
        0x0BDB: "Data Center GPU Max 1100",
        0x56A0: "Arc A770",
        0x56A1: "Arc A750",
        0x56A5: "Arc A380",
        0x56C0: "Data Center GPU Flex 170",
        0x56C1: "Data Center GPU Flex 140",
        0x56C2: "Data Center GPU Flex 170V",
        0xE20B: "Arc B580",
        0xE20C: "Arc B570",
        0xE211: "Arc Pro B60",
        0xE212: "Arc Pro B50",
        0xE223: "Arc Pro B70",
        0x46A6: "Iris Xe Graphics",
        0x64A0: "Arc Graphics 130V/140V",
        0x7D55: "Arc Graphics",
        0x9A49: "Iris Xe Graphics",
        0xA7A0: "Iris Xe Graphics",
    },
}


def model_name(vendor_id: int | None, device_id: int | None) -> str | None:
    """Return what people call the GPU with these PCI ids; None if it is not a common one."""
    if vendor_id is None or device_id is None:
        return None
    return _NAMES.get(vendor_id, {}).get(device_id)
