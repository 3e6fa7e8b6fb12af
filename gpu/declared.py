"""The GPU driver's options, as `dranode.options` lists them."""

from typing import Final

from dranode.driver.claims.options import Option

OPTIONS: Final = (
    Option(
        "sharing",
        "Whether several claims may share a GPU.",
        default="exclusive",
        choices=("exclusive", "shared"),
        unshared="exclusive",
        top_key="gpuSharing",
    ),
)
