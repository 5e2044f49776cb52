"""The keyer: the same choice as with full tokenisation, for any conversation and whatever workers hold."""

import asyncio
import random
from array import array
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.keys import chain, root, tokens_le
from router.core.stats import Stats
from router.core.types import KeyForm, PromptKeys, WorkerId
from router.settings import TokenSettings
from router.tokens.book import TokenizerBook
from router.tokens.direct_keys import Namespaces
from router.tokens.key_sources import KeySource
from router.tokens.keyer import Keyer
from router.tokens.pre_tokenizers import GPT2
from router.wire.openai_request import ModelCall, read_call
from tests.tokens.token_engine import TokenEngine
from tests.tokens.vocabularies import (
    CHATML,
    SPECIAL,
    WORDS,
    byte_level,
    entry_of,
    prose,
    sentencepiece_like,
    with_affixes,
    write_folder,
)

LIMITS = TokenSettings()
KINDS = {"words": byte_level((r"\p{N}", GPT2)), "pieces": with_affixes(sentencepiece_like("first"), "<s> $A")}


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> TokenizerBook:
    folder: Path = tmp_path_factory.mktemp("tokenizers")
    given = [f"{name}={write_folder(folder / name, tokenizer, chat_template=CHATML)}" for name, tokenizer in KINDS.items()]
    given.append(f"bare={write_folder(folder / 'bare', KINDS['words'])}")
    refusing = "{{ raise_exception('no') }}"
    given.append(f"refusing={write_folder(folder / 'refusing', KINDS['words'], chat_template=refusing)}")
    return TokenizerBook(TokenSettings(tokenizer=tuple(given)))


@pytest.fixture
async def keyer(book: TokenizerBook) -> AsyncIterator[Keyer]:
    keyer = Keyer(LIMITS, book, Stats(), min_blocks=4)
    yield keyer
    keyer.close()


def chat(model: str, messages: list[dict[str, Any]], **fields: Any) -> ModelCall:
    return read_call("/v1/chat/completions", orjson.dumps({"model": model, "messages": messages, **fields}), None, LIMITS)


def completion(model: str, prompt: Any) -> ModelCall:
    return read_call("/v1/completions", orjson.dumps({"model": model, "prompt": prompt}), None, LIMITS)


def full_keys(model: str, text: str, special: bool) -> "array[int]":
    ids = KINDS[model].encode(text, add_special_tokens=special).ids
    return chain(tokens_le(ids), root(model, None, None, KeyForm.TOKENS))


def rendered(messages: list[dict[str, Any]]) -> str:
    return "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages) + "<|im_start|>assistant\n"


class Workers:
    """What a few workers hold: each the leading blocks of some prompts. A key names all that comes before it."""

    def __init__(self, rng: random.Random, chains: list["array[int]"]) -> None:
        self.held: list[set[int]] = [set() for _ in range(3)]
        for keys in chains:
            for held in self.held:
                if rng.random() < 0.6:
                    held.update(keys[: rng.choice((rng.randrange(len(keys) + 1), len(keys)))])

    def depths(self, keys: "array[int]") -> list[int]:
        return [next((depth for depth, key in enumerate(keys) if key not in held), len(keys)) for held in self.held]

    def is_held(self, keys: "array[int]") -> bool:
        return max(self.depths(keys)) == len(keys)


def conversation(rng: random.Random) -> list[list[dict[str, Any]]]:
    """The turns of a chat, each with all before it; odd words and special tokens among its messages, some long."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": prose(rng, rng.choice((0, 100, 6000)))}]
    turns = []
    for _ in range(rng.randrange(1, 4)):
        size = rng.choice((5, 40, 400))
        odd = "".join(rng.choice((*WORDS, *SPECIAL, " word", " and so", "\n")) for _ in range(size))
        messages = [*messages, {"role": "user", "content": odd + prose(rng, rng.choice((0, 300, 9000)))}]
        turns.append(messages)
        messages = [*messages, {"role": "assistant", "content": prose(rng, 200)}]
    return turns


async def keys_to_choose_by(keyer: Keyer, call: ModelCall, workers: Workers) -> tuple[PromptKeys, PromptKeys]:
    """The keys when the choice is made, and those that the tail ends with."""
    keying = keyer.start(call, workers.is_held)
    if keying.waiting is not None:
        await asyncio.wait_for(keying.waiting, 20)
    keys = keying.keys
    if keys.complete:
        return keys, keys
    done: asyncio.Future[PromptKeys] = asyncio.get_running_loop().create_future()
    keying.finish(done.set_result)
    return keys, await asyncio.wait_for(done, 20)


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.sampled_from(sorted(KINDS)), st.sampled_from([64 * 1024, 2**20]))
def test_the_choice_is_that_of_full_tokenisation(book: TokenizerBook, seed: int, model: str, memo_bytes: int) -> None:
    """For every worker the depth matched by the keys at hand equals the depth matched by the whole chain."""
    rng = random.Random(seed)

    async def play() -> None:
        keyer = Keyer(TokenSettings(memo_bytes=memo_bytes), book, Stats(), min_blocks=rng.choice((0, 4, 16)))
        seen: list[array[int]] = [array("Q")]
        for turn in [turn for turns in (conversation(rng) for _ in range(2)) for turn in turns]:
            as_chat = rng.random() < 0.7
            text = rendered(turn)
            call = chat(model, turn) if as_chat else completion(model, text)
            full = full_keys(model, text, special=not as_chat)
            workers = Workers(rng, [*seen[-3:], full[: rng.randrange(len(full) + 1)]])
            keys, final = await keys_to_choose_by(keyer, call, workers)
            assert keys.form is KeyForm.TOKENS
            assert workers.depths(keys.keys) == workers.depths(full)
            assert final.keys == full
            assert final.exact_tokens
            seen.append(full)
        keyer.close()

    asyncio.run(play())


async def test_a_next_turn_tokenises_only_what_is_new(keyer: Keyer) -> None:
    """What was keyed once comes out of the memo complete, and the next turn's known part is exactly known at once."""
    messages = [{"role": "user", "content": prose(random.Random(1), 30_000)}]
    nobody = Workers(random.Random(1), [])
    _, full = await keys_to_choose_by(keyer, chat("words", messages), nobody)
    again = keyer.start(chat("words", messages), nobody.is_held)
    assert again.keys == full
    more = [*messages, {"role": "assistant", "content": "yes"}, {"role": "user", "content": prose(random.Random(2), 30_000)}]
    next_turn = keyer.start(chat("words", more), nobody.is_held)
    assert not next_turn.keys.complete
    assert len(next_turn.keys.keys) >= len(full.keys) - 4
    assert next_turn.waiting is None


@pytest.mark.parametrize(
    ("call", "form", "reason"),
    [
        (chat("unknown", [{"role": "user", "content": "x"}]), "text", None),
        (chat("words", [{"role": "user", "content": "x"}], chat_template="{{ 1 }}"), "text", "client_template"),
        (chat("words", [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]), "text", "multimodal"),
        (chat("refusing", [{"role": "user", "content": "x"}]), "text", "template_error"),
        (chat("bare", [{"role": "user", "content": "x"}]), "text", "no_template"),
        (completion("bare", "x"), "tokens", None),
        (completion("words", [1, 2, 3]), "tokens", None),
        (completion("words", ""), "none", "empty_prompt"),
        (completion("words", "1" * 100_000), "text", "no_cuts"),
        (read_call("/v1/completions", b'{"model": "words", "prompt": "\\ud800"}', None, LIMITS), "text", "not_utf8"),
        (read_call("/v1/rerank", b'{"model": "words"}', None, LIMITS), "none", "path"),
        (
            read_call("/v1/messages", b'{"model": "words", "messages": [{"role": "user", "content": "x"}]}', None, LIMITS),
            "text",
            None,
        ),
    ],
    ids=[
        "unknown",
        "client-template",
        "image",
        "refusing",
        "bare",
        "plain",
        "ids",
        "empty",
        "desert",
        "surrogate",
        "path",
        "anthropic",
    ],
)
async def test_ways_to_key(keyer: Keyer, book: TokenizerBook, call: ModelCall, form: str, reason: str | None) -> None:
    """Each way is taken and counted: tokens where they can be known, text where not, and why."""
    stats = Stats()
    counted = Keyer(LIMITS, book, stats)
    keying = counted.start(call, lambda keys: False)
    counted.close()
    assert (keying.keys.form, keying.keys.unkeyed_reason, keying.keys.complete) == (form, reason, True)
    assert stats.key_forms == {form: 1}
    assert stats.unkeyed == ({reason: 1} if reason else {})


@pytest.mark.parametrize(
    ("call", "source", "form", "reason"),
    [
        (chat("words", [{"role": "user", "content": "x"}]), KeySource.TEXT, "text", "tokens_differ"),
        (completion("words", "x"), KeySource.TEXT, "text", "tokens_differ"),
        (chat("words", [{"role": "user", "content": "x"}], chat_template="{{ 1 }}"), KeySource.TEXT, "text", "client_template"),
        (
            chat("words", [{"role": "user", "content": "x"}], chat_template="{{ 1 }}"),
            KeySource.ENGINE,
            "text",
            "client_template",
        ),
        (
            chat("words", [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]),
            KeySource.ENGINE,
            "text",
            "multimodal",
        ),
        (chat("words", [{"role": "user", "content": "x"}]), KeySource.ENGINE, "text", "engine_failed"),
        (completion("words", [1, 2, 3]), KeySource.ENGINE, "tokens", None),
        (chat("pieces", [{"role": "user", "content": "x"}]), KeySource.ENGINE, "tokens", None),
    ],
    ids=["chat", "text", "template", "template-asked", "image-asked", "nobody-to-ask", "ids", "another model"],
)
async def test_ways_to_key_where_tokens_differ(
    book: TokenizerBook, call: ModelCall, source: KeySource, form: str, reason: str | None
) -> None:
    """What the tokenizer may not be used for is keyed by text, and why; ids and other models are as they were."""
    stats = Stats()
    keyer = Keyer(LIMITS, book, stats)
    model = keyer.sources.of("words")
    assert model is not None
    for _, shape in model.shapes():
        shape.source = source
    keys = keyer.start(call, lambda keys: False).keys
    keyer.close()
    assert (keys.form, keys.unkeyed_reason, keys.complete) == (form, reason, True)
    assert stats.key_forms == {form: 1}
    assert stats.unkeyed == ({reason: 1} if reason else {})


async def test_an_engine_is_asked(book: TokenizerBook) -> None:
    """Where an engine is the source its tokens make the keys, and only of the shape that differs."""
    stats = Stats()
    keyer = Keyer(LIMITS, book, stats, min_blocks=4)
    engine = TokenEngine(entry_of(KINDS["words"], CHATML.replace("<|im_end|>", "")))
    model = keyer.sources.of("words")
    assert model is not None
    model.chat.source, model.chat.askable = KeySource.ENGINE, (WorkerId("w"),)
    messages = [{"role": "user", "content": prose(random.Random(1), 2000)}]
    async with asyncio.TaskGroup() as group:
        keyer.asking.open(group, lambda worker: engine)
        keying = keyer.start(chat("words", messages), lambda keys: False)
        assert keying.waiting is not None
        await asyncio.wait_for(keying.waiting, 10)
        text = rendered(messages).replace("<|im_end|>", "")
        assert keying.keys.keys == full_keys("words", text, special=False)
        assert keyer.start(completion("words", text), lambda keys: True).keys.keys == full_keys("words", text, special=True)
        assert len(engine.asked) == 1
        assert keyer.start(chat("words", messages), lambda keys: False).keys is not keying.keys
        assert stats.key_forms == {"tokens": 3} and stats.unkeyed == {}
        assert stats.token_asks == {"told": 1, "remembered": 1}
        keyer.close()


async def test_batches_count_all_prompts(keyer: Keyer) -> None:
    """Several prompts in one body: keys of the first, tokens of all, which are then an estimate."""
    one = keyer.start(completion("words", "the quick brown fox " * 20), lambda keys: True).keys
    three = keyer.start(completion("words", ["the quick brown fox " * 20] * 3), lambda keys: True).keys
    assert three.keys == one.keys
    assert not three.exact_tokens
    assert one.exact_tokens
    assert 2 * one.prompt_tokens < three.prompt_tokens


async def test_namespaces_do_not_share_keys(keyer: Keyer) -> None:
    """The same text under another salt or adapter has other keys, out of the same memo."""
    messages = [{"role": "user", "content": "the quick brown fox " * 20}]
    chains = [
        keyer.start(chat("words", messages, **fields), lambda keys: True).keys.keys
        for fields in ({}, {"cache_salt": "a"}, {"lora_path": "b"}, {"cache_salt": "a", "lora_path": "b"})
    ]
    assert len({key for keys in chains for key in keys}) == sum(map(len, chains))


async def test_adapters_are_rooted_in_base_and_version(book: TokenizerBook) -> None:
    """Tokenised as the base model is; the chain's root has the base, the adapter and its version, as the sidecar's has."""
    namespaces: Namespaces = {"legal": ("words", "legal@v1")}
    keyer = Keyer(LIMITS, book, Stats(), 4, namespaces)
    messages = [{"role": "user", "content": "the quick brown fox " * 20}]
    ids = KINDS["words"].encode(rendered(messages), add_special_tokens=False).ids
    for version in ("legal@v1", "legal@v2"):
        namespaces["legal"] = ("words", version)
        keys = keyer.start(chat("legal", messages), lambda keys: True).keys
        assert keys.form is KeyForm.TOKENS
        assert keys.keys == chain(tokens_le(ids), root("words", version, None, KeyForm.TOKENS))
    salted = keyer.start(chat("legal", messages, lora_path="x"), lambda keys: True).keys
    plain = keyer.start(chat("words", messages), lambda keys: True).keys
    assert len({*keys.keys, *salted.keys, *plain.keys}) == 3 * len(plain.keys)
    keyer.close()


async def test_after_close_nothing_is_begun(keyer: Keyer) -> None:
    """A tail given to a closed keyer is never finished."""
    keying = keyer.start(chat("words", [{"role": "user", "content": prose(random.Random(1), 30_000)}]), lambda keys: False)
    keyer.close()
    keying.finish(lambda keys: pytest.fail("called"))
    await asyncio.sleep(0)
