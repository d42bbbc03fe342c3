"""Scenario files: what they hold, and what is refused where."""

import copy
from pathlib import Path
from typing import Any

import pytest

from jevify.errors import InputError
from jevify.evidence.kinds.decide.scenario import DecideArm, TargetedCase
from jevify.evidence.scenario import find_scenario, load_scenario, parse_scenario, scenario_files

pytestmark = pytest.mark.cpu

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MINIMAL: dict[str, Any] = {
    "name": "small",
    "kind": "decide",
    "model": "smollm2-135m",
    "seed": 7,
    "repeats": 3,
    "cases": [{"prefix_tokens": 50, "question_tokens": 20, "questions": 2}],
    "baseline": {"executor": "independent"},
    "candidates": [{"name": "packed", "executor": "packed", "token_budget": 512}],
}


def test_a_minimal_scenario_takes_the_documented_defaults() -> None:
    scenario = parse_scenario(MINIMAL)
    assert scenario.cases == (TargetedCase(50, 20, 2),)
    assert scenario.baseline == DecideArm("baseline", {"executor": "independent"})
    assert scenario.candidates == (DecideArm("packed", {"executor": "packed", "token_budget": 512}),)
    assert scenario.arms == (scenario.baseline, *scenario.candidates)
    assert (scenario.dtype, scenario.device, scenario.warmup) == ("auto", "auto", 1)
    assert (scenario.fresh_context, scenario.oracle_requests) == (True, 3)


def test_data_holds_everything_that_was_read() -> None:
    data = parse_scenario(MINIMAL).data()
    assert data["cases"] == ({"prefix_tokens": 50, "question_tokens": 20, "questions": 2, "targets": None},)
    assert data["candidates"][0] == {
        "name": "packed",
        "settings": {"executor": "packed", "token_budget": 512},
        "rival": None,
    }
    assert (data["seed"], data["repeats"], data["fresh_context"]) == (7, 3, True)


def test_the_cpu_scenario_is_the_comparison_that_it_promises() -> None:
    scenario = load_scenario(BENCHMARKS / "decide-cpu.toml")
    assert (scenario.model, scenario.dtype, scenario.device) == ("smollm2-135m", "float32", "cpu")
    assert scenario.baseline.settings == {"executor": "independent"}
    assert [arm.settings["executor"] for arm in scenario.candidates] == ["forked", "packed"]
    assert scenario.cases == tuple(TargetedCase(250, 80, questions) for questions in (1, 4, 28))
    assert scenario.fresh_context


@pytest.mark.parametrize("path", scenario_files(BENCHMARKS), ids=lambda path: path.stem)
def test_every_scenario_of_the_repository_loads_under_its_own_name(path: Path) -> None:
    assert load_scenario(path).name == path.stem


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (["repetas"], 3, "scenario.repetas: unknown field"),
        (["kind"], "stream", "scenario.kind: 'stream' is not a kind of scenario; use decide"),
        (["model"], "", "scenario.model: '' is not a text"),
        (["repeats"], 0, "scenario.repeats: 0 is not a whole number from 1 to 10,000"),
        (["repeats"], 10_001, "scenario.repeats: 10001 is not a whole number from 1 to 10,000"),
        (["warmup"], 1_001, "scenario.warmup: 1001 is not a whole number from 0 to 1,000"),
        (["oracle_requests"], 1_001, "scenario.oracle_requests: 1001 is not a whole number from 0 to 1,000"),
        (["seed"], -1, "scenario.seed: -1 is not a whole number of at least 0"),
        (["cases", 0, "questions"], 4_097, r"scenario.cases\[0\].questions: 4097 is not .* from 1 to 4,096"),
        (["cases", 0, "prefix_tokens"], 1_048_577, r"prefix_tokens: 1048577 is not .* from 1 to 1,048,576"),
        (["cases", 0, "question_tokens"], 1_048_577, r"question_tokens: 1048577 is not .* from 1 to 1,048,576"),
        (["candidates", 0, "fused_kernels"], 5, r"scenario.candidates\[0\]: fused_kernels is 5"),
        (["candidates", 0, "fused_kernels"], [5], r"scenario.candidates\[0\]: --fused-kernels names 5"),
        (["repeats"], True, "scenario.repeats: True is not a whole number"),
        (["seed"], 1.5, "scenario.seed: 1.5 is not a whole number"),
        (["baseline", "rival"], "vllm", "scenario.baseline.rival: 'vllm' is not known; the rivals are padded-batch"),
        (["candidates", 0, "rival"], "padded-batch", r"candidates\[0\].rival: a rival takes the place of the indep"),
        (["noise_floor"], 1, "scenario.noise_floor: 1 is not true or false"),
        (["target_arm"], "fast", "scenario.target_arm: 'fast' is no arm; the arms are baseline, packed"),
        (["cases", 0, "targets"], {"decide": 3}, r"scenario.cases\[0\].targets.decide: unknown field"),
        (["fresh_context"], 1, "scenario.fresh_context: 1 is not true or false"),
        (["cases"], [], r"scenario.cases: give a list of one table or more"),
        (["cases", 0, "prefix"], 3, r"scenario.cases\[0\].prefix: unknown field"),
        (
            ["cases", 0, "questions"],
            0,
            r"scenario.cases\[0\].questions: 0 is not a whole number from 1 to 4,096",
        ),
        (["candidates", 0, "token_bugdet"], 9, r"scenario.candidates\[0\].token_bugdet: unknown setting"),
        (["candidates", 0, "token_budget"], 2, r"scenario.candidates\[0\]: --token-budget is 2"),
        (["candidates", 0, "executor"], "auto", r"scenario.candidates\[0\].executor: name the executor"),
        (["candidates", 0, "name"], "baseline", r"scenario.candidates\[0\].name: 'baseline' is taken"),
        (["candidates", 0], "packed", r"scenario.candidates\[0\]: 'packed' is not a table"),
        (["baseline", "executor"], "fast", "scenario.baseline: --executor is 'fast'"),
    ],
)
def test_what_is_wrong_is_refused_with_its_path(place: list[Any], value: Any, message: str) -> None:
    data = copy.deepcopy(MINIMAL)
    target: Any = data
    for key in place[:-1]:
        target = target[key]
    target[place[-1]] = value
    with pytest.raises(InputError, match=message):
        parse_scenario(data)


@pytest.mark.parametrize("field", ["name", "model", "seed", "repeats", "cases", "baseline", "candidates"])
def test_a_missing_field_is_named(field: str) -> None:
    with pytest.raises(InputError, match=rf"scenario\.{field}: missing"):
        parse_scenario({key: value for key, value in MINIMAL.items() if key != field})


def test_a_candidate_needs_a_name_and_a_case_all_of_its_sizes() -> None:
    with pytest.raises(InputError, match=r"candidates\[0\].name: missing"):
        parse_scenario({**MINIMAL, "candidates": [{"executor": "packed"}]})
    with pytest.raises(InputError, match=r"cases\[0\].questions: missing"):
        parse_scenario({**MINIMAL, "cases": [{"prefix_tokens": 5, "question_tokens": 2}]})


def test_a_scenario_is_found_by_name_or_by_path(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("")
    assert find_scenario("mine", tmp_path) == file
    assert find_scenario(str(file), tmp_path / "elsewhere") == file
    with pytest.raises(InputError, match=r"'other' is not in .*it has: mine"):
        find_scenario("other", tmp_path)
    for name in (str(tmp_path / "none.toml"), "x" * 300 + ".toml"):
        with pytest.raises(InputError, match="cannot be read"):
            load_scenario(find_scenario(name, tmp_path))
    with pytest.raises(InputError, match="is not in"):
        find_scenario("x" * 300, tmp_path)


def test_a_file_that_is_not_toml_is_named(tmp_path: Path) -> None:
    file = tmp_path / "broken.toml"
    file.write_text("name = ")
    with pytest.raises(InputError, match=r"broken\.toml: not a TOML file"):
        load_scenario(file)


@pytest.mark.parametrize("text", ["name = " + "[" * 5_000 + "]" * 5_000, "x" + ".x" * 5_000 + " = 1"])
def test_a_file_that_is_nested_too_deep_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "deep.toml"
    file.write_text(text)
    with pytest.raises(InputError, match=r"deep\.toml"):
        load_scenario(file)


def test_an_empty_file_lacks_its_first_field(tmp_path: Path) -> None:
    file = tmp_path / "empty.toml"
    file.write_text("")
    with pytest.raises(InputError, match=r"empty\.toml\.name: missing"):
        load_scenario(file)
