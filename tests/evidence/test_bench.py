"""The runner, on an engine and a clock that do only what the test says."""

import gc
import json
from collections.abc import Callable
from typing import Any

import pytest

from fake_engine import FakeClock, FakeEngine, FakeModel
from jevify.errors import SettingError
from jevify.evidence.bench import failures, run_benchmark
from jevify.evidence.floor import Machine
from jevify.evidence.kinds.decide.scenario import DecideScenario
from jevify.evidence.report import remarks, tables
from jevify.evidence.scenario import parse_scenario

pytestmark = pytest.mark.cpu

SCENARIO: dict[str, Any] = {
    "name": "small",
    "kind": "decide",
    "model": "fake",
    "seed": 7,
    "warmup": 1,
    "repeats": 3,
    "cases": [{"prefix_tokens": 50, "question_tokens": 20, "questions": 4}],
    "baseline": {"name": "independent", "executor": "independent"},
    "candidates": [{"name": "forked", "executor": "forked"}, {"name": "packed", "executor": "packed"}],
}
ORDER = ["independent", "forked", "packed"]


def scenario(**changes: Any) -> DecideScenario:
    return parse_scenario({**SCENARIO, **changes})


def model(**seconds: list[float]) -> FakeModel:
    return FakeModel(FakeClock(), {"independent": [0.008], "forked": [0.004], "packed": [0.002], **seconds})


def bench(fake: FakeModel, wanted: DecideScenario | None = None, **options: Any) -> dict[str, Any]:
    return run_benchmark(
        wanted or scenario(),
        command="jevify bench small",
        load=lambda _: FakeEngine(fake),
        clock=fake.clock,
        **options,
    )


def arms(result: dict[str, Any], case: int = 0) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in result["cases"][case]["arms"]}


def broken(executor: str, change: Callable[[dict[str, Any]], object], *, at: int = 0) -> Callable[..., None]:
    """Meddles with that executor's decision number `at` and those after it."""

    def meddle(ran: str, decision: dict[str, Any], log: list[tuple[str, str]]) -> None:
        if ran == executor and sum(name == executor for name, _ in log) > at:
            change(decision)

    return meddle


def set_metadata(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda decision: decision["metadata"].update(values)


def test_arms_are_interleaved_in_stable_order_on_the_same_request() -> None:
    fake = model()
    bench(fake)
    rounds = [fake.log[start : start + 3] for start in range(0, 12, 3)]
    assert all([executor for executor, _ in entry] == ORDER for entry in rounds)
    assert all(len({context for _, context in entry}) == 1 for entry in rounds)
    # A warm-up round, three timed ones, then the memory pass on the last request.
    assert len(fake.log) == 15
    assert [executor for executor, _ in fake.log[12:]] == ORDER


def test_the_engines_of_a_case_are_cleared_before_the_next() -> None:
    fake, size = model(), {"prefix_tokens": 50, "question_tokens": 20}
    seen = []
    fake.meddle = lambda executor, decision, log: seen.append(len(fake.cleared))
    bench(fake, scenario(cases=[{**size, "questions": count} for count in (2, 4)]))
    assert fake.cleared == ORDER * 2
    assert seen == [0] * 15 + [3] * 15


def test_contexts_are_fresh_each_round_or_the_same_in_all() -> None:
    fake = model()
    bench(fake)
    assert len({context for _, context in fake.log}) == 4
    fake = model()
    result = bench(fake, scenario(fresh_context=False))
    assert len({context for _, context in fake.log}) == 1
    assert result["cases"][0]["requests"]["number"] == 1
    assert arms(result)["packed"]["quality"]["decisions"] == 1


def test_samples_are_the_time_of_each_decision_and_warm_up_is_apart() -> None:
    result = bench(model(independent=[9.0, 0.012, 0.010, 0.018], packed=[5.0, 0.004, 0.005, 0.0020004]))
    baseline, packed = arms(result)["independent"], arms(result)["packed"]
    assert baseline["warmup_ms"] == [9000.0]
    assert baseline["samples_ms"] == [12.0, 10.0, 18.0]
    assert (baseline["median_ms"], baseline["min_ms"]) == (12.0, 10.0)
    # Position 0.9 * 2 = 1.8: 0.8 of the way from 12 to 18.
    assert baseline["p90_ms"] == 16.8
    # Stored to a microsecond.
    assert packed["samples_ms"] == [4.0, 5.0, 2.0]
    # Pair ratios 3, 2 and 9.
    assert packed["ratio"]["median"] == 3.0
    assert packed["ratio"]["pairs"] == 3
    assert (packed["ratio"]["confidence"], packed["ratio"]["resamples"]) == (0.95, 2000)
    assert 2.0 <= packed["ratio"]["low"] <= 3.0 <= packed["ratio"]["high"] <= 9.0
    assert packed["ratio_of_best"] == 5.0
    assert baseline["ratio"] is None
    assert packed["stages_median_ms"] == {"forward": 2.0, "total": 3.0}


def test_bound_is_that_of_the_formula_and_the_share_that_of_the_ratio() -> None:
    result = bench(model())
    # 4 (50 + 20) / (50 + 4 * 20) = 280 / 130; the ratio is 8 ms / 2 ms.
    assert result["cases"][0]["bound"] == pytest.approx(280 / 130, abs=1e-4)
    assert arms(result)["packed"]["bound_share"] == pytest.approx(4 / (280 / 130), abs=1e-4)
    assert result["cases"][0]["requests"] == {
        "number": 4,
        "shared_prefix_tokens": [50, 50],
        "full_question_tokens": [70, 70],
        "exact": True,
    }


def test_one_question_has_a_bound_of_one_and_no_shared_prefix() -> None:
    result = bench(model(), scenario(cases=[{"prefix_tokens": 50, "question_tokens": 20, "questions": 1}]))
    case = result["cases"][0]
    assert case["bound"] == 1
    assert case["requests"]["shared_prefix_tokens"] == [0, 0]
    assert case["requests"]["full_question_tokens"] == [70, 70]
    assert case["requests"]["exact"]
    assert arms(result)["forked"]["forward_calls"] == 1


def test_longer_options_count_in_the_bound_and_in_the_forwards() -> None:
    def lengthen(executor: str, decision: dict[str, Any], log: list[tuple[str, str]]) -> None:
        metadata = decision["metadata"]
        metadata["questions"]["question_1"]["label_tokens"] = [1, 3, 2]
        # Two more forwards for the oracle; forked fits its five rows into one batch as before.
        metadata["forward_calls"] += 2 if executor == "independent" else 0

    fake = model()
    fake.meddle = lengthen
    result = bench(fake)
    assert failures(result) == []
    # Independent: 4 * 70, and 70 + 2 and 70 + 1 for the longer options. Packed: 50 + 4 * 20, and 2 + 1.
    assert result["cases"][0]["bound"] == pytest.approx((280 + 72 + 71) / (130 + 3), abs=1e-4)


def test_no_bound_is_claimed_against_a_baseline_that_shares() -> None:
    result = bench(
        model(),
        scenario(baseline={"executor": "forked"}, candidates=[{"name": "packed", "executor": "packed"}]),
    )
    assert result["cases"][0]["bound"] is None
    assert arms(result)["packed"]["bound_share"] is None
    assert arms(result)["packed"]["ratio"]["median"] == 2.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_metadata(executor="forked"), "executor forked ran, not packed"),
        (set_metadata(generated_tokens=2), "2 tokens were generated"),
        (set_metadata(forward_calls=4), "4 forward calls were made; the executor needs 1"),
        (set_metadata(shared_prefix_tokens=0), "a prefix of 0 tokens was shared, but 50 were measured"),
        (
            lambda decision: decision["metadata"]["questions"]["question_2"].update(tokens=69),
            r"questions of \[70, 69, 70, 70\] tokens ran",
        ),
        (lambda decision: 1 / 0, "ZeroDivisionError"),
    ],
)
@pytest.mark.parametrize(("at", "phase"), [(0, "warm-up"), (2, "repeat 2")])
def test_an_arm_that_is_not_what_it_says_fails_alone(
    change: Callable[[dict[str, Any]], object], message: str, at: int, phase: str
) -> None:
    fake = model()
    fake.meddle = broken("packed", change, at=at)
    result = bench(fake)
    rows = arms(result)
    assert "samples_ms" not in rows["packed"]
    with pytest.raises(AssertionError, match=f"{phase}: .*{message}"):
        raise AssertionError(rows["packed"]["error"])
    assert rows["forked"]["ratio"]["median"] == 2.0
    assert rows["independent"]["samples_ms"] == [8.0, 8.0, 8.0]
    assert failures(result) == [f"N=4 P=50 Q=20, packed: {rows['packed']['error']}"]


def test_forwards_of_the_baseline_are_one_a_question() -> None:
    fake = model()
    fake.meddle = broken("independent", set_metadata(forward_calls=1))
    rows = arms(bench(fake))
    assert rows["independent"]["error"] == "warm-up: 1 forward calls were made; the executor needs 4"
    # Without its baseline a candidate has samples but no ratio.
    assert rows["packed"]["samples_ms"] == [2.0, 2.0, 2.0]
    assert rows["packed"]["ratio"] is None


def test_forked_needs_a_forward_for_the_prefix_and_one_a_batch() -> None:
    candidates = [{"name": "forked", "executor": "forked", "branch_batch_size": 3}]
    assert arms(bench(model(), scenario(candidates=candidates)))["forked"]["forward_calls"] == 3


def test_settings_that_the_machine_refuses_fail_their_arm_alone() -> None:
    class Refusing(FakeEngine):
        def with_settings(self, **settings: Any) -> FakeEngine:
            if settings["executor"] == "forked":
                raise SettingError("forked is not for this machine")
            return super().with_settings(**settings)

    fake = model()
    result = run_benchmark(scenario(), command="", load=lambda _: Refusing(fake), clock=fake.clock)
    assert arms(result)["forked"]["error"] == "settings: forked is not for this machine"
    assert arms(result)["packed"]["ratio"]["median"] == 4.0


def test_a_failing_case_leaves_the_others() -> None:
    class Shortsighted(FakeEngine):
        def measure(self, context: str, questions: Any) -> tuple[int, list[int]]:
            if len(questions) == 3:
                raise RuntimeError("cannot count to three")
            return super().measure(context, questions)

        def with_settings(self, **settings: Any) -> FakeEngine:
            return Shortsighted(self._model, **settings)

    size = {"prefix_tokens": 50, "question_tokens": 20}
    fake = model()
    result = run_benchmark(
        scenario(cases=[{**size, "questions": count} for count in (2, 3, 4)]),
        command="",
        load=lambda _: Shortsighted(fake),
        clock=fake.clock,
    )
    assert failures(result) == ["N=3 P=50 Q=20: RuntimeError: cannot count to three"]
    assert arms(result, 0)["packed"]["ratio"]["median"] == 4.0
    assert arms(result, 2)["packed"]["ratio"]["median"] == 4.0


def test_quality_is_judged_on_the_first_timed_requests() -> None:
    def flip(decision: dict[str, Any]) -> None:
        decision["answers"]["question_2"]["probabilities"] = {"no": 0.4, "yes": 0.6}

    fake = model()
    # Decision 0 is warm-up and not judged; 1 is as the oracle's; 2 and 3 differ, and 3 is not asked for.
    fake.meddle = broken("packed", flip, at=2)
    rows = arms(bench(fake, scenario(oracle_requests=2)))
    quality = rows["packed"]["quality"]
    assert (quality["decisions"], quality["questions"]) == (2, 8)
    assert quality["agreement"] == 7 / 8
    assert quality["largest_difference"] == pytest.approx(0.3)
    assert quality["median_difference"] == 0
    (flipped,) = quality["flips"]
    assert (flipped["request"], flipped["question"]) == (1, "question_2")
    assert (flipped["oracle_label"], flipped["candidate_label"]) == ("no", "yes")
    assert flipped["oracle_margin"] == pytest.approx(0.4)
    assert flipped["candidate_margin"] == pytest.approx(0.2)
    assert rows["forked"]["quality"]["agreement"] == 1


def test_a_failing_oracle_leaves_the_times_and_counts_as_a_failure() -> None:
    class Silent(FakeEngine):
        def oracle(self, context: str, questions: Any) -> dict[str, Any]:
            raise RuntimeError("no memory")

        def with_settings(self, **settings: Any) -> FakeEngine:
            return Silent(self._model, **settings)

    fake = model()
    result = run_benchmark(scenario(), command="", load=lambda _: Silent(fake), clock=fake.clock)
    assert arms(result)["packed"]["ratio"]["median"] == 4.0
    assert arms(result)["packed"]["quality"] == {"error": "the oracle failed: RuntimeError: no memory"}
    assert len(failures(result)) == 3


def test_an_interrupt_keeps_what_is_finished() -> None:
    def interrupt(decision: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    size = {"prefix_tokens": 50, "question_tokens": 20}
    fake = model()
    # Forked is interrupted in the third timed round of the second case, after the baseline's turn.
    fake.meddle = broken("forked", interrupt, at=5 + 3)
    result = bench(fake, scenario(cases=[{**size, "questions": count} for count in (2, 4, 8)]))
    assert result["interrupted"]
    assert len(result["cases"]) == 2
    assert "interrupted" not in result["cases"][0]
    assert len(arms(result, 0)["packed"]["samples_ms"]) == 3
    assert result["cases"][1]["interrupted"]
    assert [len(row["samples_ms"]) for row in result["cases"][1]["arms"]] == [2, 2, 2]
    assert arms(result, 1)["packed"]["ratio"]["pairs"] == 2
    json.dumps(result)


def test_an_interrupt_before_any_timed_round_leaves_no_numbers() -> None:
    def interrupt(decision: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    fake = model()
    fake.meddle = broken("independent", interrupt)
    result = bench(fake)
    assert result["interrupted"]
    assert all("stopped before" in row["error"] for row in result["cases"][0]["arms"])


def test_garbage_collection_is_off_in_the_timed_region_only() -> None:
    seen = []
    fake = model()
    fake.meddle = lambda executor, decision, log: seen.append(gc.isenabled())
    bench(fake)
    # Twelve timed or warm-up decisions; the three of the memory pass are not timed.
    assert seen == [False] * 12 + [True] * 3
    assert gc.isenabled()


def test_a_run_says_what_it_was() -> None:
    result = bench(model())
    assert (result["schema"], result["kind"], result["seed"]) == (1, "decide", 7)
    assert result["command"] == result["environment"]["command"] == "jevify bench small"
    assert result["scenario"]["cases"][0]["questions"] == 4
    place = result["environment"]
    assert place["threads"] >= 1
    assert place["packages"]["torch"]
    assert len(place["source_sha256"]) == 64
    assert (place["commit"] is None) == (place["commit_unknown"] is not None)
    row = arms(result)["packed"]
    assert row["settings"] == {"executor": "packed"}
    assert row["engine_settings"]["token_budget"] == 8192
    assert row["ran"]["dtype"] == "float32"
    assert row["counters"] == {"before": {"decisions": 1}, "after": {"decisions": 4}}
    assert row["role"] == "candidate"
    assert json.loads(json.dumps(result))["cases"][0]["arms"][2]["name"] == "packed"


def test_progress_ends_at_the_total_and_never_goes_back() -> None:
    fake = model()
    fake.meddle = broken("packed", set_metadata(generated_tokens=1))
    seen: list[tuple[int, int]] = []
    bench(fake, progress=lambda done, total, text: seen.append((done, total)))
    # (1 warm-up + 3 timed + 1 memory) rounds of 3 arms, and 3 oracle requests.
    assert {total for _, total in seen} == {18}
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (18, 18)


def replayed(**changes: Any) -> Callable[[str, int], dict[str, Any]]:
    """Counters of an engine that replays a graph for each decision, with `changes` to those of the graphs."""
    graphs = {"fallbacks": 0, "last_fallback": None}
    return lambda executor, decisions: {executor: {"graphs": {**graphs, "replays": decisions, **changes}}}


GRAPHS = [{"name": "packed", "executor": "packed", "cuda_graphs": True}, {"name": "forked", "executor": "forked"}]


def test_an_arm_whose_counters_show_its_graphs_passes() -> None:
    fake = model()
    fake.counted = replayed()
    result = bench(fake, scenario(candidates=GRAPHS))
    assert failures(result) == []
    assert arms(result)["packed"]["counters"]["after"]["packed"]["graphs"]["replays"] == 4


def test_an_arm_that_did_not_replay_fails_alone_and_keeps_what_it_measured() -> None:
    fake = model()
    fake.counted = replayed(replays=1)
    result = bench(fake, scenario(candidates=GRAPHS))
    rows = arms(result)
    assert rows["packed"]["error"] == "not what it says: 0 graphs were replayed in 3 timed decisions"
    assert rows["packed"]["samples_ms"] == [2.0, 2.0, 2.0]
    assert rows["forked"]["ratio"]["median"] == 2.0
    assert failures(result) == [f"N=4 P=50 Q=20, packed: {rows['packed']['error']}"]


def test_targets_are_judged_on_the_arm_that_is_named() -> None:
    size = {"prefix_tokens": 50, "question_tokens": 20, "questions": 4}
    case = {**size, "targets": {"decide_ms": 1.5, "ratio": 2}}
    result = bench(model(), scenario(cases=[case], target_arm="forked"))
    targets = result["cases"][0]["targets"]
    assert targets["arm"] == "forked"
    assert [(entry["measured"], entry["met"]) for entry in targets["figures"]] == [(4.0, False), (2.0, True)]
    assert bench(model(), scenario(cases=[case]))["cases"][0]["targets"]["arm"] == "packed"
    _, table = tables(result)
    assert table.rows == [
        ["N=4 P=50 Q=20, forked", "decide_ms", "1.5", "4.00", "missed by 2.50 (167%)"],
        ["", "ratio", "2", "2.00", "met"],
    ]


def test_the_noise_floor_is_the_baseline_beside_itself() -> None:
    def shift(decision: dict[str, Any]) -> None:
        decision["answers"]["question_2"]["probabilities"] = {"no": 0.6, "yes": 0.4}

    # Warm-up, three timed rounds, memory; then pairs of 10 and 5 ms, and the answers at another shape.
    fake = model(independent=[0.008] * 5 + [0.010, 0.005] * 3)
    fake.meddle = broken("independent", shift, at=11)
    result = bench(fake, scenario(noise_floor=True))
    noise = result["cases"][0]["noise"]
    assert noise["time_ratio"] == {"median": 2.0, "low": 2.0, "high": 2.0, "pairs": 3}
    assert noise["shape"] == "all questions in one padded batch"
    assert noise["quality"]["largest_difference"] == pytest.approx(0.1)
    assert (noise["quality"]["questions"], noise["quality"]["agreement"]) == (12, 1)
    assert "N=4 P=50 Q=20: the baseline over itself takes 2.00x [2.00, 2.00] the time" in remarks(result)
    assert arms(result)["independent"]["samples_ms"] == [8.0, 8.0, 8.0]
    assert "noise" not in bench(model())["cases"][0]


@pytest.mark.parametrize(("executor", "shape"), [("forked", "branch batches of 1"), ("packed", "the request twice")])
def test_each_executor_has_another_batch_shape(executor: str, shape: str) -> None:
    noise = bench(model(), scenario(baseline={"executor": executor}, noise_floor=True))["cases"][0]["noise"]
    assert noise["shape"].startswith(shape)
    assert noise["quality"]["largest_difference"] == 0


def test_a_failing_noise_floor_leaves_the_times() -> None:
    fake = model()
    fake.meddle = broken("independent", lambda decision: 1 / 0, at=5)
    result = bench(fake, scenario(noise_floor=True))
    assert failures(result) == ["N=4 P=50 Q=20, noise floor: ZeroDivisionError: division by zero"]
    assert arms(result)["packed"]["ratio"]["median"] == 4.0


def test_times_are_told_beside_the_floor_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jevify.evidence.kinds.decide.run.machine_of", lambda device: Machine("tiny", 1e9, 1e9))
    fake = model()

    def on_gpu(executor: str, decision: dict[str, Any], log: list[tuple[str, str]]) -> None:
        decision["metadata"] |= {"dtype": "bfloat16"}
        decision["metadata"]["stages_ms"]["device"] = 1.0

    fake.meddle = on_gpu
    case = bench(fake)["cases"][0]
    # 73,728 values and 130 rows, and their attention: 4 * 2 layers * 4 heads * 16 values.
    visible = 50 * 51 // 2 + 4 * (20 * 50 + 20 * 21 // 2)
    operations = 2 * 73_728 * 130 + 4 * 2 * 4 * 16 * visible
    assert case["floor"]["machine"] == "tiny"
    assert case["floor"]["weights_ms"] == pytest.approx(2 * 73_728 / 1e6, abs=1e-4)
    assert case["floor"]["ms"] == pytest.approx(operations / 1e6, abs=1e-4)
    row = case["arms"][2]
    assert row["times_floor"] == pytest.approx(2.0 / case["floor"]["ms"], abs=1e-4)
    assert row["gpu_times_floor"] == pytest.approx(1.0 / case["floor"]["ms"], abs=1e-4)
    assert bench(model())["cases"][0]["floor"] is None


def test_a_rival_runs_in_one_forward_and_shares_no_prefix() -> None:
    def one_forward(executor: str, decision: dict[str, Any], log: list[tuple[str, str]]) -> None:
        if executor == "independent":
            decision["metadata"]["forward_calls"] = 1

    fake = model()
    fake.meddle = one_forward
    rival = {"name": "batch", "executor": "independent", "rival": "padded-batch"}
    result = bench(fake, scenario(baseline=rival, candidates=[{"name": "packed", "executor": "packed"}]))
    assert failures(result) == []
    assert result["cases"][0]["bound"] == pytest.approx(280 / 130, abs=1e-4)
    assert arms(result)["packed"]["ratio"]["median"] == 4.0
    assert result["scenario"]["baseline"]["rival"] == "padded-batch"
    # One question a forward is not what the rival does.
    result = bench(model(), scenario(baseline=rival))
    assert arms(result)["batch"]["error"] == "warm-up: 4 forward calls were made; the executor needs 1"
