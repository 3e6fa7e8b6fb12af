"""The sanity suite's bench around a driver in this process."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from dranode.sanity.apiserver import ApiServer
from dranode.sanity.bench import Bench
from dranode.sanity.driver_link import BenchPlaces
from tests.fakes.sanity.driver import CONFIGURATIONS, RightDriver
from tests.fakes.waiting import PATIENCE


@contextlib.contextmanager
def bench_of(kind: type[RightDriver], patience: float = PATIENCE, quiet: float = 0.25) -> Iterator[Bench]:
    """A bench with a driver of that class, not started yet."""
    folder = Path(tempfile.mkdtemp(prefix="sanity-"))
    for name in ("plugins_registry", "plugins", "cdi"):
        (folder / name).mkdir()
    with ApiServer(bookmark_seconds=0.05) as api:
        api.put("nodes", {"metadata": {"name": "node", "uid": "uid-of-node"}})
        driver = kind(folder, api.url)
        places = BenchPlaces("", folder / "plugins_registry", folder / "cdi", "node", folder / "plugins")
        bench = Bench(places, driver, api=api, configurations=CONFIGURATIONS, patience=patience, quiet=quiet)
        try:
            yield bench
        finally:
            bench.disconnect()
            driver.close()
            shutil.rmtree(folder, ignore_errors=True)
