"""Which occurrences of a failure that recurs are logged."""

from __future__ import annotations

from typing import Final


class RepeatedFailure:
    """One condition that is tried again and again: its first failure is worth a log line, the next thousand are not.

    An occurrence is due for a log line if it is the first one, if its reason is another one, or if the last line is
    `remind_s` old.
    """

    def __init__(self, remind_s: float = 60.0) -> None:
        self._remind_s: Final = remind_s
        self._reason: str | None = None  # of the last failure; None while there is none
        self._logged_s = 0.0  # when an occurrence was last due

    def occurred(self, reason: str, now_s: float) -> bool:
        """Record a failure; return whether it is due for a log line."""
        due = reason != self._reason or now_s - self._logged_s >= self._remind_s
        if due:
            self._reason, self._logged_s = reason, now_s
        return due

    def ended(self) -> bool:
        """Record a success; return whether there was a failure before it."""
        failed, self._reason = self._reason is not None, None
        return failed
