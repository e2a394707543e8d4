"""What the wheel of `make wheel` carries, and what it says of itself."""

import email.parser
import email.policy
import os
import re
import subprocess
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WHEELS = sorted((ROOT / "target/wheels").glob("rgaps-*.whl")) + sorted((ROOT / "wheels").glob("rgaps-*.whl"))
PROGRAMS = {"rgapsd", "rgaps", "rgaps-links"}
#: What users download, and what they install. PyPI takes 100 MiB. A program that is not stripped is over it by itself.
WHEEL_MIB_MAX = 24
PROGRAM_MIB_MAX = {"rgapsd": 12, "rgaps": 20, "rgaps-links": 32}
#: How much larger they are when they are not optimised (`make test`).
LARGER = 3 if os.environ.get("PROFILE") == "debug" else 1

pytestmark = pytest.mark.skipif(not WHEELS, reason="there is no wheel here: `make wheel`")


@pytest.fixture(scope="module")
def wheel():
    assert len(WHEELS) == 1, f"more than one wheel: {WHEELS}"
    with zipfile.ZipFile(WHEELS[0]) as opened:
        yield opened


def text(wheel, ending):
    name = next(name for name in wheel.namelist() if name.endswith(f".dist-info/{ending}"))
    return wheel.read(name).decode()


@pytest.fixture(scope="module")
def metadata(wheel):
    return email.parser.Parser(policy=email.policy.compat32).parsestr(text(wheel, "METADATA"))


def test_the_wheel_has_no_stray_files(wheel):
    package = ROOT / "crates/python/python/rgaps"
    if not package.exists():
        pytest.skip("the source is not here")
    files = [path for path in package.rglob("*") if path.suffix in {".py", ".pyi", ".typed"}]
    sources = {f"rgaps/{path.relative_to(package)}" for path in files}
    sources |= {"rgaps/py.typed", "rgaps/_rgaps.abi3.so"} | {f"rgaps/bin/{program}" for program in PROGRAMS}
    names = {name for name in wheel.namelist() if not re.match(r"rgaps-[0-9.]+\.dist-info/", name)}
    assert names == sources


def test_the_wheel_carries_both_licences(wheel, metadata):
    assert metadata["License-Expression"] == "Apache-2.0 OR MIT"
    assert metadata.get_all("License-File") == ["LICENSE-APACHE", "LICENSE-MIT", "LICENSES-THIRD-PARTY"]
    assert "Apache License" in text(wheel, "licenses/LICENSE-APACHE")
    assert "Permission is hereby granted" in text(wheel, "licenses/LICENSE-MIT")


def test_the_wheel_carries_the_licences_of_what_it_is_linked_with(wheel):
    licences = text(wheel, "licenses/LICENSES-THIRD-PARTY")
    # Crates of each program; MPL-2.0 and EPL-2.0 want the source to be named.
    crates = dict(re.findall(r"^([\w-]+) [\w.+-]+: [^;]+; (https://\S+)$", licences, re.MULTILINE))
    assert {"pyo3", "prometheus-client", "ratatui", "zenoh", "option-ext", "rustls"} <= set(crates)
    # Neither ours nor what only tests and builds use.
    assert not {"rgaps", "proptest", "rgaps-test-driver", "cc"} & set(crates)
    assert "Mozilla Public License Version 2.0" in licences and licences.count("Permission is hereby granted") > 10


def test_the_wheel_says_who_made_it_and_where_to_read_more(metadata):
    assert metadata["Author"] == "The rgaps developers"
    urls = dict(line.split(", ", 1) for line in metadata.get_all("Project-URL"))
    assert {"Documentation", "Repository", "Changelog", "Issues"} <= set(urls)
    assert all(url.startswith("https://") for url in urls.values())
    assert metadata["Summary"] and metadata["Keywords"] and metadata["Requires-Python"] == ">=3.10"
    assert metadata["Description-Content-Type"].startswith("text/markdown")
    assert metadata.get_payload().lstrip().startswith("# rgaps")
    classifiers = metadata.get_all("Classifier")
    assert "Operating System :: POSIX :: Linux" in classifiers and "Typing :: Typed" in classifiers
    # PEP 639: a licence expression replaces them, and PyPI refuses both.
    assert not [each for each in classifiers if each.startswith("License ::")]


def test_the_version_is_that_of_the_crates(metadata):
    manifest = ROOT / "Cargo.toml"
    if not manifest.exists():
        pytest.skip("the source is not here")
    assert f'\nversion = "{metadata["Version"]}"\n' in manifest.read_text()


def test_every_program_of_the_wheel_runs_and_has_a_command(wheel, tmp_path):
    scripts = text(wheel, "entry_points.txt")
    for program in PROGRAMS:
        assert re.search(rf"^{program} *=", scripts, re.MULTILINE), scripts
        path = tmp_path / program
        path.write_bytes(wheel.read(f"rgaps/bin/{program}"))
        mode = wheel.getinfo(f"rgaps/bin/{program}").external_attr >> 16
        assert mode & 0o111 == 0o111, f"{program} is not executable: {mode:o}"
        path.chmod(0o755)
        run = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60)
        assert run.returncode == 0 and run.stdout.startswith(program), run


def test_a_daemon_of_the_wheel_finds_its_links(wheel, tmp_path):
    """Without a variable or a PATH that name them."""
    for program in PROGRAMS:
        path = tmp_path / program
        path.write_bytes(wheel.read(f"rgaps/bin/{program}"))
        path.chmod(0o755)
    kept = {"HOME": str(tmp_path), "PATH": "/nonexistent", "RGAPS_SOCKET": os.environ["RGAPS_SOCKET"]}
    links = {"ENABLED": "true", "HOST": "alone", "LISTEN": "127.0.0.1:0", "CONTROL": '["tcp/127.0.0.1:0"]'}
    configuration = {f"RGAPS_LINKS__{key}": value for key, value in links.items()}
    run = subprocess.run(
        [tmp_path / "rgaps", "up"], env=kept | configuration, capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, run
    down = subprocess.run([tmp_path / "rgaps", "down"], env=kept, capture_output=True, text=True, timeout=60)
    assert down.returncode == 0, down


def test_the_programs_need_no_newer_libc_than_the_wheel_says(wheel, tmp_path):
    tag = re.search(r"manylinux_(\d+)_(\d+)", Path(wheel.filename).name)
    assert tag, f"{wheel.filename} has no manylinux tag"
    for program in [f"bin/{program}" for program in PROGRAMS] + ["_rgaps.abi3.so"]:
        contents = wheel.read(f"rgaps/{program}")
        wanted = {tuple(map(int, found.split(b"."))) for found in re.findall(rb"GLIBC_(\d+\.\d+)", contents)}
        assert wanted and max(wanted) <= tuple(map(int, tag.groups())), f"{program} needs glibc {max(wanted)}"


def test_the_wheel_is_no_larger_than_it_must_be(wheel):
    assert Path(wheel.filename).stat().st_size < LARGER * WHEEL_MIB_MAX << 20
    for program in PROGRAMS:
        assert wheel.getinfo(f"rgaps/bin/{program}").file_size < LARGER * PROGRAM_MIB_MAX[program] << 20, program
