"""The browser of the tests: what is installed, and what happens where it cannot be."""

from __future__ import annotations

import socket
from pathlib import Path

import msgspec
import pytest
from tests.browser.chromium import HERE, Chromium, NotInstallable, ScriptFailed, install_chromium


def test_the_lock_file_pins_every_package_and_names_no_server() -> None:
    lock = msgspec.json.decode((HERE / "package-lock.json").read_bytes())
    wanted = msgspec.json.decode((HERE / "package.json").read_bytes())["dependencies"]
    packages = {path.removeprefix("node_modules/"): package for path, package in lock["packages"].items() if path}
    assert {name: packages[name]["version"] for name in wanted} == wanted
    assert all(package["integrity"].startswith("sha512-") for package in packages.values())
    assert not any("resolved" in package for package in packages.values())


def test_a_registry_that_cannot_be_reached_is_named_as_the_reason(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # it does not listen
        registry = f"http://127.0.0.1:{closed.getsockname()[1]}/"
        settings = {"npm_config_registry": registry, "npm_config_cache": str(tmp_path / "npm"), "no_proxy": "127.0.0.1"}
        with pytest.raises(NotInstallable, match="ECONNREFUSED"):
            install_chromium(tmp_path / "cache", settings)


def test_each_script_has_a_page_of_its_own_and_its_errors_are_reported(chromium: Chromium) -> None:
    assert chromium.run("return [argument, page.url(), (await context.cookies()).length]", 7) == [7, "about:blank", 0]
    with pytest.raises(ScriptFailed, match="this one"):
        chromium.run("throw new Error('this one')")
    with pytest.raises(ScriptFailed, match="did not end within"):
        chromium.run("await new Promise(() => {})", limit_s=0.1)
    with pytest.raises(ScriptFailed, match="ERR_NAME_NOT_RESOLVED"):
        chromium.run("await page.goto('http://flintlock.example/')")
    assert chromium.run("return 1") == 1
