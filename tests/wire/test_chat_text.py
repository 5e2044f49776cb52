"""Canonical chat text: grows at its end, tells chats apart, and holds no images."""

import orjson
from hypothesis import given
from hypothesis import strategies as st

from router.wire.chat_text import TOO_DEEP, chat_text, compact, content_text, digested

part = st.fixed_dictionaries({"type": st.just("text"), "text": st.text(max_size=8)})
content = st.none() | st.text(max_size=12) | st.lists(part, max_size=3)
message = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": content},
    optional={"tool_calls": st.just([{"id": "c", "function": {"name": "f", "arguments": "{}"}}]), "name": st.text(max_size=4)},
)


@given(st.lists(message, min_size=1, max_size=5), st.lists(message, max_size=3))
def test_a_turn_extends_the_turns_before_it(turns: list[dict[str, object]], more: list[dict[str, object]]) -> None:
    """The text of turn n is a prefix of that of turn n + 1, so that their text keys are too."""
    preamble = [("tools", [{"type": "function"}])]
    assert chat_text(turns + more, preamble).startswith(chat_text(turns, preamble))


def test_preamble_comes_first() -> None:
    """Tools stand before messages, as templates render them: other tools, other first key."""
    assert chat_text([{"role": "user", "content": "hi"}], [("tools", [1])]).endswith("\x02user\x03hi")


def test_what_a_template_reads_is_in_the_text() -> None:
    """Role, content, tool calls and ids all tell chats apart; null fields do not."""
    plain = chat_text([{"role": "user", "content": "hi"}])
    assert plain != chat_text([{"role": "system", "content": "hi"}])
    assert plain != chat_text([{"role": "user", "content": "hi", "name": "x"}])
    assert plain == chat_text([{"role": "user", "content": "hi", "tool_calls": None}])
    assert plain == chat_text([{"role": "user", "content": [{"type": "text", "text": "hi"}]}])
    assert chat_text([{"role": "user"}]) == "\x02user\x03"


def test_media_stand_as_digests() -> None:
    """A long data URL is replaced by its digest; two images differ, one image is itself again."""
    one, other = ({"type": "image_url", "image_url": {"url": "data:image/png;base64," + letter * 9000}} for letter in "ab")
    text = content_text(["look", one])
    assert len(text) < 200
    assert text != content_text(["look", other])
    assert text == content_text(["look", one])
    assert digested([1, {"a": "x" * 300}])[1]["a"] != "x" * 300
    assert digested(["x" * 300], 1) != digested(["y" * 300], 1)
    assert digested({"deep": ["x"]}, 0) == {"deep": ["x"]}


def test_odd_content_is_written_not_refused() -> None:
    """Content of another type, lone surrogates, huge numbers and deep nesting all become some text."""
    assert content_text({"a": 1}) == '{"a":1}'
    assert compact({"a": "\ud800"}) == '{"a":"\\ud800"}'
    assert compact([2**70]) == f"[{2**70}]"
    deep: object = orjson.loads("[" * 1000 + "]" * 1000)
    assert compact(deep) == TOO_DEEP or compact(deep).startswith("[")
    for _ in range(50_000):
        deep = [deep]
    assert compact(deep) == TOO_DEEP
