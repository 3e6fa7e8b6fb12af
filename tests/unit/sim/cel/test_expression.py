"""Selectors beyond the recorded ones: what is refused by name, and what would be easy to get wrong unnoticed."""

import subprocess
import sys

import pytest

from dranode.api.documents import decode
from dranode.api.resource import Device
from dranode.sim.cel.costs import LIMIT
from dranode.sim.cel.declarations import WITH_LISTS
from dranode.sim.cel.expression import MAX_EXPRESSION_BYTES, Selector, compile_selector
from dranode.sim.cel.syntax import CELCompileError, CELRuntimeError

DRIVER = "d.example.com"
DEVICE = decode(
    Device,
    {
        "name": "d",
        "attributes": {"version": {"version": "1.10.0"}, "numa": {"int": 1}, "model": {"string": "a,b"}},
        "capacity": {"memory": {"value": "1Gi"}},
    },
)
ATTRIBUTES = f'device.attributes["{DRIVER}"]'


def matches(expression: str) -> bool:
    return Selector(expression).matches(DRIVER, DEVICE)


@pytest.mark.parametrize(
    "expression",
    [
        f'{ATTRIBUTES}.version != "1.10.0" && {ATTRIBUTES}.version == semver("1.10.0+build")',
        f"!({ATTRIBUTES}.version == null)",
        f'{ATTRIBUTES}.model.split(",").indexOf("b") == 1 && [1, 2, 1].lastIndexOf(1) == 2',
        f"cel.bind(a, {ATTRIBUTES}, a.numa == 1 && !has(a.none))",
    ],
)
def test_a_selector_matches(expression: str) -> None:
    assert matches(expression)


def test_the_maximum_cost_is_known_after_compilation() -> None:
    assert Selector("device.driver == 'x'").max_cost == 3
    assert Selector("lists.range(2000).all(a, lists.range(2000).all(b, a + b >= 0))").max_cost > LIMIT
    assert Selector(f"{ATTRIBUTES}.model.matches(device.driver)").max_cost < LIMIT


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("1 == 1.0", "found no matching overload"),
        ('kubernetes.Quantity{} == quantity("1")', "kubernetes.Quantity"),
        ('authorizer.path("/x").check("get").allowed()', "undeclared reference to 'authorizer'"),
        ('"a".matches("[")', "error parsing regexp: missing ]"),
        (r'"a".find("\\C") == ""', "invalid escape sequence"),
        ('timestamp("x") > timestamp("2020-01-01T00:00:00Z")', "Timestamp"),
        ('int("x") == 1', "program instantiation failed: type conversion error"),
        ('{"a": 1, 2: 3} != {}', "expected type 'string' but found 'int'"),
        ('"%d".format(["a"]) == ""', "decimal clause can only be used on integers, was given string"),
        ("(" * 250 + "true" + ")" * 250, "expression recursion limit exceeded: 250"),
        ("+".join(["1"] * 252) + " == 252", "expression recursion limit exceeded: 250"),
        ("device.driver == ", "unexpected '<EOF>' at character 18"),
        ("[1].exists(1, true)", "argument must be a simple name"),
        ("var == 1", "reserved identifier: var"),
        ("device.nothing", "undefined field 'nothing'"),
        ("[1, 2].map(x, x)", "must evaluate to bool or the unknown type, not list(int)"),
        ("math.greatest(1, 2) == 2", "undeclared reference"),
        ("true" + " " * MAX_EXPRESSION_BYTES, "longer than 10240 bytes"),
        (f"{ATTRIBUTES}.zones.includes(1)", "includes"),
    ],
)
def test_what_kubernetes_refuses_is_refused(expression: str, message: str) -> None:
    with pytest.raises(CELCompileError) as caught:
        Selector(expression)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        (f'{ATTRIBUTES}.version == "1.10.0"', "no such overload: kubernetes.Semver == string"),
        (f"size({ATTRIBUTES}.version) == 1", "no such overload: size(kubernetes.Semver)"),
        (
            f"{ATTRIBUTES}.numa.isGreaterThan(semver('1.0.0'))",
            "no such overload: isGreaterThan(int, kubernetes.Semver)",
        ),
        ("lists.range(1000).all(a, lists.range(1000).all(b, a + b >= 0))", "actual cost limit exceeded"),
        ('"a".matches(device.driver + "[")', "missing ]"),
        ("lists.range(100000000).size() > 0", "exceeds maximum allowed"),
        ("[].max() == 1", "max called on empty list"),
        ("lists.range(10000).all(a, lists.range(10000).all(b, a + b >= 0))", "operation cancelled"),
        ('quantity("x").isInteger()', '"x" is not a quantity'),
        ('ip("::ffff:10.0.0.1").family() == 4', "IPv4-mapped"),
        ('cidr("10.0.0.0").prefixLength() == 8', "is not a network"),
    ],
)
def test_an_expression_that_fails_on_a_device_says_why(expression: str, message: str) -> None:
    with pytest.raises(CELRuntimeError) as caught:
        matches(expression)
    assert message in str(caught.value)


def test_an_invalid_version_is_an_error_of_the_device() -> None:
    device = decode(Device, {"name": "d", "attributes": {"v": {"version": "v1"}}})
    with pytest.raises(CELRuntimeError, match=r'attribute v: "v1" is not a semantic version'):
        Selector("true").matches(DRIVER, device)


def test_an_expression_is_compiled_once() -> None:
    assert compile_selector("1 < 2") is compile_selector("1 < 2")
    assert compile_selector("1 < 2") is not compile_selector("1 < 2", WITH_LISTS)


GROWING = "+".join(["a"] * 20)
LONG = "z" * 1000


@pytest.mark.parametrize(
    "expression",
    [
        f'["{LONG}"]' + f".map(a, {GROWING})" * 8 + "[0].size() > 0",
        f"[{ATTRIBUTES}.model]" + f".map(a, {GROWING})" * 8 + "[0].size() > 0",
        f"[dyn({ATTRIBUTES}.model)]" + f".map(a, {GROWING})" * 8 + "[0].size() > 0",
        f'[b"{LONG}"]' + f".map(a, {GROWING})" * 8 + "[0].size() > 0",
        '[["z"]]' + f".map(a, {GROWING})" * 8 + "[0].size() > 0",
        f'["{LONG}"]' + '.map(a, a.replace("z", "zzzzzzzzzzzzzzzzzzzz"))' * 6 + "[0].size() > 0",
        f'["{LONG}"]' + '.map(a, a.replace("", a))' * 4 + "[0].size() > 0",
        f'["{LONG}"]' + ".map(a, [a, a, a, a, a, a, a, a, a].join(a))" * 9 + "[0].size() > 0",
        f'lists.range(4500).map(a, "x").join("{LONG + LONG + LONG}").size() > 0',
        '[[[["x"]]]]' + ".map(a, [a, a, a, a, a, a, a, a, a, a, a, a, a]).flatten()" * 7 + ".size() > 0",
        f'lists.range(99).map(i, lists.range(99).map(j, {ATTRIBUTES}.model + "{LONG}")).size() > 0',
        f'cel.bind(s, "{LONG}", [1, 2, 3].map(i, {{"a": s}}).map(i, lists.range(2000).map(j, i.a + i.a))).size() > 0',
    ],
)
def test_the_memory_that_an_expression_allocates_is_limited(expression: str) -> None:
    with pytest.raises(CELRuntimeError, match="operation cancelled"):
        matches(expression)


SHARED = "cel.bind(a, [1, 2], " + "".join(f"cel.bind(a{i}, [a{i - 1 or ''}, a{i - 1 or ''}], " for i in range(1, 40))


def test_the_cost_of_comparing_nested_lists_is_limited() -> None:
    with pytest.raises(CELRuntimeError, match="looks at more than"):
        matches(f"{SHARED}a39 == [a38, a38]{')' * 40}")


@pytest.mark.parametrize(
    "look",
    ["a39.indexOf(a38) == 0", "google.protobuf.ListValue{values: a39}.size() == 2", "dyn(a39) == dyn([a38, a38])"],
)
def test_the_cost_of_walking_nested_lists_is_limited(look: str) -> None:
    with pytest.raises(CELRuntimeError, match="operation cancelled"):
        matches(f"{SHARED}{look}{')' * 40}")


@pytest.mark.parametrize(
    "look",
    [
        "google.protobuf.ListValue{values: lists.range(200).map(i, s)}.size() > 0",
    ],
)
def test_the_size_of_bytes_in_messages_is_limited(look: str) -> None:
    value = "[b'" + "\\x10\\x01" * 500 + f"'].map(a, {GROWING}).map(a, {GROWING})[0]"
    assert matches(f"cel.bind(s, {value}, s.size() == 400000)")
    with pytest.raises(CELRuntimeError, match="looks at more than"):
        matches(f"cel.bind(s, {value}, {look})")


@pytest.mark.parametrize(
    "look",
    [
        '!s.matches("y")',
        '!s.contains("y")',
        's.split("y").size() == 1',
        "s.substring(1) != s",
        "dyn(s) == dyn(s)",
        "s.lowerAscii() == s",
        "s <= s",
    ],
)
def test_the_cost_of_repeated_reads_is_limited(look: str) -> None:
    value = f'["{LONG}"].map(a, {GROWING})[0]'
    assert matches(f"cel.bind(s, {value}, {look})")
    with pytest.raises(CELRuntimeError, match="cost limit exceeded"):
        matches(f"cel.bind(s, {value}, lists.range(90).all(i, lists.range(90).all(j, {look})))")


@pytest.mark.parametrize(
    "expression",
    [
        'lists.range(90).map(a, lists.range(90).map(b, "x")).size() == 90',
        f'lists.range(90).all(a, lists.range(90).all(b, {ATTRIBUTES}.model.split(",").indexOf("b") == 1))',
        "lists.range(4000).map(a, a + a).filter(a, a > 4)[0] == 6",
        'lists.range(900).map(a, "x").join("-").size() == 1799',
        "+".join([f"{ATTRIBUTES}.model"] * 28) + '!= ""',
        'dyn(1) + dyn(2) == 3 && dyn("a") + dyn("b") == "ab" && [1] + [2] == [1, 2] && b"a" + b"b" == b"ab"',
        'timestamp("2020-01-01T00:00:00Z") + duration("1h") > timestamp("2020-01-01T00:00:00Z")',
        '["a", "b"].join() == "ab" && "aaa".replace("a", "bb", 1) == "bbaa" && [[1], [2, 3]].flatten() == [1, 2, 3]',
        '{"k": "x" + "y"}.k == "xy" && [optional.of(1)].size() == 1 && [?optional.of(1)] == [1]',
        f'cel.bind(s, "a" + {ATTRIBUTES}.model, s + s == "aa,baa,b")',
        # after a loop that ends early
        f'["a", "b"].exists(z, z + z == "aa") && device.driver + "x" == "{DRIVER}x"',
        f'!["a", "b"].all(z, z + z == "bb") && dyn(device.driver) + "x" == "{DRIVER}x"',
    ],
)
def test_counting_the_cost_does_not_change_the_value(expression: str) -> None:
    assert matches(expression)


@pytest.mark.parametrize(
    "look",
    [
        "sets.contains(s, s)",
        "sets.equivalent(s, s)",
        "!sets.intersects(s, s.map(i, -1 - i))",
        "s.map(i, [i]).distinct().size() > 0",
        "s.map(i, dyn(i)).distinct().size() > 0",
    ],
)
def test_quadratic_comparisons_are_limited(look: str) -> None:
    assert matches(f"cel.bind(s, lists.range(500), {look})")
    with pytest.raises(CELRuntimeError, match="operation cancelled"):
        matches(f"cel.bind(s, lists.range(4000), {look})")


def test_each_evaluation_has_its_own_budget() -> None:
    selector = Selector(
        f'lists.range(90).map(i, lists.range(90).map(j, "{"z" * 500}" + {ATTRIBUTES}.model)).size() > 0'
    )
    for _ in range(4):
        assert selector.matches(DRIVER, DEVICE)


def test_an_expression_that_grows_takes_little_memory() -> None:
    script = """
import resource
from tests.unit.sim.cel.test_expression import GROWING, LONG, matches
from dranode.sim.cel.declarations import WITH_LISTS
from dranode.sim.cel.expression import CELRuntimeError
matches("true")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for start in (f'["{LONG}"]', '[["z"]]'):
    try:
        matches(start + f".map(a, {GROWING})" * 8 + "[0].size() > 0")
    except CELRuntimeError:
        pass
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 80, "MiB"
