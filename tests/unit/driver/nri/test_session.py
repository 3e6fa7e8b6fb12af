from typing import Any

import pytest

from dranode.api.cpuset import CPUSet
from dranode.driver.claims.users import PodSandbox
from dranode.driver.nri import ttrpc
from dranode.driver.nri.events import (
    Configured,
    ContainerRemoved,
    ContainerStarted,
    CreateRequest,
    NRIEvent,
    PluginAccepted,
    PodGone,
    RegistrationRefused,
    RuntimePeer,
    ShutdownAnnounced,
    StartRequest,
    SynchronizeRequest,
    UpdateRequest,
    UpdatesAnswered,
)
from dranode.driver.nri.session import EVENTS, Session
from dranode.driver.nri.ttrpc import PLUGIN_CONNECTION, RUNTIME_CONNECTION, ProtocolError
from dranode.driver.pinning.containers import ContainerUpdate, Resources
from dranode.proto import nri_v1alpha1_pb2 as nri
from tests.fakes.nri import Wire, container, go_frames, pod

POD, CONTAINER = pod("p1"), container("c1", "p1", ["A=1"])


class Pair:
    """A session and a runtime, connected without a socket."""

    def __init__(self) -> None:
        self.session, self.wire = Session("pin", "10"), Wire()

    def call(self, method: str, body: Any) -> tuple[list[NRIEvent], int]:
        stream, data = self.wire.call(method, body)
        events = self.session.receive_data(data)
        self.flush()
        return events, stream

    def flush(self) -> list[NRIEvent]:
        back = self.wire.receive_data(self.session.data_to_send())
        return self.session.receive_data(back)

    def answer_to(self, method: str, body: Any) -> ttrpc.Response:
        _, stream = self.call(method, body)
        return self.wire.answers[stream]


def cpus(text: str) -> Resources:
    return Resources(CPUSet.parse(text))


def test_configure_is_answered_before_the_runtime_has_answered_the_registration() -> None:
    pair = Pair()
    pair.session.register()
    registration = pair.session.data_to_send()
    events, stream = pair.call("Configure", nri.ConfigureRequest(runtime_name="containerd", request_timeout=3000))
    assert events == [Configured(RuntimePeer("containerd", request_timeout=3.0))]
    assert nri.ConfigureResponse.FromString(pair.wire.answers[stream].payload).events == EVENTS
    assert not pair.session.registered
    assert pair.session.receive_data(pair.wire.receive_data(registration)) == [PluginAccepted()]
    assert pair.session.registered


def test_the_subscribed_events_are_known_to_every_runtime_and_never_empty() -> None:
    assert EVENTS
    assert EVENTS & ~0x7FF == 0
    assert EVENTS & (1 << nri.CREATE_CONTAINER - 1)


def test_a_refused_registration_is_reported_with_the_reason_of_the_runtime() -> None:
    pair = Pair()
    pair.wire.register_error = "invalid plugin index"
    pair.session.register()
    assert pair.flush() == [RegistrationRefused("invalid plugin index")]
    assert not pair.session.registered


@pytest.mark.parametrize(
    ("name", "index"), [("", "10"), ("foo,bar", "10"), ("a", ""), ("a", "1"), ("a", "5a"), ("a", "100")]
)
def test_a_name_or_index_that_no_runtime_accepts_is_refused(name: str, index: str) -> None:
    with pytest.raises(ValueError, match="NRI plug-in"):
        Session(name, index)


@pytest.mark.parametrize(("name", "index"), [("abcd-0123+EFGH_4567.ijkl", "05"), ("dra.cpu", "00"), ("a", "99")])
def test_names_and_indexes_that_runtimes_accept_are_accepted(name: str, index: str) -> None:
    session = Session(name, index)
    session.register()
    assert name.encode() in session.data_to_send()


def test_a_split_synchronize_is_one_request_and_parts_are_answered_with_more() -> None:
    pair = Pair()
    early = container("c1", "p2", ["A=1"])
    events, stream = pair.call("Synchronize", nri.SynchronizeRequest(containers=[early], more=True))
    assert events == []
    assert nri.SynchronizeResponse.FromString(pair.wire.answers[stream].payload) == nri.SynchronizeResponse(more=True)
    pair.call("Synchronize", nri.SynchronizeRequest(pods=[pod("p1"), pod("p2")], more=True))
    last = nri.SynchronizeRequest(containers=[container("c2", "p1", state=nri.CONTAINER_RUNNING)])
    (event,), stream = pair.call("Synchronize", last)
    assert isinstance(event, SynchronizeRequest)
    assert [(one.id, one.pod.uid, one.started) for one in event.containers] == [("c1", "p2", False), ("c2", "p1", True)]
    assert stream not in pair.wire.answers
    pair.session.synchronize(event, [ContainerUpdate("c2", cpus("1"), ignore_failure=True)])
    assert pair.session.synchronized
    pair.flush()
    answer = nri.SynchronizeResponse.FromString(pair.wire.answers[stream].payload)
    assert not answer.more
    assert [(one.container_id, one.linux.resources.cpu.cpus, one.ignore_failure) for one in answer.update] == [
        ("c2", "1", True)
    ]


def test_a_second_synchronize_starts_from_nothing() -> None:
    pair = Pair()
    for _ in range(2):
        (event,), _ = pair.call("Synchronize", nri.SynchronizeRequest(pods=[POD], containers=[CONTAINER]))
        assert isinstance(event, SynchronizeRequest)
        assert len(event.containers) == 1
        pair.session.synchronize(event)


def test_a_container_whose_pod_is_not_described_keeps_the_sandbox_id() -> None:
    (event,), _ = Pair().call("Synchronize", nri.SynchronizeRequest(containers=[CONTAINER]))
    assert isinstance(event, SynchronizeRequest)
    assert event.containers[0].pod == PodSandbox("sandbox-p1")


ONE = nri.ContainerEvent(pod=POD, container=CONTAINER)
EVENT_STYLES = [
    (nri.STOP_POD_SANDBOX, "StopPodSandbox", nri.PodEvent(pod=POD), PodGone),
    (nri.REMOVE_POD_SANDBOX, "RemovePodSandbox", nri.PodEvent(pod=POD), PodGone),
    (
        nri.POST_START_CONTAINER,
        "PostStartContainer",
        nri.ContainerEvent(pod=POD, container=CONTAINER),
        ContainerStarted,
    ),
    (nri.REMOVE_CONTAINER, "RemoveContainer", ONE, ContainerRemoved),
]


@pytest.mark.parametrize(("number", "method", "body", "kind"), EVENT_STYLES)
def test_both_styles_of_an_event_are_equivalent_and_answered(
    number: nri.Event, method: str, body: Any, kind: type
) -> None:
    pair = Pair()
    state_change = nri.StateChangeEvent(event=number, pod=POD)
    if kind is not PodGone:
        state_change.container.CopyFrom(CONTAINER)
    old, first = pair.call("StateChange", state_change)
    new, second = pair.call(method, body)
    assert old == new
    assert type(new[0]) is kind
    assert pair.wire.answers[first] == pair.wire.answers[second] == ttrpc.Response()


@pytest.mark.parametrize(
    ("method", "body"),
    [
        ("StateChange", nri.StateChangeEvent(event=nri.START_CONTAINER, pod=POD, container=CONTAINER)),
        ("StartContainer", ONE),
    ],
)
def test_a_start_waits_for_its_answer_in_both_styles(method: str, body: Any) -> None:
    pair = Pair()
    for refuse in (False, True):
        (event,), stream = pair.call(method, body)
        assert isinstance(event, StartRequest)
        assert event.container.id == CONTAINER.id
        assert stream not in pair.wire.answers
        if refuse:
            pair.session.refuse(event, "not yet")
        else:
            pair.session.start(event)
        pair.flush()
        assert pair.wire.answers[stream] == (ttrpc.Response(code=2, message="not yet") if refuse else ttrpc.Response())


@pytest.mark.parametrize("method", ["RunPodSandbox", "UpdatePodSandbox", "PostUpdatePodSandbox", "PostCreateContainer"])
def test_events_that_do_not_matter_are_answered_too(method: str) -> None:
    assert Pair().answer_to(method, nri.PodEvent(pod=POD)) == ttrpc.Response()


def test_an_unknown_event_number_is_answered_too() -> None:
    data = nri.StateChangeEvent(pod=POD).SerializeToString() + b"\x08\x63"
    assert Pair().answer_to("StateChange", nri.StateChangeEvent.FromString(data)) == ttrpc.Response()


def test_shutdown_is_answered_and_notified() -> None:
    pair = Pair()
    events, stream = pair.call("Shutdown", nri.Empty())
    assert events == [ShutdownAnnounced()]
    assert pair.wire.answers[stream] == ttrpc.Response()


def test_an_unknown_method_is_unimplemented() -> None:
    answer = Pair().answer_to("ValidateContainerAdjustment", nri.Empty())
    assert (answer.code, answer.message) == (12, "method ValidateContainerAdjustment")


def test_an_unknown_service_is_unimplemented() -> None:
    session, wire = Session("pin", "10"), Wire()
    call = ttrpc.Call("nri.pkg.api.v1beta1.Plugin", "Configure", b"")
    session.receive_data(go_frames(PLUGIN_CONNECTION, ttrpc.request(1, call)))
    wire.receive_data(session.data_to_send())
    assert (wire.answers[1].code, wire.answers[1].message) == (12, "service nri.pkg.api.v1beta1.Plugin")


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\xff\xff\xff", "the request does not decode"),
        (
            ttrpc.request(1, ttrpc.Call("nri.pkg.api.v1alpha1.Plugin", "CreateContainer", b"\x0a\xff")).data,
            "the payload of CreateContainer does not decode",
        ),
    ],
)
def test_a_call_that_cannot_be_decoded_is_an_invalid_argument(data: bytes, text: str) -> None:
    session, wire = Session("pin", "10"), Wire()
    message = ttrpc.Message(1, ttrpc.MessageType.REQUEST, 0, data)
    assert session.receive_data(go_frames(PLUGIN_CONNECTION, message)) == []
    wire.receive_data(session.data_to_send())
    assert (wire.answers[1].code, wire.answers[1].message) == (3, text)


@pytest.mark.parametrize("stream", [2, 1])
def test_an_even_or_repeated_stream_id_is_answered_with_status_3(stream: int) -> None:
    pair = Pair()
    pair.call("Shutdown", nri.Empty())
    call = ttrpc.Call("nri.pkg.api.v1alpha1.Plugin", "Shutdown", b"")
    assert pair.session.receive_data(go_frames(PLUGIN_CONNECTION, ttrpc.request(stream, call))) == []
    pair.wire.receive_data(pair.session.data_to_send())
    assert pair.wire.answers[stream].code == 3


def test_an_adjustment_has_cpus_memory_nodes_and_a_lifted_quota() -> None:
    pair = Pair()
    (event,), stream = pair.call("CreateContainer", nri.CreateContainerRequest(pod=POD, container=CONTAINER))
    assert isinstance(event, CreateRequest)
    assert event.container.env == ("A=1",)
    pair.session.adjust(event, Resources(CPUSet.parse("2-3"), CPUSet((0, 1)), lift_quota=True))
    pair.flush()
    cpu = nri.CreateContainerResponse.FromString(pair.wire.answers[stream].payload).adjust.linux.resources.cpu
    assert (cpu.cpus, cpu.mems, cpu.quota.value) == ("2-3", "0-1", -1)
    assert not cpu.HasField("shares")


def test_an_empty_adjustment_is_left_out() -> None:
    pair = Pair()
    (event,), stream = pair.call("CreateContainer", nri.CreateContainerRequest(pod=POD, container=CONTAINER))
    assert isinstance(event, CreateRequest)
    pair.session.adjust(event, Resources())
    pair.flush()
    assert pair.wire.answers[stream].payload == b""


def test_a_request_can_be_answered_only_once() -> None:
    pair = Pair()
    (event,), _ = pair.call("CreateContainer", nri.CreateContainerRequest(pod=POD, container=CONTAINER))
    assert isinstance(event, CreateRequest)
    pair.session.refuse(event, "no")
    with pytest.raises(KeyError):
        pair.session.adjust(event, cpus("1"))


def test_requested_cpusets_and_quota_are_read_and_invalid_ones_are_ignored() -> None:
    pair = Pair()
    body = nri.UpdateContainerRequest(pod=POD, container=CONTAINER)
    # The nodes are the same in whatever form a list is written.
    body.linux_resources.cpu.cpus, body.linux_resources.cpu.mems = "0-3", "1,0"
    body.linux_resources.cpu.quota.value = 50_000
    (event,), _ = pair.call("UpdateContainer", body)
    assert isinstance(event, UpdateRequest)
    assert event.requested == Resources(CPUSet.parse("0-3"), CPUSet((0, 1)))
    assert event.quota == 50_000
    body.linux_resources.cpu.cpus = body.linux_resources.cpu.mems = "3-0"
    (event,), _ = pair.call("UpdateContainer", body)
    assert isinstance(event, UpdateRequest)
    assert event.requested == Resources()


def test_an_answer_of_more_than_4_mib_becomes_an_error() -> None:
    pair = Pair()
    (event,), stream = pair.call("Synchronize", nri.SynchronizeRequest())
    assert isinstance(event, SynchronizeRequest)
    pair.session.synchronize(event, [ContainerUpdate("c" * 64, cpus("0-3"))] * 60_000)
    pair.flush()
    assert pair.wire.answers[stream].code == 8
    assert "ttrpc's limit is 4194304" in pair.wire.answers[stream].message


def test_unsolicited_updates_go_one_at_a_time() -> None:
    pair = Pair()
    pair.session.update_containers([ContainerUpdate("x", cpus("0-1"))])
    with pytest.raises(ValueError, match="still waiting"):
        pair.session.update_containers([])
    assert pair.flush() == [UpdatesAnswered()]
    pair.wire.update_error = "NRI update of some containers failed"
    pair.session.update_containers([ContainerUpdate("x", cpus("0-1"))])
    assert pair.flush() == [UpdatesAnswered("NRI update of some containers failed")]


def test_answers_to_unknown_calls_are_ignored() -> None:
    session = Session("pin", "10")
    session.register()
    assert session.receive_data(go_frames(RUNTIME_CONNECTION, ttrpc.response(99, ttrpc.Response()))) == []
    assert session.receive_data(go_frames(RUNTIME_CONNECTION, ttrpc.response(1, ttrpc.Response()))) == [
        PluginAccepted()
    ]
    assert session.receive_data(go_frames(RUNTIME_CONNECTION, ttrpc.response(1, ttrpc.Response()))) == []


def test_answers_may_come_in_another_order() -> None:
    session = Session("pin", "10")
    session.register()
    session.update_containers([])
    late = go_frames(RUNTIME_CONNECTION, ttrpc.response(1, ttrpc.Response()))
    early = go_frames(RUNTIME_CONNECTION, ttrpc.response(3, ttrpc.Response()))
    assert session.receive_data(early + late) == [UpdatesAnswered(), PluginAccepted()]


@pytest.mark.parametrize("kind", [0, 2, 3, 4, 255])
def test_messages_of_another_type_on_the_plugin_service_are_ignored(kind: int) -> None:
    session = Session("pin", "10")
    assert session.receive_data(go_frames(PLUGIN_CONNECTION, ttrpc.Message(1, kind, 0, b"x"))) == []
    assert session.data_to_send() == b""


def test_streamed_data_instead_of_an_answer_is_a_protocol_error() -> None:
    session = Session("pin", "10")
    session.register()
    with pytest.raises(ProtocolError, match="where one answer is due"):
        session.receive_data(go_frames(RUNTIME_CONNECTION, ttrpc.Message(1, ttrpc.MessageType.DATA, 0, b"x")))


@pytest.mark.parametrize(
    ("version", "safe"),
    [
        ("v0.12.1", True),
        ("0.12.2", True),
        ("v0.13.0", True),
        ("v1.0", True),
        ("v0.12.1-31-g8ec8b28", True),
        ("v0.12.0", False),
        ("v0.12.0-37-g41b9c58", False),
        ("v0.12.1-rc.1", False),
        ("v0.11.0", False),
        ("", False),
        ("(devel)", False),
        ("v99", False),
        ("garbage", False),
    ],
)
def test_unsolicited_updates_are_safe_from_nri_0_12_1(version: str, safe: bool) -> None:  # noqa: FBT001 - a table
    assert RuntimePeer("containerd", "v2.3.4", version).takes_unsolicited_updates is safe
