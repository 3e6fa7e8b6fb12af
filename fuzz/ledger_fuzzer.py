"""The pages of a ledger and the lines of its copy."""

import contextlib
import sqlite3
import tempfile
from pathlib import Path

from fuzz.harness import fuzz, instrumented

with instrumented():
    from dranode.api.errors import DranodeError
    from dranode.driver.node.ledger_copy import LedgerCopy, rows_in
    from dranode.show.ledger_reading import read_ledger


def test_one_input(data: bytes) -> None:
    """Read it as a ledger, as its copy, and for rows that stand whole in it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.db"
        path.write_bytes(data)
        with contextlib.suppress(DranodeError, sqlite3.Error):
            read_ledger(path)
        with contextlib.suppress(DranodeError):
            LedgerCopy(path).read()
        list(rows_in(path))


if __name__ == "__main__":
    fuzz(test_one_input)
