"""The DRA service (KEP-4381): what kubelet asks for a pod's claims, in v1 and v1beta1, from one implementation.

Every claim of a call gets an answer in the map, a failed one its reason; the call as a whole does not fail.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any, Final, assert_never

import grpc

from dranode.api.errors import in_words
from dranode.driver.claims.answers import Answer, Conflict, Prepared, Refused
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.prepare import Awaited, Claims, Preparer, Reporter, always
from dranode.driver.claims.record import PreparedDevice
from dranode.driver.process.logs import operation
from dranode.proto import dra_v1_pb2, dra_v1_pb2_grpc, dra_v1beta1_pb2, dra_v1beta1_pb2_grpc

log = logging.getLogger(__name__)

# How long a call waits until hardware and ledger have been read, in seconds. kubelet gives a call up after 45 s
# (defaultClientCallTimeout in pkg/kubelet/cm/dra/plugin), and an answer before that has a reason for the pod's Event.
_READY_SECONDS: Final = 30.0

# Called for every claim that was answered for: "prepare" or "unprepare", whether it succeeded, the seconds of its call.
Observe = Callable[[str, bool, float], None]


class DRAService:
    """The DRA service of one driver.

    Attributes:
        ready: set when calls are answered.
        observe: counts the answers.
    """

    def __init__(self, driver: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Serve `driver`; calls wait until `answer_with` or `stop` is called."""
        self._driver = driver
        self._clock = clock
        self._claims: Claims | None = None
        self._node: Preparer | None = None
        self._reporter: Reporter | None = None
        self.ready = threading.Event()
        self._settled = threading.Event()
        self.observe: Observe = lambda _call, _succeeded, _seconds: None

    def add_to(self, server: grpc.Server) -> None:
        """Have a server answer the calls of every version in `listener.DRA_VERSIONS`."""
        dra_v1_pb2_grpc.add_DRAPluginServicer_to_server(_Version(self, dra_v1_pb2), server)
        dra_v1beta1_pb2_grpc.add_DRAPluginServicer_to_server(_Version(self, dra_v1beta1_pb2), server)

    def answer_with(self, claims: Claims, node: Preparer, reporter: Reporter | None = None) -> None:
        """Answer calls from now on with claims from `claims`, prepared by `node`, and report the answers."""
        self._claims, self._node, self._reporter = claims, node, reporter
        self.ready.set()
        self._settled.set()

    def stop(self) -> None:
        """Refuse calls that wait for `answer_with`; once it has been called, calls are answered as before."""
        self._settled.set()

    def prepare(self, refs: tuple[ClaimRef, ...], awaited: Awaited = always) -> Mapping[str, Answer]:
        """Fetch and prepare claims (NodePrepareResources).

        Returns:
            An answer for each claim, by UID; where the driver is not ready within 30 s or fails, a refusal.
        """
        with operation():
            began = self._clock()
            # The sockets listen before hardware and ledger are read, so a first call may have to wait a moment.
            self._settled.wait(_READY_SECONDS)
            answers: Mapping[str, Answer]
            try:
                if self._claims is None or self._node is None:
                    answers = self._not_ready(refs)
                else:
                    # Before the node takes its lock, because the API server may take long to answer.
                    claims = self._claims.get(refs)
                    answers = self._node.prepare(claims, awaited)
                    # Returns at once: kubelet does not wait until `status.devices` and Events are written.
                    if self._reporter is not None:
                        self._reporter.prepared(claims, answers)
            except Exception as error:
                # If the call failed as a whole, kubelet would get an answer for none of its claims.
                log.exception("driver=%s claims=%s: no answer", self._driver, ", ".join(map(str, refs)))
                answers = self._failed(refs, error)
            self._count("prepare", refs, answers, self._clock() - began)
        return answers

    def unprepare(self, refs: tuple[ClaimRef, ...], awaited: Awaited = always) -> Mapping[str, Refused | None]:
        """Unprepare claims (NodeUnprepareResources).

        Returns:
            For each claim, by UID, None or why it is not unprepared, as in `prepare`.
        """
        with operation():
            began = self._clock()
            self._settled.wait(_READY_SECONDS)
            answers: Mapping[str, Refused | None]
            try:
                if self._node is None:
                    answers = self._not_ready(refs)
                else:
                    # Without asking the API server: kubelet may unprepare a claim that was deleted.
                    answers = self._node.unprepare(refs, awaited)
                    if self._reporter is not None:
                        self._reporter.unprepared({ref: answers[ref.uid] for ref in refs})
            except Exception as error:
                log.exception("driver=%s claims=%s: no answer", self._driver, ", ".join(map(str, refs)))
                answers = self._failed(refs, error)
            self._count("unprepare", refs, answers, self._clock() - began)
        return answers

    def _count(
        self, call: str, refs: tuple[ClaimRef, ...], answers: Mapping[str, Answer | None], seconds: float
    ) -> None:
        """Log and count the answers to a call, which took so many seconds."""
        for ref in refs:
            answer = answers[ref.uid]
            level = logging.WARNING if isinstance(answer, Refused | Conflict) else logging.INFO
            log.log(level, "%s driver=%s claim=%s uid=%s %s", call, self._driver, ref, ref.uid, _outcome(answer))
        for answer in answers.values():
            self.observe(call, not isinstance(answer, Refused | Conflict), seconds)

    def _not_ready(self, refs: tuple[ClaimRef, ...]) -> dict[str, Refused]:
        reason = f"{self._driver} has not read its hardware and ledger yet; kubelet will ask again"
        return {ref.uid: Refused(reason) for ref in refs}

    def _failed(self, refs: tuple[ClaimRef, ...], error: Exception) -> dict[str, Refused]:
        reason = f"internal error in {self._driver}; see the driver's log: {in_words(error)}"
        return {ref.uid: Refused(reason) for ref in refs}


def _outcome(answer: Answer | None) -> str:
    match answer:
        case None:
            return "done"
        case Prepared(devices):
            return f"devices={len(devices)}"
        case Refused(reason) | Conflict(reason):
            return f"error={reason}"
        case _:
            assert_never(answer)


class _Version:
    """The methods of the DRA service in one version of the API."""

    def __init__(self, service: DRAService, api: ModuleType) -> None:
        """Answer from `service` with the messages of `api`."""
        self._service = service
        self._api = api
        # Devices in v1beta1 have no field for it.
        self._has_shares = "share_id" in api.Device.DESCRIPTOR.fields_by_name

    def NodePrepareResources(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802 - the contract's name
        """Fetch and prepare claims."""
        with _awaited(context, "NodePrepareResources"):
            answers = self._service.prepare(_refs(request), context.is_active)
            return self._api.NodePrepareResourcesResponse(
                claims={uid: self._prepared(answer) for uid, answer in answers.items()}
            )

    def NodeUnprepareResources(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802 - the contract's name
        """Unprepare claims."""
        with _awaited(context, "NodeUnprepareResources"):
            refusals = self._service.unprepare(_refs(request), context.is_active)
            return self._api.NodeUnprepareResourcesResponse(
                claims={
                    uid: self._api.NodeUnprepareResourceResponse(error="" if refusal is None else refusal.reason)
                    for uid, refusal in refusals.items()
                }
            )

    def _prepared(self, answer: Answer) -> Any:
        match answer:
            case Prepared(devices):
                return self._api.NodePrepareResourceResponse(devices=map(self._device, devices))
            # The wait for a conflict is over by now, so it is a refusal like any other to kubelet.
            case Refused(reason) | Conflict(reason):
                return self._api.NodePrepareResourceResponse(error=reason)
            case _:
                assert_never(answer)

    def _device(self, device: PreparedDevice) -> Any:
        share = {"share_id": device.share_id} if self._has_shares else {}
        return self._api.Device(
            request_names=[device.request],
            pool_name=device.pool,
            device_name=device.device,
            cdi_device_ids=device.cdi,
            **share,
        )


@contextlib.contextmanager
def _awaited(context: grpc.ServicerContext, method: str) -> Iterator[None]:
    """Run a call only if its caller still waits: gRPC also starts calls that were given up while they were queued."""
    if not context.is_active():
        context.abort(grpc.StatusCode.CANCELLED, "the caller gave up before the call began")
    try:
        yield
    except Exception as error:  # such as text that no message can carry
        log.exception("method=%s: no answer", method)
        context.abort(grpc.StatusCode.INTERNAL, f"internal error; see the driver's log: {in_words(error)}")


def _refs(request: Any) -> tuple[ClaimRef, ...]:
    return tuple(ClaimRef(namespace=claim.namespace, name=claim.name, uid=claim.uid) for claim in request.claims)
