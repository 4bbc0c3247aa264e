# SPDX-License-Identifier: Apache-2.0
"""What README.md has a newcomer type and copy."""

import re
import unittest


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


class Makefile(unittest.TestCase):
    def test_sub_makes_share_the_jobs(self):
        """Else `make -j2 demo` says "jobserver unavailable": make sees no make in a variable of ours."""
        rules = re.findall(r"^\t.*\$\((?:submake\)|call sanitized,).*$", read("Makefile"), re.M)
        self.assertGreater(len(rules), 5)
        for rule in rules:
            self.assertRegex(rule, r"^\t@\+")


if __name__ == "__main__":
    unittest.main()
