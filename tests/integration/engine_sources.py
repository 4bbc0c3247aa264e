# SPDX-License-Identifier: Apache-2.0
"""Real sources of engines, as tests/engines/fetch brings them: nothing of them is installed."""
import ast
import functools
import os
import types

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = os.path.join(HERE, "..", "..", "build", "engines")


def pinned(engine):
    """Version -> digest."""
    with open(os.path.join(HERE, "..", "engines", "sources.txt"), encoding="utf-8") as file:
        rows = [line.split() for line in file if not line.startswith("#")]
    return {row[1]: row[2] for row in rows if row[0] == engine}


class Source:
    """One version. `why` it cannot be read, or None."""

    def __init__(self, engine, version):
        self.engine, self.version = engine, version
        # Only what has the digest is unpacked.
        self.path = os.path.join(FOLDER, pinned(engine)[version], engine)
        self.why = None if os.path.isdir(self.path) else f"{engine} {version} is not here: tests/engines/fetch"

    @functools.lru_cache(maxsize=None)
    def text(self, path):
        with open(os.path.join(self.path, path), encoding="utf-8") as file:
            return file.read()

    @functools.lru_cache(maxsize=None)
    def tree(self, path):
        return ast.parse(self.text(path))

    def find(self, path, name):
        """The class, function, or `Class.method` or `Class.field` of a file; KeyError if there is none."""
        nodes = self.tree(path).body
        for part in name.split("."):
            for node in nodes:
                targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
                if getattr(node, "name", None) == part or part in [getattr(t, "id", None) for t in targets]:
                    break
            else:
                raise KeyError(f"{self.engine} {self.version}: {path} has no {name}")
            nodes = getattr(node, "body", [])
        return node

    def parameters(self, path, name):
        arguments = self.find(path, name).args
        return [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]

    def code(self, path, name):
        return ast.unparse(self.find(path, name))

    def module(self, path, name):
        """The real file, run as a module; what it imports has to be in sys.modules, or to be real."""
        module = types.ModuleType(name)
        module.__file__ = f"{self.path}/{path}"
        exec(compile(self.text(path), module.__file__, "exec"), module.__dict__)  # noqa: S102
        return module


def changed(config, changes):
    """The configuration, as much of vLLM's as is read, with each change in the first part that has the name."""
    for name, value in changes.items():
        owner = next(part for part in (config, config.model_config, config.parallel_config, config.cache_config)
                     if hasattr(part, name))
        setattr(owner, name, value)
    return config


#: of each vLLM
SOURCES = {version: Source("vllm", version) for version in pinned("vllm")}


def for_each_version(test):
    """Of vLLM: the test is given its source."""
    def run(self):
        absent = [source.why for source in SOURCES.values() if source.why]
        for source in SOURCES.values():
            if not source.why:
                with self.subTest(version=source.version):
                    test(self, source)
        if absent:
            self.skipTest(absent[0])
    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run
