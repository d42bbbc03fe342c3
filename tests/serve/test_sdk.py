"""The unmodified SDK against a server on a socket: every call of the contract."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pydantic
import pytest
import typesafe_sdk
import zstandard
from typesafe_sdk import AsyncTypeSafeClient, Choice, Image, Noul, RetryPolicy, Score, TypeSafeClient

from serving import KEY, STATE, Wrapped, server_of

pytestmark = pytest.mark.cpu

ONCE = RetryPolicy(max_retries=0)
PNG = b"\x89PNG\r\n\x1a\n" + bytes(32)


@pytest.fixture(scope="module")
def url():
    with server_of(keys=(KEY,)) as (address, _):
        yield address


class Sync:
    """One call of the synchronous client."""

    def __init__(self, url, **options):
        self._options = {"base_url": url, "api_key": KEY, "retry": ONCE, **options}

    def models(self):
        with TypeSafeClient(**self._options) as client:
            return client.models.list()

    def ask(self, *args, **more):
        with TypeSafeClient(**self._options) as client:
            return client.system_one(*args, **more)


class Async(Sync):
    """The same through the asynchronous client."""

    def models(self):
        async def call():
            async with AsyncTypeSafeClient(**self._options) as client:
                return await client.models.list()

        return asyncio.run(call())

    def ask(self, *args, **more):
        async def call():
            async with AsyncTypeSafeClient(**self._options) as client:
                return await client.system_one(*args, **more)

        return asyncio.run(call())


@pytest.fixture(params=[Sync, Async])
def sdk(request):
    return request.param


def test_models(sdk, url):
    models = sdk(url).models().models
    assert [model.name for model in models] == ["tiny", "jev-latest"]
    assert all(len(model.release_date) == len("2026-01-31") for model in models)


def test_three_types_as_objects_and_as_dicts(sdk, url):
    objects = {
        "team": Choice(instructions="Which team?", criteria={"billing": "money", "technical": None}),
        "late": Noul(instructions="Is it late?"),
        "mood": Score(instructions="How bad?", criteria=["fine", "bad", "awful"]),
    }
    dicts = {
        "team": {"type": "choice", "instructions": "Which team?", "criteria": {"billing": "money", "technical": None}},
        "late": {"type": "noul", "instructions": "Is it late?"},
        "mood": {"type": "score", "instructions": "How bad?", "criteria": ["fine", "bad", "awful"]},
    }
    first, second = sdk(url).ask(STATE, objects), sdk(url).ask(STATE, dicts)
    assert first.choices["team"].choice == second.choices["team"].choice
    assert first.nouls["late"].noul == pytest.approx(second.nouls["late"].noul, abs=1e-5)
    score = first.scores["mood"]
    assert score.legend == {0: "fine", 1: "bad", 2: "awful"}
    assert score.score == pytest.approx(sum(level * share for level, share in score.probabilities.items()))
    assert sum(first.choices["team"].probabilities.values()) == pytest.approx(1)
    assert first.model == "tiny"
    assert first.usage.output_tokens == 0
    assert first.usage.input_tokens == second.usage.input_tokens > 100
    assert first.request_id.startswith("req_")
    assert first.request_id != second.request_id


def test_object_state_with_nulls_and_null_descriptions(sdk, url):
    state = {"order": 17, "notes": ["late", None], "refund": None, "nested": {"a": [None, {"b": 1.5}]}}
    questions = {"kind": Choice(instructions=None, criteria={"a": None, "b": None})}
    answer = sdk(url).ask(state, questions).choices["kind"]
    assert answer.choice in ("a", "b")
    assert 0 <= answer.confidence <= 1


def test_noul_of_criteria_alone(sdk, url):
    questions = {"late": Noul(criteria={"true": "It came late", "false": None})}
    assert 0 <= sdk(url).ask(STATE, questions).nouls["late"].noul <= 1


def test_one_option_and_one_level(sdk, url):
    questions = {
        "only": Choice(instructions="Which?", criteria={"this": "the only one"}),
        "level": Score(instructions="How?", criteria=["flat"]),
    }
    found = sdk(url).ask(STATE, questions)
    assert (found.choices["only"].choice, found.choices["only"].confidence) == ("this", 1)
    assert (found.scores["level"].score, found.scores["level"].confidence) == (0, 1)


def test_structured_content_is_shown_as_json_and_echoed(sdk, url):
    levels = [{"name": "fine", "until": 3}, ["bad", {"from": 4}], "awful"]
    structured = {"mood": Score(instructions={"task": "rate", "of": ["mood"]}, criteria=levels)}
    as_text = {
        "mood": Score(
            instructions='{"task": "rate", "of": ["mood"]}',
            criteria=['{"name": "fine", "until": 3}', '["bad", {"from": 4}]', "awful"],
        )
    }
    found, same = sdk(url).ask(STATE, structured), sdk(url).ask(STATE, as_text)
    assert found.scores["mood"].legend == dict(enumerate(levels))
    assert found.scores["mood"].score == pytest.approx(same.scores["mood"].score, abs=1e-5)
    assert found.usage.input_tokens == same.usage.input_tokens


def test_a_custom_response_model(sdk, url):
    class Late(pydantic.BaseModel):
        noul: float

    class Answers(pydantic.BaseModel):
        late: Late

    class Reply(pydantic.BaseModel):
        answers: Answers
        model: str

    reply = sdk(url).ask(STATE, {"late": Noul(instructions="Is it late?")}, response_model=Reply)
    assert reply.model == "tiny"
    assert 0 <= reply.answers.late.noul <= 1


def test_an_image_and_a_box_are_a_clean_422(sdk, url):
    with pytest.raises(typesafe_sdk.TypeSafeUnprocessableEntityError, match="takes no images"):
        sdk(url).ask(Image(PNG), {"late": Noul(instructions="Is it torn?")})
    with pytest.raises(typesafe_sdk.TypeSafeUnprocessableEntityError, match=r"questions\.where\.type: a box is found"):
        sdk(url).ask(STATE, {"where": {"type": "box", "instructions": "Where?"}})


def test_keys(sdk, url):
    with pytest.raises(typesafe_sdk.TypeSafeAuthenticationError) as wrong:
        sdk(url, api_key=KEY + "x").models()
    assert wrong.value.request_id.startswith("req_")
    with pytest.raises(typesafe_sdk.TypeSafeAuthenticationError):
        sdk(url, api_key=KEY[:-1]).ask(STATE, {"late": Noul(instructions="Is it late?")})


def test_unknown_model_and_route(sdk, url):
    late = {"late": Noul(instructions="Is it late?")}
    with pytest.raises(typesafe_sdk.TypeSafeNotFoundError, match="no such model here; ask for tiny or jev-latest"):
        sdk(url).ask(STATE, late, model="other")
    with pytest.raises(typesafe_sdk.TypeSafeNotFoundError):
        sdk(url + "/elsewhere").models()
    assert sdk(url).ask(STATE, late, model="tiny").model == "tiny"


def test_bad_input_is_422_with_its_place(sdk, url):
    for state, questions, place in [
        ("", {"late": Noul(instructions="Is it late?")}, "state: must not be empty"),
        (STATE, {"late": {"type": "guess"}}, r"questions\.late\.type: must be one of"),
        (STATE, {"late": {"type": "noul", "instructions": 7}}, r"questions\.late\.instructions: must be a string"),
        (STATE, {"a": Choice(instructions="?", criteria={" ": None})}, r"questions\.a\.criteria"),
        (STATE, {f"q{n}": Noul(instructions="?") for n in range(33)}, "33 questions, and the limit is 32"),
        ("word " * 20_000, {"late": Noul(instructions="?")}, r"the full question is \d{5} tokens, and the limit"),
    ]:
        with pytest.raises(typesafe_sdk.TypeSafeUnprocessableEntityError, match=place):
            sdk(url).ask(state, questions)


def test_429_and_529_say_when_to_come_again(sdk):
    late = {"late": Noul(instructions="Is it late?")}
    with server_of(False) as (address, _), pytest.raises(typesafe_sdk.TypeSafeInternalServerError) as loading:
        sdk(address).ask(STATE, late)
    assert loading.value.status == 529
    assert loading.value.headers["retry-after-ms"] == "1000"
    release = threading.Event()
    engine = Wrapped(before=lambda requests: release.wait(20))
    with server_of(engine, queue_requests=1) as (address, service), ThreadPoolExecutor(2) as others:
        first = others.submit(sdk(address).ask, STATE, late)
        while not engine.batches:
            pass
        second = others.submit(sdk(address).ask, STATE, late)
        while not service._batcher.room.requests:
            pass
        with pytest.raises(typesafe_sdk.TypeSafeRateLimitError) as over:
            sdk(address).ask(STATE, late)
        release.set()
        assert over.value.retry_after_ms >= 20
        assert first.result().nouls["late"].noul == pytest.approx(second.result().nouls["late"].noul, abs=1e-5)


def test_a_compressed_body(sdk, url):
    def ask(compression):
        state = {"lines": ["a line like the others"] * 80}
        return sdk(url, compression=compression).ask(state, {"late": Noul(instructions="Is it late?")})

    try:
        found = ask("zstd")
    except typesafe_sdk.TypeSafeError:
        # Before Python 3.14 the SDK compresses with an extra of its own; what it would send is what zstandard makes.
        from typesafe_sdk._core import compression

        compression.COMPRESSORS["zstd"] = zstandard.compress
        try:
            found = ask("zstd")
        finally:
            del compression.COMPRESSORS["zstd"]
    assert found.nouls["late"].noul == pytest.approx(ask(False).nouls["late"].noul, abs=1e-5)


def test_many_clients_at_once(url):
    async def run():
        async with AsyncTypeSafeClient(base_url=url, api_key=KEY, retry=ONCE) as client:
            levels = [[f"level {n}", f"more of {n}"] for n in range(48)]
            asked = [
                client.system_one(f"Complaint {n} of a torn box", {"m": Score(instructions="How?", criteria=levels[n])})
                for n in range(48)
            ]
            return [reply.scores["m"].legend for reply in await asyncio.gather(*asked)], levels

    legends, levels = asyncio.run(run())
    assert legends == [dict(enumerate(one)) for one in levels]
