import pytest

from dranode.cdi.errors import CDIError
from dranode.cdi.names import (
    QualifiedName,
    device_problem,
    kind_problem,
    parse_qualified_name,
    qualified_name,
    spec_file_name,
    split_kind,
    written_kind_problem,
)


# The library's parser tests (reference sheet nri-cdi, B2).
@pytest.mark.parametrize(
    "text",
    [
        "vendor.com/class=dev",
        "a/b=c",
        "aa/b=cc",
        "a/bb=cc",
        "vendor.com/class=0",
        "vendor1.com/class.subclass=dev1",
        "other-vendor1.com/class_1=dev_1",
        "yet_another-vendor2.com/c-lass_2=dev_1:2.3",
    ],
)
def test_a_qualified_name_is_split_and_joined_again(text: str) -> None:
    name = parse_qualified_name(text)
    assert str(name) == text
    assert qualified_name(f"{name.vendor}/{name.device_class}", name.device) == text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("_invalid.com/class=dev", 'vendor "_invalid.com"'),
        ("invalid2.com-/class=dev", 'vendor "invalid2.com-"'),
        ("invalid3.com/_class=dev", 'class "_class"'),
        ("invalid4.com/class_=dev", 'class "class_"'),
        ("invalid5.com/class=-dev", '"-dev"'),
        ("invalid6.com/class=dev:", '"dev:"'),
        ("*.com/*dev=*gpu*", 'vendor "*.com"'),
        ("vendor.com/a/b=dev", 'class "a/b"'),
        ("vendor.com/class", "the device name after = is missing"),
        ("vendor.com/class=", "the device name after = is missing"),
        ("/class=dev", "not a vendor and a class"),
        ("vendor.com=dev", "not a vendor and a class"),
        ("vendor.com/class=dév", '"dév"'),
        ("vendor.com/class=dev\n", '"dev\\n"'),
        ("", "the device name after = is missing"),
    ],
)
def test_an_invalid_qualified_name_is_refused_with_the_wrong_part(text: str, reason: str) -> None:
    with pytest.raises(CDIError) as refused:
        parse_qualified_name(text)
    assert reason in str(refused.value)


def test_a_qualified_name_is_split_at_the_first_slash_and_the_first_equals_sign() -> None:
    assert split_kind("a/b/c") == ("a", "b/c")
    assert parse_qualified_name("v/c=d") == QualifiedName("v", "c", "d")
    assert split_kind("a/") == split_kind("/b") == split_kind("ab") == ("", "")


@pytest.mark.parametrize("kind", ["A_b.com/C.d-e_f", "a..b/cc", "a" * 300 + "/" + "c" * 100, "a/b"])
def test_the_library_accepts_kinds_that_a_writer_does_not_write(kind: str) -> None:
    assert kind_problem(kind) is None
    assert written_kind_problem(kind) is not None


def test_a_writer_respects_the_lengths_of_the_specification() -> None:
    assert written_kind_problem("dra.k8s.io/cpu") is None
    longest = ".".join(["a" * 62] * 4) + ".b"
    assert len(longest) == 253
    assert written_kind_problem(f"{longest}/{'c' * 63}") is None
    assert "254" in str(written_kind_problem(f"{longest}b/cc"))
    assert "64" in str(written_kind_problem(f"{longest}/{'c' * 64}"))


@pytest.mark.parametrize(
    ("name", "fits"), [("0", True), ("a:b.c_d-e", True), ("", False), ("a-", False), ("a b", False)]
)
def test_a_device_name_may_have_colons_inside_and_starts_and_ends_with_a_letter_or_digit(
    name: str, *, fits: bool
) -> None:
    assert (device_problem(name) is None) == fits


def test_a_spec_file_is_named_after_kind_and_id_with_slashes_replaced() -> None:
    assert spec_file_name("dra.k8s.io/cpu", "claim-1") == "dra.k8s.io-cpu_claim-1.json"
    assert spec_file_name("vendor.com/class", "a/b") == "vendor.com-class_a_b.json"
    assert spec_file_name("vendor.com/class") == "vendor.com-class.json"
    with pytest.raises(CDIError, match="not a vendor and a class"):
        spec_file_name("vendor.com")
