"""Audit, review and predict without what only Unix has: a stand-in for Windows, not Windows itself.

No Windows machine was available. These tests show that no module outside the list below asks for
Unix, and that the commands work when fcntl, resource and some functions of `os` are taken away.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# a hospital's node in a federation: signals between processes
UNIX_ONLY = {
    "hospital/node.py",
    "hospital/worker.py",
}
MODULES = {"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog"}
NAMES = {
    "os": {
        "pread", "pwrite", "fork", "forkpty", "getuid", "geteuid", "getgid", "setuid", "fchmod",
        "fchown", "chown", "killpg", "setsid", "getpgid", "getloadavg", "sched_getaffinity",
        "pidfd_open", "mkfifo", "statvfs", "uname", "wait", "nice", "O_NOFOLLOW", "O_CLOEXEC",
    },
    "signal": {"SIGKILL", "SIGALRM", "SIGHUP", "SIGUSR1", "SIGCHLD", "alarm", "setitimer"},
    "socket": {"AF_UNIX", "SCM_RIGHTS"},
    "errno": {"EDQUOT"},
    "time": {"tzset"},
}  # fmt: skip


def find_unix_names(path: Path) -> list[str]:
    """What a module asks of Unix, except inside try ... except ImportError."""
    tree = ast.parse(path.read_text())
    guarded_nodes: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Try):
            handlers = [ast.unparse(handler.type) for handler in node.handlers if handler.type]
            if any("ImportError" in handler for handler in handlers):
                for child in node.body:
                    guarded_nodes.update(id(inner) for inner in ast.walk(child))
    names = []
    for node in ast.walk(tree):
        if id(node) in guarded_nodes:
            continue
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names if alias.name in MODULES]
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
            names.append(str(node.module))
        elif isinstance(node, ast.Attribute):
            module = ast.unparse(node.value)
            if node.attr in NAMES.get(module, ()):
                names.append(f"{module}.{node.attr}")
    return names


def test_only_the_node_of_a_federation_needs_unix() -> None:
    problems = {}
    for path in sorted((ROOT / "fedgsca").rglob("*.py")):
        name = path.relative_to(ROOT / "fedgsca").as_posix()
        names = find_unix_names(path)
        if names and name not in UNIX_ONLY:
            problems[name] = names
    assert problems == {}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("import fcntl", ["fcntl"]),
        ("def f():\n    from resource import getrusage", ["resource"]),
        ("import os\nos.pread(1, 2, 3)", ["os.pread"]),
        ("try:\n    import fcntl\nexcept ImportError:\n    fcntl = None", []),
        ("import os\nos.replace('a', 'b')", []),
    ],
)
def test_the_search_finds_what_it_should(tmp_path: Path, text: str, names: list[str]) -> None:
    (tmp_path / "module.py").write_text(text)
    assert find_unix_names(tmp_path / "module.py") == names


WITHOUT_UNIX = """
import builtins, importlib, os, pkgutil, signal, socket, sys
from pathlib import Path

import filelock, matplotlib.pyplot, numpy, starlette, torch, uvicorn

real_import = builtins.__import__

def import_without_unix(name, globals=None, *rest, **options):
    caller = (globals or {}).get("__name__", "")
    if name in UNIX_MODULES and caller.startswith("fedgsca"):
        raise ImportError(f"No module named {name!r}: {caller} asked for it")
    return real_import(name, globals, *rest, **options)

builtins.__import__ = import_without_unix
for name in ("pread", "pwrite", "getuid", "geteuid", "fork", "killpg", "pidfd_open"):
    if hasattr(os, name):
        delattr(os, name)
del socket.AF_UNIX, signal.SIGKILL

import fedgsca.cli
for package in ("labels", "lab", "cli", "data", "hospital"):
    parent = importlib.import_module(f"fedgsca.{package}")
    for module in pkgutil.walk_packages(parent.__path__, f"fedgsca.{package}."):
        importlib.import_module(module.name)

from fedgsca.cli import execute
from fedgsca.labels.audit_images import AuditImages
from fedgsca.labels.audit_table import read_audit
from fedgsca.labels.review.people import LinkBook, ReviewTrail, check_trail
from fedgsca.labels.review.session import ListFilter, Session
from tests.audits import toy_audit
from tests.toys import toy_npz

run = Path(sys.argv[1]) / "run"
folder = toy_audit(run, source=toy_npz(124)).path
audit = read_audit(folder)
session = Session(audit, AuditImages.open(audit), "anna")
for item in session.list_items(ListFilter(), 0, 3, open_only=True)["items"]:
    session.decide({"row": item["row"], "hash": item["hash"], "action": "accept"})
session.undo("x")
assert session.progress().num_decisions == 2
LinkBook(folder).add("anna", role="reader", blind=False, days=1, address="https://x")
ReviewTrail(folder).write("opened", "anna")
assert check_trail(folder).problems == ()
assert execute(["review", str(folder), "--summary"]) == 0
assert execute(["apply", str(folder)]) == 0
images = Path(sys.argv[1]) / "images"
images.mkdir()
from PIL import Image
for row in range(3):
    Image.fromarray(AuditImages.open(audit).array(row)).save(images / f"{row}.png")
assert execute(["predict", str(run), str(images)]) == 0
print("everything worked")
"""


def test_audit_review_and_predict_work_without_unix(tmp_path: Path) -> None:
    script = tmp_path / "without_unix.py"
    script.write_text(WITHOUT_UNIX.replace("UNIX_MODULES", repr(sorted(MODULES))))
    command = [sys.executable, str(script), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False
    )
    assert "everything worked" in result.stdout, result.stdout + result.stderr
