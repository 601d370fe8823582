"""Writes the clicks that the streaming examples read: small JSON files, one for each minute of an hour or so.

    python examples/streaming_clicks.py in/clicks [MINUTES]

A file appears whole: it is written under a hidden name, and renamed. Run it again with more minutes while a job runs,
and the job reads what is new.
"""

import json
import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

START = datetime(2026, 1, 1, tzinfo=UTC)
PAGES = ("home", "search", "product", "cart")


def clicks(minute: int) -> list[dict[str, str]]:
    """The clicks of one minute: every user is there in some minutes, every ten seconds, and away in others."""
    return [
        {"ts": (START + timedelta(minutes=minute, seconds=second)).isoformat(), "user": f"user-{user}",
         "page": PAGES[(minute + second // 10 + user) % len(PAGES)]}
        for user in range(1, 4)
        if minute % (user + 3) >= user
        for second in range(0, 60, 10)
    ]  # fmt: skip


def write(directory: Path, minutes: int) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for minute in range(minutes):
        target = directory / f"{minute:04}.json"
        if not target.exists():
            hidden = directory / f".{minute:04}"
            hidden.write_text("".join(json.dumps(click) + "\n" for click in clicks(minute)))
            at = (START + timedelta(minutes=minute)).timestamp()
            os.utime(hidden, (at, at))  # Spark reads files in the order of these times
            hidden.rename(target)


if __name__ == "__main__":
    write(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 30)
