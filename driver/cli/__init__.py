"""The command line, `dranode`."""

from dranode.driver.cli.commands import main

__all__ = ["main"]
