"""Requests have the size asked for, as counted by the engine that will run them."""

import pytest

from fake_engine import QUESTION_FRAME, count_words
from jevify.errors import JevifyError
from jevify.evidence.kinds.base import Case
from jevify.evidence.words import WORDS
from jevify.evidence.workload import sized_requests

pytestmark = pytest.mark.cpu


def test_words_are_many_and_distinct() -> None:
    assert len(WORDS) == len(set(WORDS)) >= 500
    assert all(word.isalpha() and word.islower() for word in WORDS)


@pytest.mark.parametrize(("prefix", "question", "questions"), [(250, 80, 4), (250, 80, 28), (33, 17, 2), (121, 47, 3)])
def test_sizes_are_met_exactly(prefix: int, question: int, questions: int) -> None:
    for request in sized_requests(Case(prefix, question, questions), count_words, number=4, seed=3):
        assert request.shared == prefix
        assert request.tokens == (prefix + question,) * questions
        assert count_words(request.context, request.questions) == (request.shared, list(request.tokens))


def test_one_question_is_whole_and_shares_nothing() -> None:
    (request,) = sized_requests(Case(250, 80, 1), count_words, number=1, seed=3)
    assert len(request.questions) == 1
    assert (request.shared, request.tokens) == (0, (330,))
    # The context has the size it has beside other questions: prefix less the frame before it.
    assert count_words(request.context, {})[1] == []
    assert sum(2 if len(word) >= 7 else 1 for word in request.context.split()) == 240


def test_contexts_differ_and_questions_stay() -> None:
    requests = sized_requests(Case(100, 40, 4), count_words, number=6, seed=3)
    assert len({request.context for request in requests}) == 6
    assert all(request.questions == requests[0].questions for request in requests)


def test_choice_and_noul_alternate_with_distinct_first_words_and_labels_that_do_not_nest() -> None:
    (request,) = sized_requests(Case(100, 40, 28), count_words, number=1, seed=3)
    questions = list(request.questions.values())
    assert [question["type"] for question in questions] == ["choice", "noul"] * 14
    assert len({question["instructions"].split()[0] for question in questions}) == 28
    for question in questions[::2]:
        labels = question["criteria"]
        assert len(set(labels)) == 3
        assert not any(a != b and a.startswith(b) for a in labels for b in labels)


def test_seed_repeats_and_changes_the_requests() -> None:
    case = Case(60, 30, 2)
    first = sized_requests(case, count_words, number=2, seed=1)
    assert sized_requests(case, count_words, number=2, seed=1) == first
    assert sized_requests(case, count_words, number=2, seed=2) != first


def test_a_size_below_the_frame_of_a_question_gives_the_nearest_and_its_real_counts() -> None:
    # A noul cannot be shorter than its frame and one word, a choice needs three labels more.
    (request,) = sized_requests(Case(50, 5, 2), count_words, number=1, seed=1)
    choice, noul = request.tokens
    assert request.shared == 50
    assert noul - 50 in (QUESTION_FRAME + 1, QUESTION_FRAME + 2)
    assert choice - 50 in (QUESTION_FRAME + 4, QUESTION_FRAME + 5)
    assert count_words(request.context, request.questions) == (50, [choice, noul])


def test_counts_that_cannot_be_are_refused() -> None:
    with pytest.raises(JevifyError, match="must count more than the prefix"):
        sized_requests(Case(50, 20, 2), lambda context, questions: (90, [80, 100]), number=1, seed=1)
