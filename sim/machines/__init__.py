"""Machines for trying drivers without the hardware: captures, descriptions, YAML files and writable folders.

`open_machine` opens all forms of `--machine` (docs/machines.md). Drivers may write to a `ScratchMachine`. A node
loads this package only for a `--machine` other than the host.
"""

from dranode.sim.machines.forms import open_machine
from dranode.sim.machines.scratch import ScratchMachine

__all__ = ["ScratchMachine", "open_machine"]
