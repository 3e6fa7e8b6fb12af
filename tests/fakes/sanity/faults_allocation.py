"""Drivers that read allocations and configurations wrongly."""

from typing import Any

import grpc

from dranode.proto import dra_v1_pb2
from tests.fakes.sanity.driver import NAME, Document, Refused, RightDriver
from tests.fakes.sanity.fault import fault
from tests.fakes.sanity.faults_prepare import Answering


@fault("prepare-subrequest", "the requests any/second")
class FullRequestNames(RightDriver):
    def request_name(self, request: str) -> str:
        return request

    def metadata(self, record: Document) -> dict[str, list[Document]]:
        return super().metadata({**record, "devices": []})

    def grant(self, document: Document) -> list[Document]:
        return [{**device, "cdi": device["cdi"][:1]} for device in super().grant(document)]


@fault("prepare-share-id", "the answer has [null]")
class NoShares(RightDriver):
    def answered(self, api: Any, device: Document) -> Any:
        return super().answered(api, {**device, "share": None})


@fault("prepare-no-share-id", 'share_id is set to [""]')
class EmptyShares(Answering):
    def change(self, device: Any) -> None:
        if isinstance(device, dra_v1_pb2.Device) and not device.HasField("share_id"):
            device.share_id = ""


@fault("prepare-shared-device", "is held")
class OneShare(RightDriver):
    def check_result(self, result: Document, uid: str) -> None:
        super().check_result({**result, "shareID": None}, uid)


@fault("prepare-shares-in-one-claim", "the answer has")
class DevicesByName(RightDriver):
    def prepare(self, claim: Any) -> list[Document]:
        return list({device["device"]: device for device in super().prepare(claim)}.values())


@fault("prepare-share-kept", "is in no spec")
class RemovesAllShares(RightDriver):
    def unprepare(self, claim: Any) -> None:
        record = self.records().get(claim.uid)
        super().unprepare(claim)
        for device in record["devices"] if record and claim.name else ():
            for uid in self.holders(device["device"]):
                self.files.remove(uid)


@fault("prepare-admin-access", "is held")
class AdminsWait(RightDriver):
    def check_result(self, result: Document, uid: str) -> None:
        super().check_result({**result, "adminAccess": False}, uid)


@fault("prepare-admin-holds-nothing", "is held")
class AdminsHold(RightDriver):
    def holders(self, device: str) -> set[str]:
        return {
            uid
            for uid, record in self.records().items()
            if device in {result["device"] for result in self.own_results(record["claim"])}
        }


@fault("prepare-many-results", "more than 8 devices")
class FewResults(RightDriver):
    def grant(self, document: Document) -> list[Document]:
        if len(self.own_results(document)) > 8:
            raise Refused("more than 8 devices")
        return super().grant(document)


# --- devices that are held ---


class NoHolders(RightDriver):
    def holders(self, device: str) -> set[str]:
        del device
        return set()


@fault("prepare-held", "is prepared for two claims")
class GivesTwice(NoHolders):
    pass


@fault("prepare-held-in-call", "is prepared for two claims")
class DecidesTogether(RightDriver):
    def prepare_call(self, api: Any, request: Any, context: Any) -> Any:
        self.before = self.records()
        return super().prepare_call(api, request, context)

    def holders(self, device: str) -> set[str]:
        return super().holders(device) & set(self.before)


@fault("prepare-refused-leaves-holder", "is in no spec")
class UnprepareByDevice(RightDriver):
    def unprepare(self, claim: Any) -> None:
        super().unprepare(claim)
        for device in self.device_names() if claim.uid not in self.records() else ():
            for uid in self.holders(device):
                self.files.remove(uid)

    def write(self, record: Document) -> None:
        if record["claim"]["metadata"]["uid"] not in self.written:
            super().write(record)
            self.written.add(record["claim"]["metadata"]["uid"])

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.written: set[str] = set()


@fault("prepare-freed", "is held")
class NeverFrees(RightDriver):
    def save(self, records: dict[str, Document]) -> None:
        super().save({**self.records(), **records})


# --- configuration ---


@fault("configuration-other-driver", "are not a Light")
class ReadsAllParameters(RightDriver):
    def configurations(self, document: Document) -> list[Document]:
        entries = super().configurations(document)
        return [{**entry, "opaque": {**entry["opaque"], "driver": NAME}} for entry in entries]


class Reading(RightDriver):
    """Reads the fields that it knows from any parameters."""

    def decoded(self, parameters: Document) -> str:
        return str(parameters.get("color", "none"))


@fault("configuration-unknown", "were accepted")
class ReadsAnything(Reading):
    pass


@fault("configuration-unknown-named", 'the error is "')
class VagueErrors(RightDriver):
    def decoded(self, parameters: Document) -> str:
        try:
            return super().decoded(parameters)
        except Refused:
            raise Refused("decoding failed") from None


@fault("configuration-misspelt", 'a field "noSuchField" were accepted')
class TakesAnyField(RightDriver):
    def decoded(self, parameters: Document) -> str:
        return super().decoded({key: value for key, value in parameters.items() if key != "noSuchField"})


@fault("configuration-known", "green is out")
class NoGreen(RightDriver):
    def decoded(self, parameters: Document) -> str:
        if parameters.get("color") == "green":
            raise Refused("green is out")
        return super().decoded(parameters)


@fault("configuration-class", "by class:")
class IgnoresClasses(RightDriver):
    def configurations(self, document: Document) -> list[Document]:
        return [entry for entry in super().configurations(document) if entry["source"] == "FromClaim"]


@fault("configuration-precedence", "with both:")
class FirstCounts(RightDriver):
    def configurations(self, document: Document) -> list[Document]:
        return super().configurations(document)[::-1]


@fault("configuration-requests", "beside the other's:")
@fault("configuration-other-request", "with parameters for another request:")
class ForAllRequests(RightDriver):
    def applies(self, entry: Document, request: str) -> bool:
        return bool(entry) or bool(request)


@fault("configuration-subrequest", "by none, by any")
class WholeNamesOnly(RightDriver):
    def applies(self, entry: Document, request: str) -> bool:
        return request in entry.get("requests", [request])


@fault("configuration-repeated", "twice")
class NoRepetition(RightDriver):
    def configurations(self, document: Document) -> list[Document]:
        entries = super().configurations(document)
        if any(entries.count(entry) > 1 for entry in entries):
            raise Refused("parameters stand there twice")
        return entries


# --- Unprepare ---


@fault("unprepare-answers", "the answer has nothing")
class SilentUnprepare(RightDriver):
    def unprepare_call(self, api: Any, request: Any, context: Any) -> Any:
        super().unprepare_call(api, request, context)
        return api.NodeUnprepareResourcesResponse()


@fault("unprepare-answers", "the answer has")
class UnpreparesForAll(RightDriver):
    def unprepare_call(self, api: Any, request: Any, context: Any) -> Any:
        answer = super().unprepare_call(api, request, context)
        for uid in self.records():
            answer.claims[uid].CopyFrom(api.NodeUnprepareResourceResponse())
        return answer


class Unpreparing(RightDriver):
    """Answers Unprepare with an error if there is a `problem`."""

    def problem(self, claim: Any) -> str:
        raise NotImplementedError

    def unprepare_one(self, api: Any, claim: Any) -> Any:
        if problem := self.problem(claim):
            return api.NodeUnprepareResourceResponse(error=problem)
        return super().unprepare_one(api, claim)


@fault("unprepare-idempotent", "is not prepared any more")
class UnpreparesOnce(Unpreparing):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.done: set[str] = set()

    def problem(self, claim: Any) -> str:
        again = claim.uid in self.done
        self.done.add(claim.uid)
        return "it is not prepared any more" if again else ""


@fault("unprepare-unknown", "nobody knows it")
@fault("unprepare-after-refusal", "nobody knows it")
class KnownOnly(Unpreparing):
    def problem(self, claim: Any) -> str:
        return "" if claim.uid in self.records() else "nobody knows it"


@fault("unprepare-batch", "failed as a whole")
class UnpreparesAllOrNothing(RightDriver):
    def unprepare_call(self, api: Any, request: Any, context: Any) -> Any:
        known = [claim.uid in self.records() for claim in request.claims]
        if len(set(known)) > 1:
            context.abort(grpc.StatusCode.NOT_FOUND, "one of them is not known")
        return super().unprepare_call(api, request, context)


class UnpreparesByObject(Unpreparing):
    """Fetches the claim before it undoes anything."""

    def problem(self, claim: Any) -> str:
        if claim.uid not in self.records():
            return ""
        try:
            document = self.claim(claim)
        except Refused as reason:
            return str(reason)
        return self.judged(document)

    def judged(self, document: Document) -> str:
        del document
        return ""


@fault("unprepare-deleted", "cannot be had: 404")
@fault("unprepare-server-away", "cannot be had")
class GetsTheClaim(UnpreparesByObject):
    pass


@fault("unprepare-deallocated", "it has no allocation")
class ReadsTheAllocation(UnpreparesByObject):
    def judged(self, document: Document) -> str:
        return "" if document.get("status") else "it has no allocation"


@fault("unprepare-other-uid", "is in no spec")
@fault("prepare-replaced", "is in no spec")
class UnpreparesByName(RightDriver):
    def unprepare(self, claim: Any) -> None:
        for uid, record in self.records().items():
            if record["claim"]["metadata"]["name"] == claim.name:
                self.files.remove(uid)
        super().unprepare(claim)


@fault("unprepare-then-prepare", "is used up")
class OncePrepared(RightDriver):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.gone: set[str] = set()

    def unprepare(self, claim: Any) -> None:
        super().unprepare(claim)
        self.gone.add(claim.uid)

    def prepare(self, claim: Any) -> list[Document]:
        if claim.uid in self.gone:
            raise Refused("is used up")
        return super().prepare(claim)


@fault("unprepare-empty-call", "an odd call")
class RefusesEmptyUnprepare(RightDriver):
    def unprepare_call(self, api: Any, request: Any, context: Any) -> Any:
        if not request.claims:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "an odd call")
        return super().unprepare_call(api, request, context)


@fault("unprepare-v1beta1", "is held")
class TwoBooks(RightDriver):
    def unprepare_one(self, api: Any, claim: Any) -> Any:
        if api is dra_v1_pb2:
            return super().unprepare_one(api, claim)
        return api.NodeUnprepareResourceResponse()
