# SPDX-License-Identifier: Apache-2.0
"""Programs with and without the shim: how fast they start and run.

    python3 tests/gpu/shim_speed.py [--only start,generate,lora] [--pairs 2] [--out FILE.json]

    start     python -c "import torch; torch.zeros(1).cuda()", from exec to exit
    generate  tokens a second of transformers' generate, a Llama of 1.1 B parameters, random weights
    lora      time of a training step of peft's adapters on it, with gradient checkpointing

Two processes, one without the shim and one with it, are there together and take turns: a round of
the one, a round of the other, so that a drift of the machine is nobody's. Rounds are short, and
many: what other tenants of a machine do to one changes within seconds. Who begins changes. Of
`start`, each round is a process of its own. Printed are the medians over rounds, and between which
bounds the median of what two neighbours differ by lies, with 95 %. Numbers are not judged. Exit 1 when a process fails.

    python3 tests/gpu/shim_speed.py --measure NAME    a round for each line of the input
"""
import argparse
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
START_ROUNDS = 11
ROUNDS = {"generate": 60, "lora": 20}
BATCH = 4
# A step that the GPU takes longer for than the CPU: its time says what the memory is like.
LORA_BATCH = 16
PROMPT_TOKENS = 64
NEW_TOKENS = 16
LORA_LENGTHS = (512, 768)
N_RESAMPLES = 2000
WAYS = ("driver", "shim")

# ---- in the measuring process -------------------------------------------------------------------


def llama():
    """TinyLlama-1.1B's shapes."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(1)
    config = LlamaConfig(vocab_size=32000, hidden_size=2048, intermediate_size=5632,
                         num_hidden_layers=22, num_attention_heads=32, num_key_value_heads=4,
                         max_position_embeddings=2048, eos_token_id=None)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    return torch, model


def generate():
    """A function that returns tokens a second."""
    torch, model = llama()
    model.eval()
    prompt = torch.randint(0, 32000, (BATCH, PROMPT_TOKENS), device="cuda")

    def run():
        torch.cuda.synchronize()
        begin = time.perf_counter()
        out = model.generate(prompt, max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS,
                             do_sample=False, pad_token_id=0)
        torch.cuda.synchronize()
        assert out.shape == (BATCH, PROMPT_TOKENS + NEW_TOKENS)
        return BATCH * NEW_TOKENS / (time.perf_counter() - begin)
    return run


def lora():
    """A function that returns the milliseconds of a step; the next one has another length."""
    torch, model = llama()
    from peft import LoraConfig, get_peft_model
    model.config.use_cache = False
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.enable_input_require_grads()
    model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, task_type="CAUSAL_LM",
                                             target_modules=["q_proj", "k_proj", "v_proj", "o_proj"]))
    model.train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)

    lengths = itertools.cycle(LORA_LENGTHS)

    def run():
        tokens = torch.randint(0, 32000, (LORA_BATCH, next(lengths)), device="cuda")
        torch.cuda.synchronize()
        begin = time.perf_counter()
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        return (time.perf_counter() - begin) * 1e3
    return run


def measure_here(name):
    run = {"generate": generate, "lora": lora}[name]()
    for _ in LORA_LENGTHS:
        run()
    for _ in sys.stdin:
        print(json.dumps(run()), flush=True)


# ---- in the parent ------------------------------------------------------------------------------

class Measuring:
    """A process that does a round when it is asked."""

    def __init__(self, name, prefix, environment):
        self.process = subprocess.Popen(
            [*prefix, sys.executable, os.path.abspath(__file__), "--measure", name],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def round(self):
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def end(self):
        self.process.stdin.close()
        if self.process.wait(timeout=60) != 0:
            sys.exit(f"a measuring process ended with {self.process.returncode}")


def take_turns(rounds, n_rounds):
    """Pairs of what the two functions return, by way; who begins changes."""
    values = {way: [] for way in WAYS}
    for number in range(n_rounds):
        for way in WAYS if number % 2 == 0 else reversed(WAYS):
            values[way].append(rounds[way]())
    return values


def time_start(prefix, environment):
    begin = time.perf_counter()
    subprocess.run([*prefix, sys.executable, "-c", "import torch; torch.zeros(1).cuda()"],
                   env=environment, check=True)
    return (time.perf_counter() - begin) * 1e3


def starts(ways):
    rounds = {way: lambda way=way: time_start(*ways[way]) for way in WAYS}
    # What both need from the disk is there from the first one on.
    take_turns(rounds, 1)
    return take_turns(rounds, START_ROUNDS)


def run_pairs(name, ways, n_pairs):
    values = {way: [] for way in WAYS}
    for _ in range(n_pairs):
        processes = {way: Measuring(name, *ways[way]) for way in WAYS}
        # One that was idle for long, or has just started, is slower.
        take_turns({way: processes[way].round for way in WAYS}, 1)
        got = take_turns({way: processes[way].round for way in WAYS}, ROUNDS[name])
        for way in WAYS:
            values[way] += got[way]
            processes[way].end()
    return values


def bounds(values):
    """The median, between what it lies with 95 %: by drawing from the values again and again."""
    drawing = random.Random(1)
    medians = sorted(statistics.median(drawing.choices(values, k=len(values)))
                     for _ in range(N_RESAMPLES))
    return [medians[N_RESAMPLES // 40], statistics.median(values), medians[-N_RESAMPLES // 40]]


def compare(values):
    pairs = list(zip(values["driver"], values["shim"]))
    return {**values,
            "driver_median": statistics.median(values["driver"]),
            "shim_median": statistics.median(values["shim"]),
            "difference": bounds([shim - driver for driver, shim in pairs]),
            "ratio": bounds([shim / driver for driver, shim in pairs])}


def show(name, unit, target, result):
    low, middle, high = result["difference"]
    print(f"{name:9} {unit:9} driver {result['driver_median']:9.2f}  shim "
          f"{result['shim_median']:9.2f}  difference {middle:+.2f} ({low:+.2f} .. {high:+.2f})  "
          "ratio {1:.4f} ({0:.4f} .. {2:.4f})".format(*result["ratio"]) +
          f"  {len(result['shim'])} rounds  [{target}]", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--measure")
    parser.add_argument("--only", default="start,generate,lora")
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("--out")
    arguments = parser.parse_args()
    if arguments.measure:
        measure_here(arguments.measure)
        return
    sys.path.insert(0, HERE)
    from run import ROOT, Daemon
    daemon = Daemon()
    ways = {"driver": ([], dict(os.environ)),
            "shim": ([os.path.join(ROOT, "bin", "glake"), "run", "--socket", daemon.socket, "--"],
                     daemon.environment)}
    chosen = arguments.only.split(",")
    results = {}
    if "start" in chosen:
        results["start"] = compare(starts(ways))
    for name in ("generate", "lora"):
        if name in chosen:
            results[name] = compare(run_pairs(name, ways, arguments.pairs))
    daemon.stop()
    print()
    for name, unit, target in (("start", "ms", "+30 ms at most"),
                               ("generate", "tokens/s", "x 0.995 at least"),
                               ("lora", "ms/step", "x 1.005 at most")):
        if name in results:
            show(name, unit, target, results[name])
    if arguments.out:
        with open(arguments.out, "w", encoding="ascii") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
