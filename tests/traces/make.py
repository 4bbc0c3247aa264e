#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make allocation traces for `glake replay` in FOLDER, by the rules below: the same ones each time.

They have the order and the sizes of what PyTorch asks for in six kinds of work, at a reduced depth, so
that each stays small. They are not recordings.

lora        Fine-tuning with adapters and recomputation. The weights stay. A step has 1 to 6 sequences of
            200 to 2600 tokens. Forward keeps the input of each layer; backward makes a layer's
            intermediate results again, and drops them from the last to the first.
generate    Answers of a language model, 1 to 32 sequences with prompts of 64 to 2500 tokens. Each token makes
            the keys and values of each layer anew, one token longer, before the old ones go.
unet        Training of a convolution net, 1 to 8 images with sides of 48 to 200. Each convolution has a
            workspace. Results of the way down are kept for the way up, and all for backward.
moe         Training of a mixture of experts. A batch has a fixed number of tokens, but each expert gets what
            the router gives it: sizes that nobody knows before, and that never come again.
pipeline    One stage of a pipeline of four, with two parts of the model (interleaved), 2 to 8 microbatches at a
            time, each of its own length. Inputs come on a stream of their own. Forward and backward of different
            microbatches alternate.
twins       Training of one model from two streams, half a step apart: while one makes a layer's results, the
            other goes back through one and drops them. Gradients are added up on a stream of their own.

Usage: tests/traces/make.py FOLDER
"""

import os
import random
import sys

HALF, FLOAT = 2, 4


class Trace:
    def __init__(self, name, about):
        self.name = name
        self.lines = [f"# {about} Made by make.py."]
        self.unused, self.n_ids = [], 0
        self.random = random.Random(name)

    def between(self, low, high):
        """Not randint(): only random() is the same in all versions of Python."""
        return low + int(self.random.random() * (high - low + 1))

    def alloc(self, n_bytes, stream=0):
        if not self.unused:
            self.unused.append(self.n_ids)
            self.n_ids += 1
        buffer = (self.unused.pop(), stream)
        self.lines.append(f"a {buffer[0]} {n_bytes} {stream}")
        return buffer

    def free(self, *buffers):
        for number, stream in buffers:
            self.lines.append(f"f {number} {stream}")
            self.unused.append(number)


def lora():
    trace = Trace("lora", "LoRA with recomputation, sequences of changing length.")
    n_layers, width, inner, vocabulary, n_heads, rank = 4, 2048, 5632, 8000, 16, 16
    for _ in range(n_layers):
        for n in (width * width,) * 4 + (width * inner,) * 3:
            trace.alloc(n * HALF)
        for _ in range(2):
            trace.alloc(width * rank * HALF), trace.alloc(width * rank * HALF)
    trace.alloc(vocabulary * width * HALF)
    states = []
    for step in range(14):
        n_sequences, n_tokens = trace.between(1, 6), trace.between(200, 2600)
        n = n_sequences * n_tokens
        row = n * width * HALF
        kept = [trace.alloc(n * 8), trace.alloc(row)]
        for _ in range(n_layers):  # forward
            norm, q, k, v = (trace.alloc(row) for _ in range(4))
            low = trace.alloc(n * rank * HALF)
            sums = trace.alloc(n * n_heads * FLOAT)
            attention = trace.alloc(row)
            trace.free(norm, low, q, k, v, sums)
            gate, up = (trace.alloc(n * inner * HALF) for _ in range(2))
            product = trace.alloc(n * inner * HALF)
            trace.free(gate, up, attention)
            kept.append(trace.alloc(row))
            trace.free(product)
        logits = trace.alloc(n * vocabulary * HALF)
        losses = trace.alloc(n * vocabulary * FLOAT)
        trace.free(logits)
        gradient_of_logits = trace.alloc(n * vocabulary * FLOAT)
        trace.free(losses)
        gradient = trace.alloc(row)
        trace.free(gradient_of_logits)
        gradients = []
        for _ in range(n_layers):  # backward
            again = [trace.alloc(row) for _ in range(4)]
            again += [trace.alloc(n * rank * HALF), trace.alloc(n * n_heads * FLOAT)]
            again += [trace.alloc(row), trace.alloc(row)]
            again += [trace.alloc(n * inner * HALF) for _ in range(3)]
            while again:
                size = n * inner * HALF if len(again) > 8 else row
                next_gradient = trace.alloc(size)
                trace.free(again.pop(), gradient)
                gradient = next_gradient
                if len(again) in (1, 3):
                    gradients += [trace.alloc(width * rank * HALF) for _ in range(2)]
            trace.free(kept.pop())
        trace.free(gradient, *kept)
        if step == 0:
            states = [trace.alloc(width * rank * FLOAT) for _ in range(2 * len(gradients))]
        trace.free(*gradients)
    trace.free(*states)
    return trace


def generate():
    trace = Trace("generate", "Answers with a growing cache of keys and values.")
    n_layers, width, inner, vocabulary = 4, 3072, 8192, 32000
    for _ in range(n_layers):
        for n in (width * width,) * 4 + (width * inner,) * 3:
            trace.alloc(n * HALF)
    trace.alloc(vocabulary * width * HALF)
    for _ in range(14):
        n_sequences, n_prompt = trace.between(1, 32), trace.between(64, 2500)
        caches = []
        for n_new in [n_prompt] + [1] * trace.between(3, 7):
            n = n_sequences * n_new
            old, caches = caches, []
            n_prompt += len(old) > 0
            hidden = trace.alloc(n * width * HALF)
            for i in range(n_layers):
                q, k, v = (trace.alloc(n * width * HALF) for _ in range(3))
                if old:
                    caches.append([trace.alloc(n_sequences * n_prompt * width * HALF) for _ in range(2)])
                    trace.free(*old[i], k, v)
                else:
                    caches.append([k, v])
                gate = trace.alloc(n * inner * HALF)
                trace.free(q, hidden)
                hidden = trace.alloc(n * width * HALF)
                trace.free(gate)
            logits = trace.alloc(n_sequences * vocabulary * FLOAT)
            trace.free(hidden, logits)
        for cache in caches:
            trace.free(*cache)
    return trace


def unet():
    trace = Trace("unet", "A convolution net on images of changing size.")
    channels = (64, 128, 256)
    for c in channels:
        for _ in range(4):
            trace.alloc(9 * c * c * FLOAT), trace.alloc(c * FLOAT)
    for _ in range(20):
        n_images, side = trace.between(1, 8), trace.between(48, 200)
        kept, skips = [], []

        def convolve(c, s):
            size = n_images * c * s * s * FLOAT
            workspace = trace.alloc(size * trace.between(1, 9) // 4 + 512)
            result = trace.alloc(size)
            trace.free(workspace)
            normal, sums, active = trace.alloc(size), trace.alloc(2 * c * FLOAT), trace.alloc(size)
            kept.extend([result, normal, sums, active])
            return size

        sizes = []
        for depth, c in enumerate(channels):
            sizes.append(convolve(c, side >> depth))
            sizes.append(convolve(c, side >> depth))
            skips.append(sizes[-1])
            kept.append(trace.alloc(max(skips[-1] // 4, 4)))
        for depth in (1, 0):
            kept.append(trace.alloc(2 * skips[depth]))
            sizes.append(convolve(channels[depth], side >> depth))
        gradient = trace.alloc(sizes[-1])
        gradients = []
        while kept:
            size = sizes[min(len(kept) // 4, len(sizes) - 1)]
            workspace = trace.alloc(size * trace.between(1, 6) // 4 + 512)
            next_gradient = trace.alloc(size)
            trace.free(workspace, gradient, kept.pop())
            gradient = next_gradient
            if len(kept) % 4 == 0:
                c = channels[len(kept) // 4 % 3]
                gradients.append(trace.alloc(9 * c * c * FLOAT))
        trace.free(gradient, *gradients)
    return trace


def moe():
    trace = Trace("moe", "A mixture of experts: sizes by routed tokens.")
    n_layers, n_experts, width, inner, n_tokens = 3, 8, 1024, 3584, 8192
    for _ in range(n_layers):
        for n in (width * width,) * 4 + (width * inner,) * 2 * n_experts:
            trace.alloc(n * HALF)
    for _ in range(13):
        row = n_tokens * width * HALF
        kept = []
        for _ in range(n_layers):
            kept.append((trace.alloc(row), row))
            logits = trace.alloc(n_tokens * n_experts * FLOAT)
            kept.append((trace.alloc(2 * n_tokens * 8), 0))
            shares = [trace.random.random() ** 3 + 0.02 for _ in range(n_experts)]
            total = sum(shares)
            outs = []
            for share in shares:
                n = int(2 * n_tokens * share / total)
                if n == 0:
                    continue
                kept.append((trace.alloc(n * width * HALF), n * width * HALF))
                raw = trace.alloc(n * inner * HALF)
                kept.append((trace.alloc(n * inner * HALF), n * inner * HALF))
                trace.free(raw)
                outs.append(trace.alloc(n * width * HALF))
            kept.append((trace.alloc(row), row))
            trace.free(logits, *outs)
        gradient = trace.alloc(row)
        while kept:
            buffer, size = kept.pop()
            if size:
                next_gradient = trace.alloc(size)
                trace.free(gradient)
                gradient = next_gradient
            trace.free(buffer)
        trace.free(gradient)
    return trace


def pipeline():
    trace = Trace("pipeline", "A stage of an interleaved pipeline.")
    n_parts, n_layers, width, inner = 2, 2, 2048, 5632
    compute, receive = 0, 1
    for _ in range(n_parts * n_layers):
        for n in (width * width,) * 4 + (width * inner,) * 2:
            trace.alloc(n * HALF)
    n_ahead = 4
    waiting = []

    def forward():
        n = trace.between(1, 4) * trace.between(256, 2048)
        row, wide = n * width * HALF, n * inner * HALF
        kept = [trace.alloc(row, receive)]
        for _ in range(n_layers):
            kept += [trace.alloc(row, compute) for _ in range(4)]
            scores = trace.alloc(n * 16 * FLOAT, compute)
            kept.append(trace.alloc(wide, compute))
            trace.free(scores)
        waiting.append((row, wide, kept, trace.alloc(row, compute)))

    def backward():
        row, wide, kept, sent = waiting.pop(0)
        gradient = trace.alloc(row, receive)
        trace.free(sent)
        while kept:
            next_gradient = trace.alloc(wide if len(kept) % 5 == 0 else row, compute)
            trace.free(gradient, kept.pop())
            gradient = next_gradient
        trace.free(gradient)

    for _ in range(10):
        n_batches = n_parts * trace.between(2, 8)
        for i in range(n_batches):
            forward()
            if i >= n_ahead:
                backward()
        while waiting:
            backward()
    return trace


def twins():
    trace = Trace("twins", "One model, trained from two streams half a step apart.")
    n_layers, width, inner, vocabulary, n_heads, n = 6, 768, 2048, 8000, 12, 12 * 512
    row, wide, words = n * width * HALF, n * inner * HALF, n * vocabulary
    square, oblong = width * width * HALF, width * inner * HALF
    weights = (square,) * 4 + (oblong,) * 3
    adding = 0
    for _ in range(2 * n_layers):  # weights, gradients
        for size in weights:
            trace.alloc(size)
    kept = {1: [], 2: []}
    n_back = {1: n_layers, 2: n_layers}

    def forward(stream, other):
        """Of a layer: normalised, q, k, v, their rotated ones, attention, sums, out, and so on."""
        x = trace.alloc(row, stream)
        for i in range(n_layers):
            while n_back[other] < i:
                yield False
            layer = [x]
            for size in (row,) * 5 + (n * n_heads * FLOAT, row, row, row, wide, wide, wide):
                passing = trace.alloc(size, stream) if size == row else None
                layer.append(trace.alloc(size, stream))
                yield True
                if passing:
                    trace.free(passing)
            kept[stream].append(layer)
            x = trace.alloc(row, stream)
            yield True
        while n_back[other] < n_layers:
            yield False
        logits = trace.alloc(words * HALF, stream)
        floats = trace.alloc(words * FLOAT, stream)
        losses = trace.alloc(words * FLOAT, stream)
        trace.free(floats)
        kept[stream].append([x, logits, losses])
        yield True

    def backward(stream):
        x, logits, losses = kept[stream].pop()
        floats = trace.alloc(words * FLOAT, stream)
        trace.free(losses)
        halves = trace.alloc(words * HALF, stream)
        trace.free(floats, logits)
        gradient = trace.alloc(row, stream)
        trace.free(halves, x)
        yield True
        while kept[stream]:
            layer = kept[stream].pop()
            for size in (wide, wide, wide, row, row, row, None, row, row, row, row, row, row):
                buffer = layer.pop()
                if size:
                    next_gradient = trace.alloc(size, stream)
                    trace.free(gradient)
                    gradient = next_gradient
                if size and len(layer) in (0, 2, 4, 6, 8, 10, 11):
                    weight = trace.alloc(oblong if size == wide else square, stream)
                    trace.free((weight[0], adding))
                trace.free(buffer)
                yield True
            n_back[stream] += 1
        trace.free(gradient)

    def run(*works):
        """Threads, each as far as it gets in its time."""
        works = list(works)
        while works:
            work = works[trace.between(0, len(works) - 1)]
            for _ in range(trace.between(1, 4)):
                went_on = next(work, None)
                if went_on is None:
                    works.remove(work)
                if not went_on:
                    break

    for _ in range(2):
        run(forward(1, 2))
        for stream, other in ((1, 2), (2, 1), (1, 2)):
            n_back[stream] = 0
            run(backward(stream), forward(other, stream))
        n_back[2] = 0
        run(backward(2))
    return trace


ALL = (lora, generate, unet, moe, pipeline, twins)


def main():
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    for make in ALL:
        trace = make()
        with open(os.path.join(folder, trace.name + ".trace"), "w", encoding="ascii") as file:
            file.write("\n".join(trace.lines) + "\n")


if __name__ == "__main__":
    main()
