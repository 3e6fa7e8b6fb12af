"""Drivers that publish wrongly."""

import itertools
import threading
import urllib.error
from typing import Any

from tests.fakes.sanity.driver import Document, RightDriver
from tests.fakes.sanity.fault import fault
from tests.fakes.sanity.publisher import Publisher


class Pieces(RightDriver):
    """Changes the first device that it publishes."""

    fields: dict[str, Any] = {}  # noqa: RUF012 - overridden as a whole

    def pieces(self) -> list[Document]:
        pieces = super().pieces()
        pieces[0]["devices"][0].update(self.fields)
        return pieces


@fault("slices-standard-attributes", "pci-0")
class OddRoot(Pieces):
    fields = {"attributes": {"resource.kubernetes.io/pcieRoot": {"string": "pci-0"}}}  # noqa: RUF012


@fault("slices-attributes-stable", "changed within")
class Fluctuating(RightDriver):
    numbers = itertools.count()

    def pieces(self) -> list[Document]:
        pieces = super().pieces()
        pieces[0]["devices"][0]["attributes"]["temperature"] = {"int": next(self.numbers)}
        return pieces

    def publishes(self, stopped: threading.Event) -> Publisher:
        return Impatient(self, stopped)


class Impatient(Publisher):
    def watch(self, version: str) -> None:
        """Report nothing."""


class Publishing(RightDriver):
    """A driver with another publisher."""

    publisher: type[Publisher] = Publisher

    def publishes(self, stopped: threading.Event) -> Publisher:
        return self.publisher(self, stopped)


class Documents(Publisher):
    """Changes each slice before it is written."""

    def change(self, document: Document, index: int) -> None:
        raise NotImplementedError

    def document(self, index: int, piece: Document, generation: int, count: int, old: Document | None) -> Document:
        document = super().document(index, piece, generation, count, old)
        self.change(document, index)
        return document


@fault("slices-taken", "is not a semantic version")
class RefusedFirst(Pieces):
    """Its first slice is refused until it leaves an attribute out."""

    tries = 0

    def pieces(self) -> list[Document]:
        self.tries += 1
        self.fields = {"attributes": {"v": {"version": "1.2"}}} if self.tries < 3 else {}
        return super().pieces()


@fault("slices-driver", "right.example.com, right.example.org")
class TwoNames(Publishing):
    class publisher(Publisher):  # noqa: N801 - an attribute
        def publish(self, slices: list[Document]) -> None:
            if not self.kept.get(99):
                self.kept[99] = {"x": 1}
                document = self.document(0, {"devices": []}, 1, 1, None)
                document["spec"]["driver"] = "right.example.org"
                self.driver.request("POST", "resourceslices", document)
            super().publish(slices)


@fault("slices-node", 'spec.nodeName is "other-node')
class OtherNode(Publishing):
    class publisher(Documents):  # noqa: N801
        def change(self, document: Document, index: int) -> None:
            document["spec"]["nodeName"] = f"other-node-{abs(index)}"

        def own(self, item: Document) -> Any:
            return item["spec"]["driver"] == "right.example.com"

        @property
        def selector(self) -> str:
            return "fieldSelector=spec.driver%3Dright.example.com"


@fault("slices-owner", "the owners are")
class NoOwner(Publishing):
    class publisher(Documents):  # noqa: N801
        def change(self, document: Document, index: int) -> None:
            document["metadata"]["ownerReferences"] = [][index:]


@fault("slices-complete", "has 3 slices, but resourceSliceCount is 4")
class OneTooFew(Publishing):
    class publisher(Documents):  # noqa: N801
        def change(self, document: Document, index: int) -> None:
            document["spec"]["pool"]["resourceSliceCount"] = 4 + 0 * index

        def same(self, index: int, item: Document, piece: Document) -> bool:
            return bool(index >= 0 and item and piece)


@fault("slices-generation", "have the generations")
class OldGeneration(Publishing):
    class publisher(Publisher):  # noqa: N801
        def publish(self, slices: list[Document]) -> None:
            old = [item for item in slices if item["spec"]["pool"]["generation"] == 0]
            if not old:
                self.driver.request("POST", "resourceslices", self.document(9, {"devices": []}, 0, 1, None))
            super().publish([item for item in slices if item not in old])


@fault("slices-pool-node", 'the pool is called "lights"')
class FixedPool(Publishing):
    class publisher(Documents):  # noqa: N801
        def change(self, document: Document, index: int) -> None:
            document["spec"]["pool"]["name"] = "lights"[: index + 99]


@fault("slices-taints", "the taints are")
class TaintTimes(Fluctuating):
    def pieces(self) -> list[Document]:
        pieces = RightDriver.pieces(self)
        time = f"2026-01-01T00:00:{next(self.numbers) % 60:02d}Z"
        pieces[0]["devices"][4]["taints"][0]["timeAdded"] = time
        return pieces


class Once(Publisher):
    """Checks the slices only when it starts, and when a test asks for it."""

    def watch(self, version: str) -> None:
        del version
        self.stopped.wait()


@fault("slices-deleted", "0 slices in all")
@fault("slices-edited", "1 missing, the first is node/")
@fault("slices-stray", "a slice too many was created")
@fault("slices-server-error", "writes failed")
@fault("slices-server-restart", "the server came back")
@fault("slices-expired", "the server came back")
class NeverLooksAgain(Publishing):
    publisher = Once


@fault("slices-conflict", "writes failed")
class EndsAtConflict(Publishing):
    class publisher(Publisher):  # noqa: N801
        def turn(self) -> str:
            try:
                return super().turn()
            except urllib.error.HTTPError as error:
                if error.code == 409:
                    self.stopped.wait()
                raise


@fault("slices-foreign", "of 2 slices are gone")
class DeletesOthers(Publishing):
    class publisher(Publisher):  # noqa: N801
        def publish(self, slices: list[Document]) -> None:
            for item in self.driver.request("GET", "resourceslices")["items"]:
                if not self.own(item):
                    self.delete(item)
            super().publish(slices)


@fault("slices-foreign", "of 2 slices are gone")
class DeletesOthersWhenStarted(RightDriver):
    def start(self, instance: str = "") -> None:
        for item in self.request("GET", "resourceslices")["items"]:
            self.request("DELETE", f"resourceslices/{item['metadata']['name']}")
        super().start(instance)


class Touching(Impatient):
    """Writes its first slice again and again."""

    writes = 0

    def publish(self, slices: list[Document]) -> None:
        super().publish(slices)
        for item in slices[:1]:
            self.writes += 1
            item["metadata"]["annotations"] = {"writes": f"{id(self)} {self.writes}"}
            self.driver.request("PUT", f"resourceslices/{item['metadata']['name']}", item)


@fault("slices-quiet", "writes of slices within")
class RewritesOne(Publishing):
    publisher = Touching


@fault("slices-quiet-when-preparing", "of slices")
class PublishesWhatIsFree(RightDriver):
    def publishes(self, stopped: threading.Event) -> Publisher:
        return Impatient(self, stopped)

    def pieces(self) -> list[Document]:
        pieces = super().pieces()
        for device in pieces[0]["devices"]:
            device.setdefault("attributes", {})["inUse"] = {"bool": bool(self.holders(device["name"]))}
        return pieces

    def device_names(self) -> set[str]:
        return {device["name"] for piece in RightDriver.pieces(self) for device in piece.get("devices", ())}


@fault("slices-dropped-fields", " within")
class InsistsOnFields(Publishing):
    class publisher(Publisher):  # noqa: N801
        def put(self, index: int, document: Document) -> None:
            super().put(index, document)
            self.kept[index] = {key: value for key, value in self.kept[index].items() if key != "devices"}
            if "devices" in document["spec"]:
                self.kept[index]["devices"] = document["spec"]["devices"]

        def same(self, index: int, item: Document, piece: Document) -> bool:
            for device in item["spec"].get("devices") or ():
                for taint in device.get("taints", ()):
                    taint.pop("timeAdded", None)
            return bool(super().same(index, item, piece))

        def document(self, index: int, piece: Document, generation: int, count: int, old: Document | None) -> Document:
            document = super().document(index, piece, generation, count, old)
            self.writes = getattr(self, "writes", 0) + 1
            document["metadata"]["annotations"] = {"writes": str(self.writes)}
            return document


@fault("slices-selected", "lists have no selector")
class ListsAll(Publishing):
    class publisher(Publisher):  # noqa: N801
        selector = ""


@fault("slices-watched", "lists of slices within")
class Polls(Publishing):
    publisher = Impatient


@fault("slices-locked", "updates have no resourceVersion")
class BlindUpdates(Publishing):
    class publisher(Documents):  # noqa: N801
        def change(self, document: Document, index: int) -> None:
            document["metadata"].pop("resourceVersion", index)


@fault("slices-v1beta2", "0 slices in all")
@fault("slices-v1beta1", "0 slices in all")
class V1Only(RightDriver):
    def open(self, path: str, version: str = "v1", method: str = "GET", body: Any = None) -> Any:
        del version
        return super().open(path, "v1", method, body)


@fault("slices-after-restart", "and were")
class NewNames(Publishing):
    class publisher(Publisher):  # noqa: N801
        first = True

        def publish(self, slices: list[Document]) -> None:
            if self.first:
                self.first = False
                for item in slices:
                    self.delete(item)
                slices = []
            super().publish(slices)


@fault("slices-after-restart", "the slices have other contents")
class PublishesItsStart(RightDriver):
    starts = 0

    def start(self, instance: str = "") -> None:
        self.starts += 1
        super().start(instance)

    def pieces(self) -> list[Document]:
        pieces = super().pieces()
        pieces[0]["devices"][0]["attributes"]["start"] = {"int": self.starts}
        return pieces


@fault("slices-after-restart", "1 slice changed, but not in content")
class OrdersByItsStart(PublishesItsStart):
    def pieces(self) -> list[Document]:
        pieces = RightDriver.pieces(self)
        pieces[0]["devices"].sort(key=lambda device: device["name"], reverse=self.starts % 2 == 0)
        return pieces
