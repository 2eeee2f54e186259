"""The types of the native module: `_allfold.pyi` has every name that the module has, with its parameters, and no other."""

import ast
from pathlib import Path

import allfold
from allfold import _allfold

STUB = Path(allfold.__file__).with_name("_allfold.pyi")
# Names that only the stub has.
ALIASES = {"Place", "Activity"}


def parameters(function: ast.FunctionDef) -> list[str]:
    given = function.args.posonlyargs + function.args.args
    return [parameter.arg for parameter in given if parameter.arg not in ("self", "cls")]


def stated() -> dict[str, object]:
    """Names of the stub: parameters of a function, or members of a class."""
    names = {}
    for node in ast.parse(STUB.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            names[node.name] = node
        elif isinstance(node, ast.ClassDef):
            members = [member for member in node.body if isinstance(member, ast.FunctionDef)]
            names[node.name] = {member.name: member for member in members}
        elif isinstance(node, ast.Assign):
            names[node.targets[0].id] = None
    return names


def assert_parameters(function: ast.FunctionDef, native: object) -> None:
    # Not by `inspect`, which refuses a parameter that is called `from`.
    text = native.__text_signature__.strip("()").split(",")
    signature = [name for part in text if (name := part.split("=")[0].strip()) not in ("$self", "")]
    if not function.args.posonlyargs:
        assert parameters(function) == signature, function.name
    else:
        assert len(parameters(function)) == len(signature), function.name


def test_the_stub_and_the_module_have_the_same_names():
    names = {name: node for name, node in stated().items() if name not in ALIASES}
    assert ALIASES <= stated().keys()
    assert names.keys() == {name for name in vars(_allfold) if not name.startswith("__")}
    compared = 0
    for name, node in names.items():
        native = getattr(_allfold, name)
        if isinstance(node, ast.FunctionDef):
            assert_parameters(node, native)
            compared += 1
            continue
        if issubclass(native, BaseException):
            continue
        members = {member for member in vars(native) if not member.startswith("__")}
        assert {member for member in node if member != "__new__"} == members, name
        for member, function in node.items():
            if callable(getattr(native, member)) and member != "__new__":
                assert_parameters(function, getattr(native, member))
                compared += 1
    assert compared > 30


def test_the_package_is_marked_as_typed_and_exports_what_it_lists():
    assert STUB.with_name("py.typed").exists()
    for name in allfold.__all__:
        assert getattr(allfold, name).__doc__, name
