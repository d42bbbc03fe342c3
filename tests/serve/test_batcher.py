"""Continuous batching on an engine that only counts."""

import asyncio
import threading
import time

import pytest

from jevify.errors import JevifyError
from jevify.serve import batcher as batcher_module
from jevify.serve.batcher import Batcher, Late, Overloaded
from jevify.serve.limits import ServeLimits
from jevify.serve.rate import ServiceRate
from serving import ticket, until_async

pytestmark = pytest.mark.cpu


class OutOfMemory(RuntimeError):
    pass


class Counting:
    """Answers a request by its number of tokens, so that a mixed-up answer shows.

    gate: held closed, batches wait in the engine. bad: tokens of requests that break every batch they are in. most: a
    batch of more tokens is out of memory. look: called with every batch.
    """

    def look(self):
        pass

    def __init__(self, bad=(), most=10**9):
        self.bad, self.most = bad, most
        self.gate = threading.Event()
        self.gate.set()
        self.batches = []

    def decide_prepared(self, requests):
        sizes = [request.plan.tokens for request in requests]
        self.look()
        self.batches.append(sizes)
        self.gate.wait(20)
        if sum(sizes) > self.most:
            raise OutOfMemory("CUDA out of memory")
        if any(size in self.bad for size in sizes):
            raise JevifyError("scores that are not finite")
        return [{"answers": size} for size in sizes]

    def counters(self):
        return {"decisions": sum(map(len, self.batches))}


class Watching:
    def __init__(self):
        self.runs, self.failures = [], []

    def ran(self, requests, tokens, seconds):
        self.runs.append((requests, tokens))

    def failed(self, error, requests):
        self.failures.append((type(error).__name__, requests))


def run(engine, work, *, together=True, **limits):
    """`await work(batcher, ask)` with `ask(tokens)` giving the answer; the observer.

    The rate is what a test says with `batcher.measured`.
    """
    watching = Watching()

    async def main():
        batcher = Batcher(engine, ServeLimits(**limits), watching, together=together)
        # Else the speed of this machine would say what fits into a batch.
        batcher.measured, batcher.rate.observe = batcher.rate.observe, lambda tokens, seconds: None
        batcher.start()

        async def ask(tokens, seconds=20.0):
            answered = await batcher.submit(ticket(tokens).request, time.monotonic() + seconds)
            return answered.decision["answers"]

        await work(batcher, ask)
        await batcher.stop()

    asyncio.run(main())
    return watching


async def held(engine, batcher, ask, tokens=1):
    """A task whose request is in the engine, behind a closed gate."""
    engine.gate.clear()
    task = asyncio.create_task(ask(tokens))
    await until_async(lambda: engine.batches)
    return task


async def waiting(batcher, *coroutines):
    """Tasks whose requests all wait in the queue."""
    before = batcher.room.requests
    tasks = []
    for coroutine in coroutines:
        tasks.append(asyncio.create_task(coroutine))
        await until_async(lambda: batcher.room.requests == before + len(tasks))
    return tasks


def test_a_lone_request_runs_at_once_and_those_that_wait_run_together():
    engine = Counting()

    async def work(batcher, ask):
        first = await held(engine, batcher, ask)
        others = await waiting(batcher, *(ask(n) for n in (20, 30, 40)))
        engine.gate.set()
        assert await asyncio.gather(first, *others) == [1, 20, 30, 40]
        await until_async(lambda: batcher.engine_counters == {"decisions": 4})

    watching = run(engine, work)
    assert engine.batches == [[1], [20, 30, 40]]
    assert watching.runs == [(1, 1), (3, 90)]


def test_many_requests_each_get_their_own_answer():
    engine = Counting()

    async def work(batcher, ask):
        assert await asyncio.gather(*(ask(n) for n in range(1, 300))) == list(range(1, 300))

    run(engine, work, queue_requests=1_000)
    assert max(map(len, engine.batches)) > 1
    assert sorted(size for batch in engine.batches for size in batch) == list(range(1, 300))


def test_only_the_culprit_of_a_batch_fails():
    engine = Counting(bad=(30,))

    async def work(batcher, ask):
        first = await held(engine, batcher, ask)
        others = await waiting(batcher, *(ask(n) for n in (20, 30, 40)))
        engine.gate.set()
        found = await asyncio.gather(first, *others, return_exceptions=True)
        assert [found[0], found[1], found[3]] == [1, 20, 40]
        assert isinstance(found[2], JevifyError)
        assert not batcher.failing

    watching = run(engine, work)
    assert engine.batches == [[1], [20, 30, 40], [20], [30], [40]]
    assert watching.failures == [("JevifyError", 3), ("JevifyError", 1)]


def test_a_batch_out_of_memory_is_answered_one_by_one():
    engine = Counting(most=50)

    async def work(batcher, ask):
        first = await held(engine, batcher, ask)
        others = await waiting(batcher, *(ask(n) for n in (20, 30, 40)))
        engine.gate.set()
        assert await asyncio.gather(first, *others) == [1, 20, 30, 40]

    assert run(engine, work).failures == [("OutOfMemory", 3)]


def test_the_error_of_a_batch_is_let_go_before_the_retry():
    """What a failed pass had allocated hangs on its error's frames."""
    import weakref

    class Pass:
        pass

    alive = []

    class Leaky(Counting):
        def decide_prepared(self, requests):
            if len(requests) > 1:
                allocated = Pass()
                alive.append(weakref.ref(allocated))
                raise OutOfMemory
            if alive:
                alive.append(alive[0]())
            return super().decide_prepared(requests)

    engine = Leaky()

    async def work(batcher, ask):
        first = await held(engine, batcher, ask)
        others = await waiting(batcher, ask(20), ask(30))
        engine.gate.set()
        assert await asyncio.gather(first, *others) == [1, 20, 30]

    run(engine, work)
    assert alive[1:] == [None, None]


def test_a_cancelled_request_never_runs_and_touches_nobody():
    engine = Counting()

    async def work(batcher, ask):
        first = await held(engine, batcher, ask)
        others = await waiting(batcher, *(ask(n) for n in (20, 30, 40)))
        others[1].cancel()
        await until_async(lambda: batcher.room.requests == 2)
        first.cancel()  # This one runs already.
        engine.gate.set()
        assert await asyncio.gather(others[0], others[2]) == [20, 40]
        with pytest.raises(asyncio.CancelledError):
            await first

    run(engine, work)
    assert engine.batches == [[1], [20, 40]]


def test_a_late_request_is_told_and_never_runs():
    engine = Counting()

    async def work(batcher, ask):
        first = await held(engine, batcher, ask)
        with pytest.raises(Late):
            await ask(20, seconds=0.05)
        engine.gate.set()
        assert await first == 1

    run(engine, work)
    assert engine.batches == [[1]]


def test_a_request_that_runs_over_its_deadline_is_told_in_time():
    engine = Counting()

    async def work(batcher, ask):
        engine.gate.clear()
        begun = time.monotonic()
        with pytest.raises(Late):
            await ask(20, seconds=0.1)
        assert time.monotonic() - begun < 2
        engine.gate.set()
        assert await ask(30) == 30

    run(engine, work)


@pytest.mark.parametrize(
    ("limits", "reason"), [({"queue_requests": 2}, "queue_requests"), ({"queue_tokens": 60}, "queue_tokens")]
)
def test_a_full_queue_refuses_with_a_time_from_the_measured_rate(limits, reason):
    engine = Counting()

    async def work(batcher, ask):
        first = await held(engine, batcher, ask)
        others = await waiting(batcher, ask(20), ask(30))
        with pytest.raises(Overloaded) as refused:
            await ask(20)
        assert (refused.value.reason, refused.value.retry_after_ms) == (reason, 1_000)
        batcher.measured(1_000, 10.0)
        with pytest.raises(Overloaded) as refused:
            await ask(20)
        # 10 ms a token, for the one that runs and half of the 50 that wait.
        assert refused.value.retry_after_ms == pytest.approx(260, abs=1)
        engine.gate.set()
        assert await asyncio.gather(first, *others) == [1, 20, 30]

    run(engine, work, **limits)
    assert engine.batches == [[1], [20, 30]]


def test_one_hiccup_is_no_trend():
    rate = ServiceRate()
    assert rate.seconds(100) is rate.tokens(1.0) is None
    for seconds in (0.001, 5.0, 0.001, 0.001):
        rate.observe(100, seconds)
    assert rate.seconds(1_000) == pytest.approx(0.01)
    assert rate.tokens(0.01) == pytest.approx(1_000)
    for _ in range(9):
        rate.observe(100, 1.0)
    assert rate.seconds(1_000) == pytest.approx(10)


def test_what_cannot_be_answered_in_time_is_refused_at_once():
    engine = Counting()

    async def work(batcher, ask):
        batcher.measured(1_000, 10.0)
        first = await held(engine, batcher, ask)
        # 10 ms a token: 5 s, and a deadline that leaves a quarter more is not enough.
        for seconds in (3, 6.5):
            with pytest.raises(Overloaded) as refused:
                await ask(500, seconds=seconds)
            assert refused.value.reason == "deadline"
        others = await waiting(batcher, ask(500, seconds=7))
        engine.gate.set()
        assert await asyncio.gather(first, *others) == [1, 500]
        # With nothing ahead of it even a long one is tried.
        batcher.measured(1, 10.0)
        assert await ask(500, seconds=3) == 500

    run(engine, work, batch_tokens=100)


def test_the_batch_that_those_behind_may_fill_counts():
    engine = Counting()

    async def work(batcher, ask):
        batcher.measured(1_000, 10.0)
        first = await held(engine, batcher, ask)
        with pytest.raises(Overloaded):
            await ask(5, seconds=3)
        engine.gate.set()
        assert await first == 1

    run(engine, work, batch_tokens=500)


def test_a_slow_engine_makes_small_batches():
    engine = Counting()

    async def work(batcher, ask):
        first = await held(engine, batcher, ask)
        others = await waiting(batcher, *(ask(10) for _ in range(6)))
        # 100 ms a token, and a quarter of 9 s for one batch: 22 tokens.
        batcher.measured(10, 1.0)
        engine.gate.set()
        await asyncio.gather(first, *others)

    run(engine, work)
    assert engine.batches == [[1], [10, 10], [10, 10], [10, 10]]


def test_an_engine_without_shared_passes_answers_one_by_one_the_small_first():
    engine = Counting()

    async def work(batcher, ask):
        first = await held(engine, batcher, ask)
        others = await waiting(batcher, *(ask(n) for n in (40, 20, 30)))
        engine.look = lambda: ahead.append(batcher._taken_tokens)
        engine.gate.set()
        assert await asyncio.gather(first, *others) == [1, 40, 20, 30]

    ahead = []
    run(engine, work, together=False)
    assert engine.batches == [[1], [20], [30], [40]]
    assert ahead == [90, 70, 40]  # What is taken from the queue and not answered yet still counts.


def test_a_batch_that_does_not_end_is_wedged_until_it_does():
    engine = Counting()

    async def work(batcher, ask):
        first = await held(engine, batcher, ask)
        assert not batcher.wedged
        await until_async(lambda: batcher.wedged)
        engine.gate.set()
        assert await first == 1
        await until_async(lambda: not batcher.wedged)

    run(engine, work, stall_ms=100)


def test_an_engine_that_always_fails_is_failing_until_it_answers():
    engine = Counting(bad=(20,))

    async def work(batcher, ask):
        for count in range(8):
            assert batcher.failing is False, count
            with pytest.raises(JevifyError):
                await ask(20)
        assert batcher.failing
        assert await ask(30) == 30
        assert not batcher.failing

    run(engine, work)


def test_stopping_answers_what_was_taken_and_takes_no_more():
    engine = Counting()

    async def work(batcher, ask):
        first = await held(engine, batcher, ask)
        others = await waiting(batcher, ask(20), ask(30))
        stopping = asyncio.create_task(batcher.stop())
        await asyncio.sleep(0.05)
        assert not stopping.done()
        engine.gate.set()
        await stopping
        assert await asyncio.gather(first, *others) == [1, 20, 30]
        with pytest.raises(RuntimeError, match="closed"):
            await ask(40)

    run(engine, work)


def test_stopping_does_not_wait_for_an_engine_that_nobody_waits_for(monkeypatch):
    monkeypatch.setattr(batcher_module, "LAST_BATCH_SECONDS", 0.05)
    engine = Counting()

    async def work(batcher, ask):
        engine.gate.clear()
        with pytest.raises(Late):
            await ask(20, seconds=0.05)
        begun = time.monotonic()
        await batcher.stop()
        assert time.monotonic() - begun < 2
        engine.gate.set()

    run(engine, work)


def test_a_small_request_behind_large_ones_goes_with_the_next_batch():
    engine = Counting()

    async def work(batcher, ask):
        first = await held(engine, batcher, ask)
        large = await waiting(batcher, *(ask(7_000) for _ in range(5)))
        (small,) = await waiting(batcher, ask(100))
        engine.gate.set()
        assert await small == 100
        await asyncio.gather(first, *large)

    run(engine, work)
    assert engine.batches == [[1], [7_000, 100], [7_000], [7_000], [7_000], [7_000]]
