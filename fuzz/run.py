"""Runs every fuzzer for so many seconds: `python -m fuzz.run --seconds 60`; what is found stays in `.cache/fuzz/found`.

An input that a target breaks on becomes a file of its corpus, under a name that says what it was, with the change that
mends it: the corpora are run by the tests (`tests/unit/fuzz`).
"""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent
FOUND: Final = FOLDER.parent / ".cache" / "fuzz" / "found"
_RUNS: Final = re.compile(rb"#(\d+)\s+DONE|stat::number_of_executed_units:\s*(\d+)")


def fuzzers() -> list[Path]:
    """Every fuzzer, by OSS-Fuzz's naming."""
    return sorted(FOLDER.glob("*_fuzzer.py"))


def corpus(fuzzer: Path) -> Path:
    """The folder with a fuzzer's inputs."""
    return FOLDER / "corpus" / fuzzer.stem.removesuffix("_fuzzer")


def run(fuzzer: Path, seconds: int) -> bool:
    """Run one; whether nothing was found."""
    fresh = FOUND.parent / "corpus" / fuzzer.stem
    found = FOUND / fuzzer.stem
    for folder in (fresh, found):
        folder.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable, "-m", f"fuzz.{fuzzer.stem}", str(fresh), str(corpus(fuzzer)), f"-max_total_time={seconds}",
        "-timeout=20", "-rss_limit_mb=2048", "-max_len=20000", "-print_final_stats=1", f"-artifact_prefix={found}/",
    ]  # fmt: skip
    done = subprocess.run(command, check=False, capture_output=True, cwd=FOLDER.parent, env=os.environ)
    runs = [int(number) for match in _RUNS.findall(done.stderr) for number in match if number]
    print(f"{fuzzer.stem:24} {max(runs, default=0):9} inputs  {'ok' if not done.returncode else 'FOUND'}", flush=True)  # noqa: T201
    if done.returncode:
        print(done.stdout.decode(errors="replace")[-3000:], done.stderr.decode(errors="replace")[-3000:])  # noqa: T201
    return not done.returncode


def main() -> int:
    """Run them all; the exit status is 1 if one of them found something."""
    parser = argparse.ArgumentParser(prog="python -m fuzz.run")
    parser.add_argument("--seconds", type=int, default=60, help="for each fuzzer")
    parser.add_argument("--only", default="", help="those whose name has this in it")
    options = parser.parse_args()
    chosen = [fuzzer for fuzzer in fuzzers() if options.only in fuzzer.stem]
    failed = [fuzzer for fuzzer in chosen if not run(fuzzer, options.seconds)]
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
