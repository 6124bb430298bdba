"""Builds the package with the standard library alone (PEP 517, 660), so that `pip install client/python` needs no network and
no build tool: on a cluster's nodes there is often neither. The same files give the same bytes."""

import base64
import hashlib
import io
import os
import re
import tarfile
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
EPOCH = (1980, 1, 1, 0, 0, 0)
METADATA = """\
Metadata-Version: 2.1
Name: ballast
Version: {version}
Summary: Client of ballastd, the data-loader daemon of long-context training
Requires-Python: >=3.9
Provides-Extra: numpy
Requires-Dist: numpy>=1.20; extra == "numpy"
Provides-Extra: torch
Requires-Dist: numpy>=1.20; extra == "torch"
Requires-Dist: torch>=1.13; extra == "torch"
Description-Content-Type: text/markdown

{readme}"""
WHEEL = "Wheel-Version: 1.0\nGenerator: ballast\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def _read(*path):
    with open(os.path.join(HERE, *path), "rb") as f:
        return f.read()


def _version():
    return re.search(rb'__version__ = "([^"]+)"', _read("ballast", "version.py"))[1].decode()


def _metadata():
    return METADATA.format(version=_version(), readme=_read("README.md").decode()).encode()


def _package():
    """{name in the archive: bytes}."""
    names = sorted(name for name in os.listdir(os.path.join(HERE, "ballast")) if name.endswith(".py") or name == "py.typed")
    return {f"ballast/{name}": _read("ballast", name) for name in names}


def _write_wheel(folder, files):
    info = f"ballast-{_version()}.dist-info"
    files = {**files, f"{info}/METADATA": _metadata(), f"{info}/WHEEL": WHEEL.encode()}
    rows = []
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.append(f"{name},sha256={digest},{len(data)}\n")
    files[f"{info}/RECORD"] = "".join([*rows, f"{info}/RECORD,,\n"]).encode()
    wheel = f"ballast-{_version()}-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(folder, wheel), "w") as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o100644 << 16
            archive.writestr(entry, data)
    return wheel


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    return _write_wheel(wheel_directory, _package())


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    return _write_wheel(wheel_directory, {"ballast.pth": f"{HERE}\n".encode()})


def build_sdist(sdist_directory, config_settings=None):
    root = f"ballast-{_version()}"
    files = {**_package(), "PKG-INFO": _metadata()}
    files.update({name: _read(name) for name in ("README.md", "backend.py", "pyproject.toml")})
    with tarfile.open(os.path.join(sdist_directory, f"{root}.tar.gz"), "w:gz", format=tarfile.PAX_FORMAT) as archive:
        for name, data in sorted(files.items()):
            entry = tarfile.TarInfo(f"{root}/{name}")
            entry.size, entry.mode = len(data), 0o644
            archive.addfile(entry, io.BytesIO(data))
    return f"{root}.tar.gz"
