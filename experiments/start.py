"""Where the `libra` command begins: Ctrl-C while its modules are being imported is no error either."""

import sys


def main() -> None:
    """Run the command."""
    try:
        from experiments.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)
