"""What would have to change for a pod to fit."""

import random
from collections.abc import Iterator, Sequence
from itertools import combinations, permutations
from typing import Any

import pytest

from dranode.api.errors import DocumentError
from dranode.api.quantity import Quantity
from dranode.sim.cluster.node_kinds import NodeKind
from dranode.sim.fit.additions import additions_for, model_like, model_of_kind, room_for
from dranode.sim.fit.changes import Changes, changes_document, fragments_of
from dranode.sim.fit.demand import PodDemand, demand_of
from dranode.sim.fit.evictions import EXACT_PODS, evictions_for, moves_for
from dranode.sim.fit.questions import ClusterQuestions
from dranode.sim.fit.state import ClusterState
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


def gpu_nodes(**devices: int) -> list[Document]:
    """Nodes with so many GPUs, and templates for one, two and three."""
    nodes = [
        document for name, count in devices.items() for document in (node_document(name), slice_document(name, count))
    ]
    return [*nodes, CLASS, *(template_document(f"t-{count}", count) for count in (1, 2, 3))]


def bound(name: str, node: str, *devices: str, **spec: Any) -> list[Document]:
    """A pod on a node with these devices of it."""
    pod = pod_document(name, claims=["t-1"], node=node, **spec)
    pod["status"] = {"resourceClaimStatuses": [{"name": "t-1", "resourceClaimName": f"c-{name}"}]}
    return [pod, claim_document(f"c-{name}", len(devices), on=(node, *devices), users=[name])]


def waiting(questions: ClusterQuestions, name: str = "large") -> PodDemand:
    (pod,) = questions.selected([name])
    return demand_of(pod, questions.dump, questions.features)


def test_the_scarcest_resource_decides_how_many_pods_fit() -> None:
    documents = [
        *(node_document("a", "4"), slice_document("a", 8), node_document("b", "64"), slice_document("b", 3)),
        *(node_document("c", "64", pods="2"), slice_document("c", 8), CLASS, template_document("t-1")),
    ]
    questions = questions_of(*documents, pod_document("large", "1", claims=["t-1"]))
    room = room_for(questions.scheduler, questions.state, waiting(questions))
    assert (room.count, dict(room.nodes), room.more) == (9, {"a": 4, "b": 3, "c": 2}, False)


def test_pods_that_keep_away_from_each_other_are_counted_together() -> None:
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "large"}}}
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    questions = questions_of(node_document("a"), node_document("b"), pod_document("large", "1", affinity=apart))
    assert room_for(questions.scheduler, questions.state, waiting(questions)).count == 2


def test_copies_of_a_pod_share_a_claim_that_it_names() -> None:
    questions = questions_of(*gpu_nodes(a=1), claim_document("mine"), pod_document("large", "1", claims=["mine"]))
    room = room_for(questions.scheduler, questions.state, waiting(questions))
    assert (room.count, room.shared) == (8, ("default/mine",))


def test_the_plan_has_the_fewest_evictions() -> None:
    documents = [*gpu_nodes(a=3, b=3), *bound("small-1", "a", "gpu-0"), *bound("small-2", "a", "gpu-1")]
    documents += [*bound("wide", "b", "gpu-0", "gpu-1"), pod_document("large", claims=["t-3"])]
    questions = questions_of(*documents)
    plan = evictions_for(questions.scheduler, questions.state, waiting(questions))
    assert plan is not None
    assert (plan.node, plan.pods, plan.least, plan.preemption) == ("b", ("default/wide",), True, False)


def test_among_equal_plans_the_lowest_priorities_are_evicted() -> None:
    documents = [*gpu_nodes(a=1, b=1), *bound("vip", "a", "gpu-0", priority=9), *bound("low", "b", "gpu-0", priority=3)]
    questions = questions_of(*documents, pod_document("large", claims=["t-1"], priority=10))
    plan = evictions_for(questions.scheduler, questions.state, waiting(questions))
    assert plan is not None
    assert (plan.pods, plan.priorities, plan.preemption) == (("default/low",), (3,), False)


@pytest.mark.parametrize(
    ("victim", "spec", "preempts"),
    [
        (pod_document("low", "6", node="a"), {}, True),
        (pod_document("low", "6", node="a", priority=10), {}, False),
        (pod_document("low", "6", node="a"), {"preemptionPolicy": "Never"}, False),
    ],
    ids=["CPUs", "as important", "never"],
)
def test_kube_scheduler_preempts_for_cpus_what_it_would_not_for_devices(
    victim: Document, spec: dict[str, Any], *, preempts: bool
) -> None:
    questions = questions_of(*gpu_nodes(a=1), victim, pod_document("large", "4", claims=["t-1"], priority=10, **spec))
    plan = evictions_for(questions.scheduler, questions.state, waiting(questions))
    assert plan is not None
    assert (plan.pods, plan.preemption) == (("default/low",), preempts)


def test_higher_priorities_and_daemon_pods_are_not_evicted() -> None:
    owner = [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u", "controller": True}]
    daemon = bound("daemon", "a", "gpu-0")
    daemon[0]["metadata"]["ownerReferences"] = owner
    documents = [*gpu_nodes(a=1, b=1), *daemon, *bound("vip", "b", "gpu-0", priority=9)]
    questions = questions_of(*documents, pod_document("large", claims=["t-1"]))
    assert evictions_for(questions.scheduler, questions.state, waiting(questions)) is None


def test_a_claim_that_another_pod_uses_is_not_freed() -> None:
    documents = [*gpu_nodes(a=1), claim_document("both", on=("a", "gpu-0"), users=["p", "q"])]
    documents += [pod_document("p", claims=["both"], node="a"), pod_document("q", claims=["both"], node="a")]
    questions = questions_of(*documents, pod_document("large", claims=["t-1"]))
    plan = evictions_for(questions.scheduler, questions.state, waiting(questions))
    assert plan is not None
    assert plan.pods == ("default/p", "default/q")


def test_a_claim_reserved_for_an_unknown_pod_is_never_freed() -> None:
    documents = [*gpu_nodes(a=1), claim_document("c", on=("a", "gpu-0"), users=["p", "unseen"])]
    documents += [pod_document("p", claims=["c"], node="a")]
    questions = questions_of(*documents, pod_document("large", claims=["t-1"]))
    assert evictions_for(questions.scheduler, questions.state, waiting(questions)) is None


def test_one_move_makes_room_if_free_devices_are_scattered() -> None:
    documents = [*gpu_nodes(a=2, b=2), *bound("p", "a", "gpu-0"), *bound("q", "b", "gpu-1")]
    questions = questions_of(*documents, pod_document("large", claims=["t-2"]))
    plan = moves_for(questions.scheduler, questions.state, waiting(questions))
    assert plan is not None
    assert plan.optimal
    (move,) = plan.moves
    assert {move.source, plan.node} == {move.source}  # the large pod goes where the small one was
    assert move.target != move.source
    assert move.claims == (
        f"default/c-{move.pod.removeprefix('default/')}: {'gpu-0' if move.source == 'a' else 'gpu-1'}",
    )


def test_a_pod_that_no_move_can_help_is_reported() -> None:
    documents = [*gpu_nodes(a=1, b=1), *bound("p", "a", "gpu-0"), *bound("q", "b", "gpu-0")]
    questions = questions_of(*documents, pod_document("large", claims=["t-1"]))
    assert moves_for(questions.scheduler, questions.state, waiting(questions)) is None


def test_with_many_pods_a_plan_has_a_lower_bound() -> None:
    nodes = {f"n{number}": 2 for number in range(EXACT_PODS + 2)}
    documents = gpu_nodes(**nodes)
    for name in nodes:
        documents += bound(f"p-{name}", name, "gpu-0")
    questions = questions_of(*documents, pod_document("large", claims=["t-2"]))
    plan = moves_for(questions.scheduler, questions.state, waiting(questions))
    assert plan is not None
    assert (len(plan.moves), plan.bound, plan.optimal) == (1, 1, True)


def brute_force(questions: ClusterQuestions, large: PodDemand) -> int | None:
    """The fewest moves, by trying all sets, all orders and all nodes without any shortcut."""
    pods = list(questions.state.demands.values())
    for count in range(len(pods) + 1):
        for chosen in combinations(pods, count):
            again = [large, *map(PodDemand.waiting, chosen)]
            start = questions.state.without_pods(frozenset(pod.pod.key for pod in chosen))
            if any(_all_fit(questions, start, order) for order in permutations(again)):
                return count
    return None


def _all_fit(questions: ClusterQuestions, state: ClusterState, order: Sequence[PodDemand]) -> bool:
    if not order:
        return True
    pod, *rest = order
    return any(
        _all_fit(questions, questions.scheduler.bind(state, pod, node, outcomes), rest)
        for node, outcomes in questions.scheduler.fits(state, pod, state.nodes).items()
    )


def random_clusters() -> Iterator[tuple[int, ClusterQuestions]]:
    """Crowded clusters of two or three nodes, whose pods take cpu and devices."""
    for seed in range(26):
        dice = random.Random(seed)
        documents: list[Document] = [CLASS, *(template_document(f"t-{count}", count) for count in (1, 2))]
        pods = 0
        for name in ("a", "b", "c")[: dice.randint(2, 3)]:
            count = dice.randint(1, 3)
            documents += [node_document(name, str(dice.choice((3, 4, 6)))), slice_document(name, count)]
            for device in range(count):
                if dice.random() < 0.6 and pods < 4:
                    documents += bound(f"p{pods}", name, f"gpu-{device}")
                    documents[-2]["spec"]["containers"][0]["resources"] = {
                        "requests": {"cpu": str(dice.choice((1, 2)))}
                    }
                    pods += 1
        large = pod_document("large", str(dice.choice((1, 3))), claims=[f"t-{dice.randint(1, 2)}"])
        yield seed, questions_of(*documents, large)


def test_no_plan_has_fewer_moves_than_brute_force_finds() -> None:
    counts: list[int | None] = []
    for seed, questions in random_clusters():
        large = waiting(questions)
        fewest = brute_force(questions, large)
        counts.append(fewest)
        if fewest == 0:
            continue  # it fits as it is
        plan = moves_for(questions.scheduler, questions.state, large)
        assert (None if plan is None else len(plan.moves)) == fewest, f"seed {seed}"
        assert plan is None or plan.optimal
    # There were clusters of every sort: too full, and in need of one move, and of several.
    assert {None, 1, 2} <= set(counts)


def fewest_by_counting(free: dict[str, int], held: dict[str, tuple[str, int]], large: int) -> int | None:
    """The fewest moves where all devices are alike: who goes, and whether the counts fit into the nodes then."""
    for count in range(len(held) + 1):
        for chosen in combinations(held, count):
            room = dict(free)
            for pod in chosen:
                node, devices = held[pod]
                room[node] += devices
            again = sorted((held[pod][1] for pod in chosen), reverse=True)
            if _packs(tuple(room.values()), (large, *again)):
                return count
    return None


def _packs(room: tuple[int, ...], counts: tuple[int, ...]) -> bool:
    if not counts:
        return True
    first, *rest = counts
    tried = {left: index for index, left in enumerate(room) if left >= first}
    return any(_packs((*room[:index], left - first, *room[index + 1 :]), tuple(rest)) for left, index in tried.items())


@pytest.mark.parametrize("seed", range(4))
def test_a_plan_for_twelve_pods_has_as_few_moves_as_counting_finds(seed: int) -> None:
    dice = random.Random(seed)
    free = dict.fromkeys("abcd", 7)
    documents = gpu_nodes(**free)
    held: dict[str, tuple[str, int]] = {}
    while len(held) < EXACT_PODS:
        node, devices = dice.choice("abcd"), dice.choice((1, 1, 2))
        if free[node] >= devices:
            names = [f"gpu-{7 - free[node] + index}" for index in range(devices)]
            pod = f"p{len(held)}"
            documents += bound(pod, node, *names)
            held[pod] = (node, devices)
            free[node] -= devices
    size = max(free.values()) + dice.choice((1, 1, 2))
    large = [template_document("t-large", size), pod_document("large", claims=["t-large"])]
    questions = questions_of(*documents, *large)
    plan = moves_for(questions.scheduler, questions.state, waiting(questions))
    fewest = fewest_by_counting(free, held, size)
    assert (None if plan is None else len(plan.moves)) == fewest
    assert plan is None or plan.optimal


def test_a_plan_has_as_few_evictions_as_brute_force_finds() -> None:
    seen = set()
    for seed, questions in random_clusters():
        large = waiting(questions)
        if questions.scheduler.place(questions.state, large).node is not None:
            continue
        fewest = next(
            (
                count
                for count in range(len(questions.state.demands) + 1)
                for gone in combinations(questions.state.demands, count)
                if questions.scheduler.place(questions.state.without_pods(frozenset(gone)), large).node is not None
            ),
            None,
        )
        plan = evictions_for(questions.scheduler, questions.state, large)
        assert (None if plan is None else len(plan.pods)) == fewest, f"seed {seed}"
        seen.add(fewest)
    assert {1, 2} <= seen


def additions(questions: ClusterQuestions, *models: object) -> list[tuple[str, int, int]]:
    pods = [waiting(questions, pod.key) for pod in questions.dump.waiting]
    made = additions_for(questions, questions.state, pods, models)  # type: ignore[arg-type]
    return [(each.model, each.count, len(each.unplaced)) for each in made]


def test_a_node_like_another_brings_its_devices_and_is_empty() -> None:
    pods = [pod_document(f"w{number}", "1", claims=["t-1"]) for number in range(5)]
    questions = questions_of(*gpu_nodes(a=2), *bound("p", "a", "gpu-0"), *bound("q", "a", "gpu-1"), *pods)
    assert additions(questions, model_like("a", questions.dump)) == [("like-a", 3, 0)]
    with pytest.raises(DocumentError, match="the documents have no Node nix"):
        model_like("nix", questions.dump)


def daemon_set(**spec: Any) -> Document:
    template = {"metadata": {"labels": {"app": "d"}}, "spec": pod_document("d", **spec)["spec"]}
    metadata = {"name": "d", "namespace": "default"}
    return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata, "spec": {"template": template}}


def daemon(**metadata: Any) -> Document:
    """A pod on `a` that its DaemonSet would create there again at once."""
    pod = pod_document("d-a", "6", node="a")
    return {**pod, "metadata": {**pod["metadata"], **metadata}}


OF_SET = {"ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "controller": True}]}
STATIC = {"annotations": {"kubernetes.io/config.mirror": "x"}}


@pytest.mark.parametrize(
    ("documents", "like", "of_catalog"),
    [
        ([daemon_set(cpu="6")], 2, 2),
        ([daemon_set(claims=["t-1"])], 2, 2),
        ([daemon_set(), daemon(**OF_SET)], 2, 2),
        ([daemon_set(cpu="6"), daemon(**OF_SET)], 2, 2),
        ([daemon_set(cpu="6", nodeSelector={"kubernetes.io/hostname": "a"}), daemon(**OF_SET)], 1, 1),
        ([daemon(**OF_SET)], 2, 1),
        ([daemon(**STATIC)], 2, 1),
        ([daemon()], 1, 1),
    ],
    ids=[
        "cpus",
        "devices",
        "requests of a LimitRange",
        "known twice",
        "for one node alone",
        "only its pod",
        "static",
        "an ordinary pod",
    ],
)
def test_added_nodes_have_their_daemon_pods_first(documents: list[Document], like: int, of_catalog: int) -> None:
    pods = [pod_document(f"w{number}", "1.5", claims=["t-1"], priority=9) for number in range(2)]
    questions = questions_of(*gpu_nodes(a=2), *bound("p", "a", "gpu-0", "gpu-1"), *documents, *pods)
    kind = NodeKind(name="bare", allocatable={"cpu": Quantity("8")})
    bare = model_of_kind(kind, [each.spec for each in questions.dump.slices])
    assert additions(questions, model_like("a", questions.dump), bare) == [("like-a", like, 0), ("bare", of_catalog, 0)]


def test_a_node_of_a_catalog_takes_the_pods_that_fit() -> None:
    allocatable = {"cpu": Quantity("8"), "memory": Quantity("8Gi")}
    template = questions_of(*gpu_nodes(x=4), pod_document("p")).dump.slices[0].spec
    with_gpus = model_of_kind(NodeKind(name="gpu", allocatable=allocatable), [template])
    without = model_of_kind(NodeKind(name="cpu", allocatable=allocatable), [])
    pods = [pod_document(f"w{number}", "3", claims=["t-1"]) for number in range(3)]
    questions = questions_of(*gpu_nodes(a=0), *pods, pod_document("wide", "9"))
    assert additions(questions, with_gpus, without) == [("gpu", 2, 1), ("cpu", 0, 4)]


def test_an_added_nodes_refusals_are_worded_like_a_nodes() -> None:
    taint = {"key": "dedicated", "value": "x", "effect": "NoSchedule"}
    questions = questions_of(node_document("a", taints=[taint]), pod_document("w"))
    (made,) = additions_for(questions, questions.state, [waiting(questions, "w")], [model_like("a", questions.dump)])
    assert made.unplaced["default/w"].endswith(" untolerated taint(s). dedicated=x:NoSchedule.")


def test_a_catalog_that_omits_a_requested_resource_is_refused() -> None:
    questions = questions_of(node_document("a", "1"), pod_document("w", "3"))
    with pytest.raises(DocumentError, match='node "bare" has no amount of cpu'):
        additions(questions, model_of_kind(NodeKind(name="bare"), []))


# --- Which claims hold the devices that are fragmented ---


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
