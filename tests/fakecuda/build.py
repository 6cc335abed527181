"""Build the fake CUDA driver, its cuDNN and its cuBLAS with the host's compiler.

``python tests/fakecuda/build.py FOLDER`` puts ``libcuda.so.1``, ``libcudnn.so.9``, ``libcublas.so.13`` and
``nvcc`` into a folder; with ``LD_LIBRARY_PATH`` and ``PATH`` starting with it, any program finds them instead
of the real ones.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCES = Path(__file__).parent
_NUMBERS = ["-O3", "-fassociative-math", "-fno-signed-zeros", "-fno-trapping-math"]
LIBRARIES = {
    "libcuda.so.1": (["driver.cpp", "graph.cpp"], ["-O1"]),
    "libcudnn.so.9": (["cudnn.cpp", "cudnn_graph.cpp"], _NUMBERS),
    "libcublas.so.13": (["cublas.cpp"], _NUMBERS),
}


class MissingError(RuntimeError):
    """Something that building takes is not there; the text says what."""


def include_folder() -> Path:
    """Find the folder of cuda.h: of the PyPI package nvidia-cuda-runtime, or of a toolkit."""
    spec = importlib.util.find_spec("nvidia")
    places = [Path(place) for place in (spec.submodule_search_locations or [])] if spec else []
    candidates = [*(place / "cu13" / "include" for place in places)]
    candidates += [Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"]
    for folder in candidates:
        if (folder / "cuda.h").exists():
            return folder
    raise MissingError("no cuda.h; pip install 'nvidia-cuda-runtime==13.0.*'")


def build(cache: Path) -> Path:
    """Return the folder of the libraries, built anew unless `cache` has them for the same sources."""
    if shutil.which("g++") is None:
        raise MissingError("no g++")
    include = include_folder()
    names = [name for names, _ in LIBRARIES.values() for name in names]
    sources = [
        SOURCES / name for name in (*names, "capture.h", "convolution.h", "driver.h", "host.h", "nvcc")
    ]
    parts = [
        Path(__file__).read_bytes(),
        (include / "cuda.h").read_bytes(),
        *(file.read_bytes() for file in sources),
    ]
    folder = cache / hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two that build at once would take twice as long
        if not folder.exists():
            work = Path(tempfile.mkdtemp(dir=cache))
            _build(include, work)
            work.rename(folder)
    return folder


def _build(include: Path, folder: Path) -> None:
    (folder / "stubs.c").write_text(_stubs(include))
    compiled = ["-std=c++20", "-fPIC", "-pthread", f"-I{include}", "-c"]
    commands = [["gcc", "-O1", "-w", "-fPIC", "-c", folder / "stubs.c", "-o", folder / "stubs.o"]]
    for names, options in LIBRARIES.values():
        for name in names:
            commands.append(["g++", *options, *compiled, SOURCES / name, "-o", folder / f"{name}.o"])
    with ThreadPoolExecutor(os.cpu_count()) as several:
        list(several.map(_run, commands))
    for library, (names, _) in LIBRARIES.items():
        is_driver = library == "libcuda.so.1"
        others = [folder / "stubs.o", "-ldl"] if is_driver else [f"-L{folder}", "-l:libcuda.so.1"]
        own_name = f"-Wl,-soname,{library if is_driver else 'fake-' + library}"
        objects = [folder / f"{name}.o" for name in names]
        _run(["g++", "-shared", "-pthread", own_name, *objects, *others, "-o", folder / library])
    for name in ("host.h", "nvcc"):
        shutil.copy(SOURCES / name, folder / name)


def _stubs(include: Path) -> str:
    """Return definitions of every call that cuda.h declares, for those that the fake driver does not have."""
    headers = "#include <cuda.h>\n"
    if (include / "cudaProfiler.h").exists():
        headers += "#include <cudaProfiler.h>\n"
    command = ["gcc", "-E", "-P", f"-I{include}", "-x", "c", "-"]
    text = subprocess.run(command, input=headers, capture_output=True, text=True, check=True).stdout
    names = sorted(set(re.findall(r"\bCUresult\s+(?:CUDAAPI\s+)?(cu[A-Z]\w+)\s*\(", text)))
    profiler = {"cuProfilerInitialize", "cuProfilerStart", "cuProfilerStop"}
    return "".join(
        f"__attribute__((weak)) int {name}(void) {{ return 801; }}\n" for name in sorted({*names, *profiler})
    )


def _run(command: Sequence[str | Path]) -> None:
    subprocess.run([str(part) for part in command], check=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python tests/fakecuda/build.py", description=__doc__)
    parser.add_argument("folder", metavar="FOLDER", help="where the libraries go")
    folder = parser.parse_args().folder
    shutil.copytree(build(Path(tempfile.mkdtemp())), folder, dirs_exist_ok=True)
