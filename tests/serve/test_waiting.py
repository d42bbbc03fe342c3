"""Which waiting requests go together."""

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jevify.serve.waiting import WaitingRoom, pick
from serving import ticket

pytestmark = pytest.mark.cpu


def sizes(batch):
    return [one.tokens for one in batch]


def test_those_that_fit_go_together_in_order():
    assert sizes(pick([ticket(n) for n in (100, 200, 300, 50)], tokens=800, requests=9)) == [100, 200, 300, 50]
    assert sizes(pick([ticket(10)] * 9, tokens=800, requests=4)) == [10] * 4


def test_the_oldest_goes_whatever_its_size():
    assert sizes(pick([ticket(5_000), ticket(4_000)], tokens=800, requests=9)) == [5_000]


def test_a_small_one_does_not_wait_for_a_row_of_large_ones():
    waiting = [ticket(700) for _ in range(20)] + [ticket(60)]
    assert sizes(pick(waiting, tokens=800, requests=9)) == [700, 60]
    assert sizes(pick([ticket(3_000)] * 20 + [ticket(60)], tokens=800, requests=9)) == [3_000, 60]


def test_a_large_one_does_not_wait_for_a_flood_of_small_ones():
    waiting = [ticket(100) for _ in range(8)] + [ticket(790)] + [ticket(100) for _ in range(100)]
    large = waiting[8]
    assert large not in pick(waiting, tokens=800, requests=99)
    # Everything that was there before it is gone, and it is the oldest.
    assert pick(waiting[8:], tokens=800, requests=99)[0] is large


def test_what_no_small_one_takes_of_the_reserve_is_not_wasted():
    assert sizes(pick([ticket(200)] * 6, tokens=800, requests=9)) == [200] * 4


@given(st.lists(st.integers(1, 2_000), min_size=1, max_size=40), st.integers(16, 1_000), st.integers(1, 10))
def test_a_batch_holds_the_oldest_and_stays_within_its_bounds(tokens, budget, most):
    waiting = [ticket(n) for n in tokens]
    batch = pick(waiting, tokens=budget, requests=most)
    assert batch[0] is waiting[0]
    assert len(batch) == len({id(one) for one in batch}) <= most
    assert sum(sizes(batch)) <= max(budget, tokens[0] + budget // 4)


def room():
    return WaitingRoom(batch_tokens=lambda: 100, batch_requests=10)


def test_dropped_and_late_tickets_leave_without_running():
    found = room()
    first, second, late, last = ticket(10), ticket(20), ticket(30, seconds=-1), ticket(40)
    for one in (first, second, late, last):
        found.add(one)
    found.drop(second)
    assert (found.requests, found.tokens) == (3, 80)
    assert found.take() == [first, last]
    assert (found.requests, found.tokens) == (0, 0)


def test_taking_waits_and_closing_lets_the_rest_be_taken():
    found, taken = room(), []
    one = ticket(10)
    thread = threading.Thread(target=lambda: taken.append(found.take()), daemon=True)
    thread.start()
    time.sleep(0.02)
    assert taken == []
    found.add(one)
    thread.join(10)
    assert taken == [[one]]
    last = ticket(10)
    found.add(last)
    found.close()
    with pytest.raises(RuntimeError, match="closed"):
        found.add(ticket(1))
    assert found.take() == [last]
    assert found.take() is None
