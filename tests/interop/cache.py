"""The folder in which the tests keep what they build and download."""

from pathlib import Path
from typing import Final

CACHE: Final = Path(__file__).parents[2] / ".cache" / "interop"
