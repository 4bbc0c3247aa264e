# SPDX-License-Identifier: Apache-2.0
"""docs/operations.md, Troubleshooting: the lines it explains are lines that the programs print."""

import glob
import os
import re
import unittest


SOURCES = (glob.glob("daemon/**/*.c", recursive=True) + glob.glob("libclient/**/*.c", recursive=True)
           + glob.glob("shim/*.c") + ["proto/cudrv.c"])


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def texts():
    """All string literals of the product, those in a row joined as the compiler does."""
    joined = []
    for path in SOURCES:
        source = re.sub(r'"\s*(?:PRI[a-z]64\s*)?"', "", read(path))
        joined += re.findall(r'"((?:[^"\\\n]|\\.)*)"', source)
    joined += [os.strerror(number) for number in range(1, 100)]
    return "\n".join(joined)


def lines():
    section = read("docs/operations.md").split("## Troubleshooting")[1].split("\n## ")[0]
    for row in re.findall(r"^\| (`.*?) \| ", section, re.M):
        yield from re.findall(r"`([^`]+)`", row)


class Troubleshooting(unittest.TestCase):
    def test_every_line_can_be_printed(self):
        known = texts()
        seen = list(lines())
        self.assertGreater(len(seen), 35)
        for line in seen:
            for part in re.split(r"\.\.\.|: ", line):
                words = part.strip(" :'()")
                if len(words) > 2 and not words.startswith("."):
                    self.assertTrue(words in known, f"{line}: nobody says {words!r}")


if __name__ == "__main__":
    unittest.main()
