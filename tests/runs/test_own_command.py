"""How jaxtrpo starts itself in another process."""

from __future__ import annotations

import subprocess
from pathlib import Path

import jaxtrpo
from jaxtrpo.runs.own_command import own_command


def test_modules_of_the_current_directory_do_not_hide_those_of_python(tmp_path, monkeypatch):
    (tmp_path / "random.py").write_text("raise SystemExit('the wrong module')\n")
    monkeypatch.chdir(tmp_path)
    started = subprocess.run([*own_command(), "algorithms"], capture_output=True, text=True, check=False)
    assert "trpo_replay" in started.stdout, started.stderr


def test_package_that_is_not_installed_starts_from_its_own_directory(tmp_path, monkeypatch):
    (tmp_path / "jaxtrpo").symlink_to(Path(jaxtrpo.__file__).parent)
    monkeypatch.setattr(jaxtrpo, "__file__", str(tmp_path / "jaxtrpo" / "__init__.py"))
    for name in ("PYTHONPATH", "PYTHONSAFEPATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    shown = "import jaxtrpo; print(jaxtrpo.__file__)"
    started = [*own_command()[:-2], "-c", shown]
    found = subprocess.run(started, capture_output=True, text=True, check=True).stdout.strip()
    assert found == str(tmp_path / "jaxtrpo" / "__init__.py")
