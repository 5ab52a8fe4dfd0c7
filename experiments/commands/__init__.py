"""The subcommands of `libra`, one file each."""
