"""From a body to its call and block keys: which way a prompt is keyed, and what was counted of it."""

import secrets

from router.core.stats import Stats
from router.core.types import KeyForm
from router.settings import TokenSettings
from router.tokens.asked_keys import AskedKeying, AskedKeys
from router.tokens.asking import Asking
from router.tokens.body_memo import BodyMemo
from router.tokens.book import TokenizerBook
from router.tokens.byte_memo import ByteMemo
from router.tokens.direct_keys import Namespaces, direct_keys, in_namespace, root_of
from router.tokens.encode_lanes import EncodeLanes
from router.tokens.key_sources import KeySource, KeySources, ModelKeys, ShapeKeys
from router.tokens.keying import DeepKeying, IsHeld, Keying, TailBounds, count_keys
from router.tokens.memo import PrefixMemo
from router.tokens.template import TemplateFailed
from router.tokens.walk import Walk
from router.wire.openai_request import FAMILIES, ChatPrompt, Family, ModelCall, TextPrompt, UnkeyedReason, read_call


class Keyer:
    """Makes the keys of calls, on the event loop only. `close` ends its threads.

    `min_blocks` leading blocks are made whether or not anyone holds them: those that choose homes on the ring.
    `namespaces` is read as it is at each call: names of LoRA adapters, whose prompts are tokenised as those of the base
    model and rooted in it and the adapter's text, and other names of a model (`Fleet.namespaces`).
    """

    def __init__(
        self, settings: TokenSettings, book: TokenizerBook, stats: Stats, min_blocks: int = 16,
        namespaces: Namespaces | None = None,
    ) -> None:  # fmt: skip
        self.memo = PrefixMemo(settings.memo_bytes)
        self.bounds = TailBounds(settings.max_pending_tails, stats)
        self.sources = KeySources(book)
        self.asking = Asking(settings.max_token_asks, stats)
        self._stats = stats
        self._min_blocks = min_blocks
        self._lanes = EncodeLanes(settings.tokenizer_threads)
        self._seed = secrets.randbits(64)
        self._bytes = ByteMemo(self.memo, self._seed)
        self._namespaces: Namespaces = {} if namespaces is None else namespaces
        self._bodies = BodyMemo(self.memo, self._bytes, book, self._seed, self._namespaces)
        self._asked = AskedKeys(self.memo, self._seed, self.asking, stats, min_blocks)
        self._settings = settings

    def read(self, path: str, body: bytes, session_header: str | None) -> ModelCall:
        """The same as `read_call`, but for chats that are known in part, whose keys are made as they are read."""
        if len(body) <= self._settings.max_keyed_body_bytes and FAMILIES.get(path.partition("?")[0]) is Family.CHAT:
            call = self._bodies.read(body, session_header)
            if call is not None:
                return call
        return read_call(path, body, session_header, self._settings)

    def start(self, call: ModelCall, is_held: IsHeld) -> Keying:
        """The keys known at once, and work begun where more are worth waiting for.

        `is_held(keys)` tells whether any worker holds all of these leading blocks; where none does, nothing behind
        them can matter to a choice. It must not keep the array. Never raises: what cannot be keyed says why.
        """
        keying = self._start(in_namespace(call, self._namespaces), is_held)
        if not isinstance(keying, AskedKeying):
            count_keys(self._stats, keying.keys)
        return keying

    def close(self) -> None:
        """Queued work is dropped, and so is what is given to `finish` from now on."""
        self._lanes.close()
        self.asking.close()

    def _start(self, call: ModelCall, is_held: IsHeld) -> Keying:
        prompt = call.prompt
        if isinstance(prompt, TextPrompt) or (isinstance(prompt, ChatPrompt) and prompt.rendered):
            model = self.sources.of(call.model)
            if model is not None:
                shape = model.of(prompt)
                if shape.source is not KeySource.TOKENIZER:
                    return self._otherwise(call, prompt, model, shape, is_held)
                walk = self._walk(call, prompt, model, shape)
                if isinstance(walk, str):
                    return Keying(direct_keys(call, self._bytes, walk))
                keying = DeepKeying(walk, model.entry, is_held, self._lanes, self.bounds)
                keying.look(self._min_blocks)
                return Keying(keying.keys) if walk.done else keying
        return Keying(direct_keys(call, self._bytes))

    def _otherwise(
        self, call: ModelCall, prompt: ChatPrompt | TextPrompt, model: ModelKeys, shape: ShapeKeys, is_held: IsHeld
    ) -> Keying:
        """The tokenizer here makes other tokens than the engines."""
        reason = None if isinstance(prompt, TextPrompt) else unreadable(prompt)
        if reason is None and shape.source is KeySource.ENGINE:
            return self._asked.start(call, prompt, model.entry, shape, is_held, lambda why: direct_keys(call, self._bytes, why))
        return Keying(direct_keys(call, self._bytes, reason or "tokens_differ"))

    def _walk(
        self, call: ModelCall, prompt: ChatPrompt | TextPrompt, model: ModelKeys, shape: ShapeKeys
    ) -> Walk | UnkeyedReason:
        """The prompt's text with what the memo knows of it, or why there is none."""
        more_chars = 0
        entry = model.entry
        if isinstance(prompt, TextPrompt):
            text, affixed = prompt.texts[0], True
            more_chars = sum(map(len, prompt.texts[1:]))
        else:
            reason = unreadable(prompt)
            if reason is not None:
                return reason
            if entry.template is None:
                return "no_template"
            try:
                text, affixed = entry.chat_text(prompt)
            except TemplateFailed:
                return "template_error"
        root = root_of(call, KeyForm.TOKENS)
        try:
            walk = Walk(entry, self.memo, self._seed, root, text, affixed, more_chars, shape.counted)
        except UnicodeEncodeError:
            return "not_utf8"
        return walk if walk.end else "no_cuts"


def unreadable(prompt: ChatPrompt) -> UnkeyedReason | None:
    """Why no template here, and no engine that is asked, may or can make tokens of it."""
    if prompt.has_client_template:
        return "client_template"
    return "multimodal" if prompt.multimodal else None
