# SPDX-License-Identifier: Apache-2.0
"""Processes that do what they are asked, line by line: an object's methods, by name."""
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading

from run import ROOT, expect

# Only a hang takes so long.
PATIENCE_SECONDS = 300


def serve(program):
    """In the process. A line is a method's name and its arguments, as JSON. What else is printed goes to stderr."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        try:
            answer = getattr(program, name)(*arguments)
        except Exception as error:
            import traceback
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"[:1000]}
        print(json.dumps(answer), file=out, flush=True)
    # A context that is lost cannot be torn down.
    os._exit(0)


class Child:
    """A process of a script, under `glake run` unless told otherwise."""

    def __init__(self, daemon, name, command, shim=True, environment=None, options=()):
        prefix = [os.path.join(ROOT, "bin", "glake"), "run", "--socket", daemon.socket, *options,
                  "--"]
        self.name = name
        self.err = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")
        self.process = subprocess.Popen(
            [*(prefix if shim else []), sys.executable, *command],
            env={**daemon.environment, **(environment or {})},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.err, text=True)

    def tell(self, what, *arguments):
        try:
            self.process.stdin.write(json.dumps([what, *arguments]) + "\n")
            self.process.stdin.flush()
        except (OSError, ValueError):
            pass  # hear() will say so

    def hear(self, what):
        """{} behind a failure, which is noted."""
        watchdog = threading.Timer(PATIENCE_SECONDS, self.process.kill)
        watchdog.start()
        try:
            answer = json.loads(self.process.stdout.readline())
        except (OSError, ValueError):
            self.close()
            answer = {"error": f"ended with {self.process.wait()}"}
        watchdog.cancel()
        if isinstance(answer, dict) and "error" in answer:
            self.err.seek(0)
            expect(False, f"{self.name}, {what}: {answer['error']}\n{self.err.read()[-3000:]}")
            return {}
        return answer

    def ask(self, what, *arguments):
        self.tell(what, *arguments)
        return self.hear(what)

    def close(self):
        with contextlib.suppress(OSError):
            self.process.stdin.close()

    def end(self):
        self.close()
        try:
            self.process.wait(timeout=PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            expect(False, f"{self.name} does not end")


def ask_all(children, what, *arguments):
    """At the same time."""
    for child in children:
        child.tell(what, *arguments)
    return [child.hear(what) for child in children]
