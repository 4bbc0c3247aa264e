# SPDX-License-Identifier: Apache-2.0
"""Sealing from outside: programs that know nothing of glake load one model, and `glakectl seal` shares it.

    python3 tests/gpu/outside.py [--only to,one_thread,...] [--model 8b|large|small] [--processes 3]

The processes run under `glake run`, load by themselves (the loaders of layout.py), and generate. While
each generates, `glakectl seal PID` seals it. Before, meanwhile and behind all have to have the same tokens
and, bit by bit, the same logits. Printed is a row for each loader: what is sealed, how many copies of the
weights there are then (blocks, and what of each process's weights is in none), how long a sealing took,
how long the program's work was held back, and what stays private and why. Numbers are not judged. Exit
1 when a process fails, when the tokens have other bits, or when nothing is shared.
"""
import argparse
import hashlib
import os
import statistics
import subprocess
import sys
import tempfile
import time

import layout
from child import Child, ask_all, serve
from run import Daemon, expect, failures

layout.MODELS["8b"] = dict(layout.MODELS["large"], num_hidden_layers=32)
LOADERS = ("to", "one_thread", "threads", "state_dict", "pickle_mmap")
REASONS = ("small", "unfilled", "rewritten", "pinned", "failed")


class Program(layout.Program):
    def generate(self, n_tokens):
        torch = self.torch
        generator = torch.Generator("cuda").manual_seed(7)
        tokens = torch.randint(0, 32000, (2, 64), device="cuda", generator=generator)
        self.module.eval()
        with torch.no_grad():
            out = self.module.generate(tokens, attention_mask=torch.ones_like(tokens),
                                       max_new_tokens=n_tokens, min_new_tokens=n_tokens,
                                       do_sample=False, pad_token_id=0,
                                       return_dict_in_generate=True, output_logits=True)
        raw = torch.stack(out.logits).cpu().view(torch.uint8).numpy().tobytes()
        return {"tokens": out.sequences[:, 64:].tolist(),
                "digest": hashlib.sha256(raw).hexdigest(),
                "bytes": sum(t.nbytes for t in self.tensors())}


def write(folder, model):
    """Without the pickle, which some loaders want, if it would be large."""
    if model != "8b":
        layout.write(folder, model)
        return
    import torch
    from transformers import LlamaForCausalLM
    torch.manual_seed(1)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        module = LlamaForCausalLM(layout.config_of(model))
    module.save_pretrained(folder, max_shard_size="100GB")


def check(answers, want, what):
    for number, answer in enumerate(answers):
        expect(answer and answer["tokens"] == want["tokens"], f"{what}: {number}: other tokens")
        expect(answer and answer["digest"] == want["digest"], f"{what}: {number}: other logits")


def scenario(loader, folder, options):
    daemon = Daemon()
    children = [
        Child(daemon, f"{loader}, {number}",
              [os.path.abspath(__file__), "--child", loader, "--folder", folder, "--model",
               options.model], environment={"CUBLAS_WORKSPACE_CONFIG": ":4096:8"})
        for number in range(options.processes)]
    before = ask_all(children, "generate", options.tokens)
    want = before[0]
    if not want:
        return
    check(before, want, f"{loader}: before")
    reports = []
    for child in children:
        child.tell("generate", options.tokens)
        # It generates by now.
        time.sleep(0.3)
        answer = daemon.ctl("seal", str(child.process.pid))
        expect("sessions" in answer, f"{loader}: {answer}")
        check([child.hear("generate")], want, f"{loader}: meanwhile")
        reports += answer.get("sessions", [])
    check(ask_all(children, "generate", options.tokens), want, f"{loader}: behind")
    blocks = daemon.device()["used_block_bytes"]
    private = sum(max(0, want["bytes"] - report["sealed_bytes"]) for report in reports)
    expect(any(report["shared_bytes"] for report in reports), f"{loader}: nothing is shared")
    print(f"| {loader} | {statistics.median(r['sealed_bytes'] for r in reports) / want['bytes']:.2%} "
          f"| {(blocks + private) / want['bytes']:.4f} "
          f"| {' '.join(format(r['took_ns'] / 1e6, '.0f') for r in reports)} "
          f"| {' '.join(format(r['held_ns'] / 1e6, '.1f') for r in reports)}; "
          f"{max(r['longest_held_ns'] for r in reports) / 1e6:.1f} | "
          + ", ".join(f"{reason} {reports[-1][reason + '_bytes'] >> 20}" for reason in REASONS)
          + f" {reports[-1]['why']} |", flush=True)
    for child in children:
        child.end()
    daemon.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="to,one_thread,threads")
    parser.add_argument("--model", default="8b", choices=layout.MODELS)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--folder", default=os.path.join(tempfile.gettempdir(), "glake-outside"))
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--child", choices=LOADERS)
    options = parser.parse_args()
    if options.child:
        serve(Program(options.folder, options.model, options.child))
    folder = os.path.join(options.folder, options.model)
    if options.write:
        write(folder, options.model)
        return
    if not os.path.exists(os.path.join(folder, "model.safetensors")):
        subprocess.run([sys.executable, os.path.abspath(__file__), "--write", "--model",
                        options.model, "--folder", options.folder], check=True)
    print("| loader | sealed | copies | took, ms | held, ms; at most at a time | private, MiB |\n"
          "|---|---|---|---|---|---|", flush=True)
    for loader in options.only.split(","):
        try:
            scenario(loader, folder, options)
        except Exception as error:
            expect(False, f"{loader}: {type(error).__name__}: {error}")
    print("OK" if not failures else f"{len(failures)} FAILED")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
