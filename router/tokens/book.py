"""Which tokenizer serves which model: the entries of the knob `tokenizer`, loaded at start-up."""

from router.settings import TokenSettings


class TokenizerBook:
    def __init__(self, settings: TokenSettings) -> None:
        self.settings = settings

    def for_model(self, model: str | None) -> None:
        return None
