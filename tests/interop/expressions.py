"""Random CEL selectors. Most have the right types, so that evaluation is compared; some have arbitrary ones."""

import random
from collections.abc import Callable
from typing import Final

DRIVER: Final = "gpu.example.com"
_STRINGS: Final = (
    '""',
    '"a"',
    '"a,b,,c"',
    '"1.2.3"',
    '"1Gi"',
    '"10.0.0.1"',
    '"h100-sxm"',
    '"é\\n"',
    '"https://x.y:1/p?q=1"',
    '"5s"',
)
_ATTRIBUTES: Final = {
    "string": ("model", "words", "label", "addr"),
    "int": ("numa", "neg", "big"),
    "bool": ("healthy", "broken"),
    "semver": ("version", "rc"),
}


class ExpressionMaker:
    """Makes the expressions of a seed."""

    def __init__(self, seed: int, *, mistakes: float = 0.03) -> None:
        """`mistakes` is how often an operand of a wrong type is used."""
        self.random = random.Random(seed)
        self.mistakes = mistakes
        self.variables: list[tuple[str, str]] = []
        self.made = 0

    def make(self) -> str:
        """Return an expression, in most cases of type bool."""
        return self._of("bool", self.random.randint(1, 4))

    def _of(self, kind: str, depth: int) -> str:
        if self.random.random() < self.mistakes:
            kind = self.random.choice(sorted(self._makers()))
        known = [name for name, its in self.variables if its == kind]
        if known and self.random.random() < 0.4:
            return self.random.choice(known)
        if self.random.random() < 0.05:
            return f"dyn({self._plain(kind, depth)})"
        return self._plain(kind, depth)

    def _plain(self, kind: str, depth: int) -> str:
        return self._makers()[kind](depth)

    def _makers(self) -> dict[str, Callable[[int], str]]:
        return {
            "bool": self._bool,
            "int": self._int,
            "uint": self._uint,
            "double": self._double,
            "string": self._string,
            "bytes": self._bytes,
            "list": self._list,
            "strings": self._strings,
            "map": self._map,
            "duration": self._duration,
            "timestamp": self._timestamp,
            "quantity": self._quantity,
            "semver": self._semver,
            "ip": self._ip,
            "cidr": self._cidr,
            "url": self._url,
            "optional": self._optional,
            "message": self._message,
        }

    def _one(self, depth: int, leaves: list[str], templates: list[str]) -> str:
        """Return a leaf, or a template such as `{int} + {int}` with its parts filled in."""
        if depth <= 0 or (leaves and self.random.random() < 0.25):
            return self.random.choice(leaves)
        return self._filled(self.random.choice(templates), depth - 1)

    def _filled(self, template: str, depth: int) -> str:
        text = ""
        while template:
            before, brace, rest = template.partition("{")
            text += before
            if not brace:
                break
            if rest.startswith("{"):
                text, template = f"{text}{{", rest[1:]
                continue
            kind, _, template = rest.partition("}")
            if ":" in kind:
                self.variables.append(tuple(kind.split(":")))  # type: ignore[arg-type]
            elif kind == "end":
                self.variables.pop()
            else:
                text += self._of(kind, depth)
        return text

    def _variable(self) -> str:
        self.made += 1
        return f"v{self.made}"

    def _attribute(self, kind: str) -> str:
        name = self.random.choice(_ATTRIBUTES[kind])
        missing = self.random.random()
        if missing < 0.04:
            name = "nothing"
        domain = "other.example.com" if missing > 0.97 else DRIVER
        return f'device.attributes["{domain}"].{name}'

    def _loop(self, macro: str, element: str, over: str) -> str:
        name = self._variable()
        body = {"exists": "bool", "all": "bool", "exists_one": "bool", "filter": "bool", "map": element}[macro]
        return f"{{{over}}}.{macro}({name}, {{{name}:{element}}}{{{body}}}{{end}})"

    def _bool(self, depth: int) -> str:
        templates = [
            "{message} == {message}",
            "google.protobuf.BoolValue{{value: {bool}}",
            "google.protobuf.Value{{bool_value: {bool}}",
            "{bool} && {bool}",
            "{bool} || {bool}",
            "!({bool})",
            "({bool} ? {bool} : {bool})",
            "{int} == {int}",
            "{int} < {int}",
            "{double} >= {int}",
            "{string} == {string}",
            "{string} != {string}",
            "{string} < {string}",
            "{bytes} == {bytes}",
            "{list} == {list}",
            "{map} == {map}",
            "{uint} > {uint}",
            "{int} in {list}",
            "{string} in {strings}",
            "{string} in {map}",
            '{string} in ["a", "b", "h100-sxm"]',
            "{string}.startsWith({string})",
            "{string}.endsWith({string})",
            "{string}.contains({string})",
            '{string}.matches("^[a-h]+")',
            "{string}.matches({string})",
            '{string}.matches("(a|b)*c?")',
            "{duration} < {duration}",
            "{timestamp} < {timestamp}",
            "{duration} == {duration}",
            "{quantity}.isLessThan({quantity})",
            "{quantity} == {quantity}",
            "{quantity}.isInteger()",
            "{semver}.isGreaterThan({semver})",
            "{semver} == {semver}",
            "isSemver({string})",
            "isQuantity({string})",
            "isIP({string})",
            "isCIDR({string})",
            "isURL({string})",
            "{ip}.isLoopback()",
            "{ip} == {ip}",
            "{cidr}.containsIP({ip})",
            "{cidr}.containsIP({string})",
            "{cidr}.containsCIDR({cidr})",
            "{url} == {url}",
            "sets.contains({list}, {list})",
            "sets.intersects({list}, {list})",
            "sets.equivalent({strings}, {strings})",
            "{list}.isSorted()",
            "{optional}.hasValue()",
            "{optional} == {optional}",
            "type({int}) == type({string})",
            "format.dns1123Label().validate({string}).hasValue()",
            "format.uuid().validate({string}).hasValue()",
            "has({map}.a)",
            f'has(device.attributes["{DRIVER}"].numa)',
            "device.attributes.?x.hasValue()",
            "bool({string})",
            "{optional}.orValue({int}) == {int}",
            self._loop("exists", "int", "list"),
            self._loop("all", "int", "list"),
            self._loop("exists_one", "string", "strings"),
            self._loop("all", "string", "strings"),
            self._bound("int", "bool"),
            self._bound("string", "bool"),
            self._bound("list", "bool"),
        ]
        leaves = [
            "true",
            "false",
            self._attribute("bool"),
            f'device.driver == "{DRIVER}"',
            f"{self._attribute('int')} == 1",
        ]
        return self._one(depth, leaves, templates)

    def _bound(self, kind: str, result: str) -> str:
        name = self._variable()
        return f"cel.bind({name}, {{{kind}}}, {{{name}:{kind}}}{{{result}}}{{end}})"

    def _int(self, depth: int) -> str:
        templates = [
            "google.protobuf.Int64Value{{value: {int}}",
            "google.protobuf.Int32Value{{?value: {optional}}",
            "int({timestamp})",
            "({int} + {int})",
            "({int} - {int})",
            "({int} * {int})",
            "({int} / {int})",
            "({int} % {int})",
            "-({int})",
            "size({string})",
            "{list}.size()",
            "size({map})",
            "int({double})",
            "int({string})",
            "int({uint})",
            "{string}.indexOf({string})",
            "{string}.lastIndexOf({string})",
            "{string}.indexOf({string}, {int})",
            "{list}.indexOf({int})",
            "{list}.lastIndexOf({int})",
            "{list}.sum()",
            "{list}.max()",
            "{list}.min()",
            "{list}[{int}]",
            "{quantity}.asInteger()",
            "{quantity}.compareTo({quantity})",
            "sign({quantity})",
            "{semver}.major()",
            "{semver}.compareTo({semver})",
            "{ip}.family()",
            "{cidr}.prefixLength()",
            "{duration}.getSeconds()",
            "{duration}.getMilliseconds()",
            "{timestamp}.getFullYear()",
            '{timestamp}.getHours("+02:30")',
            "{timestamp}.getDayOfYear()",
            "{timestamp}.getDayOfWeek()",
            "{optional}.orValue({int})",
            "({bool} ? {int} : {int})",
            "{list}.first().orValue({int})",
            "size({bytes})",
            self._bound("int", "int"),
        ]
        leaves = ["0", "1", "2", "-1", "3", "7", "9223372036854775807", self._attribute("int")]
        return self._one(depth, leaves, templates)

    def _uint(self, depth: int) -> str:
        return self._one(
            depth,
            ["0u", "1u", "5u"],
            [
                "google.protobuf.UInt32Value{{value: {uint}}",
                "({uint} + {uint})",
                "({uint} - {uint})",
                "uint({int})",
                "uint({string})",
            ],
        )

    def _double(self, depth: int) -> str:
        templates = [
            "google.protobuf.FloatValue{{value: {double}}",
            "google.protobuf.Value{{number_value: {double}}",
            "({double} + {double})",
            "({double} / {double})",
            "double({int})",
            "double({string})",
            "{quantity}.asApproximateFloat()",
        ]
        return self._one(depth, ["0.0", "1.5", "-2.5", "1e10"], templates)

    def _string(self, depth: int) -> str:
        templates = [
            "google.protobuf.StringValue{{value: {string}}",
            "google.protobuf.Value{{string_value: {string}}",
            "google.protobuf.Struct{{fields: {map}}.a",
            "({string} + {string})",
            "{string}.substring({int})",
            "{string}.substring({int}, {int})",
            "{string}.charAt({int})",
            "{string}.replace({string}, {string})",
            "{string}.replace({string}, {string}, {int})",
            "{string}.lowerAscii()",
            "{string}.upperAscii()",
            "{string}.trim()",
            "{strings}.join()",
            "{strings}.join({string})",
            "strings.quote({string})",
            "string({int})",
            "string({double})",
            "string({bool})",
            "string({bytes})",
            "string({duration})",
            "string({timestamp})",
            "string({ip})",
            "string({cidr})",
            '"%s/%s".format([{string}, {string}])',
            '"%s %s".format([{list}, {map}])',
            '"%d|%x".format([{int}, {int}])',
            '"%.2f %f".format([{double}, {double}])',
            '"%s".format([{duration}])',
            '{string}.find("[a-z]+")',
            "{string}.find({string})",
            "{strings}[{int}]",
            "{map}[{string}]",
            "{map}.a",
            "{url}.getHost()",
            "{url}.getPort()",
            "{url}.getHostname()",
            "{url}.getScheme()",
            "{url}.getEscapedPath()",
            "({bool} ? {string} : {string})",
            "string({uint})",
            self._bound("string", "string"),
        ]
        return self._one(depth, [*_STRINGS, "device.driver", self._attribute("string")], templates)

    def _bytes(self, depth: int) -> str:
        return self._one(depth, ['b"a"', 'b"\\xff"', 'b""'], ["bytes({string})", "({bytes} + {bytes})"])

    def _list(self, depth: int) -> str:
        templates = [
            "google.protobuf.ListValue{{values: {list}}",
            "google.protobuf.Value{{list_value: {list}}",
            "[{int}, {int}]",
            "[{int}]",
            "({list} + {list})",
            "{list}.slice({int}, {int})",
            "{list}.sort()",
            "{list}.distinct()",
            "{list}.reverse()",
            "[{list}, {list}].flatten()",
            "lists.range({int} % 20)",
            "[?{optional}, {int}]",
            "({bool} ? {list} : {list})",
            self._loop("map", "int", "list"),
            self._loop("filter", "int", "list"),
            "{list}.transformList(i, x, i + x)",
            "{list}.sortBy(x, -x)",
            "{strings}.map(x, x.size())",
        ]
        return self._one(depth, ["[]", "[1]", "[3, 1, 2]", "[1, 2, 3, 4]"], templates)

    def _strings(self, depth: int) -> str:
        templates = [
            "google.protobuf.ListValue{{values: {strings}}",
            "[{string}, {string}]",
            "{string}.split({string})",
            '{string}.split(",")',
            "{string}.split({string}, {int})",
            '{string}.findAll("[a-z0-9]")',
            '{string}.findAll("b*", {int})',
            "({strings} + {strings})",
            "{strings}.sort()",
            self._loop("filter", "string", "strings"),
            self._loop("map", "string", "strings"),
            "{strings}.reverse()",
            'url("https://x/?a=1&a=2&b=%20").getQuery().a',
        ]
        return self._one(depth, ["[]", '["a"]', '["b", "a", "b"]'], templates)

    def _map(self, depth: int) -> str:
        templates = [
            "google.protobuf.Struct{{fields: {map}}",
            '{{"a": {string}}',
            '{{"a": {string}, {string}: {string}}',
            "({bool} ? {map} : {map})",
            '{{?"a": {optional}}',
        ]
        return self._one(depth, ["{}", '{"a": "b"}'], [one.replace("}", "}") for one in templates])

    def _duration(self, depth: int) -> str:
        templates = [
            "google.protobuf.Duration{{seconds: {int}, nanos: {int}}",
            "({duration} + {duration})",
            "({timestamp} - {timestamp})",
            "duration({string})",
            "({duration} - {duration})",
        ]
        return self._one(
            depth, ['duration("1h")', 'duration("-1.5s")', 'duration("0")', 'duration("1m30s5ms")'], templates
        )

    def _timestamp(self, depth: int) -> str:
        templates = [
            "google.protobuf.Timestamp{{seconds: {int}, nanos: {int}}",
            "({timestamp} + {duration})",
            "({timestamp} - {duration})",
            "timestamp({int})",
            "timestamp({string})",
        ]
        leaves = ['timestamp("2020-02-29T12:34:56.789Z")', 'timestamp("1969-12-31T23:59:59+01:00")', "timestamp(0)"]
        return self._one(depth, leaves, templates)

    def _quantity(self, depth: int) -> str:
        leaves = [
            f'device.capacity["{DRIVER}"].memory',
            f'device.capacity["{DRIVER}"].frac',
            *(f'quantity("{one}")' for one in ("1Gi", "1.5Gi", "1500m", "3", "-2", "1e3", "100n", "1.50")),
        ]
        return self._one(
            depth,
            leaves,
            [
                "{quantity}.add({quantity})",
                "{quantity}.sub({quantity})",
                "{quantity}.add({int})",
                "quantity({string})",
                "quantity(string({int}))",
            ],
        )

    def _semver(self, depth: int) -> str:
        leaves = [
            self._attribute("semver"),
            *(f'semver("{one}")' for one in ("1.2.3", "1.2.3-alpha.1", "1.2.3-alpha.beta", "1.2.3+b")),
        ]
        return self._one(depth, leaves, ["semver({string})", 'semver("v1.02", true)', "semver({string}, {bool})"])

    def _ip(self, depth: int) -> str:
        return self._one(depth, ['ip("10.0.0.1")', 'ip("::1")', 'ip("fe80::1")'], ["ip({string})", "{cidr}.ip()"])

    def _cidr(self, depth: int) -> str:
        return self._one(
            depth, ['cidr("10.0.0.0/8")', 'cidr("10.1.2.3/16")', 'cidr("::/0")'], ["{cidr}.masked()", "cidr({string})"]
        )

    def _url(self, depth: int) -> str:
        return self._one(
            depth, ['url("https://x.y:1/p%20q?q=1")', 'url("/a/b")', 'url("mailto:a@b")'], ["url({string})"]
        )

    def _optional(self, depth: int) -> str:
        templates = [
            "optional.of({int})",
            "[{int}][?{int}]",
            "{optional}.or({optional})",
            "{list}.first()",
            "{list}.last()",
            "optional.ofNonZeroValue({int})",
            "{optional}.optMap(o, o + 1)",
        ]
        return self._one(
            depth,
            [
                "optional.none()",
                "optional.of(1)",
                f'device.attributes["{DRIVER}"].?numa',
                f'device.attributes["{DRIVER}"].?nope',
            ],
            templates,
        )

    def _message(self, depth: int) -> str:
        templates = [
            "google.protobuf.Value{{null_value: {int}}",
            "google.protobuf.ListValue{{values: [{optional}, {duration}, {timestamp}, {bytes}]}",
            "google.protobuf.Struct{{fields: {{{string}: {list}, {string}: {message}}}",
            "{list}",
        ]
        return self._one(depth, ["google.protobuf.Empty{}", "google.protobuf.Value{}", "null"], templates)
