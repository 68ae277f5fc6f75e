"""The one direction of the data (shared/design.md): a package never imports one to its right."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "mspcaps"
ORDER = [  # from left to right; what shares a line may import each other, APART excepted
    {"errors", "files", "lazy"},
    {"progress"},
    {"pages"},
    {"capsules", "data"},
    {"models"},
    {"evaluation", "kernels"},
    {"training"},
    {"explanation", "export", "bench", "sklearn"},
    {"__init__"},  # the public API
    {"report"},
    {"app", "quickstart"},
    {"cli"},
    {"__main__"},
]
RANK = {package: rank for rank, packages in enumerate(ORDER) for package in packages}
APART = [{"capsules", "data"}, {"evaluation", "kernels"}]  # neither imports the other
USERS = {"kernels": {"training"}}  # of what not everything to its right may use
CONSTANTS = {"__version__"}  # of the root, for anyone


def package_of(path: Path, source: Path = SOURCE) -> str:
    """models/layers.py -> models; cli.py -> cli."""
    return path.relative_to(source).with_suffix("").parts[0]


def imports_of(path: Path, source: Path = SOURCE) -> set[tuple[int, str]]:
    """(line, package) of everything that a file takes from mspcaps, wherever in the file the import stands."""
    here = ("mspcaps", *path.relative_to(source).with_suffix("").parts)
    found: set[tuple[int, str]] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = here[: -node.level] if node.level else ()
            base += tuple(node.module.split(".")) if node.module else ()
            names = [(*base, alias.name) for alias in node.names]
        else:
            continue
        for name in names:
            if name[0] != "mspcaps" or (len(name) == 2 and name[1] in CONSTANTS):
                continue
            inside = len(name) > 1 and ((source / name[1]).is_dir() or (source / f"{name[1]}.py").is_file())
            found.add((node.lineno, name[1] if inside else "__init__"))
    return found


def violations(source: Path) -> list[str]:
    """One sentence per import that runs against the order."""
    wrong = []
    for path in sorted(source.rglob("*.py")):
        package = package_of(path, source)
        for line, other in sorted(imports_of(path, source)):
            if package == other:
                continue
            against = (
                RANK.get(other, -1) > RANK.get(package, -1)
                or {package, other} in APART
                or package not in USERS.get(other, RANK)
            )
            if against or package not in RANK or other not in RANK:
                wrong.append(f"{path.relative_to(source)}:{line}: {package} imports {other}")
    return wrong


@pytest.mark.slow
def test_no_package_imports_one_to_its_right():
    assert violations(SOURCE) == []


def test_every_package_has_its_place():
    packages = {package_of(path) for path in SOURCE.rglob("*.py")}
    assert packages == set(RANK), "give the new package a place in ORDER and in shared/design.md"


@pytest.mark.parametrize(
    ("path", "text", "verdict"),
    [
        ("capsules/a.py", "from mspcaps.models import layers", "capsules imports models"),
        ("capsules/a.py", "from mspcaps.data.b import c", "capsules imports data"),
        ("data/a.py", "import mspcaps.capsules", "data imports capsules"),
        ("kernels/a.py", "from mspcaps.capsules.b import c\nfrom mspcaps.models import Model", None),
        ("evaluation/a.py", "from mspcaps.kernels import fuse", "evaluation imports kernels"),
        ("bench/a.py", "from mspcaps.kernels import fuse", "bench imports kernels"),
        ("training/a.py", "from mspcaps.kernels import fuse", None),
        ("models/a.py", "from mspcaps import training", "models imports training"),
        ("models/a.py", "from ..training.b import c", "models imports training"),
        ("models/__init__.py", "from mspcaps.cli import main", "models imports cli"),
        ("training/a.py", "def f():\n    from mspcaps.export import load", "training imports export"),
        ("training/a.py", "import mspcaps", "training imports __init__"),
        ("training/a.py", "from mspcaps import create_model", "training imports __init__"),
        ("strange/a.py", "from mspcaps.errors import MspcapsError", "strange imports errors"),
        ("training/a.py", "from mspcaps import __version__", None),
        ("training/a.py", "from mspcaps.models import create_model\nfrom . import b\nimport torch.models", None),
        ("training/a.py", "from mspcaps.evaluation.accuracy import evaluate", None),
        ("cli.py", "import mspcaps\nfrom mspcaps import data, create_model", None),
        ("__init__.py", "from mspcaps.evaluation import evaluate", None),
        ("__init__.py", "from mspcaps.cli.common import table", "__init__ imports cli"),
    ],
)
def test_the_check_sees_what_it_should(tmp_path, path, text, verdict):
    for package in {*RANK, "strange"} - {"cli", "__init__", "__main__"}:
        (tmp_path / package).mkdir()
    (tmp_path / "cli.py").touch()
    (tmp_path / path).write_text(text)
    found = violations(tmp_path)
    assert [sentence.split(": ")[1] for sentence in found] == ([verdict] if verdict else [])


def in_a_fresh_interpreter(code: str) -> subprocess.CompletedProcess[str]:
    command, env = [sys.executable, "-c", code], {"PYTHONPATH": str(SOURCE.parent)}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
def test_the_library_stays_light_and_leaves_the_environment_alone():
    """When it is imported, and when it is used."""
    code = """
import contextlib, os, sys
before = dict(os.environ)
import mspcaps, mspcaps.errors
with contextlib.suppress(mspcaps.errors.MspcapsError):
    mspcaps.train('nowhere')
print(*sorted({'matplotlib', 'rich', 'tyro'} & set(sys.modules)), *(os.environ.items() - before.items()))
"""
    done = in_a_fresh_interpreter(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


@pytest.mark.slow
def test_the_rooms_of_the_library_are_there_without_being_imported():
    done = in_a_fresh_interpreter(
        "import mspcaps; names = dir(mspcaps); print(*names); "
        "print(*(getattr(mspcaps, name).__name__ for name in names if name not in (*mspcaps.__all__, '__version__')))"
    )
    assert done.returncode == 0, done.stderr
    names, rooms = done.stdout.splitlines()
    assert {"create_model", "errors", "train"} <= {*names.split()} and not {"Any", "Path"} & {*names.split()}
    rooms_of_the_docs = ("capsules", "data", "errors", "explanation", "models", "report")
    assert {f"mspcaps.{name}" for name in rooms_of_the_docs} <= {*rooms.split()}


@pytest.mark.slow
def test_every_module_can_be_the_first_to_be_imported():
    """torch stays loaded in between, or this would take minutes."""
    code = """
import importlib, pkgutil, sys, torch, torch.library, mspcaps
torch.library.custom_op = lambda *args, **kwargs: lambda function: Op()  # a name can be registered only once
class Op:
    def register_fake(self, function): return function
    def register_autograd(self, *args, **kwargs): pass
for found in list(pkgutil.walk_packages(mspcaps.__path__, "mspcaps.")):
    if found.name.startswith("mspcaps.kernels.triton_") or found.name.endswith("__main__"):
        continue
    for name in [name for name in sys.modules if name.partition(".")[0] == "mspcaps"]:
        del sys.modules[name]
    try:
        importlib.import_module(found.name)
    except ImportError as error:
        print(found.name, error)
"""
    done = in_a_fresh_interpreter(code)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
