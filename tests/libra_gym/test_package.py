"""What `import libra_gym` brings."""

import subprocess
import sys

import pytest

import libra_gym


def test_the_packages_modules_are_there_without_a_further_import():
    check = (
        "import libra_gym, sys; assert 'torch' not in sys.modules; "
        "assert libra_gym.envs.WeighingEnv.__doc__ and libra_gym.wrappers.ImageCounts and 'oracle' in dir(libra_gym)"
    )
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        libra_gym.nothing  # noqa: B018
