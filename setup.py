"""Compiles the modules that a request runs through with mypyc, where there is a C compiler; elsewhere they stay Python.

Compiled they cost half as much CPU per request (`make bench`). WARMLINE_PURE=1 leaves the compiling out.
"""

import os
import shutil
import sys
import sysconfig
from glob import glob
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CCompilerError, ExecError, PlatformError

COMPILED = (
    "router/core/*.py",
    "router/wire/*.py",
    "router/proxy/*.py",
    "router/tokens/asked_keys.py",
    "router/tokens/body_memo.py",
    "router/tokens/byte_memo.py",
    "router/tokens/direct_keys.py",
    "router/tokens/key_sources.py",
    "router/tokens/keyer.py",
    "router/tokens/keying.py",
    "router/tokens/memo.py",
    "router/tokens/walk.py",
    "router/log.py",
)
NOT_COMPILED = ("router/wire/metrics_text.py",)  # read once a scrape


def modules() -> list[str]:
    found = [path for pattern in COMPILED for path in sorted(glob(pattern)) if not path.endswith("__init__.py")]
    return [path for path in found if path not in NOT_COMPILED]


def can_compile() -> bool:
    compiler = shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0])
    header = Path(sysconfig.get_paths()["include"], "Python.h")
    return not os.environ.get("WARMLINE_PURE") and compiler is not None and header.is_file()


def tell(reason: BaseException) -> None:
    print(f"warmline: installed as pure Python, which costs more CPU per request: {reason or 'see above'}", file=sys.stderr)


def extensions() -> list[Extension]:
    """The compiled modules; none, and one line that says so, where compiling is not wanted or the checker is not content."""
    if not can_compile():
        return []
    try:
        from mypyc.build import mypycify

        return list(mypycify(["--strict", "--ignore-missing-imports", *modules()], opt_level="2", debug_level="0"))
    except (ImportError, SystemExit) as reason:
        print(
            f"warmline: installing as pure Python, which costs more CPU per request ({reason or 'see above'})", file=sys.stderr
        )
        return []


class BuildOrLeave(build_ext):
    """Leaves the compiling out altogether when a C compiler that is there does not work: half of it would not run."""

    def run(self) -> None:
        try:
            super().run()
        except (CCompilerError, ExecError, PlatformError) as reason:
            tell(reason)
            for built in Path(self.build_lib).rglob("*.so"):
                built.unlink()
            self.extensions = []
            self.distribution.ext_modules = []


setup(ext_modules=extensions(), cmdclass={"build_ext": BuildOrLeave})
