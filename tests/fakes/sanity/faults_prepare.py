"""Drivers that prepare claims wrongly."""

import itertools
import json
import urllib.error
from pathlib import Path
from typing import Any

import grpc

from dranode.proto import dra_v1beta1_pb2
from tests.fakes.sanity.driver import Document, Refused, RightDriver
from tests.fakes.sanity.fault import fault


@fault("prepare-answers", "the answer has")
class AnswersByName(RightDriver):
    def prepare_call(self, api: Any, request: Any, context: Any) -> Any:
        answer = super().prepare_call(api, request, context)
        return api.NodePrepareResourcesResponse(
            claims={claim.name: answer.claims[claim.uid] for claim in request.claims}
        )


@fault("prepare-succeeds", "no lamps today")
class RefusesAll(RightDriver):
    def grant(self, document: Document) -> list[Document]:
        raise Refused(f"no lamps today for {document['metadata']['name']}")


@fault("prepare-published", "is broken")
class OneBrokenDevice(RightDriver):
    def check_result(self, result: Document, uid: str) -> None:
        if result["device"] == "part-2":
            raise Refused("part-2 is broken")
        super().check_result(result, uid)


class Answering(RightDriver):
    """Changes each device of an answer."""

    def change(self, device: Any) -> None:
        raise NotImplementedError

    def answered(self, api: Any, device: Document) -> Any:
        answer = super().answered(api, device)
        self.change(answer)
        return answer


@fault("prepare-devices-named", "node.dev-0")
class FullDeviceNames(Answering):
    def change(self, device: Any) -> None:
        device.device_name = f"{device.pool_name}.{device.device_name}"


@fault("prepare-devices-complete", "the answer lacks")
class FirstDeviceOnly(RightDriver):
    def prepare(self, claim: Any) -> list[Document]:
        return super().prepare(claim)[:1]


@fault("prepare-request-names", "has no request names")
class NoRequestNames(Answering):
    def change(self, device: Any) -> None:
        device.ClearField("request_names")


@fault("prepare-request-names", "but was allocated for")
class FirstRequestName(Answering):
    def change(self, device: Any) -> None:
        device.request_names[:] = ["first"]


@fault("prepare-idempotent", "after")
class NewIds(Answering):
    numbers = itertools.count()

    def change(self, device: Any) -> None:
        device.cdi_device_ids[:] = [f"example.com/light=n{next(self.numbers)}"]


@fault("prepare-batch", "got")
class MixedBatch(RightDriver):
    def prepare_call(self, api: Any, request: Any, context: Any) -> Any:
        answer = super().prepare_call(api, request, context)
        uids = [claim.uid for claim in request.claims]
        turned = [*uids[1:], *uids[:1]]
        return api.NodePrepareResourcesResponse(
            claims={uid: answer.claims[other] for uid, other in zip(uids, turned, strict=True)}
        )


class AllOrNothing(RightDriver):
    """Fails a call as a whole, as the Go helper does, after preparing the claims that it can."""

    def prepare_call(self, api: Any, request: Any, context: Any) -> Any:
        answer = super().prepare_call(api, request, context)
        for claim in answer.claims.values():
            if claim.error:
                context.abort(grpc.StatusCode.UNKNOWN, claim.error)
        return answer


@fault("prepare-batch-isolated", "failed the whole call")
class WholeCallFails(AllOrNothing):
    pass


@fault("prepare-batch-recovers", "in progress")
class BatchInProgress(AllOrNothing):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.begun: set[str] = set()

    def prepare_call(self, api: Any, request: Any, context: Any) -> Any:
        if len(request.claims) > 1:
            self.begun |= {claim.uid for claim in request.claims}
        return super().prepare_call(api, request, context)

    def prepare(self, claim: Any) -> list[Document]:
        if claim.uid in self.begun and claim.uid in self.records():
            raise Refused("in progress")
        return super().prepare(claim)


@fault("prepare-unknown", "was prepared")
class PreparesAnything(RightDriver):
    def prepare(self, claim: Any) -> list[Document]:
        try:
            return super().prepare(claim)
        except Refused:
            return []


@fault("prepare-unknown-named", 'the error is "')
class AnonymousErrors(RightDriver):
    def prepare_one(self, api: Any, claim: Any) -> Any:
        answer = super().prepare_one(api, claim)
        if answer.error:
            answer.error = "it failed"
        return answer


@fault("prepare-other-uid", "for a UID that it does not have")
class IgnoresUID(RightDriver):
    def checked(self, claim: Any, document: Document) -> Document:
        document["metadata"]["uid"] = claim.uid
        return super().checked(claim, document)

    def holders(self, device: str) -> set[str]:
        del device
        return set()


@fault("prepare-recreated", "held")
class RecordsByName(RightDriver):
    """Never forgets whose device it was."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.owners: dict[str, str] = {}

    def check_result(self, result: Document, uid: str) -> None:
        if self.owners.setdefault(result["device"], uid) != uid:
            raise Refused("it is held")
        super().check_result(result, uid)


@fault("prepare-not-allocated", "without an allocation")
class TakesUnallocated(RightDriver):
    def checked(self, claim: Any, document: Document) -> Document:
        document["status"].setdefault("allocation", {"devices": {}})
        return super().checked(claim, document)


@fault("prepare-reallocated", "the claim has dev-0, not dev-1")
class RemembersClaims(RightDriver):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.documents: dict[str, Document] = {}

    def claim(self, claim: Any) -> Document:
        return self.documents.setdefault(claim.uid, super().claim(claim))


@fault("prepare-unknown-device", "for a device that does not exist was prepared")
class AnyDevice(RightDriver):
    def check_result(self, result: Document, uid: str) -> None:
        pass


@fault("prepare-unknown-pool", "for a pool that does not exist was prepared")
class AnyPool(RightDriver):
    def check_result(self, result: Document, uid: str) -> None:
        super().check_result({**result, "pool": "node"}, uid)


@fault("prepare-other-drivers", "there is no device elsewhere/its-own")
class TakesAllResults(RightDriver):
    def own_results(self, document: Document) -> list[Document]:
        return list(document["status"]["allocation"]["devices"].get("results", []))


@fault("prepare-unknown-fields", "unknown field ofSanity")
class StrictReader(RightDriver):
    def checked(self, claim: Any, document: Document) -> Document:
        if "ofSanity" in document["status"]:
            raise Refused("unknown field ofSanity")
        return super().checked(claim, document)


class Aborting(RightDriver):
    def odd(self, request: Any) -> bool:
        raise NotImplementedError

    def prepare_call(self, api: Any, request: Any, context: Any) -> Any:
        if self.odd(request):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "an odd call")
        return super().prepare_call(api, request, context)


@fault("prepare-empty-call", "an odd call")
class RefusesEmptyCalls(Aborting):
    def odd(self, request: Any) -> bool:
        return not request.claims


@fault("prepare-no-results", "nothing to prepare")
class RefusesEmptyClaims(RightDriver):
    def grant(self, document: Document) -> list[Document]:
        if not self.own_results(document):
            raise Refused("nothing to prepare")
        return super().grant(document)


@fault("prepare-listed-twice", "an odd call")
class RefusesDoubles(Aborting):
    def odd(self, request: Any) -> bool:
        return len({claim.uid for claim in request.claims}) < len(request.claims)


@fault("prepare-v1beta1-agrees", "v1beta1 [")
class OtherIdsInBeta(RightDriver):
    def answered(self, api: Any, device: Document) -> Any:
        answer = super().answered(api, device)
        if api is dra_v1beta1_pb2:
            answer.ClearField("cdi_device_ids")
        return answer


@fault("prepare-server-error", "although the API server failed")
class PreparesUnread(RightDriver):
    def prepare(self, claim: Any) -> list[Document]:
        try:
            return super().prepare(claim)
        except Refused as reason:
            if "500" in str(reason):
                return []
            raise


@fault("prepare-server-away", "the answer is")
class ForgetsWithoutServer(RightDriver):
    def prepare(self, claim: Any) -> list[Document]:
        try:
            self.get("resourceslices")
        except urllib.error.HTTPError:
            raise
        except OSError:
            return []
        return super().prepare(claim)


@fault("prepare-long-names", "File name too long")
class FilesByName(RightDriver):
    def prepare(self, claim: Any) -> list[Document]:
        path = self.folder / "plugins" / f"{claim.namespace}_{claim.name}"
        try:
            path.touch()
        except OSError as error:
            raise Refused(str(error)) from error
        path.unlink()
        return super().prepare(claim)


@fault("prepare-answers", "the answer has")
class AnswersForAll(RightDriver):
    def prepare_call(self, api: Any, request: Any, context: Any) -> Any:
        answer = super().prepare_call(api, request, context)
        for uid, record in self.records().items():
            devices = [self.answered(api, device) for device in record["devices"]]
            answer.claims[uid].CopyFrom(api.NodePrepareResourceResponse(devices=devices))
        return answer


@fault("prepare-replaced", "the new claim got")
class AnswersFromNames(RightDriver):
    """Keeps claims by name, and trusts its record without reading the claim."""

    def prepare(self, claim: Any) -> list[Document]:
        record = self.records().get(claim.name)
        if record is None:
            document = self.checked(claim, self.claim(claim))
            record = {"claim": document, "devices": self.grant(document)}
            self.save({**self.records(), claim.name: record})
        self.write(record)
        return list(record["devices"])

    def unprepare(self, claim: Any) -> None:
        self.files.remove(claim.uid)
        records = self.records()
        records.pop(claim.name, None)
        self.save(records)


class GrantsOneByOne(RightDriver):
    """Has already acted on the first device of a claim when the second one is refused."""

    def check_result(self, result: Document, uid: str) -> None:
        super().check_result(result, uid)
        self.done(result, uid)

    def done(self, result: Document, uid: str) -> None:
        raise NotImplementedError

    def unprepare(self, claim: Any) -> None:
        if claim.uid in self.records():
            super().unprepare(claim)


@fault("cdi-refused-leaves-nothing", "is left in")
class WritesOneByOne(GrantsOneByOne):
    def done(self, result: Document, uid: str) -> None:
        (self.files.cdi / f"example.com-light_{uid}-{result['device']}.json").write_text(
            json.dumps({"cdiVersion": "0.5.0", "kind": "example.com/light", "devices": []})
        )


@fault("prepare-refused-frees", "is being given to")
class HoldsOneByOne(GrantsOneByOne):
    def __init__(self, folder: Path, server: str) -> None:
        super().__init__(folder, server)
        self.given: dict[str, str] = {}

    def done(self, result: Document, uid: str) -> None:
        if self.given.setdefault(result["device"], uid) != uid:
            raise Refused(f"{result['device']} is being given to {self.given[result['device']]}")

    def unprepare(self, claim: Any) -> None:
        if claim.uid in self.records():
            self.given = {device: uid for device, uid in self.given.items() if uid != claim.uid}
        super().unprepare(claim)
