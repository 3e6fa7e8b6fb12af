"""Fetching claims from an API server."""

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dranode.api.errors import ClaimError, DranodeError
from dranode.api.resource import ResourceClaim
from dranode.driver.claims.held import ClaimRef
from dranode.driver.kube.claims import KubeClaims
from dranode.driver.kube.client import Client, Timing
from dranode.driver.kube.connection import Connection
from dranode.driver.kube.http1 import Outgoing
from dranode.driver.kube.server import Credentials
from tests.fakes.apiserver import ApiServer, Fault, api_server
from tests.fakes.drivers import allocated_claim, plain, reference
from tests.fakes.waiting import PATIENCE


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with api_server() as server:
        yield server


@pytest.fixture
def claims(api: ApiServer, tmp_path: Path) -> Iterator[KubeClaims]:
    source = Credentials(api.kubeconfig(tmp_path / "kubeconfig"))
    client = Client(Connection(source, retries=True), timing=Timing(dice=lambda: 0.0), retries=True)
    made = KubeClaims(client)
    yield made
    made.close()


def put(api: ApiServer, name: str) -> ClaimRef:
    claim = allocated_claim(name, "d.example.com", ["d0"])
    api.put("resourceclaims", plain(claim))
    return reference(claim)


class Meeting(Fault):
    """A barrier: no answer is sent before this many requests have arrived, so sequential requests would hang."""

    def __init__(self, everybody: int) -> None:
        super().__init__()
        self.met: list[int] = []
        self._barrier = threading.Barrier(everybody, timeout=PATIENCE)

    def takes(self, method: str, path: str) -> bool:
        del method, path
        return True

    @property
    def seconds(self) -> float:
        self.met.append(self._barrier.wait())
        return 0.0

    @seconds.setter
    def seconds(self, seconds: float) -> None:
        """Only the barrier takes time."""


def connect(api: ApiServer, claims: KubeClaims, refs: tuple[ClaimRef, ...]) -> None:
    """Leave an open connection for each of these claims."""
    claims.get(refs[:1])
    api.faults.append(meeting := Meeting(len(refs)))
    claims.get(refs)
    api.faults.remove(meeting)


@pytest.mark.parametrize("kept", [0, 2, 4])
def test_every_claim_has_its_own_answer(api: ApiServer, claims: KubeClaims, kept: int) -> None:
    good, denied, broken, another = (put(api, name) for name in ("good", "denied", "broken", "another"))
    if kept:
        connect(api, claims, (good, denied, broken, another)[:kept])
    gone = ClaimRef("default", "gone", "uid-gone")
    api.faults += [
        Fault(
            path="/denied",
            status=403,
            body='{"kind":"Status","message":"User u cannot get resource resourceclaims"}',
            times=2,
        ),
        Fault(
            path="/broken", times=2, status=200, body='{"apiVersion":"resource.k8s.io/v1","status":{"allocation":7}}'
        ),
    ]
    answers = claims.get((good, denied, gone, broken))
    assert isinstance(answers[good], ResourceClaim)
    assert str(answers[denied]) == (
        "claim default/denied cannot be fetched: RBAC or an admission policy does not let this account "
        "get resourceclaims in namespace default: User u cannot get resource resourceclaims"
    )
    assert str(answers[gone]) == "claim default/gone no longer exists; recreate the pod if it should run"
    assert isinstance(answers[gone], ClaimError)
    assert "status.allocation" in str(answers[broken])
    assert all("\n" not in str(answer) for answer in answers.values() if isinstance(answer, DranodeError))


def test_the_claims_of_a_call_are_fetched_concurrently(api: ApiServer, claims: KubeClaims) -> None:
    refs = tuple(put(api, f"c{number}") for number in range(8))
    claims.get(refs[:1])
    api.faults.append(meeting := Meeting(8))
    answers = claims.get(refs)
    assert sorted(meeting.met) == list(range(8))
    assert {ref.name: claim.metadata.name for ref, claim in answers.items() if isinstance(claim, ResourceClaim)} == {
        f"c{number}": f"c{number}" for number in range(8)
    }


def test_claims_on_open_connections_need_no_threads(api: ApiServer, claims: KubeClaims) -> None:
    refs = tuple(put(api, f"c{number}") for number in range(8))
    connect(api, claims, refs)
    claims.close()
    api.faults.append(Meeting(8))
    assert [isinstance(claim, ResourceClaim) for claim in claims.get(refs).values()] == [True] * 8


@pytest.mark.parametrize(
    "fault",
    [
        {"drop": True},
        {"status": 503},
        {"status": 401},
        {"status": 200, "body": "{"},
        {"status": 200, "body": '{"apiVersion":"resource.k8s.io/v9","kind":"ResourceClaim"}'},
        {"release": threading.Event(), "drop": True},
    ],
    ids=["dropped", "unavailable", "unauthorized", "not JSON", "another version", "late"],
)
def test_a_claim_that_fails_in_the_joint_fetch_is_fetched_alone(
    api: ApiServer, claims: KubeClaims, fault: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    refs = tuple(put(api, name) for name in ("c0", "odd", "c2"))
    connect(api, claims, refs)
    monkeypatch.setattr("dranode.driver.kube.client._ANSWER_SECONDS", 0.2)
    asked = len(api.requests(path="/odd"))
    api.faults.append(Fault(path="/odd", **fault))
    assert all(isinstance(claim, ResourceClaim) for claim in claims.get(refs).values())
    if "release" in fault:
        fault["release"].set()
    assert len(api.requests(path="/odd")) >= asked + 1
    assert api.faults[-1].times == 0


@pytest.mark.parametrize("late", [False, True], ids=["as it is sent", "as it is read"])
def test_an_internal_error_in_the_joint_fetch_fails_no_claim(
    api: ApiServer, claims: KubeClaims, monkeypatch: pytest.MonkeyPatch, *, late: bool
) -> None:
    refs = tuple(put(api, f"c{number}") for number in range(3))
    connect(api, claims, refs)

    def failing() -> Any:
        raise RuntimeError("a bug")

    monkeypatch.setattr(claims._client, "begin", lambda _request: failing if late else failing())
    assert [isinstance(claim, ResourceClaim) for claim in claims.get(refs).values()] == [True] * 3


def test_a_claim_that_is_named_twice_is_fetched_once(api: ApiServer, claims: KubeClaims) -> None:
    refs = tuple(put(api, f"c{number}") for number in range(3))
    connect(api, claims, refs)
    asked = len(api.requests(path="/c0"))
    assert all(isinstance(answer, ResourceClaim) for answer in claims.get((*refs, refs[0])).values())
    assert len(api.requests(path="/c0")) == asked + 1


def test_more_claims_than_threads_are_all_answered(api: ApiServer, claims: KubeClaims) -> None:
    refs = tuple(put(api, f"c{number}") for number in range(20))
    assert all(isinstance(answer, ResourceClaim) for answer in claims.get((*refs, refs[0])).values())
    assert claims.get(()) == {}


def test_a_fetch_is_retried_within_the_call(api: ApiServer, claims: KubeClaims) -> None:
    ref = put(api, "a")
    api.faults += [Fault(path="/a", status=503), Fault(path="/a", drop=True), Fault(path="/a", status=429)]
    assert isinstance(claims.get((ref,))[ref], ResourceClaim)


def test_a_claim_with_another_uid_is_returned_for_prepare_to_decide(api: ApiServer, claims: KubeClaims) -> None:
    put(api, "a")
    other = ClaimRef("default", "a", "another-uid")
    answer = claims.get((other,))[other]
    assert isinstance(answer, ResourceClaim)
    assert answer.metadata.uid != other.uid


@pytest.mark.parametrize("body", ["", "{}", '{"apiVersion":"resource.k8s.io/v1","kind":"ResourceClaim"}'])
@pytest.mark.parametrize("kept", [0, 2])
def test_an_answer_without_a_uid_is_refused(api: ApiServer, claims: KubeClaims, body: str, kept: int) -> None:
    refs = (put(api, "bare"), put(api, "whole"))
    if kept:
        connect(api, claims, refs)
    api.faults.append(Fault(path="/bare", times=2, status=200, body=body))
    answers = claims.get(refs)
    assert isinstance(answers[refs[1]], ResourceClaim)
    refused = answers[refs[0]]
    assert isinstance(refused, DranodeError)
    missing = "claim default/bare in the API server's answer cannot be read: metadata.uid is missing"
    assert (missing if body else "claim default/bare cannot be fetched: the API server's answer is empty") in str(
        refused
    )


def test_an_unreadable_token_is_each_claims_error(api: ApiServer, tmp_path: Path) -> None:
    refs = (put(api, "a"), put(api, "b"))
    token = tmp_path / "token"
    client = Client(
        Connection(Credentials(api.kubeconfig(tmp_path / "kubeconfig", token_file=token)), retries=True),
        timing=Timing(dice=lambda: 0.0),
        retries=True,
    )
    claims = KubeClaims(client)
    threading.Timer(0.2, client.timing.stopped.set).start()
    answers = claims.get(refs)
    claims.close()
    assert [str(answers[ref]) for ref in refs] == [
        f"claim {ref} cannot be fetched: the token in {token} cannot be read: No such file or directory" for ref in refs
    ]


def test_an_internal_error_fails_only_its_claim(
    api: ApiServer, claims: KubeClaims, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, odd = put(api, "good"), put(api, "odd")
    client = claims._client
    resource = client.resource

    def failing(request: Any, **options: Any) -> Any:
        if request("", "").path.endswith("/odd"):
            raise RuntimeError("a bug")
        return resource(request, **options)

    monkeypatch.setattr(client, "resource", failing)
    answers = claims.get((odd, good))
    assert isinstance(answers[good], ResourceClaim)
    assert str(answers[odd]) == (
        "claim default/odd cannot be fetched: internal error, see the driver's log: RuntimeError('a bug')"
    )


def test_the_time_limit_is_for_the_call_and_not_for_each_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dranode.driver.kube.claims._AT_A_TIME", 1)
    refs = tuple(ClaimRef("default", f"c{number}", f"uid-{number}") for number in range(4))
    group = b'{"versions":[{"version":"v1"}]}'
    released, waited = threading.Event(), threading.Event()
    asked: list[str] = []

    class Hanging:
        """The caller's own claim arrives after 30 s; the first of the others never arrives during the call."""

        now = 0.0

        def send(self, outgoing: Outgoing) -> Any:
            if outgoing.path == "/apis/resource.k8s.io":
                return SimpleNamespace(status=200, headers={}, data=group)
            name = outgoing.path.rpartition("/")[2]
            asked.append(name)
            if name == "c3":
                self.now += 30.0
            else:
                waited.set()
                released.wait(PATIENCE)
            return SimpleNamespace(status=200, headers={}, data=b"{}")

    wire = Hanging()
    made = KubeClaims(Client(wire, timing=Timing(clock=lambda: wire.now, dice=lambda: 0.0), retries=True))
    try:
        answers = made.get(refs)
        assert waited.wait(PATIENCE)
        assert [str(answers[ref]) for ref in refs[:3]] == [
            f"claim default/{ref.name} cannot be fetched: the API server took more than 25 s for the claims of this "
            "call; kubelet will ask again"
            for ref in refs[:3]
        ]
    finally:
        released.set()
        made.close()
    assert sorted(asked) in (["c0", "c3"], ["c3"])


def test_a_missing_api_is_not_reported_as_a_deleted_claim(api: ApiServer, claims: KubeClaims) -> None:
    good = put(api, "good")
    api.faults += [Fault(path="/good", status=404, body="404 page not found", times=2)]
    (answer,) = claims.get((good,)).values()
    assert str(answer) == (
        "claim default/good cannot be fetched: the API server answered 404 Not Found to get resourceclaims in "
        "namespace default: 404 page not found"
    )
