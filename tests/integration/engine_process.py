# SPDX-License-Identifier: Apache-2.0
"""Processes that begin with all imported that a scenario with an engine needs: importing takes longer than most scenarios do."""
import faulthandler
import multiprocessing
import os
import tempfile

# The same order of sets each time: it is read when the server starts.
os.environ["PYTHONHASHSEED"] = "0"
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.integration.engine_ahead"])


def _begin(files, environment, function, arguments):
    for fd, path in enumerate(files, 1):
        file = os.open(path, os.O_WRONLY)
        os.dup2(file, fd)
        os.close(file)
    os.environ.update(environment)
    faulthandler.enable()
    function(*arguments)


def run(seconds, environment, function, *arguments):
    """Its exit status, and what it has written to stdout and to stderr. Who is not done in time is killed."""
    with tempfile.NamedTemporaryFile("r", errors="replace") as out, tempfile.NamedTemporaryFile("r", errors="replace") as error:
        process = _context.Process(target=_begin, args=((out.name, error.name), environment, function, arguments))
        process.start()
        process.join(seconds)
        process.kill()
        process.join()
        return process.exitcode, out.read(), error.read()
