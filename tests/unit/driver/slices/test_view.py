import msgspec

from dranode.api.resource import ObjectMeta, ResourcePool, ResourceSlice, ResourceSliceSpec
from dranode.driver.slices.view import SliceView


def published(name: str, version: int, uid: str = "", generation: int = 1) -> ResourceSlice:
    return ResourceSlice(
        metadata=ObjectMeta(name=name, uid=uid or f"uid-{name}", resource_version=str(version)),
        spec=ResourceSliceSpec(driver="d", pool=ResourcePool(name="p", generation=generation)),
    )


def test_a_write_of_ours_counts_before_the_watch_shows_it() -> None:
    view = SliceView()
    view.listed([], "10", 0)
    view.wrote(published("a", 12))
    assert set(view.slices) == {"a"}
    assert not view.changed(published("a", 12))


def test_a_watch_that_lags_does_not_bring_an_old_slice_back() -> None:
    view = SliceView()
    view.listed([published("a", 9)], "10", 0)
    view.wrote(published("a", 12, generation=2))
    assert not view.changed(published("a", 11))
    assert view.slices["a"].spec.pool.generation == 2
    assert view.changed(published("a", 13, generation=3))


def test_a_list_older_than_a_write_does_not_undo_it() -> None:
    view = SliceView()
    view.listed([], "10", 0)
    view.wrote(published("a", 12))
    view.listed([], "11", 0)
    assert set(view.slices) == {"a"}
    view.listed([], "13", 0)
    assert not view.slices


def test_a_list_older_than_its_request_shows_a_restored_server() -> None:
    view = SliceView()
    view.listed([published("kept", 9)], "10", 0)
    view.wrote(published("kept", 12, generation=2))
    view.wrote(published("made", 13))
    view.deleted("made")
    assert view.listed([published("kept", 9), published("made", 8)], "9", view.newest)
    assert {name: one.spec.pool.generation for name, one in view.slices.items()} == {"kept": 1, "made": 1}
    assert view.changed(published("kept", 10, generation=3))


def test_a_deleted_slice_stays_deleted_until_the_server_confirms_it() -> None:
    view = SliceView()
    view.listed([published("a", 9)], "10", 0)
    view.deleted("a")
    assert not view.changed(published("a", 9))
    view.listed([published("a", 9)], "9", 0)
    assert not view.slices
    assert not view.gone(published("a", 11))
    view.listed([published("a", 20, uid="another")], "21", 0)
    assert set(view.slices) == {"a"}


def test_a_deletion_by_somebody_else_is_reported_once() -> None:
    view = SliceView()
    view.listed([published("a", 9)], "10", 0)
    assert view.gone(published("a", 11))
    assert not view.gone(published("a", 11))
    assert not view.slices


def test_resource_versions_that_are_not_numbers_do_not_hide_changes() -> None:
    view = SliceView()
    odd = published("a", 1)
    odd = msgspec.structs.replace(odd, metadata=msgspec.structs.replace(odd.metadata, resource_version="x"))
    view.listed([odd], "y", 0)
    assert view.changed(odd)
