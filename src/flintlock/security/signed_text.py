"""Texts with an authentication code: the form of the credentials that the cluster makes and verifies by itself.

<head>.<authentication code>
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

from flintlock.model.errors import Unauthenticated
from flintlock.security.cluster_secret import same


def signed(key: bytes, head: str) -> str:
    """Return the head with its authentication code."""
    return f"{head}.{_code(key, head)}"


def verified_head(key: bytes, text: str) -> str | None:
    """Return the head of a signed text; None if the code was not made with this key."""
    head, _, code = text.rpartition(".")
    return head if same(code, _code(key, head)) else None


def encoded(value: bytes) -> str:
    """Return bytes as text without a dot, which separates the parts of a credential."""
    return base64.urlsafe_b64encode(value).decode().rstrip("=")


def decoded(text: str) -> bytes:
    """Return what `encoded` was given. Raises Unauthenticated."""
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        raise Unauthenticated("the credential is damaged") from None


def _code(key: bytes, head: str) -> str:
    return encoded(hmac.digest(key, head.encode(), hashlib.sha256))
