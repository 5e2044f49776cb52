"""The sidecar process is small."""

import subprocess
import sys


def test_it_loads_no_data_plane() -> None:
    """One runs beside each engine: neither the proxy nor tokenizers nor an HTTP framework are in its memory."""
    heavy = ("router.proxy", "router.tokens", "router.admin", "tokenizers", "aiohttp", "jinja2", "prometheus_client")
    code = f"import sys, router.sidecar; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr
