"""Where a text may be cut so that its parts, tokenised apart, give the tokens of the whole.

Two kinds of places: before a special token that no other token overlaps (any tokenizer splits there first), and, for
byte-level BPE with a known pre-tokenizer, behind a word (`safe_cut`). Cuts depend only on the text before them and
one character behind, so texts with a common prefix have the same cuts in it: the prefix memo is keyed by them.
"""

import re

SEGMENT_CHARS = 2048  # a stretch without a special token is cut about this often
DESERT_CHARS = 64 * 1024  # a longer stretch without any place to cut is not tokenised, nor what follows
SCANNED_CHARS = 96 * 1024  # looked through for places to cut, all over one text; 2 ms. Prose needs 10 for a place
WHOLE_CHARS = 512 * 1024  # the same for tokenizers whose text can be cut at special tokens only

_word = r"[^\W_]"  # letters and numbers of any script
_separator = r"""[ \t\r\n,.;:"(\[{，。、！？；：]"""
_safe = re.compile(rf"(?<={_word}){_separator}")
_hidden = re.compile(_word + _separator)


def safe_cut(text: str, start: int, end: int) -> int:
    """The first position at or after `start` where a word or number ends, -1 if none before `end`.

    What stands there is a space, a line end or plain punctuation. A match that takes in a letter or number never goes on
    to one of these, whatever follows: no pattern of `divides_safely` matches across the position, or minds what is behind it.
    """
    found = _safe.search(text, max(start, 1), end)
    return found.start() if found else -1


def could_hide_in(token: str) -> bool:
    """True if a safe cut could lie within `token` when it stands in a text: then texts may hold it cut in two."""
    return _hidden.search(token) is not None


class Cutter:
    """Cuts texts for one tokenizer: before `opener`, if it has one, and between words if it is `divisible`."""

    def __init__(self, opener: str | None, divisible: bool) -> None:
        self.opener = opener
        self.divisible = divisible

    def cuts(self, text: str) -> list[int]:
        """Ends of the parts in order. The last is len(text), or less where the text behind it cannot be cut finely enough.

        Parts grow with depth, by a thousandth, so that their number stays in bounds whatever the text holds.
        """
        size = len(text)
        ends: list[int] = []
        at = scanned = 0
        opening = self.next_opener(text, 0)
        while at < size:
            least = at + 32 + at // 1024
            if opening < least:
                opening = self.next_opener(text, least)
            end = min(opening, size)
            start = at + SEGMENT_CHARS + at // 1024
            if self.divisible and end > start:
                limit = min(end, at + DESERT_CHARS, start + SCANNED_CHARS - scanned)
                between = safe_cut(text, start, limit)
                scanned += (limit if between < 0 else between) - start
                end = end if between < 0 else between
            if end - at > (DESERT_CHARS if self.divisible else WHOLE_CHARS):
                break
            ends.append(end)
            at = end
        return ends

    def next_opener(self, text: str, start: int) -> int:
        found = text.find(self.opener, start) if self.opener else -1
        return found if found >= 0 else len(text)

    def step(self, text: str, start: int, chars: int, end: int) -> int:
        """An end for tokenising about `chars` from `start`, a part's end `end` at the latest."""
        if end - start <= chars + chars // 4 or not self.divisible:
            return end
        between = safe_cut(text, start + chars, min(end, start + chars + 2 * SEGMENT_CHARS))
        return end if between < 0 else between
