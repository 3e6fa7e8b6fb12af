"""Drivers that lose something when they are killed, called concurrently, terminated, or run twice."""

import json
import threading
import time
from pathlib import Path
from typing import Any

import grpc

from tests.fakes.sanity.driver import Document, Instance, Refused, RightDriver
from tests.fakes.sanity.fault import fault
from tests.fakes.sanity.faults_slices import Touching
from tests.fakes.sanity.publisher import Publisher

# --- restarts ---


class Forgetful(RightDriver):
    """Keeps its records in memory."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.memory: dict[str, dict[str, Document]] = {}

    def start(self, instance: str = "") -> None:
        super().start(instance)
        self.started(instance)

    def started(self, instance: str) -> None:
        self.memory[instance] = {}

    def records(self) -> dict[str, Document]:
        return dict(next(iter(self.memory.values()), {}))

    def save(self, records: dict[str, Document]) -> None:
        for memory in self.memory.values():
            memory.clear()
            memory.update(records)


@fault("restart-unprepare", "is left")
class UnpreparesWhatItRemembers(Forgetful):
    def unprepare(self, claim: Any) -> None:
        if claim.uid in self.records():
            super().unprepare(claim)


@fault("restart-held", "is prepared for two claims")
class ForgetsHolders(Forgetful):
    pass


@fault("restart-same-answer", "the edits are")
class Numbers(RightDriver):
    """Numbers its specs anew at each start."""

    starts = 0

    def start(self, instance: str = "") -> None:
        self.starts += 1
        super().start(instance)

    def spec(self, record: Document) -> Document:
        spec = super().spec(record)
        for device in spec["devices"]:
            device["containerEdits"]["env"].append(f"START={self.starts}")
        return spec


@fault("restart-unprepare-deleted", "cannot be had: 404")
class GetsClaimsToUnprepare(Forgetful):
    def unprepare_one(self, api: Any, claim: Any) -> Any:
        if claim.uid not in self.records():
            try:
                self.claim(claim)
            except Refused as reason:
                return api.NodeUnprepareResourceResponse(error=str(reason))
        return super().unprepare_one(api, claim)


class Locking(RightDriver):
    """Leaves a lock file for a claim while it works on it."""

    method = ""

    def mark(self, claim: Any) -> Path:
        return self.folder / "plugins" / f"{self.method}-{claim.uid}"

    def kill(self, instance: str = "") -> None:
        # The lock file of an interrupted call stays.
        self.kills = self.kills + 1
        super().kill(instance)

    kills = 0


@fault("restart-during-prepare", "in progress")
class LocksPrepare(Locking):
    method = "prepare"

    def prepare(self, claim: Any) -> list[Document]:
        if self.mark(claim).exists():
            raise Refused("in progress")
        kills = self.kills
        self.mark(claim).touch()
        time.sleep(0.03)
        if self.kills != kills:
            raise Refused("cut off")
        devices = super().prepare(claim)
        self.mark(claim).unlink()
        return devices


@fault("restart-during-unprepare", "in progress")
class LocksUnprepare(Locking):
    method = "unprepare"

    def unprepare_one(self, api: Any, claim: Any) -> Any:
        if self.mark(claim).exists():
            return api.NodeUnprepareResourceResponse(error="in progress")
        kills = self.kills
        self.mark(claim).touch()
        time.sleep(0.03)
        if self.kills == kills:
            super().unprepare(claim)
            self.mark(claim).unlink()
        return api.NodeUnprepareResourceResponse()


@fault("restart-reboot", "is in no spec")
class TrustsFiles(RightDriver):
    def prepare(self, claim: Any) -> list[Document]:
        record = self.records().get(claim.uid)
        return list(record["devices"]) if record else super().prepare(claim)


@fault("restart-unprepared", "is there again")
class WritesOldRecords(RightDriver):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.ever: dict[str, Document] = {}

    def save(self, records: dict[str, Document]) -> None:
        self.ever |= records
        super().save(records)

    def start(self, instance: str = "") -> None:
        for record in self.ever.values():
            self.write(record)
        super().start(instance)


@fault("restart-registers", "but returned")
class NewEndpoints(RightDriver):
    starts = 0

    def serve(self, instance: Instance) -> list[grpc.Server]:
        self.starts += 1
        instance.endpoint = instance.endpoint.with_name(f"dra-{self.starts}.sock")
        return super().serve(instance)


@fault("restart-graceful", "is held")
@fault("shutdown-keeps-claims", "is in no spec")
class CleansUp(RightDriver):
    """Undoes everything when it ends, except for the record of who holds what."""

    def terminate(self, seconds: float, instance: str = "") -> int | None:
        for uid in self.records():
            self.files.remove(uid)
        renamed = {f"{uid}-old": record for uid, record in self.records().items()}
        self.save({uid: record for uid, record in renamed.items() if not uid.endswith("-old-old")})
        return super().terminate(seconds, instance)


@fault("restart-server-away", "no registration socket answers")
class NeedsServer(RightDriver):
    def start(self, instance: str = "") -> None:
        try:
            self.get("resourceslices")
        except OSError:
            self.status = 1
            return
        super().start(instance)


@fault("restart-several", "is held")
class RemembersOneRestart(RightDriver):
    starts = 0

    def start(self, instance: str = "") -> None:
        self.starts += 1
        if self.starts > 2:
            self.save({f"{uid}-old": record for uid, record in self.records().items()})
        super().start(instance)


# --- many at once ---


class NoLock:
    """A lock that locks nothing."""

    def __enter__(self) -> None:
        time.sleep(0.001)

    def __exit__(self, *exc: object) -> None:
        time.sleep(0.001)


class Unlocked(RightDriver):
    """Decides without a lock, with a pause between reading and writing."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.lock = NoLock()  # type: ignore[assignment]

    def grant(self, document: Document) -> list[Document]:
        granted = super().grant(document)
        time.sleep(0.05)
        return granted

    def save(self, records: dict[str, Document]) -> None:
        path = self.folder / "plugins" / "state.json"
        path.write_text(json.dumps(records))


@fault("concurrency-held", "is prepared for")
class GivesTwiceAtOnce(Unlocked):
    pass


@fault("concurrency-100-calls", "RESOURCE_EXHAUSTED")
class FewCalls(RightDriver):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.running = 0

    def prepare_call(self, api: Any, request: Any, context: Any) -> Any:
        self.running += 1
        try:
            time.sleep(0.01)
            if self.running > 3:
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many calls")
            return super().prepare_call(api, request, context)
        finally:
            self.running -= 1


@fault("concurrency-same-claim", "answers")
class NewAnswerForEach(RightDriver):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.asked = 0

    def prepare(self, claim: Any) -> list[Document]:
        self.asked += 1
        devices = super().prepare(claim)
        return [{**device, "cdi": [f"{name}-{self.asked}" for name in device["cdi"]]} for device in devices]


@fault("concurrency-mixed", "is left")
class RemovesLater(RightDriver):
    """Removes a claim's files at the next call."""

    def unprepare(self, claim: Any) -> None:
        records = self.records()
        records.pop(claim.uid, None)
        self.save(records)


@fault("concurrency-connections", "failed as a whole")
class FewConnections(RightDriver):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.peers: set[str] = set()

    def prepare_call(self, api: Any, request: Any, context: Any) -> Any:
        self.peers.add(f"{context.peer()}{len(request.claims)}{len(self.peers)}")
        if len(self.peers) > 20:
            context.abort(grpc.StatusCode.UNAVAILABLE, "too many connections")
        return super().prepare_call(api, request, context)


@fault("concurrency-cancelled", "in progress")
class MarksCancelled(RightDriver):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.begun: set[str] = set()

    def prepare_call(self, api: Any, request: Any, context: Any) -> Any:
        for claim in request.claims:
            if claim.uid in self.begun:
                context.abort(grpc.StatusCode.ABORTED, "it is in progress")
            self.begun.add(claim.uid)
        time.sleep(0.02)
        answer = super().prepare_call(api, request, context)
        if context.is_active():
            self.begun -= {claim.uid for claim in request.claims}
        return answer


@fault("concurrency-big-batch", "more than 20 claims")
class SmallBatches(RightDriver):
    def prepare_call(self, api: Any, request: Any, context: Any) -> Any:
        if len(request.claims) > 20:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "more than 20 claims")
        return super().prepare_call(api, request, context)


# --- the end ---


@fault("shutdown-ends", "it still runs")
class GoesOn(RightDriver):
    def terminate(self, seconds: float, instance: str = "") -> int | None:
        del seconds, instance
        return None


@fault("shutdown-status", "the exit status is -15")
class DiesOfSignal(RightDriver):
    def terminate(self, seconds: float, instance: str = "") -> int | None:
        super().terminate(seconds, instance)
        return -15


@fault("shutdown-registration-socket", "right-reg.sock is left")
class LeavesRegistration(RightDriver):
    def leftovers(self, running: Instance) -> list[Path]:
        return super().leftovers(running)[1:]


@fault("shutdown-service-socket", "dra.sock is left")
class LeavesService(RightDriver):
    def leftovers(self, running: Instance) -> list[Path]:
        return super().leftovers(running)[:1]


@fault("shutdown-keeps-slices", "0 of 3 slices are left")
class TakesSlices(RightDriver):
    def terminate(self, seconds: float, instance: str = "") -> int | None:
        running = self.instances[instance]
        status = super().terminate(seconds, instance)
        for item in running.publisher.listed()[1]:
            running.publisher.delete(item)
        return status


# --- two instances ---


@fault("rolling-endpoints", "both have the endpoint")
class SharedEndpoint(RightDriver):
    def info(self, instance: Instance) -> Any:
        info = super().info(instance)
        info.endpoint = str(self.folder / "plugins" / "dra.sock")
        return info


@fault("rolling-held", "is prepared for two claims")
@fault("rolling-hand-over", "is held")
class OwnRecords(RightDriver):
    """Each instance has its own records."""

    def serve(self, instance: Instance) -> list[grpc.Server]:
        book = instance.endpoint.stem
        return _View(self, book).serve(instance) if book != "dra" else super().serve(instance)


class _View(RightDriver):
    def __init__(self, driver: RightDriver, book: str) -> None:
        super().__init__(driver.folder, driver.server)
        self.lock, self.book = driver.lock, book

    def records(self) -> dict[str, Document]:
        path = self.folder / "plugins" / f"{self.book}.json"
        return dict(json.loads(path.read_text())) if path.exists() else {}

    def save(self, records: dict[str, Document]) -> None:
        (self.folder / "plugins" / f"{self.book}.json").write_text(json.dumps(records))


class _Numbered(_View):
    def answered(self, api: Any, device: Document) -> Any:
        return super().answered(api, {**device, "cdi": [f"{name}-{self.book}" for name in device["cdi"]]})


@fault("rolling-answers-agree", "the answers are")
@fault("rolling-fails", "but was")
class OwnNames(RightDriver):
    def serve(self, instance: Instance) -> list[grpc.Server]:
        name = instance.endpoint.stem
        return _Shared(self, name).serve(instance) if name != "dra" else super().serve(instance)


@fault("rolling-fails", "right-reg.sock is gone")
class RemovesOtherSockets(RightDriver):
    def start(self, instance: str = "") -> None:
        for path in (self.folder / "plugins_registry").iterdir():
            path.unlink()
        super().start(instance)


class _Shared(_Numbered):
    def records(self) -> dict[str, Document]:
        return RightDriver.records(self)

    def save(self, records: dict[str, Document]) -> None:
        RightDriver.save(self, records)


@fault("rolling-old-leaves", "is gone too")
class TakesAllSockets(RightDriver):
    def leftovers(self, running: Instance) -> list[Path]:
        return [*super().leftovers(running), *(self.folder / "plugins_registry").glob("*.sock")]


@fault("rolling-slices", "writes of slices within")
class Fights(RightDriver):
    """Marks the slices as its own if there are two instances, and so does the other one."""

    def publishes(self, stopped: threading.Event) -> Publisher:
        return Touching(self, stopped)
