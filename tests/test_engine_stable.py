"""Near ties on the engine: flagged by the measured drift, and settled to the oracle's label under `stable`."""

import gc
import logging
import weakref

import pytest
import torch

import tiny
from jevify import Choice, Noul, Score
from jevify.decide import drift, drift_store, known_drift
from jevify.decide.answers import top_label
from jevify.decide.executors.packed import PackedExecutor
from jevify.engine import DecisionEngine

pytestmark = pytest.mark.cpu
CONTEXT = "The parcel arrived two days late and the box was torn."
TIE = {"team": Choice(instructions="Which team?", criteria=["A", "B"])}
NEIGHBOURS = {
    "late": Noul(instructions="Is it late?"),
    "mood": Score(instructions="How bad?", criteria=["fine", "bad", "awful"]),
}
LEAD = 0.01
SHAKE = 0.05


def tie_model(dtype=torch.float32, ahead=LEAD):
    """A model whose letters A and B lie `ahead` nats apart, A ahead, for TIE about CONTEXT under the oracle in fp32."""
    model = tiny.model("qwen2")
    engine = DecisionEngine(model, tiny.tokenizer(), name="tiny")
    (a,), (b,) = engine.prepare(CONTEXT, TIE).plan.branches[0].answers
    head = model.get_output_embeddings().weight
    step = torch.zeros(head.shape[1])
    step[0] = 1.0
    head[b] = head[a] - step
    engine.clear_optimization_cache()
    decision = engine.oracle(CONTEXT, TIE)
    lead = decision["metadata"]["questions"]["team"]["lead"]
    sign = 1 if label(decision) == "A" else -1
    head[b] = head[a] - step * sign * ahead / lead
    return model.to(dtype)


def tie_engine(**settings):
    return DecisionEngine(tie_model(), tiny.tokenizer(), name="tiny", executor="packed", **settings)


@pytest.fixture(autouse=True)
def few_probes(monkeypatch):
    """One short context: what the probes are is tested elsewhere."""
    monkeypatch.setattr(drift, "CONTEXTS", drift.CONTEXTS[:1])


@pytest.fixture
def shaken(monkeypatch):
    """The packed executor moves the first option by SHAKE: down for a question alone, up for one among others."""
    plain = PackedExecutor.run

    def run(self, plans, timer):
        up = 1 if sum(len(plan.branches) for plan in plans) > 1 else -1
        return [
            [[options[0] + up * SHAKE, *options[1:]] for options in branches] for branches in plain(self, plans, timer)
        ]

    monkeypatch.setattr(PackedExecutor, "run", run)


def label(decision):
    return top_label(decision["answers"]["team"]["probabilities"])


def flags(decision, name="team"):
    entry = decision["metadata"]["questions"][name]
    return entry["near_tie"], entry["settled"]


def shared_batches(engine):
    """The tie alone, before and after neighbours, and among other requests."""
    yield engine.decide(CONTEXT, TIE)
    yield engine.decide(CONTEXT, {**TIE, **NEIGHBOURS})
    yield engine.decide(CONTEXT, {**NEIGHBOURS, **TIE})
    yield engine.decide_many([("Another text.", NEIGHBOURS), (CONTEXT, TIE), (CONTEXT, NEIGHBOURS)])[1]


def test_a_tie_flipped_by_its_batch_is_flagged(shaken):
    engine = tie_engine()
    engine.warmup()
    decisions = list(shared_batches(engine))
    assert [label(decision) for decision in decisions] == ["B", "A", "A", "A"]
    assert [flags(decision) for decision in decisions] == [(True, False)] * 4
    assert label(engine.oracle(CONTEXT, TIE)) == "A"
    leads = [decision["metadata"]["questions"]["team"]["lead"] for decision in decisions]
    assert leads == pytest.approx([SHAKE - LEAD, *[SHAKE + LEAD] * 3], abs=1e-4)
    assert decisions[0]["metadata"]["drift"] == {
        "nats": pytest.approx(SHAKE, abs=1e-4),
        "status": "measured",
        "safety": 2.0,
    }
    assert engine.counters()["near_ties"] >= 4
    assert engine.counters()["settled"] == 0


def test_stable_gives_the_oracles_label_whoever_shares_the_batch(shaken):
    engine = tie_engine(stable=True)
    engine.warmup()
    before = engine.counters()["settled"]
    decisions = list(shared_batches(engine))
    wanted = engine.oracle(CONTEXT, TIE)["answers"]["team"]
    assert wanted["choice"] == "A"
    assert [flags(decision) for decision in decisions] == [(True, True)] * 4
    for decision in decisions:
        assert decision["answers"]["team"] == wanted
    assert "settling" in decisions[0]["metadata"]["stages_ms"]
    assert decisions[0]["metadata"]["forward_calls"] == 2
    assert engine.counters()["settled"] - before >= 4


def test_a_clear_lead_is_left_alone(shaken):
    engine = tie_engine(stable=True)
    engine.warmup()
    for seed in range(10):
        found = engine.decide(f"{CONTEXT} {seed}", NEIGHBOURS)
        for name, entry in found["metadata"]["questions"].items():
            near = entry["lead"] <= 2 * found["metadata"]["drift"]["nats"]
            assert flags(found, name) == (near, near)
    assert engine.counters()["settled"] < 20


def test_an_unmeasured_path_says_unknown_and_deciding_does_not_measure():
    engine = tie_engine()
    decision = engine.decide(CONTEXT, TIE)
    assert flags(decision) == ("unknown", False)
    assert decision["metadata"]["drift"] == {"nats": None, "status": "unknown", "safety": 2.0}
    engine.warmup()
    assert engine.decide(CONTEXT, TIE)["metadata"]["drift"]["status"] == "measured"
    # The independent path in fp32 is the reference, whatever was measured.
    independent = engine.decide(CONTEXT, TIE, mode="independent")
    assert independent["metadata"]["drift"] == {"nats": 0.0, "status": "none", "safety": 2.0}
    assert flags(independent) == (False, False)


def test_the_first_stable_decision_measures_and_says_so(shaken):
    engine = tie_engine(stable=True)
    first, second = engine.decide(CONTEXT, TIE), engine.decide(CONTEXT, TIE)
    assert "measuring" in first["metadata"]["stages_ms"]
    assert "measuring" not in second["metadata"]["stages_ms"]
    assert label(first) == label(second) == "A"
    assert first["metadata"]["drift"] == second["metadata"]["drift"]
    assert engine.counters()["decisions"] == 2
    assert engine.counters()["packed"]["forward_calls"] == 2


def test_one_option_cannot_tie():
    engine = tie_engine(stable=True)
    decision = engine.decide(CONTEXT, {"team": Choice(instructions="Which?", criteria=["A"])})
    assert decision["metadata"]["questions"]["team"]["lead"] is None
    assert flags(decision) == (False, False)


def test_strict_and_bounds_on_requests_do_not_stop_the_measurement(shaken):
    engine = tie_engine(stable=True, strict=True, max_questions=1, max_question_tokens=190)
    decision = engine.decide("A box.", TIE)
    assert decision["metadata"]["drift"]["status"] == "measured"


def test_settings_without_effect_on_scores_share_the_measurement(shaken, caplog):
    engine = tie_engine()
    engine.warmup()
    for settings in ({"temperature": 2.0}, {"strict": True}, {"stable": True}, {"max_questions": 7}):
        other = engine.with_settings(**settings).decide(CONTEXT, TIE)
        assert other["metadata"]["drift"]["status"] == "measured"
        assert "measuring" not in other["metadata"]["stages_ms"]
    for settings in ({"token_budget": 64}, {"executor": "forked"}, {"answer_encoding": "labels"}):
        other = engine.with_settings(**settings).decide(CONTEXT, TIE)
        assert other["metadata"]["drift"]["status"] == "unknown"
    assert caplog.records == []


def test_engines_of_unlike_arithmetic_have_unlike_keys():
    engine = tie_engine()
    unlike = [
        engine,
        engine.with_settings(executor="forked"),
        engine.with_settings(executor="forked", branch_batch_size=2),
        engine.with_settings(token_budget=64),
        engine.with_settings(shared_attention="off"),
        engine.with_settings(prompt_format="json"),
        engine.with_settings(answer_encoding="labels"),
        DecisionEngine(tie_model(torch.bfloat16), tiny.tokenizer(), name="tiny", executor="packed"),
        DecisionEngine(tiny.model("qwen2", seed=1), tiny.tokenizer(), name="tiny", executor="packed"),
        DecisionEngine(tie_model(), tiny.tokenizer(), name="tiny", revision="v2", executor="packed"),
    ]
    paths = [drift_store.path_of(each._drift.key(each.settings.executor)) for each in unlike]
    assert len(set(paths)) == len(unlike)
    twin = DecisionEngine(tie_model(), tiny.tokenizer(), name="tiny", executor="packed")
    assert drift_store.path_of(twin._drift.key("packed")) == paths[0]


def test_weights_changed_in_place_are_measured_anew(shaken):
    engine = tie_engine()
    engine.warmup()
    other = engine.with_settings(temperature=2.0)
    engine._model.base_model.norm.weight.mul_(1.5)
    engine.clear_optimization_cache()
    for each in (engine, other):
        assert each.decide(CONTEXT, TIE)["metadata"]["drift"]["status"] == "unknown"


def test_a_damaged_record_is_measured_again(shaken, measured_folder, caplog):
    tie_engine().warmup()
    [path] = measured_folder.iterdir()
    path.write_text("{")
    engine = tie_engine()
    with caplog.at_level(logging.WARNING):
        engine.warmup()
    assert sum("cannot be used" in record.getMessage() for record in caplog.records) == 1
    assert engine.decide(CONTEXT, TIE)["metadata"]["drift"]["status"] == "measured"
    assert drift_store.find(engine._drift.key("packed")).nats == pytest.approx(SHAKE, abs=1e-4)


def test_nothing_of_a_request_is_stored(shaken, measured_folder):
    engine = tie_engine(stable=True)
    engine.decide("Zanzibar lies off the coast.", {"team": Choice(instructions="Quokka?", criteria=["emu", "yak"])})
    [path] = measured_folder.iterdir()
    assert not any(word in path.read_text() for word in ("Zanzibar", "Quokka", "emu", "yak"))


def test_the_measuring_engine_is_given_back_at_once(monkeypatch):
    engine = tie_engine()
    made = []
    plain = DecisionEngine.with_settings

    def with_settings(self, **settings):
        made.append(plain(self, **settings))
        return made[-1]

    monkeypatch.setattr(DecisionEngine, "with_settings", with_settings)
    gc.disable()
    try:
        engine.warmup()
        [prober] = [weakref.ref(each) for each in made]
        made.clear()
        assert prober() is None
    finally:
        gc.enable()


def test_the_fingerprint_is_of_bits_spread_over_every_tensor():
    model = tiny.model("llama")
    first = known_drift.fingerprint(model)
    assert known_drift.fingerprint(tiny.model("llama")) == first
    assert known_drift.fingerprint(tiny.model("llama", seed=1)) != first
    for name, parameter in model.named_parameters():
        parameter.view(-1)[0] += 1
        assert known_drift.fingerprint(model) == first, name
        known_drift.forget_fingerprint(model)
        changed = known_drift.fingerprint(model)
        assert changed != first, name
        first = changed


@pytest.mark.parametrize("encoding", ["letters", "labels"])
@pytest.mark.parametrize(
    "settings", [{"executor": "forked"}, {"executor": "packed"}, {"executor": "packed", "token_budget": 128}]
)
def test_low_precision_ties_are_settled_to_the_oracle(settings, encoding):
    """Nothing is shaken here: bf16 alone moves the scores."""
    model = tie_model(torch.bfloat16, ahead=LEAD / 20)
    engine = DecisionEngine(model, tiny.tokenizer(), name="tiny", stable=True, answer_encoding=encoding, **settings)
    engine.warmup()
    ties = 0
    for index in range(4):
        context = f"{CONTEXT} Number {index}."
        wanted = engine.oracle(context, {**TIE, **NEIGHBOURS})["answers"]
        for asked in (TIE, {**TIE, **NEIGHBOURS}, {**NEIGHBOURS, **TIE}):
            found = engine.decide(context, asked)
            for name, answer in found["answers"].items():
                assert top_label(answer["probabilities"]) == top_label(wanted[name]["probabilities"])
                near, settled = flags(found, name)
                assert near == settled
                ties += near
                if settled:
                    assert answer == wanted[name]
    assert ties > 0
