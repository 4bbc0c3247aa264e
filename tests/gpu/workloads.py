# SPDX-License-Identifier: Apache-2.0
"""PyTorch programs whose sizes change at each step: what fragment.py measures allocators with.

A workload is built once and does a step when it is told. It draws its sizes from a generator of its own,
so they are the same with every allocator. A step returns a number of what it computed, on the device.
`tiny` shapes run on a CPU.
"""
import concurrent.futures
import contextlib
import random
import threading

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

LLAMA = dict(layers=16, hidden=2048, mlp=8192, heads=32, vocabulary=32000)
BERT = dict(layers=12, hidden=768, mlp=2048, heads=12, vocabulary=28996)
TINY = dict(layers=2, hidden=64, mlp=128, heads=4, vocabulary=128)
TRAINING_BATCH, TRAINING_TOKENS = (1, 6), (200, 2600)
PROMPTS, PROMPT_TOKENS, NEW_TOKENS = (1, 32), (64, 2500), (4, 12)
IMAGES, SIDES, SIDE_STEP, N_IMAGE_SHAPES = (1, 8), (48, 200), 8, 24
CHANNELS, TINY_CHANNELS = (64, 128, 256, 512), (8, 16)
# A step of two streams: so many batches, half of them each.
N_BATCHES, BATCH, BATCH_TOKENS = 8, 12, 512


# ---- a Llama ------------------------------------------------------------------------------------

class Adapted(nn.Module):
    """A frozen linear layer, and LoRA's two small ones."""

    def __init__(self, n_in, n_out, rank=16):
        super().__init__()
        self.base = nn.Linear(n_in, n_out, bias=False)
        self.narrow = nn.Linear(n_in, rank, bias=False)
        self.widen = nn.Linear(rank, n_out, bias=False)
        nn.init.zeros_(self.widen.weight)

    def forward(self, x):
        return self.base(x) + 2 * self.widen(self.narrow(x))


def plain(n_in, n_out):
    return nn.Linear(n_in, n_out, bias=False)


def rotate(x, cos, sin):
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Layer(nn.Module):
    def __init__(self, shape, linear):
        super().__init__()
        hidden, mlp = shape["hidden"], shape["mlp"]
        self.heads = shape["heads"]
        self.before, self.between = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        self.query, self.key, self.value, self.out = (linear(hidden, hidden) for _ in range(4))
        self.gate, self.up, self.down = plain(hidden, mlp), plain(hidden, mlp), plain(mlp, hidden)

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x, cos, sin):
        y = self.before(x)
        query, key = (rotate(self.split(part(y)), cos, sin) for part in (self.query, self.key))
        y = F.scaled_dot_product_attention(query, key, self.split(self.value(y)), is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        y = self.between(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, shape, linear=plain, recomputes=True):
        super().__init__()
        self.embedding = nn.Embedding(shape["vocabulary"], shape["hidden"])
        self.layers = nn.ModuleList(Layer(shape, linear) for _ in range(shape["layers"]))
        self.norm = nn.RMSNorm(shape["hidden"])
        self.head = plain(shape["hidden"], shape["vocabulary"])
        self.head_size = shape["hidden"] // shape["heads"]
        self.recomputes = recomputes

    def forward(self, tokens, before=lambda number, x: None):
        """The loss of each token's next one. @before is called before each layer and behind the last."""
        x = self.embedding(tokens)
        place = torch.arange(tokens.shape[1], device=x.device)
        part = torch.arange(0, self.head_size, 2, device=x.device) / self.head_size
        angle = torch.outer(place, 10000.0 ** -part).repeat(1, 2)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        for i, layer in enumerate(self.layers):
            before(i, x)
            x = (checkpoint(layer, x, cos, sin, use_reentrant=False) if self.recomputes
                 else layer(x, cos, sin))
        before(len(self.layers), x)
        logits = self.head(self.norm(x))[:, :-1].float()
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def value_of(loss):
    """No view: as long as that lives, so does the step's graph, with tensors of it."""
    return loss.detach().clone()


@contextlib.contextmanager
def made_on(device, dtype=torch.bfloat16):
    """For what is made within."""
    torch.manual_seed(1)
    torch.set_default_dtype(dtype)
    with torch.device(device):
        yield
    torch.set_default_dtype(torch.float32)


class Training:
    """@batch is one size, or bounds."""

    def __init__(self, device, tiny, adapts, batch=TRAINING_BATCH):
        self.device = device
        self.shape = TINY if tiny else LLAMA
        self.tokens = (8, 40) if tiny else TRAINING_TOKENS
        self.batch = batch
        self.random = random.Random(1)
        with made_on(device):
            self.model = Llama(self.shape, Adapted if adapts else plain)
        if adapts:
            for name, parameter in self.model.named_parameters():
                parameter.requires_grad_("narrow" in name or "widen" in name)
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.Adam(trained, lr=1e-5)

    def step(self, n_tokens=None):
        batch = self.random.randint(*self.batch)
        n_tokens = n_tokens or self.random.randint(*self.tokens)
        tokens = torch.randint(0, self.shape["vocabulary"], (batch, n_tokens), device=self.device)
        loss = self.model(tokens)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return value_of(loss)


# ---- generate() ---------------------------------------------------------------------------------

class Generate:
    def __init__(self, device, tiny):
        from transformers import LlamaConfig, LlamaForCausalLM
        self.device = device
        self.bounds = ((1, 3), (4, 20), (2, 4)) if tiny else (PROMPTS, PROMPT_TOKENS, NEW_TOKENS)
        self.shape = TINY if tiny else LLAMA
        self.random = random.Random(1)
        config = LlamaConfig(vocab_size=self.shape["vocabulary"], hidden_size=self.shape["hidden"],
                             intermediate_size=self.shape["mlp"],
                             num_hidden_layers=self.shape["layers"],
                             num_attention_heads=self.shape["heads"],
                             num_key_value_heads=self.shape["heads"],
                             max_position_embeddings=4096, eos_token_id=None)
        with made_on(device):
            self.model = LlamaForCausalLM(config).eval()

    def step(self):
        batch, n_tokens, n_new = (self.random.randint(*bounds) for bounds in self.bounds)
        prompt = torch.randint(0, self.shape["vocabulary"], (batch, n_tokens), device=self.device)
        out = self.model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False,
                                  max_new_tokens=n_new, min_new_tokens=n_new, pad_token_id=0)
        return out[:, n_tokens].float().mean()


# ---- a UNet -------------------------------------------------------------------------------------

def convolutions(n_in, n_out):
    return nn.Sequential(nn.Conv2d(n_in, n_out, 3, padding=1), nn.GroupNorm(8, n_out), nn.SiLU(),
                         nn.Conv2d(n_out, n_out, 3, padding=1), nn.GroupNorm(8, n_out), nn.SiLU())


class Unet(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.down = nn.ModuleList(map(convolutions, (3, *channels), channels))
        above = channels[::-1]
        self.up = nn.ModuleList(convolutions(n + m, m) for n, m in zip(above, above[1:]))
        self.out = nn.Conv2d(channels[0], 3, 1)

    def forward(self, x):
        kept = []
        for block in self.down:
            x = block(F.max_pool2d(x, 2) if kept else x)
            kept.append(x)
        for block, other in zip(self.up, kept[-2::-1]):
            x = block(torch.cat((F.interpolate(x, size=other.shape[2:]), other), dim=1))
        return self.out(x)


class UnetTraining:
    """Batches and sizes are drawn from a set: cuDNN plans each shape once, for tens of milliseconds."""

    def __init__(self, device, tiny):
        self.device = device
        self.random = random.Random(1)
        sides = range(SIDES[0], SIDES[1] + 1, SIDE_STEP)
        self.shapes = [(self.random.randint(*IMAGES), *self.random.choices(sides, k=2))
                       for _ in range(N_IMAGE_SHAPES)]
        if tiny:
            self.shapes = [(1, 16, 24), (2, 16, 8)]
        self.n_steps = 0
        with made_on(device, torch.float32):
            self.model = Unet(TINY_CHANNELS if tiny else CHANNELS)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5)

    def step(self):
        """Each shape once, then at random."""
        batch, height, width = (self.shapes[self.n_steps] if self.n_steps < len(self.shapes)
                                else self.random.choice(self.shapes))
        self.n_steps += 1
        images = torch.randn(batch, 3, height, width, device=self.device)
        noise = torch.randn_like(images)
        loss = F.mse_loss(self.model(images + noise), noise)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return value_of(loss)


# ---- two streams, one model ---------------------------------------------------------------------

class Twins:
    """Training without recomputation. A step's batches come one after the other on one stream
    (`one`), or from two threads, each with a stream: half of each batch (`halves`), or every other
    batch whole, one thread's forward pass beside the other's backward pass (`opposite`). There a layer goes
    forward when as many have gone back beside it: forward is faster, and would else be at its peak
    when the other has half of its own."""

    def __init__(self, device, tiny, way):
        self.device = device
        self.way = way
        self.shape = TINY if tiny else BERT
        self.size = (2, 16) if tiny else (BATCH, BATCH_TOKENS)
        if way == "halves":
            self.size = (self.size[0] // 2, self.size[1])
        with made_on(device):
            self.model = Llama(self.shape, recomputes=False)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-5)
        # Both threads' gradients are added up where these were made: on the main stream.
        self.adders = [p.expand_as(p).grad_fn.next_functions[0][0]
                       for p in self.model.parameters()]
        self.pool = concurrent.futures.ThreadPoolExecutor(2)
        # By thread: the layers that have gone back, of its batch of which some have not.
        self.n_back = [self.shape["layers"]] * 2
        self.moved = threading.Condition()
        self.streams = [torch.cuda.Stream() for _ in range(2)] if device == "cuda" else [None] * 2

    def forward(self, before=lambda number, x: None):
        return self.model(torch.randint(0, self.shape["vocabulary"], self.size, device=self.device),
                          before)

    def went_back(self, number):
        with self.moved:
            self.n_back[number] += 1
            self.moved.notify_all()

    def keep_pace(self, number, barrier):
        """For the forward passes of that thread, and its backward passes behind them."""
        def before(layer, x):
            with self.moved:
                self.moved.wait_for(lambda: self.n_back[1 - number] >= layer or barrier.broken)
            if layer < self.shape["layers"]:
                x.register_hook(lambda gradient: self.went_back(number))
        return before

    def work(self, number, barrier, n_batches):
        def meet():
            if self.way == "opposite":
                if self.device == "cuda":
                    self.streams[number].synchronize()
                barrier.wait()

        try:
            with torch.cuda.stream(self.streams[number]):
                if number == 1:
                    meet()
                for _ in range(n_batches):
                    if self.way == "opposite":
                        loss = self.forward(self.keep_pace(number, barrier))
                        self.n_back[number] = 0
                    else:
                        loss = self.forward()
                    meet()
                    loss.backward()
                    meet()
                if number == 0:
                    meet()
                return value_of(loss)
        except BaseException:
            barrier.abort()
            with self.moved:
                self.moved.notify_all()
            raise

    def step(self):
        if self.way == "one":
            for _ in range(N_BATCHES):
                loss = self.forward()
                loss.backward()
            loss = value_of(loss)
        else:
            loss = self.step_of_two()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    def step_of_two(self):
        main = torch.cuda.current_stream() if self.device == "cuda" else None
        n_batches = N_BATCHES if self.way == "halves" else N_BATCHES // 2
        barrier = threading.Barrier(2)
        if main:
            for stream in self.streams:
                stream.wait_stream(main)
        futures = [self.pool.submit(self.work, i, barrier, n_batches) for i in range(2)]
        losses = [future.result() for future in futures]
        if main:
            for stream, loss in zip(self.streams, losses):
                main.wait_stream(stream)
                loss.record_stream(main)
        return sum(losses) / 2


WORKLOADS = {
    "lora": lambda device, tiny: Training(device, tiny, adapts=True),
    "full": lambda device, tiny: Training(device, tiny, adapts=False),
    "generate": Generate,
    "unet": UnetTraining,
    **{f"twins-{way}": lambda device, tiny, way=way: Twins(device, tiny, way)
       for way in ("one", "halves", "opposite")},
}
