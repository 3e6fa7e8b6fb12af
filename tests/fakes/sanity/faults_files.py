"""Drivers whose health stream or metadata files are wrong."""

from collections.abc import Iterator
from typing import Any

import grpc

from dranode.proto import drahealth_v1alpha1_pb2
from tests.fakes.sanity.driver import Document, DriverWithoutHealth, Instance, RightDriver
from tests.fakes.sanity.fault import fault
from tests.fakes.sanity.files import Files

# --- health ---


@fault("health-served", "UNIMPLEMENTED")
class NoHealth(RightDriver):
    def health_services(self, instance: Instance) -> list[Any]:
        return super().health_services(instance)[1:]


class Reporting(RightDriver):
    """Changes the reported health of each device."""

    def change(self, report: Any) -> None:
        raise NotImplementedError

    def device_health(self, api: Any, name: str) -> Any:
        report = super().device_health(api, name)
        self.change(report)
        return report


@fault("health-devices", "is not published")
class OtherPool(Reporting):
    def change(self, report: Any) -> None:
        report.device.pool_name = "lights"


@fault("health-complete", "is missing")
class FirstDeviceOnly(RightDriver):
    def health(self, api: Any) -> Any:
        answer = super().health(api)
        del answer.devices[1:]
        return answer


@fault("health-values", "the timeout of")
class NegativeTimeout(Reporting):
    def change(self, report: Any) -> None:
        report.health_check_timeout_seconds = -1


@fault("health-time", "last_updated_time of")
class Milliseconds(Reporting):
    def change(self, report: Any) -> None:
        report.last_updated_time *= 1000


@fault("health-message", "has 2000 characters")
class LongMessage(Reporting):
    def change(self, report: Any) -> None:
        report.message = "x" * 2000


class Streaming(RightDriver):
    """Sends the state once, then nothing until the stream ends."""

    def watch(self, api: Any, context: Any, instance: Instance) -> Iterator[Any]:
        yield self.health(api)
        while context.is_active() and not instance.stopped.wait(0.02):
            pass


@fault("health-renewed", "1 message within")
class SendsOnce(Streaming):
    pass


@fault("health-stays-open", "the stream ended after")
class EndsAtOnce(RightDriver):
    def watch(self, api: Any, context: Any, instance: Instance) -> Iterator[Any]:
        if context.is_active() and not instance.stopped.is_set():
            yield self.health(api)


@fault("health-again", "first [")
class ChangesOnly(RightDriver):
    sent = False

    def watch(self, api: Any, context: Any, instance: Instance) -> Iterator[Any]:
        if self.sent:
            yield api.NodeWatchResourcesResponse()
        self.sent = True
        yield from super().watch(api, context, instance)


@fault("health-beside-calls", "open streams a call failed")
class FewThreads(RightDriver):
    workers = 8


@fault("health-versions-agree", "v1alpha1.DRAResourceHealth: [")
class AlphaUnknown(RightDriver):
    def device_health(self, api: Any, name: str) -> Any:
        report = super().device_health(api, name)
        if api is drahealth_v1alpha1_pb2:
            report.health = api.UNKNOWN
        return report


@fault("health-not-advertised", "is served, but not advertised")
class SilentHealth(DriverWithoutHealth):
    def health_services(self, instance: Instance) -> list[Any]:
        return RightDriver.health_services(self, instance)


@fault("health-served", "sent nothing within")
class WaitsForChanges(RightDriver):
    def watch(self, api: Any, context: Any, instance: Instance) -> Iterator[Any]:
        first = self.health(api)
        while context.is_active() and not instance.stopped.wait(0.02):
            if self.health(api) != first:
                yield self.health(api)


@fault("health-served", "without a message")
class EndsWithoutAWord(RightDriver):
    def watch(self, api: Any, context: Any, instance: Instance) -> Iterator[Any]:
        del api, context, instance
        yield from ()


@fault("health-devices", "is reported twice")
class ReportsTwice(RightDriver):
    def health(self, api: Any) -> Any:
        answer = super().health(api)
        answer.devices.append(answer.devices[0])
        return answer


@fault("health-values", "the health of")
class UnknownHealth(Reporting):
    def change(self, report: Any) -> None:
        report.health = 7


@fault("health-stays-open", "the stream ended: ")
class BreaksOff(RightDriver):
    def watch(self, api: Any, context: Any, instance: Instance) -> Iterator[Any]:
        if not instance.stopped.is_set():
            yield self.health(api)
        context.abort(grpc.StatusCode.UNAVAILABLE, "no more for now")


@fault("health-not-advertised", "PERMISSION_DENIED")
class ForbidsHealth(SilentHealth):
    def watch(self, api: Any, context: Any, instance: Instance) -> Iterator[Any]:
        del api, instance
        context.abort(grpc.StatusCode.PERMISSION_DENIED, "nothing to see")
        yield from ()


# --- metadata ---


class Metadata(RightDriver):
    """Changes each document."""

    def change(self, document: Document) -> None:
        raise NotImplementedError

    def metadata_document(self, version: str, claim: Document, name: str, record: Document) -> Document:
        document = super().metadata_document(version, claim, name, record)
        self.change(document)
        return document


@fault("metadata-documents", "a document has apiVersion and kind")
class OtherGroup(Metadata):
    def change(self, document: Document) -> None:
        document["apiVersion"] = document["apiVersion"].replace("metadata.", "")


class Versions(RightDriver):
    versions_written: tuple[int, ...] = ()

    def metadata(self, record: Document) -> dict[str, list[Document]]:
        files = super().metadata(record)
        return {name: [documents[index] for index in self.versions_written] for name, documents in files.items()}


@fault("metadata-v1beta1", 'the file has ["metadata.resource.k8s.io/v1alpha1"]')
class AlphaOnly(Versions):
    versions_written = (1,)


@fault("metadata-order", 'the file has ["metadata.resource.k8s.io/v1alpha1",')
class OldestFirst(Versions):
    versions_written = (1, 0)


@fault("metadata-claim", "the claim is")
class NoUID(Metadata):
    def change(self, document: Document) -> None:
        del document["metadata"]["uid"]


@fault("metadata-devices", "a document has nothing")
class NoDevices(Metadata):
    def change(self, document: Document) -> None:
        document["requests"] = []


@fault("metadata-generation", "after another Prepare the generations are")
class CountsWrites(Metadata):
    writes = 0

    def change(self, document: Document) -> None:
        self.writes += 1
        document["metadata"]["generation"] = (self.writes + 1) // 2


@fault("metadata-path", "it is at")
class OldPath(RightDriver):
    def container_path(self, record: Document) -> str:
        return super().container_path(record).replace("/kubernetes.io", "")


@fault("metadata-template-path", "it is at")
class ByClaimAlways(RightDriver):
    def container_path(self, record: Document) -> str:
        claim = record["claim"]["metadata"]["name"]
        return f"/var/run/kubernetes.io/dra-device-attributes/resourceclaims/{claim}"


class WritableFiles(Files):
    def mount(self, path: Any, container_path: str) -> Document:
        return {**super().mount(path, container_path), "options": ["bind"]}


@fault("metadata-read-only", "the mount's options are bind")
class Writable(RightDriver):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.files = WritableFiles(self.folder)


class KeptFiles(Files):
    def remove(self, uid: str) -> None:
        kept = {path: path.read_text() for path in (self.data / uid).glob("*/*")}
        super().remove(uid)
        for path, content in kept.items():
            path.parent.mkdir(parents=True)
            path.write_text(content)


@fault("metadata-removed", "is left")
class KeepsMetadata(RightDriver):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.files = KeptFiles(self.folder)


@fault("metadata-attributes", "are not valid attribute names")
class OddAttributes(Metadata):
    def change(self, document: Document) -> None:
        for request in document["requests"]:
            request["devices"][0]["attributes"] = {"a-b": {"int": 1}}
