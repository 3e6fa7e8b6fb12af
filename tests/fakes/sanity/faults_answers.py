"""Drivers whose answers change between calls, lack entries or have too many."""

import threading
import time
from typing import Any, Final

from tests.fakes.sanity.driver import Document, Instance, Refused, RightDriver
from tests.fakes.sanity.fault import fault

_LONG_ENOUGH: Final = 0.02


class LosingIds(RightDriver):
    """Answers claims that are in `stale` without their CDI ids."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.stale: set[str] = set()

    def prepare(self, claim: Any) -> list[Document]:
        devices = super().prepare(claim)
        return [{**device, "cdi": []} for device in devices] if claim.uid in self.stale else devices

    def forget_ids(self) -> None:
        self.stale = set(self.records())


@fault("prepare-shared-device", "the first claim's answer has changed")
class LosesIdsWithTheNextClaim(LosingIds):
    def prepare(self, claim: Any) -> list[Document]:
        if claim.uid not in self.records():
            self.forget_ids()
        return super().prepare(claim)


@fault("prepare-share-kept", "the other claim's answer has changed")
@fault("prepare-admin-access", "the holder's answer has changed")
@fault("prepare-refused-leaves-holder", "the holder's answer has changed")
@fault("prepare-similar-uids", "is answered")
@fault("unprepare-other-uid", "the claim's answer has changed")
class LosesIdsWithAnUnprepare(LosingIds):
    def unprepare(self, claim: Any) -> None:
        super().unprepare(claim)
        self.forget_ids()


@fault("restart-same-answer", "the answer is")
@fault("restart-reboot", "the answer is")
@fault("restart-several", "the answers are")
@fault("restart-graceful", "the answer is")
@fault("rolling-old-leaves", "the answer is")
class HasIdsInMemory(LosingIds):
    def kill(self, instance: str = "") -> None:
        super().kill(instance)
        self.forget_ids()

    def terminate(self, seconds: float, instance: str = "") -> int | None:
        status = super().terminate(seconds, instance)
        self.forget_ids()
        return status


@fault("prepare-server-away", "afterwards the answer is")
class LosesIdsWithoutServer(LosingIds):
    def prepare(self, claim: Any) -> list[Document]:
        try:
            self.claim(claim)
        except Refused:
            self.forget_ids()
            raise
        return super().prepare(claim)


@fault("prepare-shared-device", "the second claim is answered without devices")
class AnswersTheFirstAlone(RightDriver):
    def prepare(self, claim: Any) -> list[Document]:
        devices = super().prepare(claim)
        holders = {uid for device in devices for uid in self.holders(device["device"])}
        first = next((uid for uid in self.records() if uid in holders), claim.uid)
        return devices if first == claim.uid else []


# --- entries ---


class Entries(RightDriver):
    """Changes the entries of an answer."""

    def change(self, api: Any, request: Any, entries: dict[str, Any]) -> None:
        raise NotImplementedError

    def prepare_call(self, api: Any, request: Any, context: Any) -> Any:
        entries = dict(super().prepare_call(api, request, context).claims)
        self.change(api, request, entries)
        return api.NodePrepareResourcesResponse(claims=entries)


@fault("prepare-batch", "has no answer for claim")
class AnswersTheLast(Entries):
    def change(self, api: Any, request: Any, entries: dict[str, Any]) -> None:
        del api
        for claim in request.claims[:-1]:
            del entries[claim.uid]


@fault("prepare-batch-isolated", "the answer has")
class LeavesFailuresOut(Entries):
    def change(self, api: Any, request: Any, entries: dict[str, Any]) -> None:
        del api, request
        for uid in [uid for uid, entry in entries.items() if entry.error]:
            del entries[uid]


@fault("prepare-batch-isolated", "the good claim failed")
class FailsAllForOne(Entries):
    def change(self, api: Any, request: Any, entries: dict[str, Any]) -> None:
        del request
        if errors := [entry.error for entry in entries.values() if entry.error]:
            entries.update(dict.fromkeys(entries, api.NodePrepareResourceResponse(error=errors[0])))


@fault("prepare-batch-recovers", "an unknown claim was prepared")
class PassesOverUnknown(Entries):
    def change(self, api: Any, request: Any, entries: dict[str, Any]) -> None:
        del request
        for uid, entry in entries.items():
            if entry.error and len(entries) > 1:
                entries[uid] = api.NodePrepareResourceResponse()


@fault("prepare-listed-twice", "the answer is")
class RefusesTheSecond(Entries):
    def change(self, api: Any, request: Any, entries: dict[str, Any]) -> None:
        if len(request.claims) > len(entries):
            entries.update(dict.fromkeys(entries, api.NodePrepareResourceResponse(error="is in progress")))


@fault("prepare-empty-call", "the answer has")
class AnswersAllWhenAskedForNone(Entries):
    def change(self, api: Any, request: Any, entries: dict[str, Any]) -> None:
        if not request.claims:
            entries["all"] = api.NodePrepareResourceResponse()


@fault("unprepare-empty-call", "the answer has")
class UnpreparesAllWhenAskedForNone(RightDriver):
    def unprepare_call(self, api: Any, request: Any, context: Any) -> Any:
        answer = super().unprepare_call(api, request, context)
        if not request.claims:
            answer.claims["all"].CopyFrom(api.NodeUnprepareResourceResponse())
        return answer


# --- devices ---


@fault("prepare-other-drivers", "its-own")
class AnswersForOtherDrivers(RightDriver):
    def own_results(self, document: Document) -> list[Document]:
        return list(document["status"]["allocation"]["devices"].get("results", []))

    def check_result(self, result: Document, uid: str) -> None:
        if result in super().own_results({"status": {"allocation": {"devices": {"results": [result]}}}}):
            super().check_result(result, uid)


@fault("prepare-no-results", "the answer has")
class AlwaysHasADevice(RightDriver):
    def prepare(self, claim: Any) -> list[Document]:
        default = {"request": "any", "pool": "node", "device": "dev-0", "cdi": []}
        return super().prepare(claim) or [default]


@fault("prepare-count", "the answer has the requests")
class NumbersRequests(RightDriver):
    def prepare(self, claim: Any) -> list[Document]:
        devices = super().prepare(claim)
        if len(devices) == 1:
            return devices
        return [{**device, "request": f"{device['request']}-{number}"} for number, device in enumerate(devices)]


class Moving(RightDriver):
    """Answers with other devices than the allocated ones after claims have come and gone."""

    gone = 0

    def unprepare(self, claim: Any) -> None:
        self.gone += claim.uid in self.records()
        super().unprepare(claim)

    def prepare(self, claim: Any) -> list[Document]:
        number = self.gone % 4
        return [{**device, "device": f"dev-{number}"} for device in super().prepare(claim)]


@fault("unprepare-then-prepare", "the devices are")
@fault("prepare-recreated", "the new claim got")
class TakesTheNextDevice(Moving):
    pass


@fault("concurrency-100-calls", "got node/")
class MixesCallsUp(RightDriver):
    """Keeps the current call's devices where another call overwrites them."""

    current: list[Document]

    def prepare_call(self, api: Any, request: Any, context: Any) -> Any:
        del context
        for claim in request.claims:
            with self.lock:
                self.current = self.prepare(claim)
            time.sleep(_LONG_ENOUGH)
        devices = [self.answered(api, device) for device in self.current] if request.claims else []
        entry = api.NodePrepareResourceResponse(devices=devices)
        return api.NodePrepareResourcesResponse(claims={claim.uid: entry for claim in request.claims})


@fault("concurrency-100-calls", 'and {"error"')
class AnswersTheBusyShortly(RightDriver):
    """Answers without CDI ids while another call is under way."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.busy = threading.Semaphore(1)

    def prepare_call(self, api: Any, request: Any, context: Any) -> Any:
        alone = self.busy.acquire(blocking=False)
        answer = super().prepare_call(api, request, context)
        if alone:
            time.sleep(_LONG_ENOUGH)
            self.busy.release()
            return answer
        for entry in answer.claims.values():
            for device in entry.devices:
                del device.cdi_device_ids[:]
        return answer


@fault("prepare-refused-leaves-holder", "is free after the Unprepare of a claim that never had it")
class FreesWhatTheClaimNames(RightDriver):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.refused: dict[str, str] = {}
        self.freed: set[str] = set()

    def check_result(self, result: Document, uid: str) -> None:
        self.refused[uid] = result["device"]
        super().check_result(result, uid)

    def unprepare(self, claim: Any) -> None:
        super().unprepare(claim)
        if device := self.refused.get(claim.uid):
            self.freed.add(device)

    def holders(self, device: str) -> set[str]:
        return set() if device in self.freed else super().holders(device)


# --- instances ---


@fault("rolling-endpoints", "their names are")
class NamesInstances(RightDriver):
    def info(self, instance: Instance) -> Any:
        info = super().info(instance)
        if instance.endpoint.stem != "dra":
            info.name = f"new.{info.name}"
        return info


@fault("rolling-endpoints", "has no registration socket beside")
class SharesTheSocket(RightDriver):
    def start(self, instance: str = "") -> None:
        self.instances[instance] = Instance(self, "")
