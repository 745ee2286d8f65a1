"""The blocks of docs/tutorial.md are one program that runs."""

import importlib.util
import pathlib
import re
import subprocess
import sys

TUTORIAL = pathlib.Path(__file__).parents[3] / "docs/tutorial.md"


def test_every_block_of_the_tutorial_runs():
    has_torch = importlib.util.find_spec("torch") is not None
    blocks = re.findall(r"^```python( torch)?\n(.*?)^```$", TUTORIAL.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) > 8
    program = "\n".join(code for of_torch, code in blocks if has_torch or not of_torch)
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "rank 3 of 4, runtime host" in result.stdout and "tensor is not contiguous" in result.stdout
    # Any rank that lost rank 2 may be the first to say so, and does not have to: the exception of rank 2 is raised first.
    assert "the program ends with ZeroDivisionError" in result.stdout or "rank (2,) is lost" in result.stdout, result.stdout
