"""What is run: the `libra` command, recipes and benchmarks."""
