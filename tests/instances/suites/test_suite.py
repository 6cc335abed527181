from __future__ import annotations

import re
import tomllib
from collections import Counter
from hashlib import sha256
from importlib import resources
from pathlib import Path

import msgspec
import pytest

from pebbler.instances.errors import PebblerError
from pebbler.instances.files import encode, read_instance, write_instance
from pebbler.instances.memory import ideal_ns, least_budget, unlimited_peak
from pebbler.instances.suites import manifest
from pebbler.instances.suites.manifest import write_suite
from pebbler.instances.suites.suite import Member, Real, Suite, find_suite, list_suites, members

SUITES = ("papers", "pebbler-2026", "random", "scaling", "tight", "tiny", "transformers")
CHECKSUMS = {
    "tiny": "35bbd47694e6e2080c39fee284e7d3608adfa352710f4bb56170b12d1c0dfc81",
    "random": "dac951442fe6292dc1b27902cb31383e67110597a49ec9b49c65285245263cf2",
}
"""Of suites without networks, whose costs may still be calibrated."""
PINNED = Path(__file__).parents[3] / "docs" / "data" / "suites.sha256"


def of(suite: str) -> list[Member]:
    return list(members(find_suite(suite)))


def test_the_suites() -> None:
    assert list_suites() == SUITES


@pytest.mark.parametrize("suite", SUITES)
def test_names_are_unique_and_good_as_file_names(suite: str) -> None:
    names = [member.name for member in of(suite)]
    assert max(Counter(names).values()) == 1
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789.-") for name in names)
    assert not any(name.startswith((".", "-")) for name in names)


@pytest.fixture(scope="module")
def pinned() -> dict[str, str]:
    """Checksums that a release fixes, by suite and file."""
    pairs = map(str.split, PINNED.read_text(encoding="utf-8").splitlines())
    return {file: checksum for checksum, file in pairs}


def test_the_checksums_of_a_release_have_every_instance(pinned: dict[str, str]) -> None:
    assert [*pinned] == [f"{suite}/{member.name}.instance.json" for suite in SUITES for member in of(suite)]


def require_good(member: Member, folder: Path, checksum: str) -> None:
    """It keeps the format's rules, which the reader checks, fits its budget, and is as it is pinned."""
    instance = member.build()
    path = folder / "x.instance.json"
    assert write_instance(instance, path) == checksum, "docs/scripts/checksums.py --write, if meant"
    assert read_instance(path) == instance
    assert instance.name == member.name
    assert least_budget(instance) <= instance.budget_bytes


def is_large(member: Member) -> bool:
    """Whether an instance takes a second or so."""
    return re.match(r"(resnet(695|1\d\d\d)|lstm)-|.*-\d0{4,5}-s0|resnet-blocks", member.name) is not None


@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize("each", [12, pytest.param(1, marks=pytest.mark.slow)])
def test_instances_of_a_suite_are_valid(
    each: int, suite: str, tmp_path: Path, pinned: dict[str, str]
) -> None:
    for member in of(suite)[::each]:
        if not is_large(member):
            require_good(member, tmp_path, pinned[f"{suite}/{member.name}.instance.json"])


@pytest.mark.slow
@pytest.mark.parametrize(("suite", "count"), [("papers", 13), ("scaling", 14)])
def test_the_largest_instances_of_a_suite_are_valid(
    suite: str, count: int, tmp_path: Path, pinned: dict[str, str]
) -> None:
    large = [member for member in of(suite) if is_large(member)]
    assert len(large) == count
    for member in large:
        require_good(member, tmp_path, pinned[f"{suite}/{member.name}.instance.json"])


@pytest.mark.parametrize("suite", CHECKSUMS)
def test_a_suite_of_random_instances_is_the_same_anywhere(suite: str) -> None:
    together = sha256(b"".join(encode(member.build()) for member in of(suite)))
    assert together.hexdigest() == CHECKSUMS[suite], "raise generators.VERSION when this is meant"


def test_papers_name_the_experiment_that_each_instance_is_from() -> None:
    for member in of("papers"):
        real = member.source[0]
        assert isinstance(real, Real)
        assert real.source, member.name
        assert real.batch % (real.sub_batch or 1) == 0, member.name
    built = next(member for member in of("papers") if member.name == "vgg16-b64-k40-4gib").build()
    assert (built.rounds, built.made_from.sub_batch, built.made_from.batch) == (4, 64, 256)
    assert built.meta["experiment"].startswith("moDNN")


@pytest.mark.parametrize("each", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_tight_is_tight_and_tiny_is_tiny(each: int) -> None:
    for member in of("tight")[::each]:
        instance = member.build()
        least, peak = least_budget(instance), unlimited_peak(instance)
        assert instance.budget_bytes <= max(1.1 * least, least + 0.06 * (peak - least)) + 1
        assert instance.budget_bytes < peak
    assert max(len(member.build().tasks) for member in of("tiny")) <= 9


def test_an_unknown_suite_is_refused_with_close_names() -> None:
    with pytest.raises(PebblerError, match="there is no suite 'tigth'; did you mean tight"):
        find_suite("tigth")


@pytest.mark.parametrize(
    "text",
    [
        'title = "x"\ncolour = 1',
        'title = "x"\n[[drawn]]\nname = "a"\nshape = {family = "ring", layers = 2}\nseeds = [0]',
        'title = "x"\n[[drawn]]\nname = "a"\nshape = {family = "chain", layers = 0}\nseeds = [0]',
        'title = "x"\n[[drawn]]\nname = "a"\nshape = {family = "chain", layers = 1}\nseeds = []',
        'title = "x"\n[[drawn]]\nname = "A/b"\nshape = {family = "chain", layers = 1}\nseeds = [0]',
        'title = "x"\n[[real]]\nnetwork = "lenet"\nbatch = 0\ndevice = "K40"\nbudgets = ["50%"]',
        'title = "x"\n[[real]]\nnetwork = "lenet"\nbatch = 1\ndevice = "K40"\nbudgets = []',
    ],
)
def test_a_mistake_in_a_suite_s_file_is_found(text: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(tomllib.loads(text), Suite)


# --- files --------------------------------------------------------------------------------------------


def test_the_manifest_says_what_the_files_hold(tmp_path: Path) -> None:
    made = write_suite("tiny", tmp_path / "a" / "b")
    folder = tmp_path / "a" / "b"
    assert msgspec.json.decode((folder / "manifest.json").read_bytes(), type=manifest.Manifest) == made
    for entry, member in zip(made.instances, of("tiny"), strict=True):
        data = (folder / entry.file).read_bytes()
        instance = read_instance(folder / entry.file)
        assert sha256(data).hexdigest() == entry.sha256
        assert instance == member.build()
        assert (entry.tasks, entry.blocks) == (len(instance.tasks), len(instance.blocks))
        assert (entry.least_budget_bytes, entry.ideal_ns) == (least_budget(instance), ideal_ns(instance))
        assert entry.offload_ns == sum(block.offload_ns or 0 for block in instance.blocks)


def test_best_known_values_come_with_their_suite(tmp_path: Path) -> None:
    write_suite("tiny", tmp_path)
    shipped = resources.files("pebbler.instances.suites").joinpath("best_known", "tiny.json")
    assert (tmp_path / "best-known.json").read_bytes() == shipped.read_bytes()


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PebblerError, match="cannot be written"):
        write_suite("tiny", tmp_path / "file" / "x")


def test_a_manifest_that_is_a_link_stays_one(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "manifest.json").symlink_to("../kept.json")
    (tmp_path / "kept.json").write_text("{}")
    write_suite("tiny", folder)
    assert (folder / "manifest.json").readlink() == Path("../kept.json")
    assert b"pebbler/manifest/1" in (tmp_path / "kept.json").read_bytes()
