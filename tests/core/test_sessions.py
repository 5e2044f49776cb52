from router.core.sessions import Sessions
from router.core.types import WorkerId


def test_the_least_recently_used_session_is_forgotten() -> None:
    """Never more than the limit; noting a session again keeps it."""
    sessions = Sessions(2)
    for name in ("a", "b", "a", "c"):
        sessions.note(name, WorkerId(f"w-{name}"))
    assert [sessions.worker_of(name) for name in ("a", "b", "c")] == ["w-a", None, "w-c"]
    assert len(sessions) == 2


def test_the_last_worker_counts() -> None:
    """A session follows its requests."""
    sessions = Sessions(2)
    sessions.note("a", WorkerId("w1"))
    sessions.note("a", WorkerId("w2"))
    assert sessions.worker_of("a") == "w2"
