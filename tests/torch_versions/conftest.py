"""Tests on every supported PyTorch. They need environments that only `make test-torch-versions`
installs (about 2 GB), so `make test` does not collect them."""

from __future__ import annotations

import os

from tests.e2e.conftest import script_home

__all__ = ["script_home"]

if "TORCH_VERSIONS" not in os.environ:
    collect_ignore_glob = ["test_*.py"]
