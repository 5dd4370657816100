"""How a campaign gets in: a campaign file -> runs with what they inherit, resolved as jobs.

Identical runs are one job: it is resolved once and priced once, however often it is repeated.
"""

from __future__ import annotations

import copy
import json
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.app.campaign.list_schedule import topological
from autotune.app.hardware.machines import name_devices
from autotune.app.hardware.offers import distinct, offer_of
from autotune.app.job.file import Document, read_document
from autotune.app.job.overrides import overridden, shorten_lengths
from autotune.app.job.resolve import resolve
from autotune.app.job.variants import checked, checked_as
from autotune.catalog.devices import find_machine
from autotune.domain.answer.plan import Piece, PlannedRun
from autotune.domain.errors import InputError, unknown
from autotune.domain.typed.campaign import JOB_KEYS, CampaignFile
from autotune.domain.typed.job import OF_ANOTHER_KIND
from autotune.domain.typed.overrides import Overrides
from autotune.domain.typed.values import shown
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from autotune.app.job.file import KeyPath
    from autotune.domain.device import Offer
    from autotune.domain.job import Assumption, Job
    from autotune.domain.typed.campaign import PartSection, RunSection, StatedGroup

Values = dict[str, Any]
CAMPAIGN_SAMPLE = (
    "a campaign states hardware, defaults and phases with runs; `autotune help campaign` shows one"
)


@dataclass(frozen=True, slots=True)
class Campaign:
    """A campaign file, resolved."""

    name: str
    file: CampaignFile
    phases: tuple[str, ...]
    runs: tuple[PlannedRun, ...]
    jobs: tuple[Job, ...]
    offers: tuple[Offer, ...]
    assumed: tuple[Assumption, ...]
    stated: Mapping[tuple[str, str], StatedGroup] = field(default_factory=dict)  # (phase, part)


@dataclass(frozen=True, slots=True)
class _Layer:
    """A run with the layers it inherits from, outermost first: values and where they stand."""

    section: RunSection
    phase: str
    part: str
    groups: tuple[PartSection, ...]
    paths: tuple[KeyPath, ...]  # of each layer's job keys in the document
    written: str = ""  # the run's name in the file, of which this may be one variant
    varied: Mapping[str, Any] = field(default_factory=dict)  # dotted keys of this variant


def load_campaign(
    source: Path | str, *, gpus: Sequence[str] = (), price: str | None = None
) -> Campaign:
    """The campaign of a YAML or JSON file, with the command line's changes.

    Raises:
        InputError: The file or an argument is wrong; all problems of the file are listed.
    """
    path = Path(source)
    document = read_document(path, CAMPAIGN_SAMPLE)
    if "runs" not in document.values and "phases" not in document.values:
        what = "it states a model, so it is a job file" if "model" in document.values else ""
        msg = f"{path} holds no campaign: it has neither phases nor runs"
        raise InputError(f"{msg}; {what}" if what else msg, CAMPAIGN_SAMPLE)
    _refuse_odd_keys(document)
    name_devices(document.values)
    document = overridden(document, Overrides(gpus, price))
    file = checked_as(document, CampaignFile)
    layers = [
        replace(layer, section=own, written=layer.section.name, varied=varied)
        for layer in _layers(file)
        for own, varied in layer.section.variants()
    ]
    names = _names(layers, document.name)
    after = _order(layers, names, document.name)
    return _resolved(document, file, layers, after, path)


def _refuse_odd_keys(document: Document) -> None:
    """Raise InputError for a key that is a number, a truth or nothing: no key of a job is."""
    waiting: list[tuple[KeyPath, object]] = [((), document.values)]
    while waiting:
        path, here = waiting.pop()
        items = here.items() if isinstance(here, dict) else ()
        for key, value in items:
            if not isinstance(key, str):
                line = document.lines.get((*path, str(key)))
                where = f" line {line}" if line else ""
                inside = f" of {'.'.join(str(part) for part in path)}" if path else ""
                msg = f"{document.name}{where}: the key {shown(key)}{inside} is not text"
                raise InputError(msg, "quote it, or remove it")
            waiting.append(((*path, key), value))
        if isinstance(here, list):
            waiting += [((*path, index), value) for index, value in enumerate(here)]


def _layers(file: CampaignFile) -> Iterator[_Layer]:
    """Every run of the file, in its order, each with a name."""
    top: KeyPath = ("defaults",)
    for j, run in enumerate(file.runs):
        yield _Layer(_named(run, "run", j), "", "", (), (top, ("runs", j)))
    for i, phase in enumerate(file.phases):
        here: KeyPath = ("phases", i)
        for j, run in enumerate(phase.runs):
            above: tuple[KeyPath, ...] = (top, (*here, "defaults"))
            own = _named(run, phase.name, j)
            yield _Layer(own, phase.name, "", (phase,), (*above, (*here, "runs", j)))
        for k, part in enumerate(phase.parts):
            there: KeyPath = (*here, "parts", k)
            for j, run in enumerate(part.runs):
                within = (top, (*here, "defaults"), (*there, "defaults"))
                paths: tuple[KeyPath, ...] = (*within, (*there, "runs", j))
                own = _named(run, part.name, j)
                yield _Layer(own, phase.name, part.name, (phase, part), paths)


def _named(run: RunSection, group: str, index: int) -> RunSection:
    """The run with a name: where it states none, its group's with its number there, from 1 on."""
    return run if run.name else run.model_copy(update={"name": f"{group}-{index + 1}"})


def _names(layers: Sequence[_Layer], where: str) -> dict[str, list[int]]:
    """What `after` may name -> the runs it stands for. Raises InputError for a name used twice."""
    found: dict[str, list[int]] = {}
    places: dict[str, KeyPath] = {}
    for index, layer in enumerate(layers):
        for name in dict.fromkeys((layer.written, layer.section.name)):
            if places.setdefault(name, layer.paths[-1]) != layer.paths[-1]:
                msg = f"{where}: two runs are called {shown(name)}"
                raise InputError(msg, "give each its own name, or write repeat: N for equal runs")
            found.setdefault(name, []).append(index)
    groups: dict[str, list[int]] = {}
    owner: dict[str, int] = {}
    for index, layer in enumerate(layers):
        for group in layer.groups:
            if group.name in found or owner.setdefault(group.name, id(group)) != id(group):
                msg = f"{where}: the name {shown(group.name)} is used twice"
                raise InputError(msg, "give phases, parts and runs different names")
            groups.setdefault(group.name, []).append(index)
    return found | groups


def _order(
    layers: Sequence[_Layer], names: Mapping[str, list[int]], where: str
) -> list[tuple[int, ...]]:
    """The runs that each run waits for. Raises InputError for unknown names and circles."""
    waits: list[set[int]] = []
    for index, layer in enumerate(layers):
        wanted = [*layer.section.after, *(name for group in layer.groups for name in group.after)]
        before: set[int] = set()
        for name in wanted:
            if name not in names:
                place = f"after: of {layer.section.name}"
                what = "run or phase"
                hint = "after names runs, parts or phases of the file"
                raise unknown(what, name[:80], names, hint, place)
            before.update(names[name])
        waits.append(before)
        if index in before:
            msg = f"{where}: {shown(layer.section.name)} would have to wait for itself"
            raise InputError(msg, "remove it, or its group, from its own `after`")
    circle = _circle(waits)
    if circle:
        words = " -> ".join(layers[i].section.name for i in circle)
        msg = f"{where}: the order is circular: {words} wait for each other"
        raise InputError(msg, "remove one of these `after` entries")
    _phases_in_order(layers, waits, where)
    return [tuple(sorted(before)) for before in waits]


def _phases_in_order(layers: Sequence[_Layer], waits: Sequence[set[int]], where: str) -> None:
    """Phases stand in their order: a run cannot wait for one of a later phase."""
    place = {name: n for n, name in enumerate(dict.fromkeys(layer.phase for layer in layers))}
    for layer, before in zip(layers, waits, strict=True):
        later = [i for i in before if place[layers[i].phase] > place[layer.phase]]
        if later:
            other = layers[min(later)]
            msg = (
                f"{where}: {shown(layer.section.name)} of phase {shown(layer.phase)} is to run "
                f"after {shown(other.section.name)} of the later phase {shown(other.phase)}"
            )
            raise InputError(msg, "list the phases in the order in which they start")


def _circle(waits: Sequence[set[int]]) -> list[int]:
    """Runs that wait for each other in a ring, the first one repeated at the end; or none."""
    stuck = set(range(len(waits))) - set(topological(waits))
    if not stuck:
        return []
    seen: list[int] = []
    at = min(stuck)
    while at not in seen:
        seen.append(at)
        at = min(waits[at] & stuck)
    return [*seen[seen.index(at) :], at]


def _resolved(
    document: Document,
    file: CampaignFile,
    layers: Sequence[_Layer],
    after: Sequence[tuple[int, ...]],
    path: Path,
) -> Campaign:
    shop = _Jobs(document, path.parent)
    phases = tuple(dict.fromkeys(layer.phase for layer in layers))
    runs = []
    for layer, before in zip(layers, after, strict=True):
        pieces, steps = shop.pieces(layer)
        section = layer.section
        run = PlannedRun(
            name=section.name, phase=layer.phase, part=layer.part, repeat=section.repeat,
            stages=section.stages, pieces=pieces, steps=steps,
            tokens=sum(piece.times * shop.jobs[piece.job].tokens for piece in pieces),
            after=before, priority=_inherited(layer, "priority", file.priority),
            expected_fraction=_inherited(layer, "expected_fraction", file.expected_fraction),
            hours=section.hours,
        )  # fmt: skip
        runs.append(run)
    assumed = list(shop.jobs[0].assumed) if shop.jobs else []
    if shop.jobs:
        offers = shop.jobs[0].offers
    else:
        machines = [find_machine(section.gpu, section.per_node) for section in file.hardware]
        offers = tuple(
            offer_of(section, index, machine, assumed)
            for index, (section, machine) in enumerate(distinct(file.hardware, machines))
        )
        assumed = [item for item in assumed if not item.key.endswith(".host")]
    return Campaign(
        name=file.name or path.stem,
        file=file,
        phases=phases,
        runs=tuple(runs),
        jobs=tuple(shop.jobs),
        offers=offers,
        assumed=tuple(assumed),
        stated=_stated(file),
    )


def _inherited(layer: _Layer, key: str, outermost: float) -> float:
    for section in (layer.section, *reversed(layer.groups)):
        value = getattr(section, key)
        if value is not None:
            return float(value)
    return outermost


def _stated(file: CampaignFile) -> dict[tuple[str, str], StatedGroup]:
    """What the document says of the whole ("", ""), of phases and of parts."""
    found: dict[tuple[str, str], StatedGroup] = {}
    if file.stated is not None:
        found["", ""] = file.stated
    for phase in file.phases:
        if phase.stated is not None:
            found[phase.name, ""] = phase.stated
        found |= {(phase.name, p.name): p.stated for p in phase.parts if p.stated is not None}
    return found


class _Jobs:
    """The distinct jobs of a campaign."""

    def __init__(self, document: Document, base_dir: Path) -> None:
        self.jobs: list[Job] = []
        self._document = document
        self._base_dir = base_dir
        self._known: dict[str, int] = {}

    def pieces(self, layer: _Layer) -> tuple[tuple[Piece, ...], int]:
        """What a run trains, and its optimizer steps in all. Nothing where it has no model."""
        section = layer.section
        merged = self._merged(layer)
        if merged.values.get("model") is None:
            if section.hours is None:
                msg = f"{merged.name}: neither model nor hours is stated"
                raise InputError(msg, "state model in the defaults, or hours: of the run")
            return (), _stated_steps(merged.values)
        if section.stages == 1:
            job = self._job(merged, section.name)
            return (Piece(job, 1),), self.jobs[job].steps
        steps = _stated_steps(merged.values)
        if steps < section.stages:
            msg = f"{merged.name}: stages {section.stages} needs train.steps of at least as many"
            raise InputError(msg, "write train: {steps: N}, the steps of all its stages together")
        return tuple(self._staged(merged, section, steps)), steps

    def _staged(self, merged: Document, section: RunSection, steps: int) -> Iterator[Piece]:
        """The steps in equal parts; those that do not divide go to the first stages."""
        each, more = divmod(steps, section.stages)
        for size, times in ((each + 1, more), (each, section.stages - more)):
            if times:
                values = copy.deepcopy(merged.values)
                values["train"]["steps"] = size
                staged = replace(merged, values=values)
                yield Piece(self._job(staged, section.name), times)

    def _merged(self, layer: _Layer) -> Document:
        """The run's keys over those of its part, its phase and the campaign."""
        values: Values = {}
        lines: dict[KeyPath, int] = {}
        for path in layer.paths:
            own = _at(self._document.values, path)
            stated = {key: own[key] for key in JOB_KEYS if key in own}
            _merge(values, copy.deepcopy(stated))
            lines |= {
                key[len(path) :]: line
                for key, line in self._document.lines.items()
                if key[: len(path)] == path and key[len(path) :][:1] and key[len(path)] in stated
            }
        for dotted, value in layer.varied.items():
            *sections, key = dotted.split(".")
            lines.pop((*sections, key), None)
            own = {key: copy.deepcopy(value)}
            for section in reversed(sections):
                own = {section: own}
            _merge(values, own)
            if dotted == "data.max_length":
                shorten_lengths(values["data"], str(value))
        values["hardware"] = copy.deepcopy(self._document.values["hardware"])
        name = f"{self._document.name}, run {shown(layer.section.name)}"
        return Document(values, name, lines)

    def _job(self, merged: Document, name: str) -> int:
        """The index of the job, resolved unless an equal one is."""
        key = json.dumps(merged.values, sort_keys=True, default=str)
        if key not in self._known:
            named = replace(merged, values={**merged.values, "name": name[:100]})
            try:
                job = resolve(checked(named), self._base_dir)
            except InputError as error:
                if error.message.startswith(merged.name):
                    raise
                msg = f"{merged.name}: {error.message}"
                raise InputError(msg, error.hint) from None
            self._known[key] = len(self.jobs)
            self.jobs.append(job)
        return self._known[key]


def _at(values: Values, path: KeyPath) -> Values:
    found: Any = values
    for part in path:
        found = found.get(part) if isinstance(found, dict) else found[part]
    return found if isinstance(found, dict) else {}


def _merge(values: Values, more: Values) -> None:
    """Lay more specific keys over general ones. Nothing behind a key takes it away again."""
    for key, value in more.items():
        known = values.get(key)
        if value is None:
            values.pop(key, None)
        elif isinstance(known, dict) and isinstance(value, dict):
            for rival in _RIVALS.get(key, ()):
                if set(rival) & set(value):
                    for name in rival:
                        known.pop(name, None)
            for name in OF_ANOTHER_KIND.get(str(value.get("kind")), ()) if key == "method" else ():
                known.pop(name, None)
            _merge(known, value)
        else:
            values[key] = value


_RIVALS: dict[str, tuple[tuple[str, ...], ...]] = {  # keys of which the more specific one counts
    "train": (("steps", "epochs"),),
    "data": (("lengths", "dataset"),),
}


def _stated_steps(values: Values) -> int:
    train = values.get("train")
    steps = train.get("steps") if isinstance(train, dict) else None
    plain = str(steps).replace(",", "").replace("_", "")
    return int(plain) if plain.isdecimal() and len(plain) < 13 else 0  # noqa: PLR2004 - no steps
