"""Random token trees, and what each of their tokens must see."""

from hypothesis import strategies as st

from jevify.accel.tree import TokenTree


@st.composite
def trees(draw):
    """A random forest with a tag for every token, so that tokens can be told apart."""
    tree = TokenTree()
    tag = 0
    for index in range(draw(st.integers(1, 12))):
        length = draw(st.integers(1, 9))
        parent = draw(st.one_of(st.none(), st.integers(0, index - 1))) if index else None
        tree.add(range(tag, tag + length), parent)
        tag += length
    return tree


def seen_by_path(tree):
    """For every token tag, the tags it must see in order of depth, itself last; from the definition alone."""
    expected = {}
    for index in range(len(tree.segments)):
        path = [token for ancestor in tree.path(index) for token in tree.segments[ancestor].tokens]
        own = len(tree.segments[index].tokens)
        for depth in range(len(path) - own, len(path)):
            expected[path[depth]] = path[: depth + 1]
    return expected
