"""Machines to try drivers on without the hardware: captured, described, written down in YAML, or a folder to write to.

`open_machine` opens all forms of `--machine` (docs/machines.md). Drivers may write to a `ScratchMachine`. A node
loads this package only for a `--machine` that is not the host.
"""

from dranode.sim.machines.forms import open_machine
from dranode.sim.machines.scratch import ScratchMachine

__all__ = ["ScratchMachine", "open_machine"]
