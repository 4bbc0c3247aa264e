# SPDX-License-Identifier: Apache-2.0
"""The version of this package, in a module of its own: the build reads it without importing more."""
VERSION = "0.1.0"
