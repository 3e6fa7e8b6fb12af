import errno
import os

import pytest

from dranode.api.cpuset import CPUSet
from dranode.api.errors import MachineError
from dranode.cpu.sysfs import read_topology
from dranode.sim.machines.confined import ConfinedRoot
from dranode.sim.machines.forms import open_machine
from tests.fakes.machine import CPU, NODE, cpu_files, machine


def cores(files: dict[str, str]) -> list[str]:
    return [str(cpus) for cpus in read_topology(machine(files)).cores]


class TestOnline:
    def test_the_online_file_lists_the_cpus(self) -> None:
        topology = read_topology(machine({f"{CPU}/online": "0,2-3\n", f"{CPU}/present": "0-4\n"}))
        assert str(topology.online) == "0,2-3"
        assert str(topology.offline) == "1,4"

    def test_without_the_online_file_every_folder_is_read_and_no_answer_means_online(self) -> None:
        files = {**cpu_files(0, core_id="0"), f"{CPU}/cpu1/online": "0\n", f"{CPU}/cpu2/online": "1\n"}
        topology = read_topology(machine(files))
        assert str(topology.online) == "0,2"
        assert str(topology.offline) == "1"

    def test_no_cpu_online_is_refused(self) -> None:
        with pytest.raises(MachineError, match="no CPU is online according to /sys/devices/system/cpu/online"):
            read_topology(machine({f"{CPU}/online": "\n"}))

    def test_a_machine_without_any_files_is_refused(self) -> None:
        with pytest.raises(MachineError, match="no CPU is online"):
            read_topology(machine({"sys/devices/other": ""}))

    def test_trailing_nuls_are_stripped(self) -> None:
        assert str(read_topology(machine({f"{CPU}/online": "0-1\n\0\0"})).online) == "0-1"
        assert str(read_topology(machine({f"{CPU}/online": "0-1\0\n"})).online) == "0-1"

    @pytest.mark.parametrize(("text", "expected"), [("2-3\n", "2-3"), ("(null)\n", ""), ("\n", "")])
    def test_cpus_without_a_tick_are_read(self, text: str, expected: str) -> None:
        assert str(read_topology(machine({f"{CPU}/online": "0-3", f"{CPU}/nohz_full": text})).nohz_full) == expected

    def test_isolated_cpus_are_read(self) -> None:
        assert str(read_topology(machine({f"{CPU}/online": "0-3", f"{CPU}/isolated": "2-3\n"})).isolated) == "2-3"


class TestCores:
    @pytest.mark.parametrize(
        ("name", "first", "second"),
        [
            ("core_cpus_list", "0,2", "1,3"),
            ("thread_siblings_list", "0,2", "1,3"),
            ("core_cpus", "5", "a"),
            ("thread_siblings", "00000000,00000005", "00000000,0000000a"),
        ],
    )
    def test_each_source_is_parsed(self, name: str, first: str, second: str) -> None:
        files = {f"{CPU}/online": "0-3"}
        for cpu in range(4):
            files |= cpu_files(cpu, **{name: second if cpu % 2 else first})
        assert cores(files) == ["0,2", "1,3"]

    def test_the_current_name_takes_precedence_over_the_old_one(self) -> None:
        files = {f"{CPU}/online": "0-1"}
        for cpu in range(2):
            files |= cpu_files(cpu, core_cpus_list=str(cpu), thread_siblings_list="0-1")
        assert cores(files) == ["0", "1"]

    def test_a_core_id_alone_does_not_join_cpus(self) -> None:
        files = {f"{CPU}/online": "0-1", **cpu_files(0, core_id="0"), **cpu_files(1, core_id="0")}
        assert cores(files) == ["0", "1"]

    @pytest.mark.parametrize("threads", [1, 2, 4, 8])
    def test_every_smt_width_is_read(self, threads: int) -> None:
        topology = read_topology(open_machine(f"cores=3,threads={threads}"))
        assert {len(core) for core in topology.cores} == {threads}
        assert topology.smt == (threads > 1)

    def test_an_offline_sibling_is_left_out(self) -> None:
        files = {f"{CPU}/online": "0-2"} | cpu_files(0, core_cpus_list="0,2") | cpu_files(1, core_cpus_list="1,3")
        assert cores(files | cpu_files(2, core_cpus_list="0,2")) == ["0,2", "1"]

    def test_a_set_without_its_own_cpu_is_ignored_and_the_next_source_is_read(self) -> None:
        files = {f"{CPU}/online": "0-3"}
        for cpu in range(4):
            files |= cpu_files(cpu, thread_siblings_list="0-1", thread_siblings="3" if cpu < 2 else "c")
        topology = read_topology(machine(files))
        assert [str(core) for core in topology.cores] == ["0-1", "2-3"]
        assert not topology.warnings

    def test_without_another_source_the_cpu_is_alone_with_one_warning(self) -> None:
        files = {f"{CPU}/online": "0-3"}
        for cpu in range(4):
            files |= cpu_files(cpu, thread_siblings_list="0-1")
        topology = read_topology(machine(files))
        assert [str(core) for core in topology.cores] == ["0-1", "2", "3"]
        assert topology.warnings == ("the core files of cpu2 list CPUs 0-1 and not cpu2 itself",)

    def test_contradicting_cpus_follow_the_lower_one_with_one_warning(self) -> None:
        files = {f"{CPU}/online": "0-2"} | cpu_files(0, core_cpus_list="0-1")
        files |= cpu_files(1, core_cpus_list="1-2") | cpu_files(2, core_cpus_list="1-2")
        topology = read_topology(machine(files))
        assert [str(core) for core in topology.cores] == ["0-1", "2"]
        assert topology.warnings == ("cpu1 and cpu0 disagree about the core that they share",)


class TestPackages:
    def packages(self, files: dict[str, str]) -> dict[int, str]:
        topology = read_topology(machine(files))
        assert {cpu.id: cpu.package for cpu in topology.cpus.values() if cpu.package >= 0} == {
            cpu: number for number, cpus in topology.packages.items() for cpu in cpus
        }
        return {number: str(cpus) for number, cpus in topology.packages.items()}

    def test_a_repeated_id_is_another_package_only_in_another_book(self) -> None:
        files = {f"{CPU}/online": "0-3"}
        for cpu in range(4):
            files |= cpu_files(cpu, physical_package_id="0", core_siblings_list="0-1" if cpu < 2 else "2-3")
        assert self.packages(files) == {0: "0-3"}
        for cpu in range(4):
            files |= cpu_files(cpu, book_id=str(cpu // 2))
        assert self.packages(files) == {0: "0-1", 1: "2-3"}

    def test_cpus_are_grouped_by_package_id_if_the_kernel_reports_no_set(self) -> None:
        files = {f"{CPU}/online": "0-2"}
        for cpu, number in enumerate((7, 0, 7)):
            files |= cpu_files(cpu, physical_package_id=str(number))
        assert self.packages(files) == {7: "0,2", 0: "1"}

    def test_an_id_of_minus_one_is_replaced_by_a_free_number(self) -> None:
        files = {f"{CPU}/online": "0-2"}
        for cpu, number in enumerate((0, -1, -1)):
            files |= cpu_files(cpu, physical_package_id=str(number), core_siblings_list=str(cpu))
        assert self.packages(files) == {0: "0", 1: "1", 2: "2"}

    def test_different_ids_in_one_set_are_different_packages(self) -> None:
        files = {f"{CPU}/online": "0-1"}
        files |= cpu_files(0, physical_package_id="7", package_cpus_list="0-1")
        files |= cpu_files(1, physical_package_id="0", package_cpus_list="0-1")
        assert self.packages(files) == {7: "0", 0: "1"}

    def test_without_package_information_there_are_no_packages(self) -> None:
        topology = read_topology(machine({f"{CPU}/online": "0-1"}))
        assert topology.packages == {}
        assert topology.cpus[0].package == -1


class TestL3:
    def files(self, **level3: str) -> dict[str, str]:
        files = {f"{CPU}/online": "0-1"}
        for cpu in range(2):
            files |= {
                f"{CPU}/cpu{cpu}/cache/index0/level": "1",
                f"{CPU}/cpu{cpu}/cache/index0/shared_cpu_list": str(cpu),
            }
            files |= {f"{CPU}/cpu{cpu}/cache/index3/{name}": value for name, value in level3.items()}
        return files

    def test_the_list_and_the_id_are_read(self) -> None:
        topology = read_topology(machine(self.files(level="3", shared_cpu_list="0-1", id="9")))
        assert [str(cpus) for cpus in topology.l3] == ["0-1"]
        assert topology.cpus[1].l3_id == 9

    def test_the_mask_replaces_a_missing_list_and_the_lowest_cpu_a_missing_id(self) -> None:
        topology = read_topology(machine(self.files(level="3", shared_cpu_map="00000003")))
        assert [str(cpus) for cpus in topology.l3] == ["0-1"]
        assert topology.cpus[1].l3_id == 0

    def test_a_level_2_cache_is_not_an_l3(self) -> None:
        topology = read_topology(machine(self.files(level="2", shared_cpu_list="0-1")))
        assert topology.l3 == ()
        assert topology.cpus[0].l3 is None
        assert topology.cpus[0].l3_id == -1

    def test_a_cache_with_an_empty_set_belongs_to_the_core(self) -> None:
        topology = read_topology(machine(self.files(level="3", shared_cpu_map="00000000")))
        assert [str(cpus) for cpus in topology.l3] == ["0", "1"]

    def test_overlapping_caches_follow_the_lower_cpu_with_one_warning(self) -> None:
        files = self.files(level="3")
        files |= {f"{CPU}/cpu0/cache/index3/shared_cpu_list": "0", f"{CPU}/cpu1/cache/index3/shared_cpu_list": "0-1"}
        topology = read_topology(machine(files))
        assert [str(cpus) for cpus in topology.l3] == ["0", "1"]
        assert topology.warnings == ("cpu1 lists an L3 cache together with CPUs that have another one",)

    @pytest.mark.parametrize(
        ("ids", "expected"),
        [
            (("0", "0"), [0, 2]),
            (("2", "2"), [2, 1]),
            (("2", None), [2, 1]),
            ((None, "0"), [1, 0]),
            ((None, None), [0, 2]),
        ],
    )
    def test_no_two_caches_have_the_same_id(self, ids: tuple[str | None, ...], expected: list[int]) -> None:
        files = {f"{CPU}/online": "0-3"}
        for cpu in range(4):
            folder, own = f"{CPU}/cpu{cpu}/cache/index3", ids[cpu // 2]
            files |= {f"{folder}/level": "3", f"{folder}/shared_cpu_list": "0-1" if cpu < 2 else "2-3"}
            files |= {} if own is None else {f"{folder}/id": own}
        topology = read_topology(machine(files))
        assert [topology.cpus[cpu].l3_id for cpu in range(4)] == [expected[0]] * 2 + [expected[1]] * 2
        repeated = ids[0] is not None and ids[0] == ids[1]
        warning = f"L3 cache id {ids[0]} is used by several caches; one of them is renumbered to {expected[1]}"
        assert topology.warnings == ((warning,) if repeated else ())

    def test_caches_are_sorted_by_first_cpu_even_if_a_later_cpu_claims_earlier_ones(self) -> None:
        files = {f"{CPU}/online": "0-3"} | {f"{CPU}/cpu{cpu}/cache/index3/level": "3" for cpu in (1, 3)}
        files |= {f"{CPU}/cpu1/cache/index3/shared_cpu_list": "1", f"{CPU}/cpu3/cache/index3/shared_cpu_list": "0,3"}
        topology = read_topology(machine(files))
        assert [str(cpus) for cpus in topology.l3] == ["0,3", "1"]
        assert [topology.cpus[cpu].l3 for cpu in range(4)] == [0, 1, None, 0]


class TestNuma:
    def numa(self, files: dict[str, str], links: dict[str, str] | None = None) -> dict[int, str]:
        topology = read_topology(machine({f"{CPU}/online": "0-3"} | files, links))
        return {node: str(cpus) for node, cpus in topology.numa.items()}

    def test_sparse_ids_are_kept_and_nodes_without_cpus_left_out(self) -> None:
        files = {f"{NODE}/node1/cpulist": "0-1", f"{NODE}/node72/cpulist": "2-3", f"{NODE}/node250/cpulist": "\n"}
        assert self.numa(files) == {1: "0-1", 72: "2-3"}

    def test_the_mask_replaces_a_missing_list(self) -> None:
        assert self.numa({f"{NODE}/node0/cpumap": "3", f"{NODE}/node1/cpumap": "c"}) == {0: "0-1", 1: "2-3"}

    def test_links_in_the_node_replace_a_missing_list_and_mask(self) -> None:
        links = {f"{NODE}/node0/cpu{cpu}": f"../../cpu/cpu{cpu}" for cpu in range(4)}
        assert self.numa({}, links) == {0: "0-3"}

    def test_the_cpus_own_entry_replaces_missing_node_folders(self) -> None:
        files = {f"{CPU}/cpu{cpu}/node{cpu // 2}/x": "" for cpu in range(4)}
        assert self.numa(files) == {0: "0-1", 1: "2-3"}

    def test_a_link_to_an_offline_node_is_ignored(self) -> None:
        links = {f"{CPU}/cpu0/node0": "../../node/node0"}
        assert self.numa({f"{NODE}/node1/cpulist": "1-3"}, links) == {1: "1-3"}

    def test_a_cpu_of_several_nodes_belongs_to_the_lowest_with_one_warning(self) -> None:
        files = {f"{CPU}/online": "0-3"} | {f"{NODE}/node{node}/cpulist": "0-3" for node in (2, 10)}
        topology = read_topology(machine(files))
        assert {cpu.numa for cpu in topology.cpus.values()} == {2}
        assert topology.warnings == ("NUMA nodes 2 and 10 both list cpu0; the lower one is used",)

    def test_a_core_in_several_nodes_is_reported(self) -> None:
        files = {f"{CPU}/online": "0-3"} | {f"{NODE}/node{node}/cpulist": f"{node},{node + 2}" for node in (0, 1)}
        for cpu in range(4):
            files |= cpu_files(cpu, core_cpus_list="0-1" if cpu < 2 else "2-3")
        said = "the kernel lists CPUs 0-1, a core, in NUMA nodes 0, 1: no node has it whole"
        assert read_topology(machine(files)).warnings == (said,)

    def test_without_numa_information_all_cpus_are_on_node_0(self) -> None:
        topology = read_topology(machine({f"{CPU}/online": "0-1"}))
        assert {node: str(cpus) for node, cpus in topology.numa.items()} == {0: "0-1"}
        assert topology.cpus[0].numa == 0
        assert topology.memory_nodes == {0}

    def test_a_machine_whose_nodes_claim_no_cpu_has_no_node_with_cpus(self) -> None:
        topology = read_topology(machine({f"{CPU}/online": "0-1", f"{NODE}/node0/cpulist": ""}))
        assert topology.numa == {}
        assert topology.cpus[0].numa is None
        assert topology.warnings == ("none of the NUMA nodes lists a CPU; the CPUs are published without a NUMA node",)

    @pytest.mark.parametrize(
        ("files", "links", "sentence"),
        [
            (
                {f"{NODE}/online": "0-2", f"{NODE}/node0/cpulist": "0-1"},
                {},
                f"the NUMA nodes 1-2 of /{NODE}/online are not known: they have no folder there",
            ),
            (
                {f"{NODE}/node0/cpulist": "0-1", f"{NODE}/node0/distance": "10 20 20"},
                {},
                f"2 of 3 NUMA nodes are not known: they have no folder in /{NODE}",
            ),
            (
                {},
                {f"{CPU}/cpu0/node0": "../../node/node0", f"{CPU}/cpu1/node3": "../../node/node3"},
                f"the NUMA nodes 0,3, which CPUs name, are not known: they have no folder in /{NODE}",
            ),
        ],
    )
    def test_nodes_that_are_named_elsewhere_without_a_folder_are_reported(
        self, files: dict[str, str], links: dict[str, str], sentence: str
    ) -> None:
        assert read_topology(machine({f"{CPU}/online": "0-1"} | files, links)).warnings == (sentence,)

    def test_memory_nodes_come_from_has_memory_or_else_from_meminfo(self) -> None:
        files = {
            f"{CPU}/online": "0",
            f"{NODE}/node0/meminfo": "Node 0 MemTotal:       16 kB\n",
            f"{NODE}/node1/meminfo": "Node 1 MemTotal:       0 kB\n",
        }
        assert read_topology(machine(files)).memory_nodes == {0}
        assert read_topology(machine(files | {f"{NODE}/has_memory": "1,7\n"})).memory_nodes == {1, 7}


class TestSmtAndTypes:
    @pytest.mark.parametrize(
        ("control", "threads", "smt"),
        [
            ("on", "0", True),
            ("off", "0-1", False),
            ("forceoff", "0-1", False),
            ("notsupported", "0-1", False),
            ("notimplemented", "0-1", False),
            ("unknown", "0-1", True),
            ("unknown", "0", False),
            ("2", "0-1", True),
        ],
    )
    def test_smt_comes_from_the_control_file_or_the_cores(self, control: str, threads: str, smt: bool) -> None:  # noqa: FBT001 - a table's column
        files = {f"{CPU}/online": threads, f"{CPU}/smt/control": f"{control}\n"}
        assert read_topology(machine(files | cpu_files(0, core_cpus_list=threads))).smt is smt

    def test_hybrid_cores_have_types(self) -> None:
        files = {f"{CPU}/online": "0-4", "sys/devices/cpu_core/cpus": "0-1", "sys/devices/cpu_atom/cpus": "2-3\n"}
        topology = read_topology(machine(files | {"sys/devices/cpu_lowpower/cpus": "4"}))
        assert {name: str(cpus) for name, cpus in topology.core_types.items()} == {"p-core": "0-1", "e-core": "2-4"}

    def test_an_empty_list_of_e_cores_still_means_hybrid(self) -> None:
        topology = read_topology(machine({f"{CPU}/online": "0-1", "sys/devices/cpu_atom/cpus": "\n"}))
        assert list(topology.core_types) == ["p-core"]


class TestUnbelievable:
    @pytest.mark.parametrize(
        ("path", "content", "message"),
        [
            ("online", "0-3,x", r'/sys/devices/system/cpu/online cannot be understood: "x" in the cpu-list "0-3,x"'),
            ("present", "3-0", r"/sys/devices/system/cpu/present cannot be understood: the range"),
            (
                "cpu0/topology/thread_siblings",
                "xyz",
                r'thread_siblings cannot be understood: "xyz" in a CPU mask is not',
            ),
            (
                "cpu0/topology/thread_siblings",
                "9" * 5000,
                r'thread_siblings cannot be understood: "9{40}" in a CPU mask',
            ),
            ("cpu0/topology/core_id", "", r'cpu0/topology/core_id should be a number, but is ""'),
            ("cpu0/topology/core_id", "zero", r'cpu0/topology/core_id should be a number, but is "zero"'),
        ],
    )
    def test_a_malformed_file_is_named_with_its_value(self, path: str, content: str, message: str) -> None:
        with pytest.raises(MachineError, match=message):
            read_topology(machine({f"{CPU}/online": "0-3"} | {f"{CPU}/{path}": content}))

    @pytest.mark.parametrize("content", ["", "yes", "0-1"])
    def test_without_a_list_a_cpu_with_an_invalid_online_file_is_an_error(self, content: str) -> None:
        files = {f"{CPU}/cpu0/topology/core_id": "0", f"{CPU}/cpu1/online": "0"}
        assert str(read_topology(machine(files)).online) == "0"
        with pytest.raises(MachineError, match=f'^/{CPU}/cpu1/online should be a number, but is "{content}"$'):
            read_topology(machine(files | {f"{CPU}/cpu1/online": content}))

    def test_contradicting_package_ids_are_reported(self) -> None:
        files = {f"{CPU}/online": "0-3"}
        for cpu in range(4):
            files |= cpu_files(cpu, package_cpus_list="0-3", physical_package_id="36")
        assert read_topology(machine(files)).warnings == ()
        assert read_topology(machine(files | cpu_files(2, physical_package_id="3"))).warnings == (
            "CPUs 0-3 share a package, but their physical_package_id is 3 or 36",
        )
        del files[f"{CPU}/cpu2/topology/physical_package_id"]
        assert read_topology(machine(files)).warnings == (
            "CPUs 2 have no physical_package_id, but other CPUs have one",
        )

    def test_an_unreadable_file_is_named_with_the_reason(self) -> None:
        class Broken(ConfinedRoot):
            def read_bytes(self, path: str) -> bytes:
                if path.endswith("/core_id"):
                    raise OSError(errno.EIO, "Input/output error", path)
                return super().read_bytes(path)

        root = Broken(machine({f"{CPU}/online": "0"} | cpu_files(0, core_id="0")).files)
        with pytest.raises(MachineError, match=r"cpu0/topology/core_id cannot be read: Input/output error"):
            read_topology(root)

    @pytest.mark.parametrize("folder", ["sys/devices/system/node", f"{CPU}/cpu0", f"{CPU}/cpu0/cache", CPU])
    @pytest.mark.parametrize("number", [errno.EMFILE, errno.EACCES, errno.EIO])
    def test_a_folder_that_cannot_be_listed_is_not_taken_for_missing(self, folder: str, number: int) -> None:
        class Broken(ConfinedRoot):
            def listdir(self, path: str) -> list[str]:
                if path == folder:
                    raise OSError(number, os.strerror(number), path)
                return super().listdir(path)

        root = Broken(machine({f"{CPU}/online": "0"} | cpu_files(0, core_id="0")).files)
        with pytest.raises(MachineError, match=f"^/{folder} cannot be read: {os.strerror(number)}$"):
            read_topology(root)


class TestHotplug:
    class Restless(ConfinedRoot):
        """A machine whose CPU 3 goes offline with its files while its core is read; `lost` is the answer to that."""

        lost = errno.ENOENT

        def read_bytes(self, path: str) -> bytes:
            if path == f"{CPU}/cpu3/topology/core_cpus_list":
                self.files = machine(hyperthreads("0-2")).files
                raise OSError(self.lost, os.strerror(self.lost), path)
            return super().read_bytes(path)

    @pytest.mark.parametrize("number", [errno.ENOENT, errno.ENODEV])
    def test_a_cpu_that_goes_offline_during_the_read_is_not_a_core_of_its_own(self, number: int) -> None:
        root = self.Restless(machine(hyperthreads("0-3")).files)
        root.lost = number
        assert read_topology(root) == read_topology(machine(hyperthreads("0-2")))

    def test_a_machine_that_keeps_changing_is_trusted_in_the_end(self) -> None:
        class Flapping(ConfinedRoot):
            readings = 0

            def read_bytes(self, path: str) -> bytes:
                if path == f"{CPU}/online":
                    self.readings += 1
                    return b"0-2" if self.readings % 2 else b"0-3"
                return super().read_bytes(path)

        assert len(read_topology(Flapping(machine(hyperthreads("0-3")).files)).cpus) in (3, 4)


def hyperthreads(online: str) -> dict[str, str]:
    """Two cores with two threads each (0,2 and 1,3), of which these CPUs are online and have files."""
    files = {f"{CPU}/online": online, f"{CPU}/present": "0-3"}
    for cpu in CPUSet.parse(online):
        files |= cpu_files(cpu, core_cpus_list="1,3" if cpu % 2 else "0,2")
    return files
