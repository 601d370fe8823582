"""The source of the dashboard: its types fit, its unit tests pass, its packages are pinned and few."""

from __future__ import annotations

import msgspec
import pytest
from dashboard.build import HERE, NotBuildable, install_packages, run_node


def test_the_lock_file_pins_every_package_and_names_no_server() -> None:
    lock = msgspec.json.decode((HERE / "package-lock.json").read_bytes())
    manifest = msgspec.json.decode((HERE / "package.json").read_bytes())
    wanted = {**manifest["dependencies"], **manifest["devDependencies"]}
    packages = {path.removeprefix("node_modules/"): package for path, package in lock["packages"].items() if path}
    assert {name: packages[name]["version"] for name in wanted} == wanted
    assert all(package["integrity"].startswith("sha512-") for package in packages.values())
    assert not any("resolved" in package for package in packages.values())


def test_types_fit_and_the_unit_tests_pass() -> None:
    """They are run by Node itself, which leaves the types out."""
    try:
        install_packages()
    except NotBuildable as reason:
        pytest.skip(str(reason))
    run_node("node_modules/typescript/bin/tsc", "--noEmit")
    assert "pass " in run_node("--test", "src/**/*.test.ts")


def test_no_source_puts_text_into_the_page_as_markup() -> None:
    sources = [path for path in (HERE / "src").rglob("*.ts*") if ".test." not in path.name]
    assert len(sources) > 20
    for path in sources:
        text = path.read_text(encoding="utf-8")
        assert not [name for name in ("InnerHTML", "innerHTML", "eval(", "document.write") if name in text]
