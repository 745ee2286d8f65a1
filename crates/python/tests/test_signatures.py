"""Our `deep_ep` and `mori` have the signatures that versions of DeepEP and mori declare, and take the calls of engines.

Runs without torch too: a module that has every name takes its place while ours are imported.
"""

import ast
import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import sys
import types

import anabranch
import deep_ep_signatures
import mori_signatures
import pytest


class Anything(type):
    """Classes that have every attribute and take every call."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything(name, (), {})

    def __call__(cls, *arguments, **keywords):
        return cls

    def __or__(cls, other):
        return cls

    __ror__ = __or__


class Substitute(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds `torch` and its parts."""

    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.split(".")[0] == "torch" else None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__getattr__ = lambda name: Anything.__getattr__(Anything, name)
        return module

    def exec_module(self, module):
        module.__version__ = "2.9.1"


@contextlib.contextmanager
def torch_or_substitute():
    if importlib.util.find_spec("torch") is not None:
        yield
        return
    finder = Substitute()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        # Other tests skip where torch is not installed, and import nothing that was made with the substitute.
        made = ("torch", "anabranch.torch", "anabranch.compat")
        for name in [name for name in sys.modules if name.startswith(made)]:
            del sys.modules[name]
        for name in ("torch", "compat"):
            vars(anabranch).pop(name, None)


with torch_or_substitute():
    from anabranch.compat import deep_ep
    from anabranch.compat.deep_ep import _config
    from anabranch.compat.mori import ops

# Whose interface this is: also the positions of parameters are the same.
VERSION = "DeepEP 2.1.0"


def parameters(of_module: types.ModuleType, of: str, method: str) -> tuple[dict[str, inspect.Parameter], bool]:
    """Those of our method, without ``self``, and whether it takes others."""
    given = dict(inspect.signature(getattr(getattr(of_module, of), method)).parameters)
    given.pop("self", None)
    rest = [name for name, each in given.items() if each.kind is inspect.Parameter.VAR_KEYWORD]
    for name in rest:
        del given[name]
    return given, bool(rest)


def declared_parameters(text: str) -> list[tuple[str, list]]:
    """Names, and the default of each that has one."""
    found = ast.parse(f"lambda {text}: 0", mode="eval").body.args
    required = len(found.args) - len(found.defaults)
    defaults = [[]] * required + [[ast.literal_eval(default)] for default in found.defaults]
    return [(each.arg, default) for each, default in zip(found.args, defaults)]


@pytest.mark.parametrize("version", deep_ep_signatures.DECLARED)
def test_deep_ep_takes_what_its_versions_declare(version):
    for of, methods in deep_ep_signatures.DECLARED[version].items():
        assert {"__init__", "dispatch", "combine"} <= set(methods)
        for method, text in methods.items():
            given, takes_others = parameters(deep_ep, of, method)
            for index, (name, value) in enumerate(declared_parameters(text)):
                where = f"{version}: {of}.{method}({name})"
                if name not in given:
                    assert takes_others and value, where
                    _config.refuse_unknown(method, {name: value[0]})
                    continue
                ours = given[name].default
                assert ([] if ours is inspect.Parameter.empty else [ours]) == value, where
                if version.startswith(VERSION):
                    assert list(given)[index] == name, where


def takes_call(given: dict[str, inspect.Parameter], method: str, positional: int, text: str) -> None:
    """Checks that these parameters take a call with so many positional arguments and these keywords."""
    keywords = text.split()
    names = list(given)[:positional] + keywords
    assert len(names) == positional + len(keywords) and set(names) <= set(given), (method, names)
    missing = {name for name, each in given.items() if each.default is inspect.Parameter.empty} - set(names)
    assert not missing, (method, missing)


@pytest.mark.parametrize("engine", deep_ep_signatures.CALLED)
def test_deep_ep_takes_what_engines_call(engine):
    for of, method, positional, text in deep_ep_signatures.CALLED[engine]:
        takes_call(parameters(deep_ep, of, method)[0], method, positional, text)


@pytest.mark.parametrize("version", mori_signatures.DECLARED)
def test_mori_has_the_signatures_of_its_version(version):
    for of, methods in mori_signatures.DECLARED[version].items():
        for method, text in methods.items():
            ours = [
                (name, [] if each.default is inspect.Parameter.empty else [getattr(each.default, "name", each.default)])
                for name, each in parameters(ops, of, method)[0].items()
            ]
            assert ours == declared_parameters(text), (of, method)


@pytest.mark.parametrize("engine", mori_signatures.CALLED)
def test_mori_takes_what_engines_call(engine):
    for of, method, positional, text in mori_signatures.CALLED[engine]:
        takes_call(parameters(ops, of, method)[0], method, positional, text)
