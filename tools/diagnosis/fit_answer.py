"""Asks the model of kube-scheduler that `fit` has about one pod, with all that decides beside its claims.

Values in, values out: the documents of a cluster, and the pod's name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dranode.api.source_document import SourceDocument
from dranode.sim.allocator.features import Features
from dranode.sim.fit.dump import read_dump
from dranode.sim.fit.notes import cluster_notes
from dranode.sim.fit.questions import ClusterQuestions
from dranode.sim.fit.reasons import group_line
from dranode.tools.diagnosis.pod_facts import FitAnswer


def fit_answer(documents: Sequence[SourceDocument], kinds: Iterable[str], pod: str, features: Features) -> FitAnswer:
    """Return where a pod would go now, or what keeps it from every node.

    Args:
        documents: the cluster.
        kinds: the kinds of which all objects are among them.
        pod: `<namespace>/<name>`.
        features: the release and the gates.

    Raises:
        DocumentError: there is no such pod, or a document does not decode.
    """
    dump = read_dump(documents, kinds)
    questions = ClusterQuestions.of(dump, features, lambda: "")
    (answer,) = questions.answers(questions.selected([pod]))
    choice = answer.choice
    return FitAnswer(
        node=choice.node or "",
        message=choice.message.rstrip("."),
        groups=tuple(map(group_line, choice.groups)),
        notes=(*cluster_notes(dump), *answer.notes),
    )
