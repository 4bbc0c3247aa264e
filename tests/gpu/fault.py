# SPDX-License-Identifier: Apache-2.0
"""A PyTorch program writes to sealed weights by a kernel: who is told what.

    python3 tests/gpu/fault.py [--layers 4]

Starts its own glaked. One process keeps sealed weights all the time. Beside it, one process after the other seals
equal ones, computes with them, and changes one in place: the kernel faults, the program ends with PyTorch's
exception, and `glakectl events` names the kernel and the weight. The first process computes the same bits after each.
At last one unseals first, and nothing happens. Prints what each launch of a small kernel costs before and after
sealing. The last line is one JSON object; exit 1 when something is wrong.

    python3 tests/gpu/fault.py --child OPERATION      one of the processes
"""
import argparse
import hashlib
import json
import os
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
WIDTH = 4096
PATIENCE_SECONDS = 300
# What to do, and a part of the kernel's name.
OPERATIONS = {
    "add": "elementwise",
    "mul": "elementwise",
    "view": "elementwise",      # of a part of the weight
    "foreach": "multi_tensor",  # its pointers are in one large parameter
    "index": "index",
}


# ---- a process ----------------------------------------------------------------------------------

def build(layers):
    import torch
    generator = torch.Generator("cuda").manual_seed(7)
    module = torch.nn.Sequential()
    for _ in range(layers):
        module.append(torch.nn.Linear(WIDTH, WIDTH, device="cuda", dtype=torch.bfloat16))
        module.append(torch.nn.RMSNorm(WIDTH, device="cuda", dtype=torch.bfloat16))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, device="cuda",
                                        dtype=torch.bfloat16) * 0.02)
    return module.requires_grad_(False)


def compute(module):
    import torch
    x = torch.ones(16, WIDTH, device="cuda", dtype=torch.bfloat16)
    y = module(x)
    # Kernels that read weights, in many ways.
    for parameter in module.parameters():
        y = y + parameter.float().mean().bfloat16() + parameter[..., :8].contiguous().sum()
    return hashlib.sha256(y.view(torch.uint8).cpu().numpy().tobytes()).hexdigest()[:16]


def change(module, operation):
    import torch
    weight = module[2].weight
    if operation in ("add", "unsealed"):
        weight.add_(1)
    elif operation == "mul":
        weight.mul_(2)
    elif operation == "view":
        weight[7:9].mul_(2)
    elif operation == "foreach":
        torch._foreach_add_([weight], 1)
    elif operation == "index":
        weight.index_fill_(0, torch.tensor([3], device="cuda"), 1)
    torch.cuda.synchronize()


def launch_us(module):
    """Of a small kernel, best of many."""
    import torch
    bias = module[1].weight
    best = float("inf")
    for _ in range(30):
        begin = time.perf_counter()
        for _ in range(200):
            bias + bias
        best = min(best, time.perf_counter() - begin)
        torch.cuda.synchronize()
    return best / 200 * 1e6


def be_child(options):
    import torch
    import glake.torch
    with torch.no_grad():
        module = build(options.layers)
        before = launch_us(module)
        digest = compute(module)
        sealed = glake.torch.seal(module)
        again = compute(module)
        after = launch_us(module)
        weight = module[2].weight
        print(json.dumps({"digest": digest, "same": again == digest,
                          "sealed": sealed.sealed_bytes, "ptr": weight.data_ptr(),
                          "bytes": weight.nbytes, "us": [round(before, 3), round(after, 3)]}),
              flush=True)
        for line in sys.stdin:
            if options.child == "keep":
                print(json.dumps({"digest": compute(module)}), flush=True)
                continue
            if options.child == "unsealed":
                glake.torch.unseal(module)
            change(module, options.child)
            print(json.dumps({"changed": True}), flush=True)
            break


# ---- all of them --------------------------------------------------------------------------------

def start(daemon, operation, options):
    from run import ROOT
    return subprocess.Popen(
        [os.path.join(ROOT, "bin", "glake"), "run", "--socket", daemon.socket, "--", sys.executable,
         os.path.abspath(__file__), "--child", operation, "--layers", str(options.layers)],
        env={**daemon.environment, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def faults(daemon):
    return [event for event in daemon.ctl("events")["events"] if event["kind"] == "device_fault"]


def try_operation(daemon, operation, options, expect):
    """What the event says; None: there is none."""
    child = start(daemon, operation, options)
    first = child.stdout.readline()
    expect(first, f"{operation}: no weights:\n{child.stderr.read()[-3000:] if not first else ''}")
    if not first:
        return None
    facts = json.loads(first)
    expect(facts["same"], f"{operation}: sealed weights compute other bits")
    n_before = len(faults(daemon))
    _, errors = child.communicate("\n", timeout=PATIENCE_SECONDS)
    events = faults(daemon)[n_before:]
    facts.update(code=child.returncode, event=events[-1]["text"] if events else None,
                 stderr=[line for line in errors.splitlines() if line.startswith("glake:")])
    expect(len(events) <= 1, f"{operation}: {len(events)} events")
    print(f"# {operation}: {json.dumps(facts, indent=1)}", flush=True)
    if operation == "unsealed":
        expect(child.returncode == 0, f"unsealed weights cannot be changed:\n{errors[-3000:]}")
        expect(not events, f"unsealed: {events}")
        return facts
    expect(child.returncode != 0 and "illegal memory access" in errors,
           f"{operation}: ended with {child.returncode}:\n{errors[-2000:]}")
    expect(events, f"{operation}: no event")
    if events:
        first = events[0]["text"].partition("last: ")[2].partition(", ")[0]
        # The whole name is on stderr only.
        named = (facts["stderr"] + ["", ""])[1]
        expect(OPERATIONS[operation] in named, f"{operation}: the first suspect is {named}")
        expect(first and first.partition(" at 0x")[0] in named, f"{operation}: {first}, {named}")
        at = int(first.partition(" at 0x")[2].split()[0], 16) if " at 0x" in first else 0
        expect(facts["ptr"] <= at < facts["ptr"] + facts["bytes"],
               f"{operation}: {at:#x} is not in the weight at {facts['ptr']:#x}")
    return facts


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--child")
    options = parser.parse_args()
    sys.path.insert(0, HERE)
    if options.child:
        be_child(options)
        return 0
    from run import Daemon, expect, failures
    daemon = Daemon()
    keeper = start(daemon, "keep", options)
    kept = json.loads(keeper.stdout.readline() or "{}")
    expect(kept, f"the first process: {keeper.stderr.read()[-3000:] if not kept else ''}")
    report = {"us": kept.get("us")}
    for operation in [*OPERATIONS, "unsealed"]:
        facts = try_operation(daemon, operation, options, expect)
        report[operation] = facts and {key: facts[key] for key in ("event", "us")}
        keeper.stdin.write("\n")
        keeper.stdin.flush()
        now = json.loads(keeper.stdout.readline() or "{}")
        expect(now.get("digest") == kept.get("digest"), f"other bits after {operation}: {now}")
    keeper.communicate(timeout=PATIENCE_SECONDS)
    expect(keeper.returncode == 0, f"the first process ended with {keeper.returncode}")
    daemon.stop()
    report["failures"] = failures
    print(json.dumps(report), flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
