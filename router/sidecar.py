"""Composition root of the sidecar process: small, because one runs beside each engine."""

from engines.sidecar import process
from router.core.stats import Stats
from router.log import setup_logging
from router.settings import Settings


def run(settings: Settings) -> int:
    """Run a sidecar until SIGTERM or SIGINT; the exit status. Raises SettingsError for an unreadable TLS file."""
    handler = setup_logging(settings.log, Stats())
    try:
        return process.run(settings)
    finally:
        handler.close()
