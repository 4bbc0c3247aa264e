# SPDX-License-Identifier: Apache-2.0
"""A model server as far as memory goes: open a model, say how long it took, hold it.

    python3 server.py FILE    prints one JSON line, ends when stdin does
"""
import json
import sys
import time

import glake


def main():
    session = glake.connect()
    start = time.perf_counter()
    model = glake.Model(sys.argv[1], session=session)
    milliseconds = (time.perf_counter() - start) * 1e3
    print(json.dumps({"ms": round(milliseconds, 3), "tensors": len(model.keys())}), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
