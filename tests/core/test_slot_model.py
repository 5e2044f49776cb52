"""router.core.slot_model: the rules by which llama.cpp reuses slots and its RAM cache; the real one is in tests/e2e."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from router.core.slot_model import MAX_ENTRIES, RAM_SPREAD, Kept, SlotModel, Turn
from router.core.types import PromptKeys
from tests.core.builders import chain, prompt

PLENTY = 100_000


class Server:
    """A model whose requests take their turns one after another unless told otherwise."""

    def __init__(self, slots: int = 2, ram_tokens: int = 0, learns: bool = False) -> None:
        self.model = SlotModel(slots, ram_tokens, learns)

    def expects(self, keys: PromptKeys) -> int:
        return self.model.plan(keys).overlap

    def serve(self, keys: PromptKeys, cached: int | None = None, answer: int | None = None) -> Turn:
        """`cached` None: as expected."""
        turn = self.model.start(keys)
        self.model.finish(turn, keys, turn.overlap if cached is None else cached, answer)
        return turn


def talk(name: int, turns: int) -> PromptKeys:
    """A conversation of so many turns, five blocks each; another name shares nothing with it."""
    return prompt([1000 * name + block for block in range(5 * turns)])


def test_an_empty_server_has_nothing() -> None:
    """Nothing is expected of slots that were never used, and the last of them is taken first, as the server does."""
    server = Server(slots=3)
    assert server.expects(talk(1, 1)) == 0
    assert [server.serve(talk(name, 1)).slot for name in (1, 2, 3)] == [2, 1, 0]


def test_the_slot_with_most_of_the_prompt_is_reused() -> None:
    """A longer prompt finds all whole blocks of the one before, the same one all but its last token, a shorter one too."""
    server = Server()
    server.serve(talk(1, 4))
    server.serve(talk(2, 4))
    assert server.expects(prompt(list(range(1000, 1010)))) == 163
    assert server.expects(talk(1, 4)) == 323
    assert server.expects(prompt([*range(1000, 1010), 7, 8])) == 160
    assert server.serve(talk(1, 5)).slot == 1 and server.serve(talk(2, 5)).slot == 0


def test_a_prompt_that_shares_a_tenth_or_less_takes_the_oldest_slot() -> None:
    """A shared opening that is short against the prompt does not cost another conversation its slot."""
    server = Server()
    server.serve(talk(1, 4))
    server.serve(talk(2, 4))
    long = prompt([*range(2000, 2004), *range(7000, 7040)])
    assert server.serve(long).slot == 1, "the oldest, not the one that shares 64 of 708 tokens"
    assert server.expects(talk(2, 4)) == 323


def test_what_the_oldest_slot_shares_by_chance_is_reused() -> None:
    """The server clears nothing that fits, however little it is."""
    server = Server(slots=1)
    server.serve(prompt([1, 2, 3, 4]))
    assert server.expects(prompt([1, *range(50, 90)])) == 16


def test_only_one_content_fits_a_slot() -> None:
    """Without RAM cache a newcomer pushes the one unused longest out, and what shares little is cut to what it shares."""
    server = Server()
    for name in (1, 2, 3):
        server.serve(talk(name, 2))
    assert [server.expects(talk(name, 2)) for name in (1, 2, 3)] == [0, 163, 163]
    server.serve(prompt([2000, 2001, 2002, 9, 9, 9]))
    assert server.expects(talk(2, 2)) == 48


def test_pushed_out_contents_come_back_from_the_ram_cache() -> None:
    """What left its slot is found again, once: it is moved, and saved again by the next request that starts."""
    server = Server(ram_tokens=PLENTY)
    for name in (1, 2, 3, 4):
        server.serve(talk(name, 2))
    assert [server.expects(talk(name, 3)) for name in (1, 2, 3, 4)] == [164] * 4
    server.serve(talk(1, 3))
    assert server.expects(talk(1, 4)) == 244
    assert [server.expects(talk(name, 3)) for name in (2, 3, 4)] == [164] * 3


def test_the_ram_cache_drops_its_oldest() -> None:
    """Entries go in order of saving when there is no room, and one that does not fit at all is not saved."""
    server = Server(slots=1, ram_tokens=400)
    for name in (1, 2, 3, 4):
        server.serve(talk(name, 2))
    assert [server.expects(talk(name, 2)) for name in (1, 2, 3, 4)] == [0, 0, 163, 163]
    assert server.model.plan(talk(2, 2)).overlap == 0, "it would have to make room for what the slot holds"
    server.serve(talk(5, 10))
    server.serve(talk(6, 1))
    assert server.expects(talk(5, 10)) == 0


def test_a_big_entry_is_not_spent_on_a_small_prompt() -> None:
    """An entry of which less than a quarter would stay is left where it is."""
    server = Server(slots=1, ram_tokens=PLENTY)
    server.serve(talk(1, 8))
    server.serve(talk(2, 1))
    assert server.expects(prompt(list(range(1000, 1005)))) == 0
    assert server.expects(prompt(list(range(1000, 1020)))) == 323


def test_the_slot_wins_over_an_entry_that_is_not_better_in_both() -> None:
    """An entry must keep more of itself and give more of the prompt than the slot's content does."""
    server = Server(slots=1, ram_tokens=PLENTY)
    server.serve(prompt(range(40)))
    server.serve(prompt([*range(10), *range(500, 540)]))
    assert server.expects(prompt([*range(20), *range(600, 640)])) == 320
    assert server.expects(prompt([*range(10), *range(700, 740)])) == 160


def test_one_cache_for_all_slots_is_cleared_by_the_next_request() -> None:
    """Then idle slots are empty and all is in the RAM cache: a shared opening of one quarter or more counts there."""
    server = Server(slots=3, ram_tokens=PLENTY)
    server.model.unified = True
    server.serve(talk(1, 2))
    server.serve(talk(2, 2))
    assert [slot.kept is None for slot in server.model.slots] == [True, False, True]
    assert server.expects(talk(1, 3)) == 164
    assert server.expects(prompt([1000, 1001, *range(50, 53)])) == 0


def test_answers_are_part_of_what_is_kept() -> None:
    """The next turn holds the answer, all of which but its last token is cached; a prompt that differs there does not."""
    server = Server()
    first = talk(1, 2)
    server.serve(first, answer=21)
    assert server.expects(talk(1, 4)) == 184
    assert server.expects(first) == 163
    server.serve(talk(1, 4), cached=184, answer=21)
    assert server.expects(talk(1, 6)) == 344


def test_traffic_tells_whether_answers_come_back() -> None:
    """Where prompts only share their beginning, no more than that is expected after a while."""
    server = Server(slots=1)
    for number in range(10):
        server.serve(prompt([1, 2, 3, 4]), answer=100)
        server.serve(prompt([1, 2, 3, 4, *range(100 * number, 100 * number + 12)]), cached=66, answer=100)
    server.serve(prompt([1, 2, 3, 4]), answer=100)
    assert server.expects(prompt([1, 2, 3, 4, *range(9000, 9012)])) == 64


def test_how_far_an_answer_was_shared_is_remembered() -> None:
    """An older state of a conversation that was not wholly within the next one does not hide the newer state."""
    server = Server(slots=1, ram_tokens=PLENTY)
    server.serve(talk(1, 2), answer=9)
    server.serve(talk(2, 2))
    server.serve(talk(1, 4), cached=167, answer=9)
    server.serve(talk(2, 2))
    assert server.expects(talk(1, 6)) == 332


def test_what_a_newer_content_covers_is_saved_once() -> None:
    """Turns of one conversation do not fill the RAM cache: each has all of the turn before."""
    server = Server(slots=2, ram_tokens=1200)
    server.serve(talk(2, 2))
    for turns in range(1, 7):
        server.serve(talk(1, turns))
        server.serve(talk(3, turns))
    assert server.expects(talk(2, 2)) == 163


def test_busy_slots_are_not_reused() -> None:
    """A prompt whose content is in use goes elsewhere and computes all of it."""
    server = Server(slots=2)
    server.serve(talk(1, 2))
    running = server.model.start(talk(1, 3))
    assert (running.overlap, server.expects(talk(1, 3))) == (164, 0)
    server.model.finish(running, talk(1, 3), 164, None)
    assert server.expects(talk(1, 3)) == 243


def test_requests_wait_for_a_slot_in_order() -> None:
    """With all slots busy the best of all is expected; the first to wait takes the first slot that falls idle."""
    server = Server(slots=1, ram_tokens=PLENTY)
    server.serve(talk(1, 2))
    running = server.model.start(talk(2, 2))
    assert server.expects(talk(1, 3)) == 164
    waiting = [server.model.start(talk(1, 3)), server.model.start(talk(3, 1)), server.model.start(talk(4, 1))]
    assert [turn.slot for turn in waiting] == [-1, -1, -1]
    server.model.finish(waiting[1], talk(3, 1), None, None)
    server.model.finish(running, talk(2, 2), 0, 5)
    assert (waiting[0].slot, waiting[0].overlap) == (0, 164)
    server.model.undo(waiting[2])
    server.model.finish(waiting[0], talk(1, 3), 160, None)
    assert server.model.slots[0].turn is None


def test_a_request_that_never_ran_changes_nothing() -> None:
    """Its slot holds what it held before."""
    server = Server()
    server.serve(talk(1, 2))
    server.serve(talk(2, 2))
    server.model.undo(server.model.start(talk(3, 9)))
    assert [server.expects(talk(name, 2)) for name in (1, 2)] == [163, 163]


def test_leading_keys_of_a_longer_prompt() -> None:
    """Where the rest of a prompt has no keys yet, its known blocks are what is expected, and its end brings the others."""
    server = Server()
    server.serve(prompt(range(40)))
    begun = PromptKeys(chain(range(10)), 700, complete=False)
    assert server.expects(begun) == 160
    turn = server.model.start(begun)
    server.model.finish(turn, prompt(range(44)), 640, None)
    assert server.expects(prompt(range(50))) == 708


def test_prompts_shorter_than_a_block_take_slots_too() -> None:
    """They push contents out like any other, and nothing is expected of them."""
    server = Server(slots=1)
    server.serve(talk(1, 2))
    assert server.serve(prompt([], tokens=9)).overlap == 0
    assert server.expects(talk(1, 2)) == 0
    assert server.expects(prompt([], tokens=0)) == 0


def test_hot_contents_that_would_be_lost_are_told() -> None:
    """What goes on being used and is saved nowhere has a price; what was used once, or is in the RAM cache, has none."""
    server = Server(slots=1)
    server.serve(talk(1, 2))
    assert server.model.plan(talk(2, 1)).lost_tokens == 0
    server.serve(talk(1, 3))
    assert server.model.plan(talk(2, 1)).lost_tokens == 244
    assert server.model.plan(prompt([*range(1000, 1010), 7, 8])).lost_tokens == 84
    assert server.model.plan(talk(1, 4)).lost_tokens == 0
    saved = Server(slots=1, ram_tokens=PLENTY)
    saved.serve(talk(1, 2))
    saved.serve(talk(1, 3))
    assert saved.model.plan(talk(2, 1)).lost_tokens == 0
    roomy = Server(slots=2, ram_tokens=PLENTY)
    for keys in (talk(1, 2), talk(1, 3), talk(2, 1)):
        roomy.serve(keys)
    assert roomy.model.plan(talk(1, 4)).lost_tokens == 0, "idle slots are saved too"


def test_misses_and_hits_tell_the_size_of_the_ram_cache() -> None:
    """A miss on what should be there proves less than all that is newer, a hit on what was dropped at least that much."""
    server = Server(slots=1, ram_tokens=PLENTY, learns=True)
    for name in range(1, 12):
        server.serve(talk(name, 2))
    server.serve(talk(1, 2), cached=0)
    assert server.model.ram_tokens == 9 * 164 + 164
    before = server.model.ram_tokens
    for name in range(20, 40):
        server.serve(talk(name, 2))
    server.serve(talk(35, 2), cached=3)
    assert server.model.ram_tokens == before - before // 8, "once it is known roughly, in small steps"
    for name in range(50, 70):
        server.serve(talk(name, 2))
    learned = server.model.ram_tokens
    server.serve(talk(51, 2), cached=163)
    assert learned < server.model.ram_tokens <= 2 * learned + 1
    grown = server.model.ram_tokens
    server.serve(talk(99, 2), cached=163)
    assert server.model.ram_tokens == grown, "a prompt never seen here"


def test_a_size_that_was_told_is_not_learned() -> None:
    """`ram_tokens=` is the operator's word."""
    server = Server(slots=1, ram_tokens=1000)
    for name in range(1, 5):
        server.serve(talk(name, 2))
    server.serve(talk(1, 2), cached=0)
    assert server.model.ram_tokens == 1000


def test_a_content_that_two_others_cover_is_held_while_one_of_them_is() -> None:
    """Two conversations that went on from one: the content they began with is saved nowhere once both are gone."""
    server = Server(ram_tokens=650)
    server.serve(talk(1, 2))
    server.serve(talk(2, 2))
    busy = server.model.start(talk(1, 4))
    other = prompt([*range(1000, 1010), *range(9000, 9010)])
    assert server.serve(other, cached=164).overlap == 164
    server.model.finish(busy, talk(1, 4), 164, None)
    check_ram(server.model)
    for name in (3, 4, 5, 6, 7):
        server.serve(talk(name, 2))
        check_ram(server.model)
    assert server.expects(talk(1, 4)) == 0


def test_prompts_without_a_block_pass_through_the_ram_cache() -> None:
    """They take room there; nothing is found by them."""
    server = Server(slots=1, ram_tokens=20)
    for _ in range(4):
        server.serve(prompt([], tokens=9))
        check_ram(server.model)
    assert len(server.model._ram) == 2


def check_ram(model: SlotModel) -> None:
    """What is kept beside the list of entries says the same."""
    held = Counter(serial for entry in model._ram for serial in (entry.serial, *entry.covered))
    assert model._held == dict(held)
    by_start: dict[int, list[Kept]] = {}
    for entry in model._ram:
        if entry.keys:
            by_start.setdefault(entry.keys[0], []).append(entry)
    assert model._ram_by_start == by_start
    assert model._ram_used == sum(entry.tokens for entry in model._ram) <= max(model.ram_tokens, 0)
    assert len(model._ram) <= MAX_ENTRIES


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 6), st.integers(0, 400), st.booleans()), max_size=60),
    st.integers(1, 4),
    st.sampled_from([0, 300, PLENTY]),
    st.booleans(),
    st.booleans(),
)
def test_whatever_happens_the_model_stays_bounded(
    steps: list[tuple[int, int, int, bool]], slots: int, ram_tokens: int, learns: bool, unified: bool
) -> None:
    """Any order of starts, ends and reported hits: a turn has a slot of its own or waits, and the RAM cache its bound."""
    model = SlotModel(slots, ram_tokens, learns)
    model.unified = unified
    running: list[tuple[Turn, PromptKeys]] = []
    for name, turns, cached, ends in steps:
        if ends and running:
            turn, keys = running.pop(name % len(running))
            if cached % 7 == 0:
                model.undo(turn)
            else:
                model.finish(turn, keys, cached, turns)
        else:
            keys = talk(name, turns)
            plan = model.plan(keys)
            assert 0 <= plan.overlap < keys.prompt_tokens + 1 and plan.lost_tokens >= 0
            running.append((model.start(keys), keys))
        busy = [slot.turn for slot in model.slots if slot.turn is not None]
        assert len(busy) == min(slots, len(running)) == len({id(turn) for turn in busy})
        check_ram(model)
        assert model.ram_tokens <= ram_tokens * RAM_SPREAD


def test_what_must_go_to_make_room_is_not_found() -> None:
    """The slot's content is saved first, which drops the oldest entry where the RAM cache is full, by number too."""
    full = Server(slots=1, ram_tokens=10**9)
    for name in range(MAX_ENTRIES + 1):
        full.serve(talk(name, 1))
    assert len(full.model._ram) == MAX_ENTRIES
    assert full.expects(talk(0, 2)) == 0 and full.expects(talk(1, 2)) == 84
    narrow = Server(slots=1, ram_tokens=300)
    for name in (1, 2, 3):
        narrow.serve(talk(name, 1))
    assert [narrow.expects(talk(name, 2)) for name in (1, 2, 3)] == [84, 84, 84]
    narrow.serve(talk(4, 2))
    assert [narrow.expects(talk(name, 2)) for name in (1, 2, 3)] == [0, 0, 84]


def test_what_a_saved_content_covers_makes_room_for_it() -> None:
    """An entry that lies wholly within what is saved goes, whatever its age, before older ones are dropped."""
    for ram_tokens, left in ((500, [2, 1]), (400, [2])):
        server = Server(ram_tokens=ram_tokens)
        server.serve(talk(1, 2))
        server.serve(talk(2, 2))
        server.serve(talk(1, 4), cached=164)
        assert [kept.keys[0] for kept in server.model._ram] == [talk(1, 1).keys[0], talk(2, 1).keys[0]]
        assert server.serve(prompt([*range(1000, 1003), *range(7000, 7005)])).overlap == 48
        assert [kept.keys[0] for kept in server.model._ram] == [talk(name, 1).keys[0] for name in left]


def test_small_entries_are_bounded_by_number() -> None:
    """Many small prompts do not make each choice look at thousands of entries."""
    server = Server(slots=1, ram_tokens=10**9)
    for name in range(3 * MAX_ENTRIES):
        server.serve(prompt([name]))
    assert len(server.model._ram) == MAX_ENTRIES
