# SPDX-License-Identifier: Apache-2.0
"""Programs with and without the shim: how fast they start and run.

    python3 tests/gpu/shim_speed.py [--only start,generate,lora] [--out FILE.json]

    start     python -c "import torch; torch.zeros(1).cuda()", from exec to exit, and the parts of it
    generate  tokens a second of transformers' generate, a Llama of 1.1 B parameters, random weights
    lora      time of a training step of peft's adapters on it, with gradient checkpointing

Three ways: `driver`, `shim`, and `again`, which is the driver once more: what it differs by from
the driver is what this measurement makes of nothing; for `generate` also `sealed`, under the shim
with all weights sealed. A set is a process of each way. In a turn of a
set each process does its work once, one after the other, in a changing order, so that a drift of the
machine is nobody's; `generate`, which takes the CPU's time, on one and the same processor. Of
`start`, each set has one turn. Processes of one way differ among themselves by more than their turns
do, so there are several sets. Printed is the median over sets of the median over turns of what a way
differs by from the driver; its bounds, with 95 %, are found by drawing sets, then turns of them.
Numbers are not judged. Exit 1 when a process fails.

    python3 tests/gpu/shim_speed.py --measure NAME    a turn for each line of the input
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
WAYS = ("driver", "again", "shim", "sealed")
START_SETS = 12
WAYS_OF = {"generate": WAYS, "lora": WAYS[:3]}
SETS = {"generate": 6, "lora": 2}
TURNS = {"generate": 30, "lora": 20}
ON_ONE_PROCESSOR = ("generate",)
BATCH = 4
# A step that the GPU takes longer for than the CPU: its time says what the memory is like.
LORA_BATCH = 16
PROMPT_TOKENS = 64
NEW_TOKENS = 8
LORA_LENGTHS = (512, 768)
N_RESAMPLES = 2000
SHOWN_AS = {"start": ("ms", "[+30 ms at most]"), "generate": ("tokens/s", "[x 0.995 at least]"),
            "lora": ("ms/step", "[x 1.005 at most]")}

# ---- in the measuring process -------------------------------------------------------------------


def llama(layers=22):
    """TinyLlama-1.1B's shapes."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(1)
    config = LlamaConfig(vocab_size=32000, hidden_size=2048, intermediate_size=5632,
                         num_hidden_layers=layers, num_attention_heads=32, num_key_value_heads=4,
                         max_position_embeddings=2048, eos_token_id=None)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    return torch, model


def generate(is_sealed):
    """A function that returns tokens a second."""
    torch, model = llama()
    model.eval()
    if is_sealed:
        import glake.torch
        assert glake.torch.seal(model).sealed_bytes
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


def lora(_):
    """A function that returns the milliseconds of a step, over steps of all lengths."""
    torch, model = llama()
    from peft import LoraConfig, get_peft_model
    model.config.use_cache = False
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.enable_input_require_grads()
    model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, task_type="CAUSAL_LM",
                                             target_modules=["q_proj", "k_proj", "v_proj", "o_proj"]))
    model.train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)

    def step(length):
        tokens = torch.randint(0, 32000, (LORA_BATCH, length), device="cuda")
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    def run():
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for length in LORA_LENGTHS:
            step(length)
        torch.cuda.synchronize()
        return (time.perf_counter() - begin) * 1e3 / len(LORA_LENGTHS)
    return run


def measure_here(name, is_sealed):
    run = {"generate": generate, "lora": lora}[name](is_sealed)
    run()
    if name in ON_ONE_PROCESSOR:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    for _ in sys.stdin:
        print(json.dumps(run()), flush=True)


# ---- in the parent ------------------------------------------------------------------------------

class Measuring:
    """A process that does its work when it is asked."""

    def __init__(self, name, prefix, environment, *more):
        self.process = subprocess.Popen(
            [*prefix, sys.executable, os.path.abspath(__file__), "--measure", name, *more],
            # Else Python's sets have another order in each process.
            env={**environment, "PYTHONHASHSEED": "0"},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def begin(self):
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def value(self):
        return json.loads(self.process.stdout.readline())

    def end(self):
        self.process.stdin.close()
        if self.process.wait(timeout=60) != 0:
            sys.exit(f"a measuring process ended with {self.process.returncode}")


def shuffled(values):
    return random.sample(list(values), len(values))


START_PROGRAM = """import time; at = [time.time()]
import torch; at.append(time.time())
torch.zeros(1).cuda(); at.append(time.time())
print(at)"""
START_PARTS = ("exec", "import", "first tensor", "exit")


def time_start(prefix, environment):
    """The milliseconds of its parts."""
    begin = time.time()
    out = subprocess.run([*prefix, sys.executable, "-c", START_PROGRAM], env=environment, check=True,
                         stdout=subprocess.PIPE, text=True).stdout
    at = [begin, *json.loads(out), time.time()]
    return [(after - before) * 1e3 for before, after in itertools.pairwise(at)]


def run_starts(ways):
    """By part: sets of turns."""
    # What all need from the disk is there from the first one on.
    time_start(*ways["driver"])
    sets = [{way: time_start(*ways[way]) for way in shuffled(WAYS[:3])} for _ in range(START_SETS)]
    whole = [{way: sum(times) for way, times in turn.items()} for turn in sets]
    return {"start": [[turn] for turn in whole],
            **{part: [[{way: times[i] for way, times in turn.items()}] for turn in sets]
               for i, part in enumerate(START_PARTS)}}


def take_turn(processes):
    """The values by way."""
    values = {}
    for way in shuffled(processes):
        processes[way].begin()
        values[way] = processes[way].value()
    return values


def run_turns(name, ways):
    """Sets of turns."""
    sets = [{way: Measuring(name, *ways[way]) for way in WAYS_OF[name]} for _ in range(SETS[name])]
    for processes in sets:
        take_turn(processes)
    turns = [[] for _ in sets]
    for _ in range(TURNS[name]):
        for processes, values in zip(sets, turns):
            values.append(take_turn(processes))
    for processes in sets:
        for process in processes.values():
            process.end()
    return turns


def median_of_medians(sets):
    return statistics.median(statistics.median(values) for values in sets)


def draw(drawing, sets):
    return [drawing.choices(values, k=len(values)) for values in drawing.choices(sets, k=len(sets))]


def compare(sets):
    """What the ways are, and between what bounds they differ from the driver."""
    drawing = random.Random(1)
    result = {"sets": sets, "difference": {},
              "driver": median_of_medians([[turn["driver"] for turn in turns] for turns in sets])}
    for way in WAYS[1:]:
        if way not in sets[0][0]:
            continue
        differences = [[turn[way] - turn["driver"] for turn in turns] for turns in sets]
        drawn = sorted(median_of_medians(draw(drawing, differences)) for _ in range(N_RESAMPLES))
        result["difference"][way] = [drawn[N_RESAMPLES // 40], median_of_medians(differences),
                                     drawn[-N_RESAMPLES // 40]]
    return result


def show(name, unit, target, result):
    driver = result["driver"]
    print(f"{name:12} driver {driver:.2f} {unit}, {len(result['sets'])} sets, "
          f"{sum(map(len, result['sets']))} turns  {target}")
    for way, (low, middle, high) in result["difference"].items():
        print(f"{'':12} {way:6} {middle:+8.2f} ({low:+.2f} .. {high:+.2f})  "
              f"x {1 + middle / driver:.4f} ({1 + low / driver:.4f} .. {1 + high / driver:.4f})",
              flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--measure")
    parser.add_argument("--sealed", action="store_true")
    parser.add_argument("--only", default="start,generate,lora")
    parser.add_argument("--out")
    arguments = parser.parse_args()
    if arguments.measure:
        measure_here(arguments.measure, arguments.sealed)
        return
    sys.path.insert(0, HERE)
    from run import ROOT, Daemon
    daemon = Daemon()
    plain = ([], dict(os.environ))
    shim = ([os.path.join(ROOT, "bin", "glake"), "run", "--socket", daemon.socket, "--"],
            daemon.environment)
    ways = {"driver": plain, "again": plain, "shim": shim, "sealed": (*shim, "--sealed")}
    chosen = arguments.only.split(",")
    results = {}
    if "start" in chosen:
        results.update((part, compare(values)) for part, values in run_starts(ways).items())
    for name in ("generate", "lora"):
        if name in chosen:
            results[name] = compare(run_turns(name, ways))
    daemon.stop()
    print()
    for name, result in results.items():
        unit, target = SHOWN_AS.get(name, ("ms", ""))
        show(name, unit, target, result)
    if arguments.out:
        with open(arguments.out, "w", encoding="ascii") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
