"""The budgets of the design, as checks over the figures of one run: ratios and limits, nothing measured here."""

from collections.abc import Iterable

from loadtest.bench import decision_rows, event_rows, index_rows, scale_rows
from loadtest.bench.contenders import NGINX, PEERS, WARMLINE, WARMLINE_TOKENS
from loadtest.bench.cpu_rows import CPU
from loadtest.bench.latency_rows import ADDED, UNSEEN_OTHERS, UNSEEN_SELF
from loadtest.bench.results import Check, Results, paired_ratio

# row → (limit over nginx, limit over every LLM router)
CPU_LIMITS = {"chat2k": (3.0, 0.5), "chat100k": (2.5, 1.0), "stream64": (1.3, None)}


def cpu_checks(results: Results) -> Iterable[Check]:
    for row, (over_nginx, over_peers) in CPU_LIMITS.items():
        own = results.find(row, CPU, WARMLINE)
        if own is None:
            continue
        for name, limit in ((NGINX, over_nginx), *((peer, over_peers) for peer in PEERS)):
            other = results.find(row, CPU, name)
            if other is not None and limit is not None:
                yield Check(row, f"CPU of {WARMLINE} ÷ {name}", paired_ratio(own, other), limit, "×")


LIMITS = (
    # row, what, contender, limit, at least
    ("first-byte", f"{ADDED} p50", WARMLINE, 0.3, False),
    ("first-byte", f"{ADDED} p99", WARMLINE, 1.0, False),
    *(
        ("decision", decision_rows.WARM.format(size=size.name, keys=keys), "", limit_ms, False)
        for size, limit_ms in zip(decision_rows.SIZES, (0.25, 3.0), strict=True)
        for keys in (decision_rows.TEXT_KEYS, decision_rows.TOKEN_KEYS)
    ),
    ("unseen", UNSEEN_SELF, WARMLINE, 3.0, False),
    ("unseen", UNSEEN_SELF, WARMLINE_TOKENS, 3.0, False),
    ("unseen", UNSEEN_OTHERS, WARMLINE, 5.0, False),
    ("unseen", UNSEEN_OTHERS, WARMLINE_TOKENS, 5.0, False),
    ("index", index_rows.BYTES, "", 100.0, False),
    ("index", index_rows.LOOKUP, "", 0.3, False),
    ("index", index_rows.INTAKE, "", 200_000.0, True),
    ("events", event_rows.BYTES, "", 100.0, False),
    ("events", event_rows.LOOKUP, "", 0.3, False),
    ("events", event_rows.INTAKE, "", 200_000.0, True),
    ("scale", scale_rows.RATIO, "", 2.0, False),
)


def limit_checks(results: Results) -> Iterable[Check]:
    for row, what, contender, limit, at_least in LIMITS:
        figure = results.find(row, what, contender)
        if figure is not None:
            yield Check(row, f"{what}: {contender}" if contender else what, figure.value, limit, figure.unit, at_least)


def judge(results: Results) -> None:
    """Replace the checks of `results` by those its figures allow."""
    results.checks = [*cpu_checks(results), *limit_checks(results)]
