"""Compiled programs that are kept: by whom they may be read, and how to do without."""

import os
import subprocess
import sys
from pathlib import Path
from stat import S_IMODE

import jax
import pytest

import jaxkkt as jk
from jaxkkt.process import caching

COMMAND = """
import jax, jaxkkt as jk
print(jk.keep_programs())
jax.jit(lambda x: x + 41)(1.0)
"""


@pytest.fixture
def unset(monkeypatch):
    """JAX without a folder for programs, as it is for a user."""
    names = [
        "jax_compilation_cache_dir",
        "jax_compilation_cache_max_size",
        "jax_persistent_cache_min_compile_time_secs",
        "jax_persistent_cache_min_entry_size_bytes",
    ]
    before = {name: getattr(jax.config, name) for name in names}
    for name in names:
        monkeypatch.setenv(name.upper(), "")
        monkeypatch.delenv(name.upper())
    jax.config.update("jax_compilation_cache_dir", None)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


def test_the_folder_is_its_users_alone(tmp_path, unset, monkeypatch):
    folder = tmp_path / "programs"
    monkeypatch.setenv("JAXKKT_CACHE", str(folder))
    assert jk.keep_programs() == folder
    assert S_IMODE(folder.stat().st_mode) == 0o700
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == str(folder)
    assert jk.keep_programs(tmp_path / "another") == folder  # JAX's own settings stay


def test_one_that_others_can_read_is_closed(tmp_path, unset):
    tmp_path.chmod(0o755)
    assert jk.keep_programs(tmp_path) == tmp_path
    assert S_IMODE(tmp_path.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777])
def test_one_that_others_can_write_to_is_not_used(mode, tmp_path, unset, caplog):
    """It was closed, /tmp too, and what others had put there was run."""
    tmp_path.chmod(mode)
    assert jk.keep_programs(tmp_path) is None
    assert f"others can write to {tmp_path}" in caplog.text
    assert S_IMODE(tmp_path.stat().st_mode) == mode


def test_another_users_is_not_used(tmp_path, unset, monkeypatch, caplog):
    monkeypatch.setattr(caching.os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    assert jk.keep_programs(tmp_path) is None
    assert "belongs to another user" in caplog.text
    assert jax.config.jax_compilation_cache_dir is None


def test_off_keeps_nothing(unset, monkeypatch):
    monkeypatch.setenv("JAXKKT_CACHE", "off")
    assert jk.keep_programs() is None
    assert jax.config.jax_compilation_cache_dir is None


def test_one_that_cannot_be_made_is_told(tmp_path, unset, caplog):
    (tmp_path / "file").write_text("")
    assert jk.keep_programs(tmp_path / "file") is None
    assert "compiled programs are not kept" in caplog.text


def kept_by_a_process(home):
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "JAXKKT"))}
    environ["XDG_CACHE_HOME"] = str(home)
    command = [sys.executable, "-W", "error", "-c", COMMAND]
    told = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    assert Path(told.stdout.strip()) == home / "jaxkkt"
    return sorted(path.name for path in (home / "jaxkkt").glob("*-cache"))


def test_a_process_finds_what_another_one_kept(tmp_path):
    first = kept_by_a_process(tmp_path)
    assert first
    assert kept_by_a_process(tmp_path) == first


def test_a_program_that_was_kept_in_part_is_removed(tmp_path):
    """A process that is killed, or has no room, leaves one: JAX kept no other from then on."""
    first = kept_by_a_process(tmp_path)
    for path in (tmp_path / "jaxkkt").glob("jit*"):
        path.unlink()
    (tmp_path / "jaxkkt" / "jit_other-12ab-cache").write_bytes(b"begun")
    assert kept_by_a_process(tmp_path) == first
