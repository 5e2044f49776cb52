"""What an engine's list of token ids may hold."""

import pytest

from router.wire.engine_tokens import NoTokens, token_ids


def test_ids_are_packed() -> None:
    """Whole numbers of 32 bits become an array."""
    ids = token_ids([1, 0, 2**32 - 1])
    assert (ids.typecode, ids.tolist()) == ("I", [1, 0, 2**32 - 1])


@pytest.mark.parametrize("value", [None, {}, "12", [], [1, "2"], [1.0], [True], [-1], [2**32], [[1]]])
def test_anything_else_is_no_answer(value: object) -> None:
    """Neither other types nor numbers that are no ids are taken, nor none at all, and asking again would not help."""
    with pytest.raises(NoTokens) as refused:
        token_ids(value)
    assert refused.value.lasting
