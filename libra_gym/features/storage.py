"""Files that survive a crash: written whole or not at all, and by one process at a time."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import secrets
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from libra_gym.errors import LibraError

logger = logging.getLogger(__name__)

LOCK = ".lock"
TEMPORARY = ".tmp"


def sha256(path: Path) -> str:
    """The SHA-256 of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def write_whole(path: Path, data: bytes) -> None:
    """Put `data` in the file `path`: after a crash or a full disk it holds what it held before, or all of `data`."""
    # A name of its own: two processes may write the same file, and each must move away what it has written itself.
    # Of a long name it has only the beginning, since it must not be too long for the disk either.
    temporary = path.with_name(f"{path.name[:40]}.{os.getpid()}-{secrets.token_hex(4)}{TEMPORARY}")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_directory(path.parent)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise LibraError(f"{path} cannot be written ({error.strerror}); {_remedy(error, path)}") from error


def _remedy(error: OSError, path: Path) -> str:
    """What to do about a file that cannot be written."""
    if path.is_dir():
        return "it is a directory, so name a file"
    if not path.parent.is_dir():
        return f"there is no directory {path.parent}, so make it, or name another place"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "name a place that may be written to"
    return "what is finished is kept, so make room and run the same command again, or give another --out"


def remove_leftovers(directory: Path, older: float = 0.0) -> None:
    """Remove what `write_whole` had not finished when it was killed, if it is so many seconds old."""
    for leftover in directory.glob(f"*{TEMPORARY}"):
        with suppress(OSError):  # another process may have finished it
            if time.time() - leftover.stat().st_mtime >= older:
                leftover.unlink()


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold a directory, made if need be, for this process alone; the lock goes with the process, however that ends."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise LibraError(f"{directory} cannot be written to ({error.strerror}); give a writable --out") from error
    with os.fdopen(descriptor, "r+") as file:
        if not _try_lock(descriptor):
            holder = file.read() or "another process"
            raise LibraError(f"{directory} is being written by {holder}; wait for it, or stop it and try again")
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        yield
        file.seek(0)
        file.truncate(0)


if sys.platform == "win32":
    import msvcrt

    def _try_lock(descriptor: int) -> bool:
        try:
            os.lseek(descriptor, 1 << 20, os.SEEK_SET)  # Windows locks bytes: one that the holder's name never reaches
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
            os.lseek(descriptor, 0, os.SEEK_SET)
        except OSError:
            return False
        return True

    def _sync_directory(directory: Path) -> None:
        """Windows has no way to flush a directory, and needs none."""

else:
    import fcntl

    def _try_lock(descriptor: int) -> bool:
        try:  # not flock, which the workers would inherit and hold on to for a while after this process was killed
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return False
        except OSError as error:  # some disks in the network have no locks
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                raise LibraError(f"A file cannot be locked ({error.strerror}); give an --out on another disk") from None
            logger.warning(
                "this disk has no locks (%s): nothing hinders a second process that writes to the same directory",
                error.strerror,
            )
        return True

    def _sync_directory(directory: Path) -> None:
        """Make the renaming itself durable, on disks that can: the file is in its place in any case."""
        with suppress(OSError):
            descriptor = os.open(directory, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
