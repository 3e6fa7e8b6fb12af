"""Fetches the claims of a call from the API server at the same time; each claim has its own error if that fails."""

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from http import HTTPStatus
from typing import Any, Final

from dranode.api.documents import decode
from dranode.api.errors import ClaimError, ClaimGoneError, DocumentError, DranodeError, in_words
from dranode.api.resource import ResourceClaim
from dranode.driver.claims.held import ClaimRef
from dranode.driver.kube.client import TOTAL_SECONDS, APIRequest, Client
from dranode.driver.kube.errors import NO_UID, ApiError

log = logging.getLogger(__name__)

# A pod seldom has more claims; the others wait for a thread.
_AT_A_TIME: Final = 8
# For all claims of a call, in seconds: kubelet gives up after 45 s, and the decision takes time as well.
_PATIENCE: Final = TOTAL_SECONDS + 5


class KubeClaims:
    """The cluster's claims."""

    def __init__(self, client: Client) -> None:
        """Fetch through `client`."""
        self._client = client
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._closed = False

    def close(self) -> None:
        """Fetch nothing more."""
        with self._lock:
            self._closed = True
            pool = self._pool
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)

    def get(self, refs: tuple[ClaimRef, ...]) -> Mapping[ClaimRef, ResourceClaim | DranodeError]:
        """Return each claim as it is now, or the error of fetching it."""
        ends = self._client.timing.clock() + _PATIENCE
        asked = tuple(dict.fromkeys(refs))
        # A single claim is fetched directly: there is nothing else to do while waiting for it.
        answers = {ref: self._sent(ref) for ref in asked} if len(asked) > 1 else {}
        # Claims for which no connection was open are fetched by other threads, and the last one by this thread.
        unsent = [ref for ref in asked if answers.get(ref) is None]
        others = {ref: self._begin(ref) for ref in unsent[:-1]}
        claims = {ref: self._get(ref) for ref in unsent[-1:]}
        for ref, answer in answers.items():
            if answer is not None:
                claim = self._answered(ref, answer)
                if claim is None:
                    others[ref] = self._begin(ref)
                else:
                    claims[ref] = claim
        return claims | {ref: self._result(ref, future, ends) for ref, future in others.items()}

    def _sent(self, ref: ClaimRef) -> Callable[[], Any] | None:
        try:
            return self._client.begin(_request(ref))
        except Exception:
            log.exception("claim=%s uid=%s: not fetched with the others of its call", ref, ref.uid)
            return None

    def _answered(self, ref: ClaimRef, answer: Callable[[], Any]) -> ResourceClaim | None:
        """Return the claim in an answer; None if it has to be fetched again, which reports errors."""
        try:
            document = answer()
            return None if document is None else _claim(document)
        except DocumentError:
            return None
        except Exception:
            log.exception("claim=%s uid=%s: not fetched with the others of its call", ref, ref.uid)
            return None

    def _begin(self, ref: ClaimRef) -> Future[ResourceClaim | DranodeError]:
        """Fetch a claim in another thread."""
        with self._lock:
            if self._closed:
                raise DranodeError(f"claim {ref} is not fetched, because the driver is stopping")
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="kube-claims")
            return self._pool.submit(copy_context().run, self._get, ref)

    def _result(
        self, ref: ClaimRef, future: Future[ResourceClaim | DranodeError], ends: float
    ) -> ResourceClaim | DranodeError:
        try:
            return future.result(max(0.0, ends - self._client.timing.clock()))
        except TimeoutError:
            # Do not fetch a claim that still waits for a thread: nobody needs it now, and kubelet will ask again.
            future.cancel()
            return DranodeError(
                f"claim {ref} cannot be fetched: the API server took more than {_PATIENCE:.0f} s for the claims of "
                "this call; kubelet will ask again"
            )

    def _get(self, ref: ClaimRef) -> ResourceClaim | DranodeError:
        try:
            return _claim(self._client.resource(_request(ref)))
        except ApiError as error:
            # Any other 404 says nothing about the claim, so it is not a reason to release it.
            if error.status == HTTPStatus.NOT_FOUND and error.of_object:
                return ClaimGoneError(f"claim {ref} no longer exists; recreate the pod if it should run")
            return DranodeError(f"claim {ref} cannot be fetched: {error}")
        except DocumentError as error:
            return ClaimError(f"claim {ref} in the API server's answer cannot be read: {error}")
        except Exception as error:  # one claim's error must not fail the others
            log.exception("claim=%s uid=%s: not fetched", ref, ref.uid)
            return DranodeError(
                f"claim {ref} cannot be fetched: internal error, see the driver's log: {in_words(error)}"
            )


def _request(ref: ClaimRef) -> Callable[[str, str], APIRequest]:
    """Return the function that makes a claim's request from the path and the version of the API."""

    def request(root: str, version: str) -> APIRequest:
        del version
        path = f"{root}/namespaces/{ref.namespace}/resourceclaims/{ref.name}"
        return APIRequest("GET", path, f"get resourceclaims in namespace {ref.namespace}")

    return request


def _claim(document: Any) -> ResourceClaim:
    claim = decode(ResourceClaim, document)
    # A claim without a UID would be taken for one that was created again, and the devices of the first one released.
    if not claim.metadata.uid:
        raise DocumentError(NO_UID)
    return claim
