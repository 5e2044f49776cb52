"""router.admin.figures: what a decision's row shows."""

from dataclasses import fields

from router.admin.figures import decision_row
from router.core.types import Decision, KeyForm, WorkerId


def test_decision_row() -> None:
    """Every field of a decision is shown but those that its candidates are made from."""
    decision = Decision("r", 1.0, "warm", "session", WorkerId("w"), "m", 10, KeyForm.TOKENS, None, 0)
    row = decision_row(decision)
    assert {f.name for f in fields(Decision)} - set(row) == {"priced", "homes", "hinted"}
    assert (row["request_id"], row["worker"], row["reason"]) == ("r", "w", "session")
