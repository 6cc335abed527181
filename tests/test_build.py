"""What setup.py says where it cannot build, and what its archives depend on."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pebbler.process import program

DRIVER = """
import os, pathlib, runpy, sys
import setuptools

setuptools.setup = lambda **_: None

def run():
    return runpy.run_path(sys.argv[1])

def told(doing):
    try:
        doing()
    except SystemExit as end:
        print(end)

sys.platform, real = "win32", sys.platform
told(run)
sys.platform = real
os.environ["PEBBLER_KERNELS"] = "some"
told(run)
del os.environ["PEBBLER_KERNELS"]
names = run()
print(names["PlatformDistribution"]().has_ext_modules())
told(names["links_or_exit"])
os.environ.update(PEBBLER_KERNELS="none", SOURCE_DATE_EPOCH="1700000000")
names = run()
print(names["PlatformDistribution"]().has_ext_modules())

file = pathlib.Path("made", "file")
file.parent.mkdir()
archives = []
for moment, mode in ((1, 0o600), (2, 0o644)):
    file.write_text("text")
    file.chmod(mode)
    os.utime(file, (moment, moment))
    command = names["SameBytes"](setuptools.Distribution())
    archives.append(pathlib.Path(command.make_archive("made", "gztar", base_dir="made")).read_bytes())
print(archives[0] == archives[1])
"""


@pytest.fixture(scope="module")
def said(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What setup.py says in a folder where a link to a floor is a file, as in a checkout without links."""
    folder = tmp_path_factory.mktemp("checkout")
    face = folder / "src" / "pebbler"
    face.mkdir(parents=True)
    (face / "instances").write_text("../../instances", encoding="utf-8")
    command = [sys.executable, "-W", "ignore", "-c", DRIVER, str(pytestconfig.rootpath / "setup.py")]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_windows_is_refused_in_a_sentence(said: list[str]) -> None:
    assert "Linux and macOS, not on Windows" in said[0]


def test_another_word_for_no_kernels_is_refused(said: list[str]) -> None:
    assert said[1].startswith("PEBBLER_KERNELS is 'none'")


def test_a_wheel_is_for_a_platform_unless_nothing_is_compiled(said: list[str]) -> None:
    assert (said[2], said[4]) == ("True", "False")


def test_an_editable_installation_without_links_is_refused(said: list[str]) -> None:
    assert said[3].startswith("src/pebbler/instances should be a symbolic link to ../../instances")


def test_an_archive_of_sources_depends_on_no_time_and_no_mask(said: list[str]) -> None:
    assert said[5:] == ["True"]


def test_the_program_refuses_windows_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("sys.platform", "win32")
        with pytest.raises(SystemExit, match="runs on Linux and macOS"):
            program(lambda: 0)
