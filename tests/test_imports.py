"""What `import jaxkkt` must not do to the program that imports it."""

import subprocess
import sys


def test_importing_the_package_does_not_load_pyplot():
    """pyplot chooses a backend, which is the importing program's choice."""
    code = "import sys, jaxkkt; print('matplotlib.pyplot' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"
