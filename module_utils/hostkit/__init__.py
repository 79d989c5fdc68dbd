"""The rules of vllm-hostkit: pure functions from values to values, standard library only.

Imported as ``ansible.module_utils.hostkit`` by modules and as ``hostkit`` by commands and tests, so
modules of this package import each other relatively. Runs on Python 3.9 and newer.
"""
