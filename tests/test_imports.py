"""What `import jaxkkt` must not do to the program that imports it."""

import subprocess
import sys


def test_importing_the_package_does_not_load_pyplot():
    """pyplot chooses a backend, which is the importing program's choice."""
    code = "import sys, jaxkkt; print('matplotlib.pyplot' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"


def test_importing_the_package_leaves_its_objects_to_the_oldest_generation():
    """Else the collector goes through them while they are made, and once more at the next few."""
    code = """
import gc
collections = []
gc.callbacks.append(lambda phase, info: collections.append(info["generation"]))
import jaxkkt.garbage
young = {id(one) for generation in (0, 1) for one in gc.get_objects(generation)}
assert gc.isenabled() and len(collections) < 30 and 2 not in collections, collections
assert id(jaxkkt.__dict__) not in young and len(young) < 1000, len(young)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
