"""engines.sidecar.adapters: names and versions of LoRA adapters, and what counts as other weights."""

from engines.adapter import MAX_MODELS
from engines.sidecar.adapters import Adapters, versioned


def told(*looks: dict[str, str], given: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """What is told after each look."""
    adapters = Adapters(given)
    answers = []
    for look in looks:
        adapters.saw(look)
        answers.append(adapters.told())
    return answers


def test_engines_with_the_same_weights_agree() -> None:
    """The version is made from the path, so two engines that loaded the same one have the same, and others differ."""
    ((one,), (same,), (other,)) = told({"legal": "/a/1"}), told({"legal": "/a/1"}), told({"legal": "/a/2"})
    assert one == same != other
    assert one[0].startswith("legal@") and versioned("legal", "", 0) == "legal"


def test_another_path_is_another_version() -> None:
    """An adapter that is re-pointed has other weights at once."""
    first, second, third = told({"legal": "/a/1"}, {"legal": "/a/2"}, {"legal": "/a/1"})
    assert first == third != second


def test_going_and_coming_back_is_another_version() -> None:
    """Unloaded and loaded again, even from the same path: what is cached may be of the old weights."""
    first, gone, back, still, again = told({"a": "/a"}, {}, {"a": "/a"}, {"a": "/a"}, {"b": ""})
    assert (gone, again) == ((), ("b",))
    assert back == still and back != first and back[0].endswith(".1")
    assert told({"a": ""}, {}, {"a": ""}, {}, {"a": ""})[-1] == ("a@.2",)


def test_given_adapters_are_told_too() -> None:
    """What an engine serves but does not list is named by hand; listed ones are told once."""
    assert told({}, {"b": "/b"}, given=("a", "b")) == [("a", "b"), (versioned("b", "/b", 0), "a")]


def test_names_that_are_gone_are_bounded() -> None:
    """An engine that lists other names at each look does not fill the router."""
    adapters = Adapters(())
    for number in range(3):
        adapters.saw({f"{number}-{name}": "" for name in range(MAX_MODELS)})
    assert len(adapters._gone) <= MAX_MODELS
