# SPDX-License-Identifier: Apache-2.0
"""Any Python 3, this platform: the package is plain Python, with a library in it."""
import os

from setuptools import Distribution, setup

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:
    from wheel.bdist_wheel import bdist_wheel


class WithLibrary(Distribution):
    def has_ext_modules(self):
        return True


class Wheel(bdist_wheel):
    def get_tag(self):
        return "py3", "none", os.environ["GLAKE_PLATFORM"]


setup(distclass=WithLibrary, cmdclass={"bdist_wheel": Wheel})
