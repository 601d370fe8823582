"""Whom an error of a file system concerns: the one file that was accessed, or everything on that file system.

A bad sector, a wrong owner, a directory in the place of a file make one file unusable until it is repaired: what needs
that file is given up, and the rest goes on. A full or read-only disk, a stale mount, a lack of descriptors concern
everything, and pass: the caller waits. Standard library only.
"""

from __future__ import annotations

import errno
from typing import Final

#: The file system says this of single files. `EIO` may be a whole disk as well: a caller that has to know tries another
#: file beside it.
_OF_ONE_FILE: Final = frozenset(
    {
        errno.EACCES,
        errno.EPERM,
        errno.EIO,
        errno.EISDIR,
        errno.ENOTDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.EBADMSG,
        getattr(errno, "EUCLEAN", errno.EIO),
    }
)


def concerns_one_file(error: OSError) -> bool:
    """Return whether the error says something about the accessed file only."""
    if error.errno is None:  # of a file system that is not the kernel's
        return isinstance(error, PermissionError | IsADirectoryError | NotADirectoryError)
    return error.errno in _OF_ONE_FILE
