"""What is kept of objects that runs share, and when it is let go of."""

from jaxkkt.specs.same import MOST, Same, forget_results, of_same


def test_what_follows_from_each_of_many_is_computed_once():
    """More than any cache of a fixed size holds, asked for in turn."""
    asked = []

    @of_same
    def first(same):
        asked.append(same)
        return same[0]

    many = [Same((i,)) for i in range(MOST + 10)]
    for _ in range(2):
        assert [first(one) for one in many] == list(range(len(many)))
    assert len(asked) == len(many)
    assert first(Same((0,))) == 0  # equal items, another tuple
    assert len(asked) == len(many) + 1


def test_it_is_computed_anew_once_it_is_forgotten():
    found = []

    @of_same
    def anew(same):
        found.append(object())
        return found[-1]

    one = Same((1,))
    assert anew(one) is anew(one)
    forget_results()
    assert anew(one) is found[1]
    assert len(found) == 2


def test_functions_do_not_see_each_others_results():
    @of_same
    def one(same):
        return "one"

    @of_same
    def other(same):
        return "other"

    same = Same(())
    assert (one(same), other(same), one(same)) == ("one", "other", "one")
