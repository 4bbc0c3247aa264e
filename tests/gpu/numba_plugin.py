# SPDX-License-Identifier: Apache-2.0
"""What numba-cuda's tests ask of pytest, whose conftest.py is not in its wheel: `pytest -p numba_plugin`."""
import pytest


@pytest.fixture(scope="class")
def initialize_from_pytest_config(request):
    request.cls._dump_failed_filechecks = False  # pylint: disable=protected-access
