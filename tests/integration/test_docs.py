# SPDX-License-Identifier: Apache-2.0
"""The pages: their links lead somewhere; docs/troubleshooting.md explains each warning and error of glaked and
its helpers, and no line that nobody prints; docs/security.md lists what `make attack` runs."""

import glob
import os
import re
import subprocess
import unittest

DAEMON = glob.glob("daemon/**/*.c", recursive=True)
SOURCES = (DAEMON + glob.glob("libclient/**/*.c", recursive=True) + glob.glob("shim/*.c")
           + ["proto/cudrv.c", "libclient/errors.def"])
STRING = r'"(?:[^"\\\n]|\\.)*"'
# The calls that write a warning or an error, and what a conversion of printf() is.
LOUD = (r"\b(?:log_error|log_warning|say|events_add|fprintf|"
        r"log_limited(?=\([^\"]*LOG_LEVEL_(?:ERROR|WARNING)))\(((?:" + STRING + r'|[^";])*)\);')
CONVERSION = r"%[-0-9.*]*[lz]*[a-z]"


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def joined(path):
    """The source, its literals in a row joined as the compiler does, and %PRIu64 as %u."""
    source = re.sub(r'%"\s*PRI[a-z][0-9]+(\s*")?', lambda match: "%u" + ("" if match[1] else '"'), read(path))
    return re.sub(r'"\s*"', "", source)


def texts():
    """All string literals of the product."""
    found = [literal[1:-1] for path in SOURCES for literal in re.findall(STRING, joined(path))]
    return "\n".join(found + [os.strerror(number) for number in range(1, 100)])


def loud():
    """The formats of all warnings and errors: those in the first argument that has a literal."""
    for path in DAEMON:
        for arguments in re.findall(LOUD, joined(path)):
            literals = []
            split = re.sub(STRING, lambda match: literals.append(match[0][1:-1]) or "\0", arguments)
            n = next((part.count("\0") for part in split.split(",") if "\0" in part), 0)
            yield from ((path, literal) for literal in literals[:n])


def lines():
    section = read("docs/troubleshooting.md").split("## Lines of the log")[1]
    for row in re.findall(r"^\| (`.*?) \| ", section, re.M):
        yield from re.findall(r"`([^`]+)`", row)


class Troubleshooting(unittest.TestCase):
    def test_every_line_can_be_printed(self):
        known = texts()
        for line in lines():
            for part in re.split(r"\.\.\.|: ", line):
                words = part.strip(" :'(),")
                if len(words) > 2 and not words.startswith("."):
                    self.assertTrue(words in known, f"{line}: nobody says {words!r}")

    def test_every_refusal_is_quoted_as_it_is_printed(self):
        """The formats of refusal_text(), whole: a page that quotes another text helps nobody."""
        body = joined("daemon/memory/refusal.c").split("void refusal_text(")[1]
        formats = re.findall(r'snprintf\(text, REFUSAL_TEXT_BYTES,\s*"((?:[^"\\]|\\.)*)"', body)
        self.assertEqual(len(formats), body.count("snprintf(text, REFUSAL_TEXT_BYTES"))
        quoted = [line.split(": ", 1)[1] if line.startswith(("over ", "out of ")) else line for line in lines()]
        for text in formats:
            parts = [re.escape(part) for part in re.split(CONVERSION, text)]
            self.assertTrue(any(re.fullmatch(".+".join(parts), line) for line in quoted),
                            f"docs/troubleshooting.md does not quote {text!r}")

    def test_every_warning_is_explained(self):
        explained = list(lines())
        for path, text in loud():
            parts = [re.escape(part) for part in re.split(CONVERSION, text.replace("\\n", ""))]
            if not re.search("[a-z]{3}", "".join(parts)):
                continue  # the text is somebody else's
            self.assertTrue(any(re.fullmatch(".+".join(parts), line) for line in explained),
                            f"{path}: docs/troubleshooting.md has no remedy for {text!r}")


class Attacks(unittest.TestCase):
    def test_list_is_what_runs(self):
        section = read("docs/security.md").split("## The attacks")[1].split("\n## ")[0]
        listed = set(re.findall(r"`((?:test|fuzz)_[a-z_]+)`", section))
        done = subprocess.run(["make", "-s", "list-attacks"], check=True, capture_output=True, text=True)
        self.assertEqual(listed, {os.path.basename(path).removesuffix(".py") for path in done.stdout.split()})

    def test_every_finding_of_the_doctor_is_explained(self):
        section = read("docs/troubleshooting.md").split("## glakectl doctor")[1].split("\n## ")[0]
        rows = " ".join(re.findall(r"^\| (`.*?) \| ", section, re.M))
        found = [name for path in glob.glob("libclient/ctl/doctor*.c")
                 for name in re.findall(r'finding_add\(\w+, "(\w+)"', read(path))]
        self.assertEqual(set(re.findall(r"`(\w+)`", rows)), set(found))


def anchors(page):
    """Of a page's headlines, as the places where it is read make them."""
    headlines = re.findall(r"^#+ (.*)$", re.sub(r"(?ms)^```.*?^```", "", read(page)), re.M)
    return [re.sub(r"[^\w -]", "", headline.lower()).replace(" ", "-") for headline in headlines]


class Links(unittest.TestCase):
    def test_every_link_leads_somewhere(self):
        pages = ["README.md", "SECURITY.md"] + [page for folder in ("daemon", "docs", "libclient", "shim", "tests")
                                 for page in glob.glob(folder + "/**/*.md", recursive=True)]
        n = 0
        for page in pages:
            for path, anchor in re.findall(r"\]\(([^):#]*)(?:#([^)]*))?\)", read(page)):
                n += 1
                target = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
                self.assertTrue(os.path.exists(target), f"{page}: {path} is not there")
                if anchor:
                    self.assertIn(anchor, anchors(target), f"{page}: {target} has no such headline")
        self.assertGreater(n, 100)

    def test_every_source_that_is_named_is_there(self):
        """Of pages that say where things are; cuda.h is the toolkit's."""
        listed = subprocess.run(["find", *"daemon deploy libclient proto shim tests".split(), "-type", "f"],
                                capture_output=True, text=True, check=True).stdout.split()
        there = {os.path.basename(path) for path in listed} | {"cuda.h"}
        n = 0
        for page in ["README.md", "docs/architecture.md", "docs/allocator.md"] + glob.glob("*/README.md"):
            for name in re.findall(r"`(?:[a-z_0-9]+/)*([a-z_0-9]+\.(?:c|h|cu|py|sh|def|proto))`", read(page)):
                n += 1
                self.assertTrue(name in there, f"{page} names {name}, which is not there")
        self.assertGreater(n, 100)


if __name__ == "__main__":
    unittest.main()
