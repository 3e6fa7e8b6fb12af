"""Judges the DeviceClasses of a cluster by the devices of one node: what they select, and what they configure."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from dranode.api.documents import decode, to_v1
from dranode.api.errors import DocumentError, DranodeError
from dranode.api.resource import Device, DeviceClass
from dranode.driver.claims.grant import Config
from dranode.driver.claims.plugin import Plugin
from dranode.sim.cel.errors import CELCompileError, CELRuntimeError
from dranode.sim.cel.expression import compile_selector
from dranode.tools.diagnosis.facts import ClassProblem, ClassTrouble, Facts


def with_class_problems(facts: Facts, plugins: Sequence[Plugin]) -> Facts:
    """Return the facts with what is wrong with the classes that the API server has."""
    if facts.cluster is None or not facts.cluster.classes:
        return facts
    classes = []
    for document in facts.cluster.classes:
        try:
            classes.append(decode(DeviceClass, to_v1(document)))
        except DocumentError:
            continue  # an answer of another form says nothing of a class
    devices: dict[str, Sequence[Device]] = {}
    for plugin in plugins:
        with contextlib.suppress(DranodeError):
            devices[plugin.driver] = plugin.discover().devices
    problems = tuple(class_problems(classes, plugins, devices))
    return replace(facts, cluster=replace(facts.cluster, class_problems=problems))


def class_problems(
    classes: Iterable[DeviceClass], plugins: Sequence[Plugin], devices: Mapping[str, Sequence[Device]]
) -> Iterator[ClassProblem]:
    """Yield what is wrong with classes that are the drivers'.

    Args:
        classes: all that could be read.
        plugins: the drivers.
        devices: what each of them publishes on this node, by its name.
    """
    classes = tuple(classes)
    for each in classes:
        yield from _selectors(each, devices)
        yield from _configs(each, plugins)
    yield from _disagreements(classes)


def _selectors(device_class: DeviceClass, devices: Mapping[str, Sequence[Device]]) -> Iterator[ClassProblem]:
    name = device_class.metadata.name
    try:
        selected = [
            driver for driver in devices for device in devices[driver] if _selects(device_class, driver, device)
        ]
    except CELCompileError as error:
        yield ClassProblem(name, ClassTrouble.INVALID, str(error))
        return
    except CELRuntimeError as error:
        if _is_ours(device_class, devices):
            yield ClassProblem(name, ClassTrouble.FAILS, str(error))
        return
    if not selected and _is_ours(device_class, devices) and any(devices.values()):
        expressions = " && ".join(one.cel.expression for one in device_class.spec.selectors if one.cel is not None)
        yield ClassProblem(name, ClassTrouble.SELECTS_NOTHING, expressions)


def _selects(device_class: DeviceClass, driver: str, device: Device) -> bool:
    return all(
        compile_selector(one.cel.expression).matches(driver, device)
        for one in device_class.spec.selectors
        if one.cel is not None
    )


def _is_ours(device_class: DeviceClass, devices: Mapping[str, Sequence[Device]]) -> bool:
    """Return whether a class names one of the drivers, by its own name or in a selector."""
    texts = (device_class.metadata.name, *(one.cel.expression for one in device_class.spec.selectors if one.cel))
    return any(driver in text for driver in devices for text in texts)


def _configs(device_class: DeviceClass, plugins: Sequence[Plugin]) -> Iterator[ClassProblem]:
    for index, entry in enumerate(device_class.spec.config):
        for plugin in plugins:
            if entry.opaque is None or entry.opaque.driver != plugin.driver:
                continue
            try:
                plugin.parse_config(
                    Config("FromClass", entry.opaque.parameters, f"spec.config[{index}].opaque.parameters")
                )
            except DranodeError as error:
                yield ClassProblem(device_class.metadata.name, ClassTrouble.CONFIG, str(error))


def _disagreements(classes: Sequence[DeviceClass]) -> Iterator[ClassProblem]:
    """Yield classes that stand for one extended resource: kube-scheduler takes the newest of them."""
    extended: defaultdict[str, list[str]] = defaultdict(list)
    for each in classes:
        if each.spec.extended_resource_name:
            extended[each.spec.extended_resource_name].append(each.metadata.name)
    for resource, names in extended.items():
        if len(names) > 1:
            yield ClassProblem(" and ".join(sorted(names)), ClassTrouble.SAME_RESOURCE, resource)
