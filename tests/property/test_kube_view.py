"""The view of published slices, under every order in which answers, watch events and lists can arrive."""

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from dranode.api.resource import ObjectMeta, ResourcePool, ResourceSlice, ResourceSliceSpec
from dranode.driver.slices.view import SliceView


class World:
    """A server, a driver that sees it through a view, and the messages between them."""

    def __init__(self) -> None:
        self.version = 10
        self.slices: dict[str, ResourceSlice] = {}
        self.history: list[tuple[str, ResourceSlice]] = []
        self.view = SliceView()
        self.view.listed([], str(self.version), 0)
        self._told = 0
        self._answer: ResourceSlice | None = None
        self._listed: tuple[list[ResourceSlice], str, int] = ([], str(self.version), 0)

    # --- what happens at the server ---

    def _write(self, name: str) -> ResourceSlice:
        self.version += 1
        old = self.slices.get(name)
        uid = old.metadata.uid if old else f"uid-{self.version}"
        spec = ResourceSliceSpec(driver="d", pool=ResourcePool(name="p", generation=self.version))
        metadata = ObjectMeta(name=name, uid=uid, resource_version=str(self.version))
        self.slices[name] = ResourceSlice(metadata=metadata, spec=spec)
        self.history.append(("MODIFIED" if old else "ADDED", self.slices[name]))
        return self.slices[name]

    def others_write(self, name: str) -> None:
        self._write(name)

    def others_delete(self, name: str) -> None:
        if name in self.slices:
            self.version += 1
            old = self.slices.pop(name)
            metadata = msgspec.structs.replace(old.metadata, resource_version=str(self.version))
            self.history.append(("DELETED", msgspec.structs.replace(old, metadata=metadata)))

    # --- what the driver does; it has one request under way at a time ---

    def own_write(self, name: str) -> None:
        self.answer()
        self._answer = self._write(name)

    def own_delete(self, name: str) -> None:
        self.answer()
        # A precondition: only the version that was seen last is deleted.
        if name in self.slices and self.view.slices.get(name) == self.slices[name]:
            self.others_delete(name)
            self.view.deleted(name)

    def list(self, name: str = "") -> None:
        del name
        self._listed = list(self.slices.values()), str(self.version), self.view.newest

    # --- what arrives ---

    def answer(self, name: str = "") -> None:
        del name
        if self._answer is not None:
            self.view.wrote(self._answer)
            self._answer = None

    def event(self, name: str = "") -> None:
        del name
        for kind, one in self.history[self._told : self._told + 1]:
            (self.view.gone if kind == "DELETED" else self.view.changed)(one)
            self._told += 1

    def late_list(self, name: str = "") -> None:
        del name
        self.view.listed(*self._listed)


ACTIONS = ("others_write", "others_delete", "own_write", "own_delete", "list", "answer", "event", "late_list")
SCRIPTS = st.lists(st.tuples(st.sampled_from(ACTIONS), st.sampled_from("ab")), max_size=30)


@given(SCRIPTS)
@example([("own_write", "a"), ("others_delete", "a"), ("event", "a"), ("event", "a"), ("answer", "a")])
@example([("own_write", "a"), ("list", "a"), ("own_delete", "a"), ("late_list", "a")])
def test_the_view_equals_the_servers_state_once_everything_has_arrived(script: list[tuple[str, str]]) -> None:
    world = World()
    for action, name in script:
        getattr(world, action)(name)
    world.answer()
    while world._told < len(world.history):
        world.event()
    assert dict(world.view.slices) == world.slices
