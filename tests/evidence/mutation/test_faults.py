"""The faults fit the source they break, and the committed run of all of them is theirs."""

from pathlib import Path

import pytest

from jevify.errors import InputError
from jevify.evidence.gates import load_gates
from jevify.evidence.mutation.fault import Fault, all_faults, named_faults
from jevify.evidence.mutation.run import accepted
from jevify.evidence.mutation.table import fault_table, markdown, read_mutations

pytestmark = pytest.mark.cpu
STORED = Path("evidence/mutation-cpu.json")


@pytest.mark.parametrize("fault", all_faults(), ids=lambda fault: fault.name)
def test_a_fault_fits_the_source_once_and_compiles(fault: Fault):
    source = fault.source()
    assert source != fault.path.read_text()
    compile(source, fault.name, "exec")


def test_there_are_enough_and_each_has_a_name():
    names = [fault.name for fault in all_faults()]
    assert len(set(names)) == len(names) >= load_gates().mutation.least_faults


def test_a_fault_that_no_longer_fits_says_where_to_mend_it():
    with pytest.raises(
        InputError, match=r"stands 0 times in jevify\.errors, not once; write it anew in .*faults\.toml"
    ):
        Fault("gone", "", "jevify.errors", "no such passage", "").source()


def test_an_unknown_name():
    with pytest.raises(InputError, match="--fault nonsense: is not known"):
        named_faults(["merge-base-e", "nonsense"])


def test_the_committed_run_planted_these_faults_and_all_were_rejected():
    result = read_mutations(STORED)
    planted = [fault.name for fault in all_faults()]
    # A fault whose code is gone stays in the run that planted it.
    assert [row["fault"] for row in result["faults"] if row["fault"] in planted] == planted
    assert accepted(result)
    assert all(row["failed"] for row in result["faults"])


def test_one_fault_that_gets_through_is_enough_to_fail():
    result = read_mutations(STORED)
    result["faults"][3]["failed"] = []
    result["caught"] = 1 - 1 / len(result["faults"])
    assert not accepted(result)
    assert "**nothing**" in markdown(result)


def test_a_clean_build_that_is_rejected_fails():
    result = read_mutations(STORED)
    result["clean"]["failed"] = ["states.qwen2.one-pass"]
    assert not accepted(result)


def test_the_table_in_the_docs_is_that_of_the_committed_run():
    docs = Path("docs/validation.md").read_text()
    assert "\n".join(fault_table(read_mutations(STORED))) in docs


def test_another_file_is_no_run(tmp_path: Path):
    with pytest.raises(InputError, match="not the result of jevify evidence mutate"):
        read_mutations(Path("evidence/decide-cpu.json"))
