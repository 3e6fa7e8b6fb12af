"""Random pods and nodes whose amounts of resources an API server takes or refuses, made from a seed alone."""

import random
from typing import Any, Final

Document = dict[str, Any]
_COMMON: Final = ("cpu", "memory", "example.com/gpu", "hugepages-2Mi", "ephemeral-storage", "hugepages-1Gi")
_STANDARD: Final = ("pods", "storage", "gpu", "services", "requests.cpu", "limits.cpu", "attachable-volumes-ebs", "CPU")
_PAGES: Final = ("hugepages-", "hugepages-0", "hugepages-abc", "hugepages-1.5", "hugepages--2Mi", "hugepages-4Ki")
_WITH_DOMAIN: Final = (
    "example.com/a_b.c",
    "Example.com/GPU",
    "example.com/hugepages-2Mi",
    "hugepages-2Mi/x",
    "kubernetes.io/batch",
    "foo.kubernetes.io/bar",
    "deviceclass.resource.kubernetes.io/gpu",
    "requests.example.com/gpu",
    f"example.com/{'x' * 63}",
)
_BROKEN: Final = ("-x/y", "example.com/", "/gpu", "a/b/c", "x y", "cpu ", f"example.com/{'x' * 64}")
_NAMES: Final = (*_COMMON, *_STANDARD, *_PAGES, *_WITH_DOMAIN, *_BROKEN)
_SMALL: Final = ("0", "1", "2", "3", "0.5", "1.5", "1.0", "100m", "500m", "1500m", "2000m", "1e3")
_PAGED: Final = ("1Ki", "1Gi", "2Gi", "4Mi", "3Mi", "2Mi", "1Ti", "2097152")
_FINE: Final = ("1n", "0.0001", "999u", "-0.0001", "-1n")
_ODD: Final = ("-1", "-0", "-500m", "1E", "1e30", "9223372036854775807", "9223372036854775808")
_VALUES: Final = (*_SMALL, *_PAGED, *_FINE, *_ODD)


class RandomAmounts:
    """Pods and nodes, each drawn after the one before it."""

    def __init__(self, seed: int) -> None:
        """Start from a seed."""
        self._random = random.Random(seed)

    def pod(self) -> Document:
        """A pod that asks for something in its containers, in those that run first, and as a whole."""
        draw = self._random
        spec: Document = {"containers": [self._container(f"c{index}") for index in range(draw.choice((1, 1, 2)))]}
        if draw.random() < 0.3:
            first = [self._container(f"i{index}") for index in range(draw.choice((1, 2)))]
            spec["initContainers"] = [each | self._restarts() for each in first]
        if draw.random() < 0.4:
            spec["resources"] = self._resources()
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}

    def node(self) -> Document:
        """A node with amounts of its own."""
        status = {
            field: self._amounts(self._names()) for field in ("capacity", "allocatable") if self._random.random() < 0.8
        }
        return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "status": status}

    def _restarts(self) -> Document:
        return {"restartPolicy": "Always"} if self._random.random() < 0.4 else {}

    def _container(self, name: str) -> Document:
        resources = {"resources": self._resources()} if self._random.random() < 0.8 else {}
        return {"name": name, "image": "i", **resources}

    def _resources(self) -> Document:
        draw, names = self._random, self._names()
        limits, requests = self._amounts(names), self._amounts(names)
        limits |= {name: requests[name] for name in requests if draw.random() < 0.3}
        requests |= {name: draw.choice(_VALUES) for name in limits if draw.random() < 0.3}
        return {"limits": limits, "requests": requests}

    def _names(self) -> tuple[str, ...]:
        return _COMMON if self._random.random() < 0.75 else _NAMES

    def _amounts(self, names: tuple[str, ...]) -> dict[str, str]:
        draw = self._random
        return {draw.choice(names): draw.choice(_VALUES) for _ in range(draw.choice((0, 1, 1, 2)))}
