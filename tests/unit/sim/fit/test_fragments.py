"""Which claims hold the devices that are fragmented."""

from dranode.sim.fit.changes import Changes, changes_document, fragments_of
from tests.fakes.clusters import (
    CLASS,
    Document,
    claim_document,
    node_document,
    pod_document,
    questions_of,
    slice_document,
    template_document,
)


def cluster() -> list[Document]:
    """A node of four with two claims on it, one of them used by two pods, and a node that never has enough."""
    pods = [pod_document(name, claims=["one"], node="a") for name in ("p", "q")]
    other = pod_document("r", claims=["two"], node="a")
    claims = [
        claim_document("one", 1, on=("a", "gpu-1"), users=["p", "q"]),
        claim_document("two", 2, on=("a", "gpu-2", "gpu-3"), users=["r"]),
    ]
    nodes = [node_document("a"), slice_document("a", 4), node_document("b"), slice_document("b", 1)]
    large = [template_document("t-2", 2), pod_document("large", claims=["t-2"])]
    return [*nodes, CLASS, *pods, other, *claims, *large]


def test_a_node_that_would_suffice_if_empty_is_listed_with_holders() -> None:
    questions = questions_of(*cluster())
    (answer,) = questions.answers(questions.selected(["large"]))
    (fragment,) = fragments_of(questions.scheduler, answer.before, answer.demand, answer.placement)
    assert (fragment.node, fragment.devices) == ("a", 4)
    assert [(one.claim, one.pods, one.devices) for one in fragment.held] == [
        ("default/one", ("default/p", "default/q"), ("a/gpu-1",)),
        ("default/two", ("default/r",), ("a/gpu-2", "a/gpu-3")),
    ]


def test_json_has_the_fragments_with_the_moves() -> None:
    questions = questions_of(*cluster())
    answers = list(questions.answers(questions.selected(["large"])))
    document = changes_document(Changes.of(questions, answers, [], how_many=False, evict=False, move=True))
    assert document["fragments"]["default/large"][0]["held"][0]["claim"] == "default/one"
    without = changes_document(Changes.of(questions, answers, [], how_many=False, evict=True, move=False))
    assert "fragments" not in without
