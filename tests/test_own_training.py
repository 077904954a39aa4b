"""Ways to train that users bring."""

import jax.numpy as jnp
import pytest
from cases import problem

from jaxkkt import protocols, single, training
from jaxkkt.protocols import Protocol
from jaxkkt.training import Status


def test_a_protocol_trains_in_its_own_way(monkeypatch):
    """`train` trained by Protocol's steps, whatever a sweep does."""
    ours = training.advance.registry[Protocol]

    def once(protocol, state, data, pause):
        state = ours(protocol, state, data, pause)
        return state._replace(status=jnp.full_like(state.status, int(Status.STEP_CAP)))

    params, data = problem(13, 11, 17)  # sizes of this test alone: the program is kept
    try:
        training.advance.register(Protocol, once)
        found = single.train(params, *data, Protocol())
    finally:
        training.advance.register(Protocol, ours)
    assert (found.steps, found.status) == (1, Status.STEP_CAP)
    monkeypatch.setattr(training.advance, "dispatch", lambda kind: kind)

    class Own(Protocol, kw_only=False):
        pass

    with pytest.raises(ValueError, match=r"Own trains in a way of its own, .* by jk\.train"):
        single.train_through(params, *data, [-1.0], Own())


def test_padding_is_for_those_who_say_that_zeros_change_nothing():
    """Every own kind of training shared programs with runs of other sizes."""

    class Own(protocols.Training):
        pass

    assert not Own().takes_padding
    assert Protocol().takes_padding
    assert Own().batch_size is None
    assert Own().trained == ("w", "b", "v")
    with pytest.raises(ValueError, match="give it a method `computations` that yields"):
        list(Own().computations())
