"""Every knob has one name, a documented default inside its own range, and refuses what is outside."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from router.errors import SettingsError
from router.kinds import KINDS
from router.settings import (
    ENGINE_OPTIONS,
    SECTIONS,
    EngineSpec,
    LimitSettings,
    ListenSettings,
    LogSettings,
    RoutingSettings,
    Settings,
    StateSettings,
    build,
    check,
    knobs,
    parse_engine,
)


def test_names_are_unique() -> None:
    """A knob is found by its name alone, so no two sections share one, and none is called like the list of engines."""
    names = [f.name for _, f in knobs()]
    assert len(names) == len(set(names))
    assert not {"engine", "engines", "config", "check", "admin"} & set(names)


@pytest.mark.parametrize("section", SECTIONS)
def test_defaults_are_allowed_and_documented(section: str) -> None:
    """Each default passes its own check and each knob tells in a line what it is."""
    for f in dataclasses.fields(SECTIONS[section]):
        check(f, f.default)
        text = f.metadata["help"]
        assert text and text[0] != " " and text[-1] != "." and "\n" not in text, f.name
        assert "|" not in text, f"{f.name}: would end a cell of the README's table"


def test_units_ride_in_names() -> None:
    """A number in seconds ends in _s, and no knob counts in milliseconds or minutes."""
    for _, f in knobs():
        assert not f.name.endswith(("_ms", "_minutes", "_seconds", "_kb", "_mb")), f.name
        if f.metadata["help"].startswith(("time ", "idle time", "longest", "half-life", "age ")):
            assert f.name.endswith("_s"), f.name


BAD_VALUES: list[tuple[str, Callable[[], object], str]] = [
    ("below", lambda: ListenSettings(port=-1), "port: -1 is not between 0 and 65535"),
    ("above", lambda: ListenSettings(port=65536), "port: 65536 is not between 0 and 65535"),
    ("only a low bound", lambda: LimitSettings(max_connections=0), "max_connections: 0 is not at least 1"),
    ("text for integer", lambda: ListenSettings(port="80"), "port: '80' is not an integer"),  # type: ignore[arg-type]
    ("true for integer", lambda: ListenSettings(port=True), "port: True is not an integer"),
    ("number for integer", lambda: ListenSettings(port=80.5), "port: 80.5 is not an integer"),  # type: ignore[arg-type]
    ("integer for text", lambda: ListenSettings(host=1), "host: 1 is not a text"),  # type: ignore[arg-type]
    ("integer for truth", lambda: LogSettings(access_log=1), "access_log: 1 is not a true/false value"),  # type: ignore[arg-type]
    ("not a number", lambda: RoutingSettings(steer_gain=float("nan")), "steer_gain: nan is not between 0 and 16"),
    (
        "choice",
        lambda: RoutingSettings(policy="best"),
        "policy: 'best' is not one of warm, ring, least-queue, round-robin, random",
    ),
    (
        "pool name",
        lambda: StateSettings(pool_name="a:{b}"),
        "pool_name: 'a:{b}' is not 1 to 64 letters, digits, dots, dashes or underscores",
    ),
]


@pytest.mark.parametrize(("make", "text"), [row[1:] for row in BAD_VALUES], ids=[row[0] for row in BAD_VALUES])
def test_bad_value_names_knob_value_and_what_is_allowed(make: Callable[[], object], text: str) -> None:
    """A value outside type, range or choices never becomes settings; the error can be acted on without the manual."""
    with pytest.raises(SettingsError) as caught:
        make()
    assert str(caught.value) == text


def test_a_password_is_shown_by_nothing() -> None:
    """Neither the error about a bad URL nor the settings' repr."""
    with pytest.raises(SettingsError, match=r"redis: url 'http://u:\*\*\*@h' is not redis://") as caught:
        StateSettings(redis="http://u:secret@h")
    assert "secret" not in str(caught.value)
    assert "secret" not in repr(build({"redis": "redis://u:secret@h"}))


def test_whole_numbers_do_for_numbers() -> None:
    """`steer_gain = 2` is as good as 2.0."""
    assert RoutingSettings(steer_gain=2).steer_gain == 2


def test_build_spreads_values_over_sections() -> None:
    """Values land in the section that owns the name; others keep their default."""
    settings = build({"port": 9000, "policy": "ring"})
    assert (settings.listen.port, settings.routing.policy) == (9000, "ring")
    assert settings.limits == LimitSettings()
    with pytest.raises(SettingsError, match="prot: no such setting"):
        build({"prot": 9000})


def test_settings_never_change() -> None:
    """Settings are values: whoever holds them sees the same ones for good."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().engines = ()  # type: ignore[misc]


ENGINES: list[tuple[str, EngineSpec]] = [
    ("vllm=http://10.0.0.1:8000", EngineSpec("vllm", "http://10.0.0.1:8000")),
    ("sglang=http://a/", EngineSpec("sglang", "http://a")),
    (" llama.cpp = http://a:1 ", EngineSpec("llama.cpp", "http://a:1")),
    ("openai=http://[::1]:8000/pre/fix", EngineSpec("openai", "http://[::1]:8000/pre/fix")),
    ("openai=http://a/v1/llm", EngineSpec("openai", "http://a/v1/llm")),
    ("vllm=http://a,weight=0.5,capacity_tokens=7", EngineSpec("vllm", "http://a", capacity_tokens=7, weight=0.5)),
    ("vllm=http://a,model=org/m:v,api_key=k=v", EngineSpec("vllm", "http://a", model="org/m:v", api_key="k=v")),
    ("vllm=http://a,ranks=4", EngineSpec("vllm", "http://a", ranks=4)),
    ("llama.cpp=http://a,ram_tokens=0", EngineSpec("llama.cpp", "http://a", ram_tokens=0)),
    ("tgi=http://a,adapters=legal+org/tax", EngineSpec("tgi", "http://a", adapters=("legal", "org/tax"))),
    ("triton=http://a,metrics=http://a:8002/metrics", EngineSpec("triton", "http://a", metrics="http://a:8002/metrics")),
    ("vllm=http://a,events=tcp://a:1,replay=tcp://a:2", EngineSpec("vllm", "http://a", events="tcp://a:1", replay="tcp://a:2")),
    ("vllm=http://a,events=tcp://*:1#kv@a:1@m", EngineSpec("vllm", "http://a", events="tcp://*:1#kv@a:1@m")),
    ("vllm=http://a,events=ipc:///run/kv", EngineSpec("vllm", "http://a", events="ipc:///run/kv")),
]


@pytest.mark.parametrize(("text", "engine"), ENGINES)
def test_engine_texts(text: str, engine: EngineSpec) -> None:
    """KIND=URL and its options in any order; an `=` in a value is part of it."""
    assert parse_engine(text) == engine


BAD_ENGINES = [
    ("http://a:8000", "is not KIND=URL"),
    ("", "is not KIND=URL"),
    ("vllm=http://a,ranks=0", "ranks 0 is not between 1 and 256"),
    ("tgi=http://a,ranks=2", "ranks 2: tgi takes no requests for a rank"),
    ("llama.cpp=http://a,ram_tokens=-1", "ram_tokens -1 is not at least 0"),
    ("ollama=http://a", f"kind 'ollama' is not one of {', '.join(KINDS)}"),
    ("vllm=https://a", "url 'https://a' is not http://HOST[:PORT][/PREFIX]"),
    ("vllm=http://", "is not http://HOST"),
    ("vllm=http://a:0", "is not http://HOST"),
    ("vllm=http://a:99999", "is not http://HOST"),
    ("vllm=http://a:b", "is not http://HOST"),
    ("vllm=http://a/?x=1", "is not http://HOST"),
    ("vllm=http://a/#x", "is not http://HOST"),
    ("vllm=http://u@a", "is not http://HOST"),
    ("vllm=http://a b", "is not http://HOST"),
    ("vllm=http://a..b", "is not http://HOST"),
    ("vllm=http://" + "a" * 64, "is not http://HOST"),
    ("vllm=http://bücher.example", "is not ASCII; write its host as DNS has it (xn--…)"),
    ("vllm=http://a/v1", "url 'http://a/v1': leave out /v1: it is added"),
    ("openai=http://a:1/v1/", "leave out /v1: it is added"),
    ("openai=http://a/pre/v1", "leave out /v1: it is added"),
    ("openai=http://a/v1/chat/completions", "leave out /v1/chat/completions: it is added"),
    ("vllm=http://a,weigth=2", "option 'weigth' is not one of model=, capacity_tokens="),
    ("vllm=http://a,weight", "option 'weight' is not one of"),
    ("vllm=http://a,weight=x", "weight 'x' is not a number"),
    ("vllm=http://a,weight=0", "weight 0.0 is not above 0"),
    ("vllm=http://a,weight=nan", "weight nan is not above 0"),
    ("vllm=http://a,capacity_tokens=0", "capacity_tokens 0 is not at least 1"),
    ("vllm=http://a,events=a:5557", "events 'a:5557' is not tcp://HOST:PORT[#TOPIC] or ipc://PATH[#TOPIC]"),
    ("vllm=http://a,events=tcp://a:65536", "events 'tcp://a:65536' is not tcp://HOST:PORT"),
    ("vllm=http://a,replay=tcp://a:1#x", "replay 'tcp://a:1#x' is not tcp://HOST:PORT or ipc://PATH"),
    ("vllm=http://a,capacity_tokens=1.5", "capacity_tokens '1.5' is not a number"),
]


@pytest.mark.parametrize(("text", "problem"), BAD_ENGINES)
def test_bad_engine_texts(text: str, problem: str) -> None:
    """What does not parse is refused with the part that is wrong and what would be right."""
    with pytest.raises(SettingsError) as caught:
        parse_engine(text)
    assert problem in str(caught.value)
    assert str(caught.value).startswith("engine: ")


def test_url_is_checked_however_it_is_given() -> None:
    """An EngineSpec made without a text is refused as well, trailing slash or not."""
    for url in ("http://a/v1", "http://a/v1/", "http://ä"):
        with pytest.raises(SettingsError, match="engine: url"):
            EngineSpec("vllm", url)


@pytest.mark.parametrize("metrics", ["a:8002", "https://a/m", "http://", "http://a/#x", "http://u@a/m", "http://a:0/m", ""])
def test_address_of_metrics_is_checked(metrics: str) -> None:
    """`metrics=` is a whole http URL, found wrong at the start and not at the first scrape."""
    with pytest.raises(SettingsError, match=r"engine: metrics .* is not http://HOST\[:PORT\]/PATH"):
        EngineSpec("triton", "http://a", metrics=metrics)


def test_api_keys_are_not_shown() -> None:
    """Neither an engine's repr nor the error about a misspelt option shows a key."""
    assert "secret" not in repr(parse_engine("vllm=http://a,api_key=secret"))
    for text in ("vllm=http://a,api-key=secret", "vllm,api_key=secret"):
        with pytest.raises(SettingsError) as caught:
            parse_engine(text)
        assert "secret" not in str(caught.value)


def test_worker_id_is_authority_and_prefix() -> None:
    """The same engine has one name however its URL is written."""
    assert parse_engine("vllm=http://a:1/p/").worker_id == "a:1/p"


def test_each_rank_is_a_worker() -> None:
    """An engine with several data-parallel ranks is as many workers; all of them count."""
    spec = parse_engine("sglang=http://a:1/p,ranks=3,weight=2")
    ranks = spec.by_rank()
    assert [(one.worker_id, one.rank, one.ranks, one.weight) for one in ranks] == [
        (f"a:1/p#{rank}", rank, 1, 2.0) for rank in range(3)
    ]
    assert ranks[0].by_rank() == (ranks[0],) and spec.worker_id == "a:1/p"
    with pytest.raises(SettingsError, match="3 workers are more than max_workers 2"):
        build({"max_workers": 2}, (spec,))


@pytest.mark.parametrize(("kind", "rank"), [("vllm", -1), ("vllm", 256), ("tgi", 0)])
def test_a_rank_that_cannot_be(kind: str, rank: int) -> None:
    """Ranks come from reports too, which may say anything."""
    with pytest.raises(SettingsError, match=f"rank {rank} of {kind}"):
        EngineSpec(kind, "http://a", rank=rank)


def test_engines_are_distinct_and_bounded() -> None:
    """The same URL twice, or more engines than max_workers, is a mistake found at the start."""
    one, two = EngineSpec("vllm", "http://a"), EngineSpec("openai", "http://a")
    with pytest.raises(SettingsError, match="'http://a' is given twice"):
        Settings(engines=(one, two))
    with pytest.raises(SettingsError, match="2 workers are more than max_workers 1"):
        build({"max_workers": 1}, (one, EngineSpec("vllm", "http://b")))


def test_engine_options_are_fields() -> None:
    """Every option of --engine is a field of EngineSpec and the other way round."""
    assert set(ENGINE_OPTIONS) == {f.name for f in dataclasses.fields(EngineSpec)} - {"kind", "url", "rank"}


def test_list_knobs_refuse_nothing_else() -> None:
    """Lists are checked where they are read (options.py); here only their presence in the sections is."""
    lists: list[Any] = [f.name for _, f in knobs() if not isinstance(f.type, type)]
    assert lists == ["tokenizer"]
