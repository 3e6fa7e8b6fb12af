"""Drivers that use more and more of the node, or whose files others can write, or read half-written."""

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from dranode.sanity.driver_link import ProcessUsage
from tests.fakes.sanity.driver import Instance, RightDriver
from tests.fakes.sanity.fault import fault
from tests.fakes.sanity.files import Files


@fault("resources-idle", "of a CPU")
class NeverRests(RightDriver):
    def usage(self, instance: str = "") -> ProcessUsage | None:
        del instance
        return replace(self.used, cpu=time.monotonic())


@fault("resources-descriptors", "descriptors are open")
class LeavesDescriptorsOpen(RightDriver):
    def answered_claim(self) -> None:
        self.used = replace(self.used, descriptors=self.used.descriptors + 1)


@fault("resources-threads", "threads")
class LeavesThreads(RightDriver):
    def answered_claim(self) -> None:
        self.used = replace(self.used, threads=self.used.threads + 1)


@fault("resources-memory", "MiB")
class RemembersEverything(RightDriver):
    def answered_claim(self) -> None:
        self.used = replace(self.used, resident=self.used.resident + (1 << 20))


@fault("resources-processes", "were not waited for")
class ForgetsChildren(RightDriver):
    def answered_claim(self) -> None:
        self.used = replace(self.used, zombies=self.used.zombies + 1)


@fault("resources-files", "new files")
class KeepsACopyOfEachClaim(RightDriver):
    def unprepare(self, claim: Any) -> None:
        super().unprepare(claim)
        (self.folder / "plugins" / f"ended-{claim.uid}.json").write_text(json.dumps({"name": claim.name}))


class InPlace(Files):
    """Writes a file in place, under the name that others read."""

    def put(self, path: Path, content: str) -> None:
        path.write_text(content)


@fault("cdi-written-whole", "was written in place, so that a runtime can read half of it")
class WritesInPlace(RightDriver):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.files = InPlace(self.folder)


class ForEverybody(Files):
    """Makes its files world-writable."""

    def put(self, path: Path, content: str) -> None:
        super().put(path, content)
        path.chmod(0o666)


@fault("cdi-not-writable", "has the mode 0666")
class LetsEverybodyWriteSpecs(RightDriver):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.files = ForEverybody(self.folder)


@fault("registration-socket-mode", "has the mode 0777")
class LetsEverybodyCall(RightDriver):
    def start(self, instance: str = "") -> None:
        super().start(instance)
        self.instances[instance].endpoint.chmod(0o777)


@fault("restart-keeps-specs", "is in no spec")
class TidiesUpAtStart(RightDriver):
    def start(self, instance: str = "") -> None:
        for path in (self.folder / "cdi").glob("*.json"):
            path.unlink()
        super().start(instance)


@fault("health-unhurried", "more than 50 messages")
class ReportsWithoutAPause(RightDriver):
    def watch(self, api: Any, context: Any, instance: Instance) -> Iterator[Any]:
        while not instance.stopped.is_set() and context.is_active():
            yield self.health(api)


@fault("cdi-foreign", "was removed when the driver started")
class OwnsTheSpecFolder(RightDriver):
    def start(self, instance: str = "") -> None:
        for path in (self.folder / "cdi").glob("*.json"):
            if not any(uid in path.name for uid in self.records()):
                path.unlink()
        super().start(instance)


@fault("cdi-foreign", "was removed while a claim came and went")
class RemovesAllSpecs(RightDriver):
    def unprepare(self, claim: Any) -> None:
        super().unprepare(claim)
        if not self.records():
            for path in (self.folder / "cdi").glob("*.json"):
                path.unlink()


@fault("registration-foreign", "was removed when the driver started")
class OwnsTheRegistrationFolder(RightDriver):
    def start(self, instance: str = "") -> None:
        for path in (self.folder / "plugins_registry").glob("*.sock"):
            path.unlink()
        super().start(instance)


@fault("restart-state-not-writable", "has the mode 0666")
class LetsEverybodyWriteRecords(RightDriver):
    def save(self, records: dict[str, dict[str, Any]]) -> None:
        super().save(records)
        for path in (self.folder / "plugins").glob("*.json"):
            path.chmod(0o666)


@fault("resources-streams", "streams later")
class LeavesAThreadForEachStream(RightDriver):
    def watch(self, api: Any, context: Any, instance: Instance) -> Iterator[Any]:
        self.used = replace(self.used, threads=self.used.threads + 1)
        yield from super().watch(api, context, instance)
