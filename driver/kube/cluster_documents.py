"""A cluster as its API server has it now: the same documents as a dump, only read."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import msgspec

from dranode.driver.core.api.source_document import SourceDocument
from dranode.driver.kube.errors import ApiError
from dranode.driver.kube.objects import ApiObjects
from dranode.driver.kube.retry import NO_ANSWER

# Kinds that are listed at a time: most of the time is the server's and the way's.
AT_A_TIME: Final = 4


class ReadCluster(msgspec.Struct, frozen=True):
    """The documents that an API server let be read.

    Attributes:
        documents: the objects.
        kinds: the kinds of which all objects were read, perhaps none.
        refused: why each other kind was not.
    """

    documents: tuple[SourceDocument, ...]
    kinds: frozenset[str]
    refused: Mapping[str, ApiError]


def cluster_documents(objects: ApiObjects, kinds: Mapping[str, Mapping[str, str]], origin: str) -> ReadCluster:
    """Read all objects of some kinds.

    Args:
        objects: the cluster.
        kinds: each with the parameters of its list, a field selector for one.
        origin: how messages name the cluster.

    Raises:
        ApiError: no kind could be read.
    """
    silences: list[ApiError] = []
    answered: list[str] = []

    def listed(kind: str, query: Mapping[str, str]) -> list[dict[str, Any]] | ApiError:
        # A server that has answered nothing is not asked for one kind after another, a minute each.
        if silences and not answered:
            return silences[0]
        try:
            documents = objects.documents(kind, **query)
        except ApiError as error:
            if error.status == NO_ANSWER:
                silences.append(error)
            else:
                answered.append(kind)
            return error
        answered.append(kind)
        return documents

    with ThreadPoolExecutor(AT_A_TIME, "list") as pool:
        answers = dict(zip(kinds, pool.map(listed, kinds, kinds.values()), strict=True))
    refused = {kind: answer for kind, answer in answers.items() if isinstance(answer, ApiError)}
    if refused and len(refused) == len(answers):
        raise next(iter(refused.values()))
    read = [document for answer in answers.values() if not isinstance(answer, ApiError) for document in answer]
    return ReadCluster(
        tuple(SourceDocument(origin, index, document) for index, document in enumerate(read)),
        frozenset(answers.keys() - refused.keys()),
        refused,
    )
