"""Scripts that train, each the main program of a process forked from one that imported it all.

Imports take far longer than the few steps of a tiny model. `Forking` is that one process and a
`python` for PATH, which hands what it is to run over to it; so run.sh, its launcher and what that
starts again are what they are for users, and only the imports are not repeated. What an unmodified
interpreter does with a run.sh is asked by the walk.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

# argv: the socket, and the command that stands for the interpreter. For each that connects, one
# process runs what is asked with its streams, folder and environment, and another waits for it.
# Nobody looks for garbage among what was imported, or takes it apart at the end: either would copy
# every page of it.
_SERVES = """import atexit, gc, json, os, runpy, signal, socket, sys, traceback, types
gc.disable()
import accelerate.commands.launch, datasets, peft, torch, transformers, trl
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer
address, sys.executable = sys.argv[1:]
server = socket.socket(socket.AF_UNIX)
server.bind(address)
server.listen()
def reap(*_):
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
signal.signal(signal.SIGCHLD, reap)
gc.freeze()
gc.enable()
print("ready", flush=True)
while True:
    client = server.accept()[0]
    if not os.fork():
        break
    client.close()
signal.signal(signal.SIGCHLD, signal.SIG_DFL)
server.close()
told, streams, _, _ = socket.recv_fds(client, 1 << 20, 3)
while not told.endswith(b"\\n"):
    told += client.recv(1 << 20)
own = os.fork()
if own:
    client.sendall(b"%d" % os.waitstatus_to_exitcode(os.waitpid(own, 0)[1]))
    os._exit(0)
client.close()
for number, stream in enumerate(streams):
    os.dup2(stream, number)
    os.close(stream)
(what, *words), folder, environment = json.loads(told)
os.chdir(folder)
os.environ.clear()
os.environ.update(environment)
code = 0
try:
    if what == "-c":
        text, *words = words
        sys.argv, sys.path[0] = ["-c", *words], ""
        sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(text, "<string>", "exec"), sys.modules["__main__"].__dict__)
    else:
        sys.argv, sys.path[0] = [what, *words], os.path.dirname(os.path.abspath(what))
        runpy.run_path(what, run_name="__main__")
except SystemExit as end:
    code = end.code or 0
    if not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
except BaseException:
    traceback.print_exc()
    code = 1
atexit._run_exitfuncs()
sys.stdout.flush()
sys.stderr.flush()
os._exit(code)
"""
_ASKS = """import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    told = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)])
    socket.send_fds(server, [told.encode() + b"\\n"], [0, 1, 2])
    sys.exit(int(server.recv(16)) % 256)
"""


class Forking:
    """A `python` in a folder of its own, `bin`: what it runs is forked from `server`."""

    def __init__(self, bin_: Path) -> None:
        self.bin = bin_

    @property
    def path(self) -> str:
        """PATH with that `python` first, and the environment's own programs after it."""
        return os.pathsep.join([str(self.bin), *_PATH])

    def run(self, scripts: Sequence[Path]) -> None:
        """Run each script in turn; `stdout`, `stderr` and `code`, its exit code, lie beside it.

        Beside each lies environment.json, which is set besides what is set here.
        """
        for script in scripts:
            where = script.parent
            own = json.loads((where / "environment.json").read_text())
            with (where / "stdout").open("w") as stdout, (where / "stderr").open("w") as stderr:
                done = subprocess.run(
                    [self.bin / "python", script], env={**os.environ, **own},
                    stdout=stdout, stderr=stderr, check=False, timeout=1800,
                )  # fmt: skip
            (where / "code").write_text(str(done.returncode))


_PATH = (os.path.dirname(sys.executable), os.environ["PATH"])  # noqa: PTH120 - a text of PATH


@contextmanager
def forking(folder: Path) -> Iterator[Forking]:
    """One process that has imported what training imports, until the end.

    It asks nothing of the hub, and what it keeps lies in `folder`.
    """
    made = Forking(folder / "bin")
    made.bin.mkdir()
    python, asks, address = made.bin / "python", folder / "asks.py", str(folder / "socket")
    asks.write_text(_ASKS.format(address=address))
    typed = shlex.join([sys.executable, "-IS", str(asks)])
    python.write_text(f'#!/bin/sh\nexec {typed} "$@"\n')
    python.chmod(0o755)
    own = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hf")}
    with subprocess.Popen(
        [sys.executable, "-c", _SERVES, address, str(python)], env={**os.environ, **own},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
    ) as server:  # fmt: skip
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        yield made
        server.kill()


def ran(where: Path) -> None:
    """Fail with what a script said at its end, unless it ended well."""
    assert (where / "code").read_text() == "0", (where / "stderr").read_text()[-3000:]
