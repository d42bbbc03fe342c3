"""The door: DecisionEngine on tiny models."""

import json
import threading

import pytest
import torch

import tiny
from jevify import Choice, Noul, Score, Workflow
from jevify.accel.ops import triton_runtime
from jevify.engine import DecisionEngine
from jevify.errors import InputError, JevifyError, SettingError, UnsupportedModelError

pytestmark = pytest.mark.cpu
CONTEXT = "The parcel arrived two days late and the box was torn."
QUESTIONS = {
    "team": Choice(instructions="Which team?", criteria={"billing": "money", "technical": None, "refund": None}),
    "late": Noul(instructions="Is it late?"),
    "mood": Score(instructions="How bad?", criteria=["fine", "bad", "awful"]),
}


@pytest.fixture(scope="module")
def engine():
    return DecisionEngine(tiny.model("qwen2"), tiny.tokenizer(), name="tiny")


def flat(decision):
    return [p for answer in decision["answers"].values() for p in answer["probabilities"].values()]


def test_a_decision_says_all_that_it_should(engine):
    decision = engine.decide(CONTEXT, QUESTIONS)
    assert list(decision) == ["model", "answers", "probability_status", "metadata"]
    assert decision["probability_status"] == "uncalibrated answer-token probabilities"
    assert list(decision["answers"]) == ["team", "late", "mood"]
    assert decision["answers"]["late"]["noul"] == decision["answers"]["late"]["probabilities"]["yes"]
    metadata = decision["metadata"]
    shared, tokens = engine.measure(CONTEXT, QUESTIONS)
    assert metadata["shared_prefix_tokens"] == shared > 0
    assert [entry["tokens"] for entry in metadata["questions"].values()] == tokens
    assert [entry["label_tokens"] for entry in metadata["questions"].values()] == [
        [1, 1, 1],
        [1, 1],
        [1, 1, 1],
    ]
    expected = {
        "mode": "parallel",
        "executor": "forked",
        "device": "cpu",
        "dtype": "float32",
        "scoring_dtype": "float32",
        "attention": "sdpa",
        "revision": None,
        "prompt_format": "delimited",
        "answer_encoding": "letters",
        "generated_tokens": 0,
        "temperature": 1.0,
        "forward_calls": 2,
    }
    assert {key: metadata[key] for key in expected} == expected
    assert list(metadata["stages_ms"]) == ["prepare", "wait", "prefill", "branches", "scoring", "total"]
    active = metadata["optimizations"]
    assert (active["efficient_cache"], active["length_aware"], active["branch_batch_size"]) == (
        True,
        True,
        8,
    )
    assert active["fallbacks"] == {}
    assert active["counters"]["padded_tokens"] == 3 * max(tokens) - sum(tokens)


def test_questions_may_be_a_workflow_or_plain_dicts(engine):
    plain = {"late": {"type": "noul", "instructions": "Is it late?"}}
    wanted = flat(engine.decide(CONTEXT, {"late": QUESTIONS["late"]}))
    assert flat(engine.decide(CONTEXT, plain)) == wanted
    assert flat(engine.decide(CONTEXT, Workflow.parse({"questions": plain}))) == wanted


@pytest.mark.parametrize("encoding", ["letters", "labels"])
@pytest.mark.parametrize("settings", [{"executor": "packed"}, {"executor": "packed", "token_budget": 32}, {}])
def test_executors_and_modes_agree(engine, settings, encoding):
    other = engine.with_settings(answer_encoding=encoding, **settings)
    wanted = flat(other.oracle(CONTEXT, QUESTIONS))
    assert flat(other.decide(CONTEXT, QUESTIONS)) == pytest.approx(wanted, abs=1e-5)
    independent = other.decide(CONTEXT, QUESTIONS, mode="independent")
    assert flat(independent) == pytest.approx(wanted, abs=1e-6)
    assert independent["metadata"]["mode"] == "independent"
    assert independent["metadata"]["executor"] == "independent"
    assert independent["metadata"]["optimizations"] == {}
    assert independent["metadata"]["shared_prefix_tokens"] == 0


def test_many_requests_share_one_packed_pass(engine):
    packed = engine.with_settings(executor="packed")
    requests = [(CONTEXT, QUESTIONS), ("Another one.", {"late": QUESTIONS["late"]}), (CONTEXT, QUESTIONS)]
    decisions = packed.decide_many(requests)
    assert [decision["metadata"]["forward_calls"] for decision in decisions] == [1, 1, 1]
    for decision, (context, questions) in zip(decisions, requests, strict=True):
        assert flat(decision) == pytest.approx(flat(packed.decide(context, questions)), abs=1e-6)


def test_temperature_divides_the_scores(engine):
    base = engine.decide(CONTEXT, QUESTIONS)["answers"]["team"]["probabilities"].values()
    hot = engine.with_settings(temperature=2.0).decide(CONTEXT, QUESTIONS)["answers"]["team"]["probabilities"]
    roots = [p**0.5 for p in base]
    assert list(hot.values()) == pytest.approx([root / sum(roots) for root in roots])


def test_engines_on_one_model_share_its_weights_and_lock(engine):
    other = engine.with_settings(executor="packed")
    assert other._weights is engine._weights
    assert other._lock is engine._lock
    separate = DecisionEngine(tiny.model("qwen2"), tiny.tokenizer(), name="tiny")
    assert separate._lock is not engine._lock


def test_a_held_model_blocks_its_engines_and_no_other(engine):
    separate = DecisionEngine(tiny.model("llama"), tiny.tokenizer(), name="other")
    done = threading.Event()
    waiting = threading.Thread(target=lambda: (engine.decide(CONTEXT, QUESTIONS), done.set()), daemon=True)
    with engine._lock:
        waiting.start()
        separate.decide(CONTEXT, QUESTIONS)
        assert not done.is_set()
    waiting.join(30)
    assert done.is_set()


def test_many_threads_get_their_own_answers(engine):
    contexts = [f"Complaint number {index} about a torn box." for index in range(6)]
    packed = engine.with_settings(executor="packed")
    wanted = [flat(packed.decide(context, QUESTIONS)) for context in contexts]
    found = [None] * len(contexts)

    def work(index):
        chosen = packed if index % 2 else engine
        found[index] = flat(chosen.decide(contexts[index], QUESTIONS))

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(contexts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-5)


@pytest.mark.parametrize("executor", ["forked", "packed", "independent"])
def test_an_in_place_weight_change_shows_after_clearing(executor):
    engine = DecisionEngine(tiny.model("llama-biased"), tiny.tokenizer(), name="tiny", executor=executor)
    before = flat(engine.decide(CONTEXT, QUESTIONS))
    with torch.no_grad():
        for parameter in engine._model.parameters():
            parameter.mul_(1.5)
    engine.clear_optimization_cache()
    after = flat(engine.decide(CONTEXT, QUESTIONS))
    fresh = DecisionEngine(engine._model, tiny.tokenizer(), name="tiny", executor=executor)
    assert after == flat(fresh.decide(CONTEXT, QUESTIONS))
    assert after != before


def test_attention_that_the_model_was_not_loaded_with_is_refused(engine):
    with pytest.raises(SettingError, match="loaded with sdpa attention"):
        engine.with_settings(attention="eager")


@pytest.mark.parametrize("executor", ["forked", "packed"])
def test_a_moved_model_is_refused_until_a_new_engine_is_built(executor):
    model = tiny.model("llama")
    engine = DecisionEngine(model, tiny.tokenizer(), name="tiny", executor=executor)
    before = flat(engine.decide(CONTEXT, QUESTIONS))
    model.to(torch.bfloat16)
    with pytest.raises(InputError, match="build a new DecisionEngine"):
        engine.decide(CONTEXT, QUESTIONS)
    fresh = DecisionEngine(model, tiny.tokenizer(), name="tiny", executor=executor)
    assert flat(fresh.decide(CONTEXT, QUESTIONS)) == pytest.approx(before, abs=3e-2)
    with pytest.raises(InputError, match="build a new DecisionEngine"):
        engine.decide(CONTEXT, QUESTIONS)


def test_replaced_rotary_frequencies_are_refused():
    engine = DecisionEngine(tiny.model("llama"), tiny.tokenizer(), name="tiny")
    rotary = engine._model.base_model.rotary_emb
    rotary.inv_freq = rotary.inv_freq * 2
    with pytest.raises(InputError, match="build a new DecisionEngine"):
        engine.decide(CONTEXT, QUESTIONS)


def test_clearing_reaches_every_engine_on_the_model():
    engine = DecisionEngine(tiny.model("qwen2"), tiny.tokenizer(), name="tiny")
    sibling = engine.with_settings(executor="packed")
    sibling.decide(CONTEXT, QUESTIONS)
    with torch.no_grad():
        engine._model.lm_head.weight.mul_(1.5)
    engine.clear_optimization_cache()
    assert flat(sibling.decide(CONTEXT, QUESTIONS)) == pytest.approx(flat(engine.oracle(CONTEXT, QUESTIONS)), abs=1e-5)


def test_a_model_in_training_mode_decides_like_any_other():
    model = tiny.model("qwen2", attention_dropout=0.5).train()
    engine = DecisionEngine(model, tiny.tokenizer(), name="tiny")
    assert flat(engine.decide(CONTEXT, QUESTIONS)) == flat(engine.decide(CONTEXT, QUESTIONS))


def test_an_interrupted_oracle_leaves_the_model_as_it_was(monkeypatch):
    engine = DecisionEngine(tiny.model("qwen2", dtype=torch.bfloat16), tiny.tokenizer(), name="tiny")
    before = flat(engine.decide(CONTEXT, QUESTIONS))
    mlp = engine._model.base_model.layers[1].mlp

    def interrupt(*_):
        raise KeyboardInterrupt

    handle = mlp.down_proj.register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        engine.oracle(CONTEXT, QUESTIONS)
    handle.remove()
    assert flat(engine.decide(CONTEXT, QUESTIONS)) == before


def test_scores_that_are_not_numbers_are_a_failure_and_no_answer():
    engine = DecisionEngine(tiny.model("qwen2"), tiny.tokenizer(), name="tiny")
    with torch.no_grad():
        engine._model.base_model.norm.weight.fill_(float("nan"))
    with pytest.raises(JevifyError, match="scores that are not finite"):
        engine.decide(CONTEXT, QUESTIONS)


def test_settings_idle_on_another_executor_go_back_to_their_defaults(engine):
    special = engine.with_settings(branch_batch_size=4, efficient_cache=False)
    packed = special.with_settings(executor="packed", token_budget=64)
    assert (packed.settings.branch_batch_size, packed.settings.efficient_cache) == (8, True)
    assert packed.with_settings(executor="forked").settings.token_budget == 8192
    assert special.with_settings(temperature=2.0).settings.branch_batch_size == 4


def test_low_precision_and_its_oracle():
    engine = DecisionEngine(tiny.model("qwen3", dtype=torch.bfloat16), tiny.tokenizer(), name="tiny")
    wide = DecisionEngine(tiny.model("qwen3", dtype=torch.bfloat16).float(), tiny.tokenizer(), name="tiny")
    oracle = engine.oracle(CONTEXT, QUESTIONS)
    assert oracle["metadata"]["dtype"] == "float32"
    assert engine.decide(CONTEXT, QUESTIONS)["metadata"]["dtype"] == "bfloat16"
    assert flat(oracle) == pytest.approx(flat(wide.decide(CONTEXT, QUESTIONS, mode="independent")), abs=1e-5)


@pytest.mark.parametrize(
    ("context", "questions", "message"),
    [
        ("", QUESTIONS, "decide: $.context: must not be empty"),
        (" \n", QUESTIONS, "decide: $.context: must not be empty"),
        ({}, QUESTIONS, "decide: $.context: must not be empty"),
        (7, QUESTIONS, "decide: $.context: must be a string, an object or an array, not a number"),
        (None, QUESTIONS, "decide: $.context: is missing"),
        ("bad \ud800 text", QUESTIONS, "decide: $.context: holds half of a surrogate pair"),
        (CONTEXT, {}, "decide: $.questions: needs at least 1 entry"),
        (CONTEXT, {"a": {"type": "guess"}}, "decide: $.questions.a.type: must be one of"),
        (CONTEXT, {"a": {"type": "noul"}}, 'question "a" has neither instructions nor described options'),
        (CONTEXT, {f"q{i}": QUESTIONS["late"] for i in range(33)}, "33 questions, and the limit is 32"),
    ],
)
def test_bad_requests_are_refused(engine, context, questions, message):
    with pytest.raises(InputError) as caught:
        engine.decide(context, questions)
    assert message in str(caught.value)


def test_a_long_context_is_refused_with_count_and_limit_never_cut(engine):
    with pytest.raises(InputError, match=r"the full question is \d{5,} tokens, and the limit is 2048"):
        engine.decide("word " * 20_000, QUESTIONS)
    roomy = engine.with_settings(max_question_tokens=100_000)
    with pytest.raises(InputError, match="the model reads at most 4096"):
        roomy.decide("word " * 20_000, QUESTIONS)


@pytest.mark.parametrize("warm", [False, True])
def test_a_context_that_no_limit_takes_is_refused_before_it_is_tokenized(warm, monkeypatch):
    fresh = DecisionEngine(tiny.model("qwen2"), tiny.tokenizer(), name="tiny")
    if warm:
        fresh.decide(CONTEXT, QUESTIONS)
    monkeypatch.setattr(fresh._compiler, "tokenize", lambda prepared: pytest.fail("it was tokenized"))
    with pytest.raises(InputError, match=r"the text is 5,000,0\d\d characters long, which no 2048 tokens can hold"):
        fresh.decide("word " * 1_000_000, QUESTIONS)


def test_the_identity_tells_what_moves_answers_and_nothing_else(engine):
    wanted = engine.identity()
    assert {name: wanted[name] for name in ("model", "revision", "dtype")} == {
        "model": "tiny",
        "revision": None,
        "dtype": "float32",
    }
    assert json.loads(json.dumps(wanted)) == wanted
    same = {"branch_batch_size": 3, "max_questions": 5, "max_question_tokens": 99, "max_label_tokens": 5}
    assert engine.with_settings(**same).identity() == wanted
    for changes in ({"temperature": 2.0}, {"executor": "packed"}, {"answer_encoding": "labels"}, {"stable": True}):
        assert engine.with_settings(**changes).identity() != wanted
    other = DecisionEngine(tiny.model("qwen2", seed=1), tiny.tokenizer(), name="tiny").identity()
    assert {name for name in wanted if other[name] != wanted[name]} == {"weights"}


def test_many_names_the_request_at_fault_and_runs_none(engine):
    before = engine.counters()["decisions"]
    with pytest.raises(InputError, match=r"^request 1: decide: \$.context: must not be empty"):
        engine.decide_many([(CONTEXT, QUESTIONS), ("", QUESTIONS)])
    assert engine.counters()["decisions"] == before
    for nothing in ([], (request for request in ())):
        with pytest.raises(InputError, match="no request"):
            engine.decide_many(nothing)
    with pytest.raises(InputError, match=r"^request 1: decide: \$.context"):
        engine.decide_many(request for request in [(CONTEXT, QUESTIONS), ("", QUESTIONS)])


def test_prepared_requests_decide_like_any_other(engine):
    before = engine.counters()["decisions"]
    prepared = [engine.prepare(CONTEXT, QUESTIONS), engine.prepare("Another text", {"late": QUESTIONS["late"]})]
    assert engine.counters()["decisions"] == before
    found = engine.decide_prepared(prepared)
    wanted = engine.decide_many([(CONTEXT, QUESTIONS), ("Another text", {"late": QUESTIONS["late"]})])
    assert [flat(one) for one in found] == [pytest.approx(flat(one), abs=1e-5) for one in wanted]
    assert found[0]["metadata"]["mode"] == "parallel"
    assert "prepare" not in found[0]["metadata"]["stages_ms"]
    alone = engine.decide_prepared(prepared[:1], mode="independent")[0]
    assert flat(alone) == flat(engine.decide(CONTEXT, QUESTIONS, mode="independent"))
    with pytest.raises(InputError, match="no request"):
        engine.decide_prepared([])
    with pytest.raises(InputError, match="must not be empty") as caught:
        engine.prepare("", QUESTIONS)
    assert [place for place, _ in caught.value.problems] == [("context",)]


@pytest.mark.parametrize("requests", [5, None, "text", {"context": CONTEXT}])
def test_many_takes_pairs(engine, requests):
    with pytest.raises(InputError, match="requests must be a list of"):
        engine.decide_many(requests)


@pytest.mark.parametrize("request_", [None, (CONTEXT,), (CONTEXT, QUESTIONS, "extra")])
def test_a_request_is_a_pair(engine, request_):
    with pytest.raises(InputError, match="a request is a pair of context and questions"):
        engine.decide_many([request_])


@pytest.mark.parametrize("model", [None, 5, b"folder"])
def test_a_model_is_named_by_text_or_path(model):
    with pytest.raises(InputError, match="give a catalog name, a folder or a hub id"):
        DecisionEngine.from_pretrained(model)


def test_an_unknown_mode_is_refused(engine):
    with pytest.raises(InputError, match="mode is 'fast'"):
        engine.decide(CONTEXT, QUESTIONS, mode="fast")


def test_refusals_come_before_any_load(tmp_path, monkeypatch):
    missing = str(tmp_path / "absent")
    monkeypatch.setattr(triton_runtime, "triton", None)
    with pytest.raises(SettingError, match="--fused-kernels rope: Triton is not installed"):
        DecisionEngine.from_pretrained(missing, fused_kernels=("rope",))
    with pytest.raises(SettingError, match="--token-budget 64 has no effect on the forked executor"):
        DecisionEngine.from_pretrained(missing, token_budget=64)
    with pytest.raises(TypeError, match="turbo"):
        DecisionEngine.from_pretrained(missing, turbo=True)


def test_from_pretrained_reads_a_folder(tmp_path):
    tiny.model("qwen2").save_pretrained(tmp_path)
    tiny.tokenizer().save_pretrained(tmp_path)
    engine = DecisionEngine.from_pretrained(tmp_path, local_files_only=True, executor="packed")
    assert engine.decide(CONTEXT, QUESTIONS)["model"] == str(tmp_path)
    eager = DecisionEngine.from_pretrained(str(tmp_path), attention="eager", dtype="bfloat16")
    assert eager.decide(CONTEXT, QUESTIONS)["metadata"]["attention"] == "eager"
    assert eager.decide(CONTEXT, QUESTIONS)["metadata"]["dtype"] == "bfloat16"


def test_a_folder_of_another_kind_is_refused_before_its_weights(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(UnsupportedModelError, match="model type is 'gpt2'"):
        DecisionEngine.from_pretrained(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "no_such_type"}')
    with pytest.raises(JevifyError, match="no_such_type"):
        DecisionEngine.from_pretrained(str(tmp_path))


def test_a_checkpoint_without_tokenizer_is_refused_before_its_weights(tmp_path):
    tiny.config("qwen2").save_pretrained(tmp_path)
    with pytest.raises(JevifyError, match="tokenizer"):
        DecisionEngine.from_pretrained(str(tmp_path))


def test_warmup_runs_once_and_counts(engine):
    fresh = engine.with_settings(executor="packed")
    fresh.warmup()
    assert fresh.counters()["decisions"] == 1
    assert fresh.counters()["packed"]["forward_calls"] == 1


def test_graphs_on_a_cpu_are_a_counted_fallback(engine):
    decision = engine.with_settings(cuda_graphs=True).decide(CONTEXT, QUESTIONS)
    active = decision["metadata"]["optimizations"]
    assert "CUDA graphs need a CUDA device" in active["fallbacks"]["cuda_graphs"]
    assert active["counters"]["fallbacks"] == 1
