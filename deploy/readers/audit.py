#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A table of readers by machine code: which words of their parameters kernels write through.

    audit.py [--arch sm_90] [--learned TABLE] [--for TEXT] LIBRARY... > NAME.readers

Disassembles what a library has for one architecture (cuobjdump and nvdisasm of the CUDA toolkit, in $PATH), and follows each
address that is written to back to the parameters. With --learned it completes a table of glake learn's.

Invariant: a function is printed only if each of its stores, on each way, has an address that was made of one or more
words of the parameters and of numbers that are no address. It is not if an address may come from memory, or if the function has
an instruction that is not understood: calls, indirect branches, stores by descriptors (TMA). Such functions are counted.

How. The value of a register is the set of the four-byte slots of parameters that it was computed of. An address has two registers.
A word of the parameters is a base of it if its lower slot is in the lower register and its upper slot in the upper one: so numbers of 32
bits, such as strides, are no bases. What is loaded from memory is its own source. What an instruction computes under a condition is
all that later ones under the same condition see. Where two ways meet, a register has what it has on either: that may count a word as
written that is not, and never the other way round.
"""
import argparse
import collections
import os
import re
import struct
import subprocess
import sys
import tempfile

MAGIC = 0xBA55ED50
#: where parameters begin in constant bank 0
PARAMS = {"sm_70": 0x160, "sm_75": 0x160, "sm_80": 0x160, "sm_86": 0x160, "sm_89": 0x160, "sm_90": 0x210}
MEMORY, MODULE, ANY = "memory", "module", "any parameter"
NONE = frozenset()
#: they write no register of the first operand's, or nothing at all
STORES = ("STG", "ST", "RED", "REDG", "STL", "STS")
ATOMICS = ("ATOM", "ATOMG")
LOADS = ("LDG", "LD", "LDL", "LDS", "LDSM", "LDGSTS", "TEX", "TLD", "SULD", *ATOMICS, "ATOMS")
#: no address of global memory is written to by them, and no register is made that an address is made of
HARMLESS = ("NOP", "EXIT", "BRA", "BSSY", "BSYNC", "BREAK", "WARPSYNC", "BAR", "MEMBAR", "DEPBAR", "YIELD", "ERRBAR", "CCTL", "LDGDEPBAR", "BMOV",
            "KILL", "BPT", "NANOSLEEP", "PLOP3", "ISETP", "FSETP", "DSETP", "HSETP2", "UISETP", "UPLOP3", "R2P", "FCHK", "ELECT", "SYNCS",
            "WARPGROUP", "FENCE", "ACQBULK", "CGAERRBAR", "UCGABAR_ARV", "UCGABAR_WAIT", "PREEXIT", "ENDCOLLECTIVE", "COLLECTIVE", "RPCMOV")
#: they end the analysis, as does what is not known
REFUSED = ("CALL", "JCAL", "BRX", "BRXU", "JMX", "JMP", "RET", "UTMASTG", "UTMAREDG", "UBLKCP", "UBLKRED", "SUST", "SURED", "STAS", "REDAS", "UTMACMDFLUSH")
#: results of these depend on all their registers, and on nothing else
COMPUTES = ("MOV", "UMOV", "IADD3", "UIADD3", "IMAD", "UIMAD", "LEA", "ULEA", "LOP3", "ULOP3", "SHF", "USHF", "PRMT", "UPRMT", "SEL", "USEL",
            "IABS", "UIABS", "IMNMX", "VIMNMX", "UIMNMX", "VIADD", "VIADDMNMX", "IADD", "ISCADD", "IADD2", "SHL", "SHR", "BREV", "UBREV", "POPC",
            "UPOPC", "FLO", "UFLO", "SGXT", "USGXT", "BMSK", "UBMSK", "R2UR", "SHFL", "CS2R", "S2R", "S2UR", "CS2UR", "LDC", "ULDC", "P2R", "UP2UR",
            "VOTE", "VOTEU", "MATCH", "REDUX", "I2F", "I2FP", "F2I", "F2IP", "F2F", "F2FP", "I2I", "I2IP", "FADD", "FMUL", "FFMA", "FMNMX", "FSEL",
            "FSET", "FSWZADD", "FRND", "MUFU", "DADD", "DMUL", "DFMA", "DMNMX", "HADD2", "HMUL2", "HFMA2", "HMNMX2", "HSET2", "HMMA", "IMMA",
            "BMMA", "DMMA", "HGMMA", "IGMMA", "QGMMA", "IDP", "DP4A", "VABSDIFF", "VABSDIFF4", "MOVM", "B2R", "LEPC", "GETLMEMBASE", "UF2FP",
            "IDP4A", "ULEPC", "UR2UR", "WARPGROUPSET")
#: results of these have at most this many registers; how many, their names do not tell
MANY = {**dict.fromkeys(("HGMMA", "IGMMA", "QGMMA"), 256), **dict.fromkeys(("HMMA", "IMMA", "BMMA", "DMMA", "LDSM", "TEX", "TLD", "SULD"), 8)}
REGISTER = re.compile(r"\b(U?R)(\d+)\b(\.64)?")
CONSTANT = re.compile(r"c\[(0x[0-9a-f]+)\]\[([^\]]*)\]")


class Unknown(Exception):
    pass


# ---- files ---------------------------------------------------------------------------------------

def output_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True, errors="replace").stdout


def build_id(path):
    found = re.search(r"Build ID: ([0-9a-f]+)", output_of("readelf", "-n", path))
    if not found:
        raise SystemExit(f"{path}: it has no build-id, so no table can name it")
    return found[1]


def containers(path):
    """(offset, content) of each image that the library hands to the driver."""
    sections = re.findall(r"\] (\.nv_fatbin\S*)\s+PROGBITS\s+\S+ (\S+) (\S+)", output_of("readelf", "-SW", path))
    with open(path, "rb") as file:
        for _, offset, size in sections:
            at, end = int(offset, 16), int(offset, 16) + int(size, 16)
            while at + 16 <= end:
                file.seek(at)
                magic, _, header, n_bytes = struct.unpack("<IHHQ", file.read(16))
                if magic != MAGIC:
                    at += 8
                    continue
                file.seek(at)
                yield at, file.read(header + n_bytes)
                at += (header + n_bytes + 7) // 8 * 8


def symbols(path, wanted):
    """Numbers of these functions."""
    rows = re.findall(r"^\s*(\d+): \S+\s+\S+ FUNC\s+.* (\S+)$", output_of("readelf", "-sW", path), re.M)
    return [number for number, name in rows if name in wanted]


def listings(content, arch, folder, wanted):
    """The disassembly of each part for the architecture; of these functions, or, if that is None, of all."""
    whole = os.path.join(folder, "image.fatbin")
    with open(whole, "wb") as file:
        file.write(content)
    names = re.findall(rf"ELF file\s+\d+: (\S+\.{arch}a?\.cubin)", output_of("cuobjdump", "-lelf", whole))
    for name in names:
        subprocess.run(["cuobjdump", "-xelf", name, whole], check=True, capture_output=True, cwd=folder)
        path = os.path.join(folder, name)
        numbers = symbols(path, wanted) if wanted is not None else []
        if wanted is None or numbers:
            yield output_of("nvdisasm", "-c", *(["-fun", ",".join(numbers)] if numbers else []), path)


def functions(listing):
    """(name, lines) of each: instructions and labels."""
    name, lines = None, []
    for line in listing.splitlines():
        if line.startswith(".text."):
            name, lines = line[len(".text."):-1], []
        elif line.startswith("//---") or line.startswith("\t.section"):
            if name and lines:
                yield name, lines
            name = None
        elif name and line.startswith((".L", "$")):
            lines.append(line.strip())
        elif name:
            found = re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;", line)
            if found:
                lines.append(found[1].replace("{", "").strip())
    if name and lines:
        yield name, lines


# ---- one instruction -----------------------------------------------------------------------------

PREDICATE = re.compile(r"!?U?P[\dT]")
RESULT = re.compile(r"(U?R)(\d+|Z)(?:\.64)?(?:\.reuse)?")


class Instruction:
    """Its operands are predicates that it sets, then the register that it sets (None: none, or it is lost), then its sources."""

    def __init__(self, text):
        found = re.match(r"(@!?U?P[\dT]+)?\s*(\S+)\s*(.*)$", text)
        self.text, self.condition = text, found[1]
        self.parts = found[2].split(".")
        self.op = self.parts[0]
        self.operands = [one.strip() for one in re.split(r",\s*(?![^\[]*\])", found[3])] if found[3] else []
        rest = [one for one in self.operands if not PREDICATE.fullmatch(one)]
        result = RESULT.fullmatch(rest[0]) if rest else None
        self.result = (result[1], int(result[2])) if result and result[2] != "Z" else None
        self.sources = rest[1:]

    def predicates(self):
        """That it may set: more than it does; None: all."""
        return None if self.op == "R2P" else [one for one in self.operands if re.fullmatch(r"U?P\d", one)]

    def target(self):
        found = re.search(r"`\((\.L_\w+)\)", self.text)
        return found[1] if found else None


def width(instruction):
    """Registers of the result."""
    for name, n in (("128", 4), ("64", 2)):
        if name in instruction.parts[1:]:
            return n
    if "WIDE" in instruction.parts or instruction.op in ("DADD", "DMUL", "DFMA", "DMNMX"):
        return 2
    if instruction.op == "CS2R":
        return 1 if "32" in instruction.parts else 2
    return 1


def most(instruction):
    """The most registers that a result takes; those beyond its width may keep what they have."""
    if instruction.op in MANY:
        return MANY[instruction.op]
    return 2 if {"F64", "S64", "U64"} & set(instruction.parts) else 1


class State(dict):
    """Of registers. Those that were computed under a condition that has not changed since have what was computed, too."""

    def __init__(self, known):
        super().__init__(known)
        self.under = {}
        self.condition = None

    def get(self, place, otherwise=NONE):
        there = self.under.get(place)
        return there[1] if there and there[0] == self.condition else super().get(place, otherwise)

    def put(self, place, new, is_sure):
        if self.condition or not is_sure:
            self[place] = new | super().get(place, NONE)
        else:
            self[place] = new
        self.under.pop(place, None)
        if self.condition and is_sure:
            self.under[place] = (self.condition, new)

    def predicates_change(self, names):
        for place in [place for place, (condition, _) in self.under.items() if names is None or condition.lstrip("@!") in names]:
            del self.under[place]


class Function:
    def __init__(self, lines, params):
        self.params = params
        self.code, self.labels = [], {}
        for line in lines:
            if line.endswith(":"):
                self.labels[line[:-1]] = len(self.code)
            else:
                self.code.append(Instruction(line))
        #: what the stack and shared memory may have
        self.kept = NONE
        #: where threads meet, by barrier
        self.meetings = collections.defaultdict(set)
        for one in self.code:
            if one.op == "BSSY":
                if one.target() not in self.labels:
                    raise Unknown(f"a branch that is not understood: {one.text}")
                self.meetings[one.operands[0]].add(self.labels[one.target()])

    def slots(self, bank, place, n):
        """Of n registers that a constant is loaded to."""
        if bank != "0x0":
            return [frozenset([MODULE])] * n
        found = re.fullmatch(r"0x([0-9a-f]+)", place)
        if not found:
            return [frozenset([ANY])] * n
        at = int(found[1], 16)
        if at < self.params:
            return [NONE] * n
        return [frozenset([at - self.params + 4 * i]) for i in range(n)]

    def value(self, state, operand, half):
        """Of one operand; half: of a pair, the lower or the upper one."""
        out = NONE
        for bank, place in CONSTANT.findall(operand):
            out |= self.slots(bank, place, 2)[half]
        for kind, number, _ in REGISTER.findall(CONSTANT.sub("", operand)):
            out |= state.get((kind, int(number) + half), NONE)
        return out

    def results(self, state, instruction):
        """Of each register of the result."""
        n, sources = width(instruction), instruction.sources
        if instruction.op in ("LDC", "ULDC"):
            found = CONSTANT.fullmatch(sources[0])
            if not found:
                raise Unknown(f"a constant that is not understood: {instruction.text}")
            return self.slots(*found.groups(), n)
        if instruction.op in ("S2R", "S2UR", "CS2R", "CS2UR"):
            return [NONE] * n
        if "WIDE" in instruction.parts:
            if len(sources) != 3:
                raise Unknown(f"a product that is not understood: {instruction.text}")
            factors = self.value(state, sources[0], 0) | self.value(state, sources[1], 0)
            return [factors | self.value(state, sources[2], half) for half in (0, 1)]
        whole = NONE
        for source in sources:
            is_pair = n > 1 or ".64" in source
            whole |= self.value(state, source, 0) | (self.value(state, source, 1) if is_pair else NONE)
        return [whole] * n

    # ---- stores ----

    def bases(self, state, instruction):
        """Words of the parameters that may be the address that is written to."""
        places = [operand for operand in instruction.operands if "[" in operand and not CONSTANT.fullmatch(operand)]
        if len(places) != 1:
            raise Unknown(f"a store that is not understood: {instruction.text}")
        place = re.sub(r"desc\[UR\d+\]", "", places[0])
        lower = upper = NONE
        has_pair = False
        for kind, number, is_wide in REGISTER.findall(place):
            lower |= state.get((kind, int(number)), NONE)
            if is_wide or kind == "UR":
                has_pair = True
                upper |= state.get((kind, int(number) + 1), NONE)
        if not has_pair:
            raise Unknown(f"an address of 32 bits: {instruction.text}")
        words = {at for at in lower if isinstance(at, int) and at % 8 == 0 and at + 4 in upper}
        if not words or {MEMORY, MODULE, ANY} & upper:
            raise Unknown(f"an address of elsewhere: {instruction.text}")
        return words

    # ---- all ways ----

    def step(self, state, instruction, written):
        state.condition = instruction.condition
        self.take(state, instruction, written)
        state.predicates_change(instruction.predicates())

    def take(self, state, instruction, written):
        op = instruction.op
        if op in REFUSED:
            raise Unknown(f"{op}")
        if op in ("STG", "ST", "RED", "REDG", *ATOMICS) and written is not None:
            written |= self.bases(state, instruction)
        if op == "LDGSTS":
            self.kept |= {MEMORY}
        if op in ("STL", "STS"):
            self.kept |= NONE.union(*(self.value(state, one, half) for one in instruction.operands[1:] for half in (0, 1)))
        if op in STORES or op in HARMLESS:
            return
        if op not in LOADS and op not in COMPUTES:
            raise Unknown(f"an instruction that is not known: {instruction.text}")
        if instruction.result is None:
            return
        if op in LOADS:
            values = [self.kept if op in ("LDL", "LDS", "LDSM") else frozenset([MEMORY])] * width(instruction)
        else:
            values = self.results(state, instruction)
        kind, number = instruction.result
        for k in range(max(len(values), most(instruction))):
            is_sure = k < len(values) and op not in MANY
            state.put((kind, number + k), values[k] if k < len(values) else NONE.union(*values), is_sure)

    def next(self, i):
        instruction = self.code[i]
        after = [i + 1] if i + 1 < len(self.code) else []
        if instruction.op == "EXIT":
            return after if instruction.condition else []
        if instruction.op in ("BSYNC", "BREAK"):
            return [*self.meetings[instruction.operands[0].split()[-1]], *after]
        if instruction.op in ("BRA", "WARPSYNC") and instruction.target():
            target = self.labels.get(instruction.target())
            if target is None:
                raise Unknown(f"a branch that is not understood: {instruction.text}")
            is_always = instruction.op == "BRA" and not instruction.condition and len(instruction.operands) == 1
            return [target] if is_always else [target, *after]
        if instruction.op == "BRA":
            raise Unknown(f"a branch that is not understood: {instruction.text}")
        return after

    def starts(self):
        return {0, *self.labels.values(), *(i + 1 for i, one in enumerate(self.code) if one.op in ("BRA", "EXIT", "BSYNC", "BREAK", "WARPSYNC"))}

    def run_block(self, state, first, starts, written):
        i = first
        while i < len(self.code):
            self.step(state, self.code[i], written)
            if i + 1 in starts or i + 1 == len(self.code):
                return state, self.next(i)
            i += 1
        return state, []

    def fixed_point(self):
        starts, at, todo = self.starts(), {0: {}}, [0]
        while todo:
            first = todo.pop()
            if first >= len(self.code):
                continue
            out, after = self.run_block(State(at[first]), first, starts, None)
            for start in after:
                known, is_new = at.get(start), start not in at
                if known is None:
                    known = at[start] = {}
                for place, new in out.items():
                    if not new <= known.get(place, NONE):
                        known[place], is_new = known.get(place, NONE) | new, True
                if is_new and start not in todo:
                    todo.append(start)
        return at, starts

    def writes(self):
        """Words that it writes through, sorted. What shared memory and the stack may have grows until nothing changes."""
        while True:
            before = self.kept
            at, starts = self.fixed_point()
            if self.kept == before:
                break
        written = set()
        for first, state in at.items():
            if first < len(self.code):
                self.run_block(State(state), first, starts, written)
        return sorted(written)


# ---- the table -----------------------------------------------------------------------------------

def learned(path):
    """(its first lines, {(image, function): lines}) of a table."""
    head, known, image, lines = [], {}, None, None
    with open(path, encoding="utf-8") as file:
        for line in file.read().splitlines():
            if line.startswith("image "):
                image = line
            elif line.startswith(("function ", "opaque ")):
                lines = known[image, line.split()[1]] = [line]
            elif line.startswith("  ") and lines:
                lines.append(line)
            elif image is None:
                head.append(line)
    return head, known


def words_of(lines, verb):
    return {int(line.split()[1], 0) for line in lines if line.split()[0] == verb and " if " not in line}


def merge(lines, words):
    """What was seen and what the code says. The code of some mixes words; what was only read, each time it was seen, is read."""
    if lines[0].startswith("opaque") or words_of(lines, "writes"):
        return lines
    left = [word for word in words if word not in words_of(lines, "reads")]
    return [lines[0], *(f"  writes {word}" for word in left)] if left else lines


def audited(image_functions, counts, arch):
    """{function: words} of an image; those that are not understood are counted."""
    found = {}
    for function, lines in image_functions:
        if function in found and found[function] is None:
            continue
        try:
            found[function] = sorted({*Function(lines, PARAMS[arch]).writes(), *found.get(function, ())})
        except Unknown as error:
            found[function] = None
            counts[str(error).split(":")[0]] += 1
    counts["audited"] += sum(bool(words) for words in found.values())
    return {function: words for function, words in found.items() if words}


def images(path, arch, known):
    """(line of a table, its functions) of each; if something is known, of these functions alone."""
    name = build_id(path)
    for offset, content in containers(path):
        image = f"image build-id {name} offset {offset:#x}"
        wanted = {function for one, function in known if one == image} if known else None
        if wanted is None or wanted:
            with tempfile.TemporaryDirectory() as folder:
                yield image, [one for listing in listings(content, arch, folder, wanted) for one in functions(listing)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("libraries", nargs="+", metavar="LIBRARY")
    parser.add_argument("--arch", default="sm_90", choices=PARAMS)
    parser.add_argument("--learned", metavar="TABLE", help="a table of glake learn: look at its functions alone, and print all of it")
    parser.add_argument("--for", dest="what", default="what was audited by its machine code")
    options = parser.parse_args()
    head, known = learned(options.learned) if options.learned else (["glake-readers 1", f'for "{options.what}"'], {})
    head.insert(1, f"# Where it says what a function writes through, that is by its machine code for {options.arch}.")
    counts = collections.Counter()
    for path in options.libraries:
        for image, found in images(path, options.arch, dict(known)):
            for function, words in audited(found, counts, options.arch).items():
                known[image, function] = merge(known.get((image, function), [f"function {function}"]), words)
    print("\n".join(head))
    for image in dict.fromkeys(image for image, _ in known):
        print("\n".join([image, *(line for (one, _), lines in known.items() if one == image for line in lines)]))
    for what, n in counts.most_common():
        print(f"{n:6} {what}", file=sys.stderr)


if __name__ == "__main__":
    main()
