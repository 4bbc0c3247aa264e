# SPDX-License-Identifier: Apache-2.0
"""To import this is to import all that engine_process's processes need, of each vLLM that is here."""
from tests.integration import engine_cache, test_vllm_kv, test_vllm_ranks  # noqa: F401
from tests.integration.engine_sources import SOURCES

for source in SOURCES.values():
    if source.why is None:
        engine_cache.import_ahead(source)
