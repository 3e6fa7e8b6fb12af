from dranode.api.quantity import Quantity


def test_amounts_use_the_largest_suffix_that_keeps_them_whole() -> None:
    assert [str(Quantity.binary(amount)) for amount in (0, 1, 1000, 1024, 3 << 20, 80 << 30, 1 << 60)] == [
        "0",
        "1",
        "1000",
        "1Ki",
        "3Mi",
        "80Gi",
        "1024Pi",
    ]
