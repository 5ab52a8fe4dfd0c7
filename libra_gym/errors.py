"""The one exception that libra-gym raises for a user's mistake, and which errors of the system are one."""

import errno


class LibraError(ValueError):
    """Something a user can mend.

    The message is one sentence that names the file or value and what would be right. The command line prints it
    without a traceback and exits with status 2.
    """


def is_full(error: BaseException | None) -> bool:
    """Whether this error says that a disk, or a user's share of it, is full."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
