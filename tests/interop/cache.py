"""Where what the tests build and download is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Final

CACHE: Final = Path(__file__).parents[2] / ".cache" / "interop"
