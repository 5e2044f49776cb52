"""Writes stand-ins for two packages that SGLang imports but does not call for a text model on the CPU.

`python tests/live/stub_packages.py SITE_PACKAGES`: `sgl_kernel`, whose builds are all for GPUs, and `torchvision`. Every
name that is asked of them is there; calling one is an error that says so.
"""

import sys
from pathlib import Path

PACKAGES = {
    "sgl_kernel": (),
    "torchvision": (
        "io",
        "models",
        "ops",
        "transforms",
        "transforms.functional",
        "transforms.v2",
        "transforms.v2.functional",
        "utils",
    ),
}
STUB = '''"""A stand-in: see tests/live/stub_packages.py of Warmline."""

__version__ = "0"
__path__ = {path!r}


class _Absent:
    """Anything that is asked of it is absent too, also as a class to derive from or a decorator's argument."""

    def __init__(self, name):
        self.__name__ = name

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Absent(f"{{self.__name__}}.{{name}}")

    def __call__(self, *arguments, **named):
        raise NotImplementedError(f"{{self.__name__}} is not there: a stand-in was called")


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return _Absent(f"{{__name__}}.{{name}}")
'''


def write_stubs(target: Path) -> None:
    for package, parts in PACKAGES.items():
        for part in ("", *parts):
            folder = target.joinpath(package, *part.split(".")) if part else target / package
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "__init__.py").write_text(STUB.format(path=[str(folder)]), encoding="utf-8")


if __name__ == "__main__":
    write_stubs(Path(sys.argv[1]))
