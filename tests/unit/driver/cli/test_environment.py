"""Options in environment variables: an unknown one is refused, variables of other programs are not."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from dranode.api.errors import UsageError
from dranode.driver.cli.options import check_environment, variables
from dranode.driver.cli.serve import command as serve
from tests.fakes.program import run_program


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("DRANODE_RESERVED_CPU", "did you mean DRANODE_RESERVED_CPUS?"),
        ("DRANODE_DRIVRS", "did you mean DRANODE_DRIVERS?"),
        ("DRANODE_HTTP_ADRESS", "did you mean DRANODE_HTTP_ADDRESS?"),
        ("DRANODE_Q", "there are DRANODE_CDI_DIR, DRANODE_CLAIM_STATUS, "),
        # There is no other sign of a Service.
        ("DRANODE_PORT", "there are "),
        ("DRANODE_THREADS_SERVICE", "did you mean DRANODE_THREADS?"),
    ],
)
def test_an_unknown_variable_is_refused_with_the_most_similar_one(name: str, hint: str) -> None:
    with pytest.raises(UsageError) as refused:
        check_environment({name: "x", "PATH": "/bin"}, variables())
    assert str(refused.value).startswith(f"the environment variable {name} is unknown: ")
    assert hint in str(refused.value)


def test_kubernetes_service_variables_are_not_options() -> None:
    names = ("SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP", "PORT", "PORT_8080_TCP", "PORT_8080_TCP_ADDR")
    services = ("DRANODE", "DRANODE_METRICS", "KUBERNETES")
    check_environment({f"{service}_{name}": "x" for service in services for name in names}, variables())
    with pytest.raises(UsageError, match="DRANODE_PORTS"):
        check_environment({"DRANODE_PORTS": "x"}, variables())


def test_the_variables_of_a_container_with_a_claim_are_not_options() -> None:
    check_environment({"DRANODE_HELD_6f0c": "0-1", "DRA_CPUSET_6f0c": "0"}, variables())
    check_environment({"DRANODE_ISOLATION_6f0c": "quiet", "DRANODE_SHARED_6f0c_1": "true"}, variables())


def test_every_variable_of_serve_is_known() -> None:
    named = {names if isinstance(names, str) else names[0] for each in serve.params if (names := each.envvar)}
    assert len(named) > 15
    check_environment(dict.fromkeys((*named, "POD_UID"), "x"), variables())


@pytest.mark.parametrize(
    ("arguments", "environment", "place"),
    [
        ([], {"DRANODE_GROUP_BY": "nuam"}, "the environment variable DRANODE_GROUP_BY"),
        (["--group-by", "nuam"], {"DRANODE_GROUP_BY": "socket"}, "'--group-by'"),
    ],
)
def test_a_wrong_value_is_reported_with_its_variable(
    arguments: list[str], environment: dict[str, str], place: str
) -> None:
    done = CliRunner().invoke(serve, arguments, env=environment)
    assert f"Invalid value for {place}: 'nuam' is not one of" in done.stderr


@pytest.mark.parametrize("arguments", [["serve"], ["slices", "--machine", "cores=2"], ["claims"]])
def test_the_program_refuses_an_unknown_variable_before_it_does_anything(tmp_path: Path, arguments: list[str]) -> None:
    done = run_program(*arguments, cwd=tmp_path, DRANODE_RESERVED_CPU="0")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "dranode: the environment variable DRANODE_RESERVED_CPU is unknown: did you mean DRANODE_RESERVED_CPUS?\n"
    )
