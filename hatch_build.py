"""The build hook of sdist and wheel: they contain the dashboard, which is built first if it is not there."""

from __future__ import annotations

import sys
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class DashboardHook(BuildHookInterface[Any]):
    """Builds the dashboard in a checkout. An sdist has the built one: a wheel that is made from it needs no Node."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build it. Where that is impossible, the wheel is built without: a JobManager then says so at `/`."""
        if version == "editable":
            return
        sys.path.insert(0, self.root)
        from dashboard.build import BUILT, NotBuildable, build

        try:
            build()
        except NotBuildable as reason:
            self.app.display_warning(f"built without the dashboard: {reason}")
            return
        build_data["artifacts"].append(f"/{BUILT.relative_to(self.root)}/**")
