"""The DRA service (KEP-4381): what kubelet asks for a pod's claims, in v1 and v1beta1, from one implementation.

Every claim of a call gets an answer in the map, a failed one its reason; the call as a whole does not fail.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar, assert_never

from dranode.driver.core.api.errors import in_words
from dranode.driver.core.claims.answers import Answer, Conflict, Prepared, Refused
from dranode.driver.core.claims.calls import Awaited, Claims, Preparer, always
from dranode.driver.core.claims.held import ClaimRef
from dranode.driver.kubelet.dra_messages import by_claim, prepare_answer, prepare_failure, read_claims, unprepare_answer
from dranode.driver.kubelet.methods import Method, Unary
from dranode.driver.process.answering import once_answered
from dranode.driver.process.logs import operation

log = logging.getLogger(__name__)

# Those of `registration.DRA_VERSIONS`, and whether they have share ids.
_VERSIONS: Final = {"v1": True, "v1beta1": False}
# Well within kubelet's 45 s.
_READY_SECONDS: Final = 30.0

T = TypeVar("T")

# Called for every claim that was answered for: "prepare" or "unprepare", whether it succeeded, the seconds of its call.
Observe = Callable[[str, bool, float], None]


class DRAService:
    """The DRA service of one driver.

    Attributes:
        methods: the gRPC methods of every version.
        ready: set when calls are answered.
        observe: what counts them.
    """

    def __init__(self, driver: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Serve `driver`; calls wait until `answer_with` names the service that answers, or until `stop`."""
        self._driver = driver
        self._clock = clock
        self._answerers: tuple[Claims, Preparer] | None = None
        self.ready = threading.Event()
        self._settled = threading.Event()
        # How many calls have come and not been answered yet.
        self._unanswered = 0
        self._all_answered = threading.Condition()
        self.methods: dict[str, Method] = {}
        for version, shares in _VERSIONS.items():
            path = f"/k8s.io.kubelet.pkg.apis.dra.{version}.DRAPlugin"
            self.methods[f"{path}/NodePrepareResources"] = self._prepare(shares=shares)
            self.methods[f"{path}/NodeUnprepareResources"] = self._unprepare()
        self.observe: Observe = lambda _call, _succeeded, _seconds: None

    def _prepare(self, *, shares: bool) -> Unary:
        def prepare(refs: tuple[ClaimRef, ...], awaited: Awaited) -> bytes:
            answers = self.prepare(refs, awaited)
            return by_claim({uid: _prepared(answer, shares=shares) for uid, answer in answers.items()})

        return Unary(read_claims, prepare, bytes)

    def _unprepare(self) -> Unary:
        def unprepare(refs: tuple[ClaimRef, ...], awaited: Awaited) -> bytes:
            refusals = self.unprepare(refs, awaited)
            return by_claim(
                {uid: unprepare_answer("" if refusal is None else refusal.reason) for uid, refusal in refusals.items()}
            )

        return Unary(read_claims, unprepare, bytes)

    def prepare(self, refs: tuple[ClaimRef, ...], awaited: Awaited = always) -> Mapping[str, Answer]:
        """Fetch and prepare claims (NodePrepareResources).

        Returns:
            An answer for each claim, by UID; where the driver is not ready within 30 s or fails, a refusal.
        """
        with operation():
            began = self._clock()
            answers: Mapping[str, Answer] = self._asked(
                refs, lambda claims, node: node.prepare(claims.get(refs), awaited)
            )
            for ref in refs:
                outcome = _outcome(answers[ref.uid])
                log.info("prepare driver=%s claim=%s uid=%s %s", self._driver, ref, ref.uid, outcome)
            self._answered("prepare", (isinstance(answer, Prepared) for answer in answers.values()), began)
        return answers

    def unprepare(self, refs: tuple[ClaimRef, ...], awaited: Awaited = always) -> Mapping[str, Refused | None]:
        """Unprepare claims (NodeUnprepareResources).

        Returns:
            For each claim, by UID, None or why it is not unprepared, as in `prepare`.
        """
        with operation():
            began = self._clock()
            answers: Mapping[str, Refused | None] = self._asked(refs, lambda _, node: node.unprepare(refs, awaited))
            for ref in refs:
                refusal = answers[ref.uid]
                outcome = "done" if refusal is None else f"error={refusal.reason}"
                log.info("unprepare driver=%s claim=%s uid=%s %s", self._driver, ref, ref.uid, outcome)
            self._answered("unprepare", (refusal is None for refusal in answers.values()), began)
        return answers

    def _asked(
        self, refs: tuple[ClaimRef, ...], ask: Callable[[Claims, Preparer], Mapping[str, T]]
    ) -> Mapping[str, T | Refused]:
        """Return the answer for every claim; if no service can answer, a refusal that says why."""
        with self._all_answered:
            self._unanswered += 1
        try:
            answerers = self._wait()
            if answerers is None:
                return _refused(
                    refs, f"{self._driver} has not read its hardware and ledger yet; kubelet will ask again"
                )
            return ask(*answerers)
        except Exception as error:
            log.exception("driver=%s claims=%s: no answer", self._driver, ", ".join(map(str, refs)))
            return _refused(refs, f"{self._driver} met an error inside it, which its log tells of: {in_words(error)}")
        finally:
            # What is left to do of it, the log line and the answer's way out, is not to be held up either.
            once_answered(self._answer_sent)

    def _answer_sent(self) -> None:
        with self._all_answered:
            self._unanswered -= 1
            self._all_answered.notify_all()

    def _answered(self, call: str, successes: Iterable[bool], began: float) -> None:
        seconds = self._clock() - began
        log.debug("%s driver=%s seconds=%.6f", call, self._driver, seconds)
        for succeeded in successes:
            self.observe(call, succeeded, seconds)

    def answer_with(self, claims: Claims, node: Preparer) -> None:
        """Answer calls from now on with claims from `claims`, prepared by `node`."""
        self._answerers = claims, node
        self.ready.set()
        self._settled.set()

    def give_way(self, seconds: float) -> None:
        """Wait until all calls that came are answered, for `seconds` at most: loading modules takes time from them."""
        with self._all_answered:
            self._all_answered.wait_for(lambda: not self._unanswered, seconds)

    def stop(self) -> None:
        """Refuse calls that wait for `answer_with`; once it has been called, calls are answered as before."""
        self._settled.set()

    def _wait(self) -> tuple[Claims, Preparer] | None:
        # The sockets listen before hardware and ledger are read, so a first call may have to wait a moment.
        self._settled.wait(_READY_SECONDS)
        return self._answerers


def _refused(refs: Iterable[ClaimRef], reason: str) -> dict[str, Refused]:
    return dict.fromkeys((ref.uid for ref in refs), Refused(reason))


def _outcome(answer: Answer) -> str:
    match answer:
        case Prepared(devices):
            return f"devices={len(devices)}"
        case Refused(reason) | Conflict(reason):
            return f"error={reason}"
        case _:
            assert_never(answer)


def _prepared(answer: Answer, *, shares: bool) -> bytes:
    match answer:
        case Prepared(devices):
            return prepare_answer(devices, shares=shares)
        case Refused(reason) | Conflict(reason):
            return prepare_failure(reason)
        case _:
            assert_never(answer)
