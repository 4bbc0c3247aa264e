# SPDX-License-Identifier: Apache-2.0
"""PyTorch's memory snapshots as traces for `glake replay`.

    torch.cuda.memory._record_memory_history(context=None)
    ...                                           # the program
    torch.cuda.memory._dump_snapshot("snapshot.pickle")

    python -m glake.trace snapshot.pickle > snapshot.trace
    glake replay snapshot.trace

Memory that the history does not see allocated, because it is older, lives from the beginning of the trace.
A free is where PyTorch could use the memory again: behind the streams of record_stream().
"""
from __future__ import annotations

import argparse
import pickle
import sys
from typing import Any, BinaryIO, Dict, Iterator, List, Optional, Tuple

Event = Dict[str, Any]
Block = Tuple[int, int]  # bytes, stream


class _Plain(pickle.Unpickler):
    """A snapshot has no objects of classes; a pickle that does could run any code."""

    def find_class(self, module: str, name: str) -> Any:
        raise ValueError(f"not a memory snapshot: it has a {module}.{name}")


def load(file: BinaryIO) -> Dict[str, Any]:
    """A snapshot of a file; ValueError: it is none."""
    snapshot = _Plain(file).load()
    if not isinstance(snapshot, dict) or "device_traces" not in snapshot:
        raise ValueError("not a memory snapshot of torch.cuda.memory._dump_snapshot()")
    return snapshot


def _only_device(snapshot: Dict[str, Any]) -> int:
    devices = [i for i, history in enumerate(snapshot["device_traces"]) if history]
    if len(devices) != 1:
        raise ValueError(f"the history is of {len(devices)} devices: choose one with --device"
                         if devices else "no history: was _record_memory_history() called?")
    return devices[0]


def _completed(history: List[Event]) -> Iterator[Event]:
    """Allocations and frees only, each free once: when it was completed, or else requested."""
    requested: Dict[int, Event] = {}
    for event in history:
        if event["action"] == "free_requested":
            requested[event["addr"]] = event
        elif event["action"] in ("alloc", "free_completed"):
            requested.pop(event["addr"], None)
            yield event
    yield from requested.values()


def _older(snapshot: Dict[str, Any], device: int, events: List[Event]) -> Dict[int, Block]:
    """What was allocated before the history began, by address."""
    older: Dict[int, Block] = {}
    seen = set()
    for event in events:
        if event["action"] != "alloc" and event["addr"] not in seen:
            older[event["addr"]] = (event["size"], event["stream"])
        seen.add(event["addr"])
    for segment in snapshot.get("segments", ()):
        if segment.get("device", device) != device:
            continue
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"].startswith("active") and address not in seen:
                older[address] = (block.get("requested_size", block["size"]), segment["stream"])
            address += block["size"]
    return older


def lines(snapshot: Dict[str, Any], device: Optional[int] = None) -> Iterator[str]:
    """The trace of one device."""
    if device is None:
        device = _only_device(snapshot)
    events = list(_completed(snapshot["device_traces"][device]))
    live = _older(snapshot, device, events)
    for address, (n_bytes, stream) in live.items():
        yield f"a {address:#x} {max(n_bytes, 1)} {stream}"
    for event in events:
        address, stream = event["addr"], event["stream"]
        # The history may have lost its middle.
        if address in live:
            del live[address]
            yield f"f {address:#x} {stream}"
        if event["action"] == "alloc":
            live[address] = (event["size"], stream)
            yield f"a {address:#x} {max(event['size'], 1)} {stream}"


def main(arguments: Optional[List[str]] = None) -> int:
    """The command line. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m glake.trace",
                                     description="Write a PyTorch memory snapshot as a trace.")
    parser.add_argument("--device", type=int, help="default: the only one with a history")
    parser.add_argument("snapshot", help="of torch.cuda.memory._dump_snapshot()")
    options = parser.parse_args(arguments)
    try:
        with open(options.snapshot, "rb") as file:
            for line in lines(load(file), options.device):
                print(line)
    except OSError as error:
        cause = error.strerror
    except ValueError as error:
        cause = str(error)
    except (LookupError, TypeError, EOFError, pickle.UnpicklingError) as error:
        cause = f"not a memory snapshot: {error!r}"
    else:
        return 0
    print(f"glake.trace: {options.snapshot}: {cause}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
