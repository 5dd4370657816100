"""The legs of the walk, in the order in which a new user comes to them."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.domain.units import parse_seconds
from bench.consistency.checks import contradictions
from bench.consistency.said import said
from bench.walk.parsers import parse_export
from bench.walk.plain_script import script
from bench.walk.terminal import Terminal, Typed, WalkError, commands_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Answer = dict[str, Any]  # what `--format json` prints
ROOT = Path(__file__).parents[2]
ODD = "Läufe und (mehr) it's"  # spaces, quotes, brackets and letters of other alphabets
WIDTH, SCREEN = 80, 40  # [columns], [lines] of what is printed unasked
STEPS_SEEN = 10
LOOKS_S = 0.05  # between two looks at a log
CLOSER = 0.1  # a prediction that is within a tenth of the measured step is close


@dataclass
class Walk:
    """A new folder, what was typed in it, and what the answers said.

    top: an empty folder; package: where `autotune` is imported from; probes: configurations to
    probe at most.
    """

    top: Path
    package: Path = ROOT
    probes: int = 2
    notes: list[str] = field(default_factory=list)  # what could not be tried here

    @cached_property
    def terminal(self) -> Terminal:
        """The user's own terminal, in a folder that holds the job, its rows and its model."""
        made = Terminal(self.top / ODD, self.top / "home", self.package)
        shutil.copytree(ROOT / "jobs" / "data", made.folder / "jobs" / "data")
        for name in ("tiny_cpu.yaml", "h100_38h.yaml"):
            shutil.copy(ROOT / "jobs" / name, made.folder / "jobs" / name)
        made.read((ROOT / "README.md").read_text(encoding="utf-8"))
        comment = (ROOT / "jobs" / "tiny_cpu.yaml").read_text(encoding="utf-8")
        made.read(comment.replace("\n# ", " "))
        made.printed.add("autotune --help")
        listed = made.type("autotune --help").stdout
        commands = re.findall(r"^  ([a-z]+)  ", listed, re.MULTILINE)
        made.printed |= {f"autotune {command}" for command in commands}
        return made

    @cached_property
    def tiny(self) -> Answer:
        """The answer for the job of this machine."""
        return self.tuned("autotune tune jobs/tiny_cpu.yaml")

    def tuned(self, command: str, options: str = "", *, codes: tuple[int, ...] = (0,)) -> Answer:
        """The answer that a tune printed and kept: one screen, and all of it on request."""
        return self.kept(self.terminal.type(command, options, codes=codes))

    def kept(self, typed: Typed) -> Answer:
        """The answer behind what was printed, held against all that is printed of it."""
        lines = typed.stdout.splitlines()
        wide = [line for line in lines if len(line) > WIDTH and not _is_command(line)]
        if wide or len(lines) > SCREEN:
            msg = f"{len(lines)} lines, and wider than {WIDTH} columns: {wide}\n{typed}"
            raise WalkError(msg)
        report = [c for c in commands_of(typed.stdout) if c.startswith("autotune report ")]
        whole = self.terminal.type(report[-1])
        payload: Answer = self.terminal.type(report[-1], "--format json").json
        self.paste(payload, whole.stdout)
        agree(payload, typed.stdout, whole.stdout)
        return payload

    def paste(self, payload: Answer, text: str) -> None:
        """Every command of the JSON stands in the text on a line of its own, to be copied."""
        lines = {line.strip() for line in text.splitlines()}
        for step in payload["next"]:
            if step["command"] not in lines:
                msg = f"`{step['command']}` is in the JSON and on no line of the text"
                raise WalkError(msg)
            shlex.split(step["command"])

    def found(self, payload: Answer, *parts: str) -> str:
        """One of the commands that an answer names next: how it begins, and what it holds."""
        for step in payload["next"]:
            command = str(step["command"])
            if command.startswith(parts[0]) and all(part in command for part in parts):
                return command
        msg = f"nothing with {' and '.join(parts)} is named next: {payload['next']}"
        raise WalkError(msg)


def agree(payload: Answer, *reports: str) -> None:
    """Raise WalkError with every place in which an answer contradicts itself or its reports."""
    found = [
        *contradictions(payload),
        *(text for report in reports for text in said(payload, report)),
    ]
    if found:
        msg = "the answer contradicts itself:\n  " + "\n  ".join(dict.fromkeys(found))
        raise WalkError(msg)


def _is_command(line: str) -> bool:
    return line.lstrip().startswith(("autotune ", "bash ", "MAX_STEPS=", "(cd ", "trainer."))


def one_line(walk: Walk) -> None:
    """The one-line form of the README, and the README's first job."""
    walk.tuned(walk.terminal.find("autotune tune --model", "--gpu"))
    walk.tuned(walk.terminal.find("autotune tune jobs/h100_38h.yaml"), codes=(0, 4))


def rows(walk: Walk) -> None:
    """Counting rows counts tokens: of a model's tokenizer, or as an estimate that says so."""
    terminal, data = walk.terminal, "jobs/data/tiny.jsonl"
    terminal.find("autotune dataset")
    command = f"autotune dataset {data}"
    terminal.printed.add(command)  # it takes any file
    size = (terminal.folder / data).stat().st_size
    counted = terminal.type(command, "--format json").json
    one = terminal.find("autotune tune --model", "--gpu")
    told = terminal.type(one, f"--data {data} --dry-run --format json").json
    lengths = {"dataset": counted["mean"], "tune --data": told["job"]["mean_length"]}
    bytes_a_row = size / counted["rows"]
    for name, mean in lengths.items():
        if mean > MOST_TOKENS_A_BYTE * bytes_a_row:
            msg = f"{name} counts {mean} tokens in rows of {bytes_a_row:.0f} bytes of English"
            raise WalkError(msg)


MOST_TOKENS_A_BYTE = 0.5


def tune_tiny(walk: Walk) -> None:
    """The job for this machine: what is printed can be copied, and agrees with itself."""
    if walk.tiny["best"] is None:
        msg = "nothing fits on this machine"
        raise WalkError(msg)


def smoke(walk: Walk) -> None:
    """The unmodified run.sh, from another folder, as its smoke run; and verify takes it."""
    run, elsewhere = Path(walk.tiny["run_dir"]), walk.top / "else where"
    elsewhere.mkdir()
    command = f"autotune report {shlex.quote(str(run))} --verbose"
    walk.terminal.printed.add(command)  # RUN is any run folder, from any folder
    told = walk.terminal.type(command, folder=elsewhere)
    lines = [line.strip() for line in told.stdout.splitlines()]
    first = next((line for line in lines if line.startswith("MAX_STEPS=")), None)
    if first is None:
        msg = f"no smoke run is named from another folder\n{told}"
        raise WalkError(msg)
    steps = int(first.partition("=")[2].split()[0])
    walk.terminal.type(first, folder=elsewhere)
    held = walk.terminal.type(walk.found(walk.tiny, "autotune verify"), "--format json").json
    log = held["log"]
    facts = (log["smoke_steps"], log["steps"], log["steps_done"], log["finished"])
    if facts != (steps, walk.tiny["job"]["steps"], steps, True):
        msg = f"a smoke run of {steps} steps is verified as {log}"
        raise WalkError(msg)
    _compared(held, walk.tiny)


def _compared(held: Answer, plan: Answer) -> None:
    """A verification has a prediction, that of the plan, and an interval around what it saw."""
    line = next(line for line in held["lines"] if line["what"] == "step_time")
    if not line["predicted"] or not line["actual"]:
        msg = f"the step has no prediction or no time: {line}"
        raise WalkError(msg)
    if not math.isclose(line["predicted"], plan["best"]["step_time_s"], rel_tol=1e-6):
        msg = f"{line['predicted']} s is said to be predicted, {plan['best']['step_time_s']} was"
        raise WalkError(msg)
    spread = held["log"]["step_time_s"]
    if not spread["p10"] < line["actual"] < spread["p90"]:
        msg = f"the measured step {line['actual']} is outside its own interval {spread}"
        raise WalkError(msg)


def learn(walk: Walk) -> None:
    """Tune again: better by what the verified run taught, or the reason why it taught nothing."""
    held = walk.terminal.type(walk.found(walk.tiny, "autotune verify"), "--format json").json
    _asked_anew(walk, held)


def _asked_anew(walk: Walk, held: Answer) -> None:
    """The next tune after a verify: named where something was learned, else typed as before."""
    command = "autotune tune jobs/tiny_cpu.yaml"
    if held["calibration"]:
        command = walk.found(held, command)
    elif not held["log"]["spoiled"]:
        return
    _taught(walk.tiny, held, walk.tuned(command))


def _taught(before: Answer, held: Answer, after: Answer) -> None:
    told = [item for item in after["assumed"] if item["key"] == "evidence"]
    if not told:
        msg = "a verified run of this very job is not mentioned by the next tune"
        raise WalkError(msg)
    line = next(line for line in held["lines"] if line["what"] == "step_time")
    same = after["best"]["config"] == before["best"]["config"]
    old, new = before["best"]["step_time_s"], after["best"]["step_time_s"]
    if held["log"]["spoiled"]:
        if "left out" not in told[-1]["value"] or (same and not math.isclose(old, new)):
            msg = f"spoiled ({held['log']['spoiled']}), and it taught: {told}, {old} s -> {new} s"
            raise WalkError(msg)
        return
    if not same:
        return
    factor = {item["component"]: item["after"] for item in held["calibration"]}.get("compute", 1.0)
    off_before, off_after = (abs(math.log(step / line["actual"])) for step in (old, new))
    if factor != 1.0 and off_after > max(off_before, CLOSER):
        msg = f"{line['actual']} s was measured; predicted before {old} s, and after {new} s"
        raise WalkError(msg)
    if factor != 1.0 and after["best"]["basis"] != "calibrated":
        msg = f"it learned a factor of {factor}, and says {after['best']['basis']}"
        raise WalkError(msg)


def train(walk: Walk) -> None:
    """The run itself, from where the user stands; verified half-way and finished."""
    terminal, run = walk.terminal, Path(walk.tiny["run_dir"])
    log = run / "output" / "observations.jsonl"
    log.unlink(missing_ok=True)
    verify = walk.found(walk.tiny, "autotune verify")
    with terminal.running(walk.found(walk.tiny, "bash ")) as training:
        while training.poll() is None and _steps_in(log) < STEPS_SEEN:
            time.sleep(LOOKS_S)
        half = terminal.type(verify, "--format json").json
    steps = walk.tiny["job"]["steps"]
    done = half["log"]["steps_done"]
    if not STEPS_SEEN <= done <= steps or half["remaining"]["steps"] != steps - done:
        msg = f"half-way at step {done} of {steps}, {half['remaining']} remain"
        raise WalkError(msg)
    whole = terminal.type(verify, "--format json").json
    if not whole["log"]["finished"] or whole["log"]["smoke_steps"] or whole["remaining"]["steps"]:
        msg = f"a finished run of {steps} steps is verified as {whole['log']}"
        raise WalkError(msg)
    _compared(whole, walk.tiny)
    terminal.type(verify)
    _asked_anew(walk, whole)


def _steps_in(log: Path) -> int:
    return log.read_text(encoding="utf-8").count('"step", "step"') if log.is_file() else 0


def callback(walk: Walk) -> None:
    """A script of the user's own, with the two lines that are printed for it."""
    terminal, run = walk.terminal, Path(walk.tiny["run_dir"])
    told = terminal.type(walk.found(walk.tiny, "autotune report", "--verbose")).stdout
    lines = [
        line.strip() for line in told.splitlines()
        if line.strip().startswith(("from autotune import", "trainer.add_callback("))
    ]  # fmt: skip
    if len(lines) != TWO:
        msg = f"the lines for a script of one's own are {lines}"
        raise WalkError(msg)
    own = terminal.folder / "train mine.py"
    own.write_text(script(lines, run / "training_args.json"), encoding="utf-8")
    terminal.printed.add("python 'train mine.py'")  # the user's own command
    said = terminal.type("python 'train mine.py'").stderr
    if "without a p" in said or "recording ended" in said or "a step" not in said:
        msg = f"the callback did not follow its plan: {said[-2000:]}"
        raise WalkError(msg)
    held = terminal.type(terminal.find("autotune verify", run.name), "--format json").json
    if terminal.folder / held["log"]["path"] != run / "observations.jsonl":
        msg = f"the newest record is {run}/observations.jsonl, and {held['log']['path']} is read"
        raise WalkError(msg)
    _compared(held, walk.tiny)


TWO = 2


def probe(walk: Walk) -> None:
    """The same question measured here: Ctrl-C in the middle, and on from there."""
    command = walk.found(walk.tiny, "autotune tune", "--score probe")
    options = f"--probes {walk.probes} --probe-budget {BUDGET}"
    stopped = walk.terminal.interrupt(command, options, lambda said: "probe 1 of" in said)
    if not stopped.code:
        walk.notes.append("Ctrl-C: the search had ended before it came")
        return
    again = [command for command in commands_of(stopped.stderr) if "--resume" in command]
    if not again:
        msg = f"Ctrl-C says no command to go on with\n{stopped}"
        raise WalkError(msg)
    answer = walk.tuned(again[-1])
    _measured(answer, walk.probes)


BUDGET = "4m"  # [of time] in which a quiet machine is done, and a busy one has begun


def _measured(answer: Answer, probes: int) -> None:
    search, best = answer["search"], answer["best"]
    bound = search["bound"] or {}
    if bound.get("probability") != 0.9 or not 0 <= bound.get("fraction", -1) < 1:  # noqa: PLR2004 - nine chances in ten
        msg = f"what may be better is not bounded: {bound}"
        raise WalkError(msg)
    if best["basis"] != "measured" or not search["probes"]:
        msg = f"after {search['probes']} probes the answer is {best['basis']}"
        raise WalkError(msg)
    if search["probes"] > probes:
        msg = f"{search['probes']} configurations were probed, and {probes} were asked for"
        raise WalkError(msg)
    if search["probe_budget_s"] != parse_seconds(BUDGET):
        msg = f"a probe budget of {search['probe_budget_s']} s is told, and {BUDGET} were asked for"
        raise WalkError(msg)
    broken = [run for run in answer["probed"] if run["status"] in {"crash", "broken"}]
    if broken:
        msg = f"probes broke: {broken}"
        raise WalkError(msg)


def busy(walk: Walk) -> None:
    """Measured while other programs want every core: said, and kept from later searches."""
    if not Path("/proc/self/schedstat").is_file():
        walk.notes.append("a busy machine: this system does not count who uses its processors")
        return
    command = walk.found(walk.tiny, "autotune tune", "--score probe")
    with others_at_work():
        answer = walk.tuned(command, "--probes 1 --probe-budget 1m")
    noise = answer["search"].get("noise") or {}
    disturbed = (answer["best"]["measured"] or {}).get("disturbed")
    told = any("disturbed" in text for text in answer["warnings"])
    if not (noise.get("disturbed_probes") and disturbed and told):
        msg = (
            f"other programs used {CORES} cores, and what was measured is taken for the machine's "
            f"own pace: {noise}, disturbed {disturbed}, warnings {answer['warnings']}"
        )
        raise WalkError(msg)


CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def others_at_work() -> Iterator[None]:
    """A program for every core, which does nothing but use it."""
    endless = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(endless) for _ in range(CORES)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def recompute(walk: Walk) -> None:
    """The same question for other machines."""
    answer = walk.terminal.type(walk.found(walk.tiny, "autotune recompute"), "--format json").json
    before, best = answer["before"], walk.tiny["best"]
    if any(before[key] != best[key] for key in ("device", "config", "duration_s", "cost_usd")):
        msg = f"the run's answer is {best}, and recompute begins from {before}"
        raise WalkError(msg)


def report(walk: Walk) -> None:
    """The answer again, in every format that the help names."""
    terminal = walk.terminal
    page = walk.found(walk.tiny, "autotune report", "--format html")
    terminal.type(page)
    target = terminal.folder / shlex.split(page)[-1]
    drawn = target.read_text(encoding="utf-8")
    if "<html" not in drawn:
        msg = f"{target} is no page"
        raise WalkError(msg)
    agree(walk.tiny, drawn)
    plain = walk.found(walk.tiny, "autotune report", "--verbose").removesuffix(" --verbose")
    terminal.printed.add(plain)
    told = {name: terminal.type(plain, f"--format {name}").stdout for name in FORMATS}
    again = json.loads(told["json"])
    if again["best"] != walk.tiny["best"]:
        msg = "the report's JSON is another answer than the run's"
        raise WalkError(msg)
    if "| " not in told["md"] or "," not in told["csv"].splitlines()[0]:
        msg = f"{told['md'][:200]!r} is no Markdown, or {told['csv'][:200]!r} no CSV"
        raise WalkError(msg)


FORMATS = ("text", "json", "csv", "md")


def export(walk: Walk) -> None:
    """What to run for every trainer, read by the trainer's own parser where it is installed."""
    for step in walk.tiny["next"]:
        if "autotune export" in step["command"]:
            name = shlex.split(step["command"])[-1]
            written = walk.terminal.type(step["command"]).stdout.splitlines()
            files = [walk.terminal.folder / line.strip() for line in written]
            if told := parse_export(name, files):
                walk.notes.append(told)


LEGS: dict[str, Callable[[Walk], None]] = {
    "one_line": one_line,
    "rows": rows,
    "tune": tune_tiny,
    "smoke": smoke,
    "learn": learn,
    "train": train,
    "callback": callback,
    "recompute": recompute,
    "report": report,
    "export": export,
    "busy": busy,
    "probe": probe,
}
