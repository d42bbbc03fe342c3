"""What is said where Triton, a compiler or headers are missing; needs none of them."""

import subprocess
import sys

import pytest

from jevify.accel.ops import triton_runtime

pytestmark = pytest.mark.cpu


def test_the_package_imports_and_refuses_by_name_without_triton():
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "import torch, jevify.engine, jevify.evidence.kernels\n"
        "from jevify.accel.ops.opset import fused_ops\n"
        "from jevify.errors import SettingError\n"
        "options = dict(device=torch.device('cpu'), dtype=torch.float32, widths=(8,), head_size=8)\n"
        "assert fused_ops((), **options).kernels == ()\n"
        "try: fused_ops(('rope',), **options)\n"
        "except SettingError as error: sys.exit('fused kernel rope: Triton is not installed' not in str(error))\n"
        "sys.exit('it was not refused')"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_compiler_and_headers_that_are_there_are_not_missed(monkeypatch, tmp_path):
    compiler = tmp_path / "own-cc"
    compiler.write_text("#!/bin/sh\n")
    compiler.chmod(0o755)
    (tmp_path / "Python.h").touch()
    monkeypatch.setenv("CC", str(compiler))
    monkeypatch.setattr(triton_runtime.sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    assert triton_runtime.missing_tools() == []
    compiler.unlink()
    (tmp_path / "Python.h").unlink()
    missing = triton_runtime.missing_tools()
    assert missing == [
        f"no C compiler ({compiler}); install gcc",
        f"no Python headers ({tmp_path / 'Python.h'}); install python3-dev",
    ]
