"""The marks that a layout has are found as they were given."""

from filters.intent_model import MarkFinder


class Own(str):
    """A mark that somebody made something more of."""

    __slots__ = ()


def test_the_marks_that_were_given_are_returned_and_no_copies_of_them() -> None:
    """The model keeps the weights of a mark on it; a library could as well return plain text."""
    marks = [Own("ab"), Own("b"), Own("总结")]
    found = {mark: mark for mark in MarkFinder(marks)("abc 总结")}
    assert [True] * 3 == [found[mark] is mark for mark in marks]
