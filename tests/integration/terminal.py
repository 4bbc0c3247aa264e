# SPDX-License-Identifier: Apache-2.0
"""A terminal for tests: a program runs on it, keys are typed, and its screen can be read.

It knows a dozen sequences; a description of its own (terminfo) tells programs that it has no others.
"""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time

from tests.integration.with_glaked import PATIENCE_S

DESCRIPTION = r"""glaketest|a terminal of tests,
	am, colors#8, cols#80, lines#24, pairs#64,
	bold=\E[1m, clear=\E[H\E[J, cr=\r, cub1=^H, cud1=\n, cup=\E[%i%p1%d;%p2%dH, ed=\E[J, el=\E[K, home=\E[H,
	kbs=\177, kcud1=\E[B, kcuu1=\E[A, kend=\E[F, khome=\E[H, knp=\E[6~, kpp=\E[5~, op=\E[39;49m, rev=\E[7m,
	rmcup=\E[?1049l, rmul=\E[24m, setab=\E[4%p1%dm, setaf=\E[3%p1%dm, sgr0=\E[0m, smcup=\E[?1049h, smul=\E[4m,
"""
# How a character looks: colours are 0 to 7, or None for those of the terminal.
PLAIN = {"ink": None, "paper": None, "bold": False, "underlined": False, "reversed": False}
SEQUENCE = re.compile(r"\x1b\[(\??[0-9;]*)([A-Za-z])")


class Terminal:
    def __init__(self, folder, command, rows=24, columns=80, env=None):
        source = os.path.join(folder, "terminfo.src")
        with open(source, "w", encoding="utf-8") as file:
            file.write(DESCRIPTION)
        subprocess.run(["tic", "-o", os.path.join(folder, "terminfo"), source], check=True)
        self.raw = ""      # all that has come
        self.pending = b""
        self.is_other = False  # the other screen is shown
        go, goes = os.pipe()
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            # Not before it has been seen how the terminal was.
            os.read(go, 1)
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
            os.execve(command[0], command, {**os.environ, "TERM": "glaketest", "LC_ALL": "C.UTF-8",
                                            "TERMINFO": os.path.join(folder, "terminfo"), **(env or {})})
        self.before = termios.tcgetattr(self.fd)
        os.write(goes, b"g")
        os.close(go)
        os.close(goes)
        self.resize(rows, columns)

    def resize(self, rows, columns):
        self.rows, self.columns = rows, columns
        self.cells = [[" "] * columns for _ in range(rows)]
        self.looks = [[PLAIN] * columns for _ in range(rows)]
        self.look = PLAIN
        self.y = self.x = 0
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def text(self):
        return "\n".join("".join(row).rstrip() for row in self.cells)

    def type(self, keys):
        os.write(self.fd, keys.encode())

    def put(self, character):
        if character == "\r":
            self.x = 0
        elif character == "\n":
            self.y = min(self.y + 1, self.rows - 1)
        elif character == "\b":
            self.x = max(self.x - 1, 0)
        elif character >= " ":
            if self.x >= self.columns:
                self.x, self.y = 0, min(self.y + 1, self.rows - 1)
            self.cells[self.y][self.x] = character
            self.looks[self.y][self.x] = self.look
            self.x += 1
        else:
            raise AssertionError(f"a control character: {character!r}")

    def obey(self, numbers, letter):
        if letter == "H":
            row, column = (int(number) for number in (numbers or "1;1").split(";"))
            self.y, self.x = min(row, self.rows) - 1, min(column, self.columns) - 1
        elif letter in "JK":
            self.cells[self.y][self.x:] = [" "] * (self.columns - self.x)
            self.looks[self.y][self.x:] = [PLAIN] * (self.columns - self.x)
            if letter == "J":
                self.cells[self.y + 1:] = [[" "] * self.columns for _ in self.cells[self.y + 1:]]
                self.looks[self.y + 1:] = [[PLAIN] * self.columns for _ in self.cells[self.y + 1:]]
        elif letter in "hl" and numbers == "?1049":
            self.is_other = letter == "h"
        elif letter == "m":
            for number in (numbers or "0").split(";"):
                self.change_look(int(number or 0))
        else:
            raise AssertionError(f"a sequence that the description does not have: {numbers}{letter}")

    def change_look(self, number):
        if number == 0:
            self.look = PLAIN
        elif number in (1, 4, 7, 24):
            name = {1: "bold", 4: "underlined", 7: "reversed", 24: "underlined"}[number]
            self.look = {**self.look, name: number != 24}
        elif number // 10 == 3:
            self.look = {**self.look, "ink": None if number == 39 else number - 30}
        elif number // 10 == 4:
            self.look = {**self.look, "paper": None if number == 49 else number - 40}
        else:
            raise AssertionError(f"a look that the description does not have: {number}")

    def take(self, text):
        self.raw += text
        while text:
            sequence = SEQUENCE.match(text)
            if sequence:
                self.obey(*sequence.groups())
                text = text[sequence.end():]
            elif text[0] == "\x1b" and re.fullmatch(r"\x1b(\[\??[0-9;]*)?", text):
                return text
            else:
                self.put(text[0])
                text = text[1:]
        return ""

    def read(self, seconds):
        """Returns whether something came. The end of the program is an end of its terminal."""
        if not select.select([self.fd], [], [], seconds)[0]:
            return False
        try:
            data = self.pending + os.read(self.fd, 65536)
        except OSError:
            return False
        # A character may come in two parts.
        keep = next((i for i in range(1, min(4, len(data) + 1)) if data[-i] >= 0xc0), 0)
        whole = data if not keep or len(data[-keep:].decode(errors="ignore")) else data[:-keep]
        rest = data[len(whole):]
        left = self.take(whole.decode())
        self.raw = self.raw[:len(self.raw) - len(left)]
        self.pending = left.encode() + rest
        return bool(data)

    def wait_for(self, pattern, seconds=PATIENCE_S):
        """Until the screen matches."""
        end = time.monotonic() + seconds
        while not re.search(pattern, self.text()):
            if time.monotonic() > end:
                raise AssertionError(f"no {pattern!r} on the screen:\n{self.text()}")
            self.read(0.2)
        return re.search(pattern, self.text())

    def end(self, seconds=PATIENCE_S):
        """Its exit status, once it has ended."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.read(0.05)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                while self.read(0.05):
                    pass
                return os.waitstatus_to_exitcode(status)
        raise AssertionError("it does not end:\n" + self.text())

    def close(self):
        try:
            os.kill(self.pid, 9)
            os.waitpid(self.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass
        os.close(self.fd)
