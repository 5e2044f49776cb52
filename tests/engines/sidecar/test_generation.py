"""engines.sidecar.generation: a new name if and only if the engine restarted."""

import pytest

from engines.adapter import Look
from engines.sidecar.generation import Generation


def ready(*looks: Look) -> Generation:
    """A generation of an engine that was ready once and showed these looks."""
    generation = Generation()
    for look in looks:
        generation.saw(look)
    generation.settle()
    return generation


def test_no_name_before_it_was_ready() -> None:
    """An engine never seen ready has no generation, and becoming ready is no restart."""
    generation = Generation()
    generation.lost()
    assert generation.name() == ""
    assert not generation.saw(Look(markers={"start": "17"})) and not generation.settle()
    assert generation.name() == "17.0"


def test_name_stays() -> None:
    """Equal looks, growing counters, looks that show nothing and markers seen late do not change the name."""
    generation = ready(Look(counters={"n": 1.0}))
    name = generation.name()
    assert not any(
        generation.saw(look) for look in (Look(), Look(counters={"n": 5.0}), Look(markers={"m": "x"}), Look(hints={"h": "y"}))
    )
    assert not generation.settle()
    assert generation.name() == name == "start.0"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (Look(markers={"start": "17"}), Look(markers={"start": "18"})),
        (Look(markers={"a": "1", "b": "1"}), Look(markers={"b": "2"})),
        (Look(hints={"seed": "4"}), Look(hints={"seed": "5"})),
        (Look(counters={"n": 9.0}), Look(counters={"n": 8.0})),
    ],
)
def test_restart_is_proved(before: Look, after: Look) -> None:
    """A changed marker or hint or a fallen counter is a restart, once."""
    generation = ready(before)
    name = generation.name()
    assert generation.saw(after)
    assert generation.name() != name
    renamed = generation.name()
    assert not generation.saw(after) and not generation.settle()
    assert generation.name() == renamed and generation.restarts == 1


def test_old_values_do_not_count_after_a_restart() -> None:
    """What the former process showed is not held against the new one."""
    generation = ready(Look(markers={"a": "1", "b": "1"}, counters={"n": 9.0}))
    assert generation.saw(Look(markers={"a": "2"}))
    assert not generation.saw(Look(markers={"b": "2"}, counters={"n": 1.0}))


def test_absence_without_a_marker_is_a_restart() -> None:
    """An engine that was out of reach and cannot prove that it is the same process counts as restarted."""
    generation = ready(Look(counters={"n": 1.0}))
    name = generation.name()
    generation.lost()
    assert not generation.saw(Look(counters={"n": 2.0}))
    assert generation.settle() and generation.name() != name
    assert not generation.settle()


def test_absence_with_an_equal_marker_is_none() -> None:
    """The same marker after an absence is the same process, with its cache."""
    generation = ready(Look(markers={"start": "17"}))
    name = generation.name()
    generation.lost()
    assert not generation.saw(Look(markers={"start": "17"})) and not generation.settle()
    assert generation.name() == name


def test_absence_then_another_marker_counts_once() -> None:
    """A restart proved by a marker also settles the doubt of the absence."""
    generation = ready(Look(markers={"start": "17"}))
    generation.lost()
    assert generation.saw(Look(markers={"start": "18"})) and not generation.settle()
    assert (generation.restarts, generation.name()) == (1, "18.1")


def test_equal_hint_proves_nothing() -> None:
    """A seed given on the command line is the same after a restart: absence still counts."""
    generation = ready(Look(hints={"seed": "4"}))
    generation.lost()
    generation.saw(Look(hints={"seed": "4"}))
    assert generation.settle()
