"""The one exception that libra-gym raises for a user's mistake."""


class LibraError(ValueError):
    """Something a user can mend.

    The message is one sentence that names the file or value and what would be right. The command line prints it
    without a traceback and exits with status 2.
    """
