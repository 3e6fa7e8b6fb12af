"""Creates the pods of Deployments, StatefulSets, Jobs and other controllers, as many as exist at the same time.

Source: the controllers of kube-controller-manager 1.37.1 (`pkg/controller`): the number of pods, their names, labels
    and owners, and for a DaemonSet the nodes and tolerations. Names that are random in a cluster are derived from the
    documents.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec.structs import replace

from dranode.api.documents import decode, encode, without_tuples
from dranode.api.errors import DocumentError, number_of
from dranode.api.field_errors import FieldError, metadata_errors
from dranode.api.manifests import SourceDocument, generated_name, object_key, template_hash
from dranode.api.resource import APIDocument, APIObject, DeviceToleration, Node, ObjectMeta
from dranode.sim.allocator.pools import only
from dranode.sim.allocator.taint_rules import untolerated
from dranode.sim.scheduler.amounts import DEFAULT_NAMESPACE, check_pod
from dranode.sim.scheduler.documents import LabelMatcher, LabelSelector, PodCondition, SchedulingNode, SchedulingPod
from dranode.sim.scheduler.node_rules import matches_required

# The largest number of pods that Kubernetes supports in a cluster.
MOST_PODS: Final = 150_000
# The Job of a CronJob is named after the minute for which it is scheduled; here, that is always the same one.
_MINUTE: Final = 29_000_000
_NAMED: Final = 3
_QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
_INDEX: Final = "batch.kubernetes.io/job-completion-index"
_HASH: Final = "pod-template-hash"
_LONGEST: Final = 253
_DIGITS: Final = 10
_SELECTING: Final = ("DaemonSet", "Deployment", "ReplicaSet", "StatefulSet")
# The path of the pod template in each kind.
POD_TEMPLATES: Final[Mapping[str, tuple[str, ...]]] = {
    "PodTemplate": ("template",),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
    **dict.fromkeys(
        ("DaemonSet", "Deployment", "Job", "ReplicaSet", "ReplicationController", "StatefulSet"), ("spec", "template")
    ),
}
# The taints that every pod of a DaemonSet tolerates. Pods in the host's network also tolerate network-unavailable.
_DAEMON_TAINTS: Final = (
    ("not-ready", "NoExecute"),
    ("unreachable", "NoExecute"),
    *((name, "NoSchedule") for name in ("disk-pressure", "memory-pressure", "pid-pressure", "unschedulable")),
)


class Ordinals(APIDocument, frozen=True, kw_only=True):
    """`spec.ordinals` of a StatefulSet."""

    start: int = 0


class ControllerSpec(APIDocument, frozen=True, kw_only=True):
    """`spec` of controllers, with the fields that decide the number of pods; each kind has some of them."""

    replicas: int | None = None
    paused: bool = False
    ordinals: Ordinals = Ordinals()
    volume_claim_templates: tuple[Mapping[str, Any], ...] = ()
    parallelism: int | None = None
    completions: int | None = None
    completion_mode: str | None = None
    suspend: bool | None = None
    selector: LabelSelector | None = None  # that of a ReplicationController has another form and is not read
    template: Mapping[str, Any] | None = None
    job_template: Mapping[str, Any] | None = None


class ControllerStatus(APIDocument, frozen=True, kw_only=True):
    """`status` of a Job: its progress so far."""

    succeeded: int = 0
    completed_indexes: str = ""
    failed_indexes: str | None = None
    conditions: tuple[PodCondition, ...] = ()


class Controller(APIObject, frozen=True, kw_only=True):
    """An object that creates pods."""

    spec: ControllerSpec = ControllerSpec()
    status: ControllerStatus = ControllerStatus()

    @property
    def namespace(self) -> str:
        """Return its namespace."""
        return self.metadata.namespace or DEFAULT_NAMESPACE

    @property
    def owner(self) -> tuple[str, str, str]:
        """Return namespace, kind and name, by which owned objects are found."""
        return self.namespace, self.kind, self.metadata.name


@dataclass(frozen=True, slots=True)
class MadePods:
    """Documents with the pods of their controllers.

    Attributes:
        documents: all documents; a controller is followed by its ReplicaSet or Job, if any, and its pods.
        notes: one sentence for each controller about its pods.
    """

    documents: tuple[SourceDocument, ...]
    notes: tuple[str, ...] = ()


def with_pods(
    sources: Iterable[SourceDocument],
    nodes: Callable[[], Sequence[Node]],
    *,
    around: Iterable[SourceDocument] = (),
    queued: bool = False,
    tolerant: bool = False,
) -> MadePods:
    """Add the pods of controllers, except those that are already among the documents.

    Args:
        sources: the documents.
        nodes: returns the nodes, for DaemonSets.
        around: other documents whose pods exist as well.
        queued: whether Jobs with a Kueue queue create no pods, because their workloads do.
        tolerant: whether an invalid controller causes a note instead of an error.

    Raises:
        DocumentError: a controller does not decode or the API server would reject it, or there are more pods than
            `MOST_PODS`; names the place.
    """
    sources = tuple(sources)
    makers = [source for source in sources if source.kind in POD_TEMPLATES and source.kind != "PodTemplate"]
    if not makers:
        return MadePods(sources)
    keys = {object_key(source.document) for source in sources if source.kind == "LocalQueue"}
    defaults = {key[2] for key in keys if key and key[3] == "default"} if queued else None
    maker = _PodMaker(nodes, _Existing.of((*sources, *around)), defaults)
    documents: list[SourceDocument] = []
    for source in sources:
        documents.append(source)
        if source.kind in POD_TEMPLATES and source.kind != "PodTemplate":
            try:
                documents += maker.of(source)
            except DocumentError as error:
                if not tolerant:
                    raise DocumentError(f"{source.place}: {error}") from error
                maker.notes.append(f"{source.place} cannot be read, so its pods are not shown: {error}")
    return MadePods(tuple(documents), tuple(maker.notes))


@dataclass
class _Existing:
    """The existing objects with an owner, by the owner's namespace, kind and name."""

    pods: dict[tuple[str, str, str], list[Mapping[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    made: set[tuple[str, str, str]] = field(default_factory=set)
    names: set[tuple[str, str]] = field(default_factory=set)

    @classmethod
    def of(cls, sources: Iterable[SourceDocument]) -> _Existing:
        """Collect the objects, without pods that have ended or are being deleted, which their controller replaces."""
        existing = cls()
        for source in sources:
            metadata = source.document.get("metadata") or {}
            namespace = str(metadata.get("namespace") or DEFAULT_NAMESPACE)
            if source.kind == "Pod":
                existing.names.add((namespace, source.name))
            owner = _controlling(metadata)
            if owner is None:
                continue
            key = namespace, str(owner.get("kind")), str(owner.get("name"))
            if source.kind != "Pod":
                existing.made.add(key)
            elif not (metadata.get("deletionTimestamp") or _phase(source.document) in ("Succeeded", "Failed")):
                existing.pods[key].append(source.document)
        return existing


def _controlling(metadata: Any) -> Mapping[str, Any] | None:
    references = metadata.get("ownerReferences")
    listed = references if isinstance(references, list) else ()
    return next(
        (reference for reference in listed if isinstance(reference, Mapping) and reference.get("controller") is True),
        None,
    )


def _phase(document: Mapping[str, Any]) -> str:
    status = document.get("status")
    return str(status.get("phase")) if isinstance(status, Mapping) else ""


def controller_errors(controller: Controller) -> Iterator[FieldError]:
    """Yield the errors in the fields that decide the number of pods.

    Raises:
        DocumentError: the template of a Job does not decode.
    """
    of_job = controller.spec.job_template is not None
    spec, path = (_job_in(controller).spec, "spec.jobTemplate.spec") if of_job else (controller.spec, "spec")
    for name, number in (
        ("replicas", spec.replicas),
        ("ordinals.start", spec.ordinals.start),
        ("parallelism", spec.parallelism),
        ("completions", spec.completions),
    ):
        if number is not None and number < 0:
            yield FieldError(f"{path}.{name}", f"{number} must not be negative")
    if spec.completion_mode == "Indexed" and spec.completions is None:
        yield FieldError(f"{path}.completions", "completions are required when the completion mode is Indexed")


def own_errors(controller: Controller) -> Iterator[FieldError]:
    """Yield the other errors of an object outside of its pod template: in its metadata and its selector.

    Raises:
        DocumentError: the selector has a wrong operator.
    """
    yield from metadata_errors(controller.metadata)
    if controller.kind not in _SELECTING:
        return
    try:
        matcher = LabelMatcher(controller.spec.selector or LabelSelector())
    except DocumentError as error:
        raise DocumentError(str(error), "spec.selector") from error
    labels = _metadata(_template(controller)).get("labels")
    if matcher.everything:
        yield FieldError("spec.selector", "a selector is required")
    elif not matcher.matches(labels if isinstance(labels, Mapping) else {}):
        yield FieldError("spec.template.metadata.labels", "spec.selector does not match these labels")


class _PodMaker:
    """Creates pods, one controller after another, with a note on each."""

    def __init__(
        self, nodes: Callable[[], Sequence[Node]], existing: _Existing, default_queues: set[str] | None
    ) -> None:
        self.notes: list[str] = []
        self._nodes = nodes
        self._existing = existing
        self._default_queues = default_queues
        self._count = 0

    def of(self, source: SourceDocument) -> list[SourceDocument]:
        """Return the pods of a controller, after its ReplicaSet or Job, if any."""
        controller = decode(Controller, source.document)
        if not controller.metadata.name:
            raise DocumentError("a name is required", "metadata.name")
        for error in controller_errors(controller):
            raise DocumentError(error.message, error.path)
        documents: list[dict[str, Any]] = []
        why, stored = "", bool(controller.metadata.uid)
        match source.kind:
            case "Deployment":
                controller, why = self._replica_set(controller)
            case "CronJob":
                controller, why = self._job(controller)
            case _:
                pass
        if controller.kind != source.kind:
            documents.append(without_tuples(encode(controller)))
        if self._default_queues is not None and _asks_for_queue(controller, self._default_queues):
            return [SourceDocument(source.file, source.index, document) for document in documents]
        pods, why = ([], why) if why else self._pods(controller, ".".join(POD_TEMPLATES[source.kind]), stored=stored)
        self._note(source, controller, pods, why)
        return [SourceDocument(source.file, source.index, document) for document in (*documents, *pods)]

    def _note(self, source: SourceDocument, controller: Controller, pods: Sequence[dict[str, Any]], why: str) -> None:
        names = [pod["metadata"]["name"] for pod in pods]
        existing = len(self._existing.pods.get(controller.owner, ()))
        beside = f", in addition to {existing} that exist{'s' if existing == 1 else ''}" if existing else ""
        if names:
            more = f" and {len(names) - _NAMED} more" if names[_NAMED:] else ""
            text = f"{number_of(len(names), 'pod')}{beside}: {', '.join(names[:_NAMED])}{more}"
        elif why and not controller.metadata.uid:
            text = f"no pod: {why}"
        else:
            return  # an object of a cluster whose pods all exist
        self.notes.append(f"{source.place} creates {text}")

    def _replica_set(self, deployment: Controller) -> tuple[Controller, str]:
        """Return the ReplicaSet of a Deployment, and why there is none."""
        if deployment.owner in self._existing.made:
            return deployment, "its ReplicaSets are among the documents"
        if deployment.spec.paused:
            return deployment, "it is paused before it has a ReplicaSet"
        template = _template(deployment)
        checked_template(template, ".".join(POD_TEMPLATES["Deployment"]), stored=bool(deployment.metadata.uid))
        mark = template_hash(json.dumps(template, sort_keys=True, default=str))
        labeled = _labeled(template, {_HASH: mark})
        selector = deployment.spec.selector or LabelSelector()
        selector = replace(selector, match_labels={**selector.match_labels, _HASH: mark})
        return Controller(
            api_version="apps/v1",
            kind="ReplicaSet",
            metadata=ObjectMeta(
                name=f"{deployment.metadata.name[: _LONGEST - 1 - len(mark)]}-{mark}",
                namespace=deployment.metadata.namespace,
            ),
            spec=ControllerSpec(replicas=deployment.spec.replicas, selector=selector, template=labeled),
        ), ""

    def _job(self, cron_job: Controller) -> tuple[Controller, str]:
        """Return the next Job of a CronJob, and why there is none."""
        if cron_job.owner in self._existing.made:
            return cron_job, "its Jobs are among the documents"
        if cron_job.metadata.uid:
            return cron_job, "it comes from a cluster, and none of its Jobs runs"
        if cron_job.spec.suspend:
            return cron_job, "it is suspended"
        job = _job_in(cron_job)
        metadata = ObjectMeta(
            name=f"{cron_job.metadata.name}-{_MINUTE}",
            namespace=cron_job.metadata.namespace,
            labels=job.metadata.labels,
            annotations=job.metadata.annotations,
        )
        return Controller(api_version="batch/v1", kind="Job", metadata=metadata, spec=job.spec), ""

    def _pods(self, controller: Controller, path: str, *, stored: bool) -> tuple[list[dict[str, Any]], str]:
        """Return the pods that a controller has to create, and why it creates none; `path` is that of the template."""
        template = _template(controller)
        pod = checked_template(template, path, stored=stored)
        existing = self._existing.pods.get(controller.owner, [])
        count = _or(controller.spec.replicas, 1)
        match controller.kind:
            case "Job":
                return self._job_pods(controller, template, existing)
            case "StatefulSet":
                return self._numbered_pods(controller, template), _unless("spec.replicas is 0", count)
            case "DaemonSet":
                return self._daemon_pods(controller, template, pod, existing)
            case _:
                self._reserve(count - len(existing))
                pods = [self._pod(controller, template) for _ in range(count - len(existing))]
                return pods, _unless("spec.replicas is 0", count)

    def _job_pods(
        self, job: Controller, template: Mapping[str, Any], existing: Sequence[Mapping[str, Any]]
    ) -> tuple[list[dict[str, Any]], str]:
        """Return as many pods as may run at the same time and are still needed."""
        spec, status = job.spec, job.status
        parallelism = _or(spec.parallelism, 1)
        ended = next((item.type for item in status.conditions if item.type in _ENDS and item.status == "True"), "")
        if ended or spec.suspend:
            queue = " until its queue admits it, which local --queues simulates" if _asks_for_queue(job) else ""
            return [], f"it is {ended}" if ended else f"it is suspended{queue}"
        labels = {"batch.kubernetes.io/job-name": job.metadata.name, "job-name": job.metadata.name}
        template = _labeled(template, labels)
        completions = spec.completions
        if completions is None:
            needed = len(existing) if status.succeeded else parallelism
        else:
            needed = min(parallelism, completions - status.succeeded)
        count = max(0, needed - len(existing))
        self._reserve(count)
        if spec.completion_mode != "Indexed" or completions is None:
            return [self._pod(job, template) for _ in range(count)], _unless(_none_needed(parallelism), needed)
        done = set(job_indexes(f"{status.completed_indexes},{status.failed_indexes or ''}", completions))
        done |= set(map(_index_of, existing))
        indexes = (index for index in range(completions) if index not in done)
        pods = [self._indexed(job, template, index) for index, _ in zip(indexes, range(count), strict=False)]
        return pods, _unless(_none_needed(parallelism), needed)

    def _indexed(self, job: Controller, template: Mapping[str, Any], index: int) -> dict[str, Any]:
        tail = f"-{index}-"
        base = f"{job.metadata.name[: 58 - len(tail)]}{tail}"
        template = _labeled(template, {_INDEX: str(index)})
        annotations = {**(_metadata(template).get("annotations") or {}), _INDEX: str(index)}
        template = {**template, "metadata": {**_metadata(template), "annotations": annotations}}
        return self._pod(job, template, base=base)

    def _numbered_pods(self, controller: Controller, template: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the pods of a StatefulSet, with numbered names and their own volumes."""
        first, count = controller.spec.ordinals.start, _or(controller.spec.replicas, 1)
        self._reserve(count)
        pods = []
        for number in range(first, first + count):
            name = f"{controller.metadata.name}-{number}"
            if (controller.namespace, name) in self._existing.names:
                continue
            labels = {"statefulset.kubernetes.io/pod-name": name, "apps.kubernetes.io/pod-index": str(number)}
            pod = self._pod(controller, _labeled(template, labels), name=name)
            volumes = [
                {"name": claim, "persistentVolumeClaim": {"claimName": f"{claim}-{name}"}}
                for volume_template in controller.spec.volume_claim_templates
                if (claim := str(_metadata(volume_template).get("name", "")))
            ]
            names = {volume["name"] for volume in volumes}
            others = [volume for volume in pod["spec"].get("volumes") or () if volume.get("name") not in names]
            pods.append({**pod, "spec": {**pod["spec"], "volumes": [*volumes, *others]}})
        return pods

    def _daemon_pods(
        self,
        controller: Controller,
        template: Mapping[str, Any],
        pod: SchedulingPod,
        existing: Sequence[Mapping[str, Any]],
    ) -> tuple[list[dict[str, Any]], str]:
        """Return a pod for each node that it matches and whose taints it tolerates, with affinity to that node."""
        added = daemon_tolerations(host_network=pod.spec.host_network)
        tolerations = (*pod.spec.tolerations, *added)
        occupied = Counter(map(_node_of, existing))
        nodes = [node for node in self._nodes() if _runs_on(pod, tolerations, node)]
        free = [node.metadata.name for node in nodes if not occupied[node.metadata.name]]
        self._reserve(len(free))
        pods = [self._pod(controller, _bound(template, encode(added), node)) for node in free]
        return pods, _unless("no node matches it", len(nodes))

    def _reserve(self, count: int) -> None:
        self._count += max(0, count)
        if self._count > MOST_PODS:
            raise DocumentError(
                f"with its pods there would be {self._count:,}, more than the {MOST_PODS:,} that a cluster can have"
            )

    def _pod(
        self, controller: Controller, template: Mapping[str, Any], *, name: str = "", base: str = ""
    ) -> dict[str, Any]:
        """Return a pod of a template with its owner, with a `name` or with a generated one that begins with `base`."""
        namespace = controller.namespace
        names = self._existing.names
        if not name:
            prefix = base or f"{controller.metadata.name}-"
            seed = f"{controller.kind} {namespace} {prefix} {len(names)}"
            name = generated_name(prefix, seed, lambda name: (namespace, name) in names)
        names.add((namespace, name))
        template_metadata = _metadata(template)
        owner = {
            "apiVersion": controller.api_version,
            "kind": controller.kind,
            "name": controller.metadata.name,
            "uid": controller.metadata.uid,
            "controller": True,
        }
        metadata = {key: template_metadata[key] for key in ("labels", "annotations") if template_metadata.get(key)}
        metadata |= {"name": name, "namespace": namespace, "ownerReferences": [owner]}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": dict(template.get("spec") or {})}


_PARTS: Final = ("metadata", "spec")  # of a template
_ENDS: Final = ("Complete", "Failed", "SuccessCriteriaMet", "FailureTarget")


def _job_in(cron_job: Controller) -> Controller:
    """Return the Job in the template of a CronJob."""
    template = cron_job.spec.job_template or {}
    return decode(Controller, {key: template[key] for key in _PARTS if key in template}, "spec.jobTemplate")


def _template(controller: Controller) -> Mapping[str, Any]:
    return controller.spec.template or {}


def _metadata(document: Mapping[str, Any]) -> Mapping[str, Any]:
    metadata = document.get("metadata")
    return metadata if isinstance(metadata, Mapping) else {}


def _labeled(template: Mapping[str, Any], labels: Mapping[str, str]) -> Mapping[str, Any]:
    metadata = _metadata(template)
    return {**template, "metadata": {**metadata, "labels": {**(metadata.get("labels") or {}), **labels}}}


def checked_template(template: Mapping[str, Any], path: str, *, stored: bool = False) -> SchedulingPod:
    """Return the template as a pod.

    Raises:
        DocumentError: it does not decode, or the API server would reject its pods.
    """
    pod = decode(SchedulingPod, {key: template[key] for key in _PARTS if key in template}, path)
    check_pod(pod, f"{path}.", stored=stored)
    return pod


def _or(number: int | None, default: int) -> int:
    return default if number is None else number


def _none_needed(parallelism: int) -> str:
    return "it is complete" if parallelism else "spec.parallelism is 0"


def _unless(why: str, count: int) -> str:
    return "" if count > 0 else why


def _asks_for_queue(job: Controller, defaults: Container[str] = ()) -> bool:
    """Return whether Kueue admits a Job: it has a queue, or its namespace has the LocalQueue `default` (`defaults`)."""
    new = not job.metadata.uid and job.namespace in defaults
    return job.kind == "Job" and (new or bool(job.metadata.labels.get(_QUEUE_LABEL)))


def job_indexes(text: str, most: int) -> Iterator[int]:
    """Yield the indexes below `most` in a list such as `0,3-5` of a Job's status."""
    for item in text.split(","):
        first, _, last = item.partition("-")
        yield from range(_number(first, most), min(_number(last or first, most) + 1, most))


def _number(text: str, default: int) -> int:
    return int(text) if text.isdecimal() and len(text) <= _DIGITS else default


def _index_of(pod: Mapping[str, Any]) -> int:
    annotations = _metadata(pod).get("annotations")
    index = annotations.get(_INDEX) if isinstance(annotations, Mapping) else None
    return _number(index, -1) if isinstance(index, str) else -1


def _node_of(pod: Mapping[str, Any]) -> str:
    """Return the node of a DaemonSet's pod, even if the pod is not bound yet."""
    try:
        spec = decode(SchedulingPod, {"spec": pod.get("spec") or {}}).spec
    except DocumentError:
        return ""  # reading the pods reports the error
    required = spec.affinity.node_affinity.required_during_scheduling_ignored_during_execution
    terms = required.node_selector_terms if required is not None else ()
    named = (requirement.values[0] for term in terms for requirement in term.match_fields if requirement.values)
    return spec.node_name or next(named, "")


def daemon_tolerations(*, host_network: bool) -> tuple[DeviceToleration, ...]:
    """Return the tolerations that the DaemonSet controller adds to its pods (pkg/controller/daemon/util)."""
    taints = (*_DAEMON_TAINTS, ("network-unavailable", "NoSchedule")) if host_network else _DAEMON_TAINTS
    return tuple(
        DeviceToleration(key=f"node.kubernetes.io/{name}", operator="Exists", effect=effect) for name, effect in taints
    )


def _runs_on(pod: SchedulingPod, tolerations: Sequence[DeviceToleration], node: Node) -> bool:
    tainted = isinstance(node, SchedulingNode) and untolerated(node.spec.taints, tolerations) is not None
    named = pod.spec.node_name in ("", node.metadata.name)
    return named and matches_required(pod, node) and not tainted


def _bound(template: Mapping[str, Any], tolerations: Sequence[Mapping[str, Any]], node: str) -> Mapping[str, Any]:
    spec = template.get("spec") or {}
    affinity = spec.get("affinity") or {}
    of_nodes = {
        **(affinity.get("nodeAffinity") or {}),
        "requiredDuringSchedulingIgnoredDuringExecution": without_tuples(encode(only(node))),
    }
    all_tolerations = [*(spec.get("tolerations") or ()), *tolerations]
    return {
        **template,
        "spec": {**spec, "affinity": {**affinity, "nodeAffinity": of_nodes}, "tolerations": all_tolerations},
    }
