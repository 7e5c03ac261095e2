"""The steps from a reference to a plan: what there is, which of it is taken, what goes with it, what it costs."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from localllm.errors import IncompleteSetError, InvalidRequestError, ModelError, OfflineError, QuantNotFoundError
from localllm.hub.asynchronous import twin
from localllm.hub.catalog import catalog
from localllm.hub.choose import Candidate, Choice, Machine, candidate, choose_model, main_type
from localllm.hub.client import HubClient, client_for
from localllm.hub.companions import Companion, CompanionSets, choose_companions
from localllm.hub.gguf import Header
from localllm.hub.headers import Headers
from localllm.hub.here import this_machine
from localllm.hub.layout import RepoCache, free_bytes
from localllm.hub.listing import Listing
from localllm.hub.manifest import KeptFile, KeptRole
from localllm.hub.memory import Companions, MemoryEstimate, estimate, estimate_other
from localllm.hub.names import Role
from localllm.hub.plan import Alternative, Plan, PlanOptions, disk_warning
from localllm.hub.progress import CancelToken
from localllm.hub.reference import Reference
from localllm.hub.remedy import absence
from localllm.hub.resolve import expand, resolve
from localllm.hub.sets import FileSet, Grouped, grouped, role_of
from localllm.hub.speed import Speed, expected, expected_other
from localllm.hub.store import Store

_MAX_HEADERS = 4  # of quantizations, read until the choice stays
_MAX_UNCERTAIN = 8  # of files whose names do not tell what they are for
_MAX_COMPANIONS = 8


def plan(
    reference: str | os.PathLike[str],
    *,
    client: HubClient | None = None,
    store: Store | None = None,
    options: PlanOptions | None = None,
    cancel: CancelToken | None = None,
) -> Plan:
    """Finds out what a pull of a reference would fetch. Only lists and headers are read.

    Args:
        reference: a model of the Hub, or a name for one.
        client: HubClient; None: one for the endpoint of the reference, which gets no token unless it is that of the environment.
            Where it is offline, the plan is made from what is here.
        store: Store; None: the user's.
        options: PlanOptions.
        cancel: CancelToken.

    Raises:
        InvalidRequestError: The reference means a file on this machine: there is nothing to fetch.
        ModelNotFoundError: It means a file that is not there.
        QuantNotFoundError: There is no such quantization or file; the message lists what there is.
        IncompleteSetError: The repository lacks files of what was asked for.
        OfflineError: Offline, and it is not here.
        HubError, ModelError: It cannot be asked, or what it has is damaged.
    """
    found = expand(reference)
    if found.source != "hub":
        resolve(reference)
        raise InvalidRequestError(f"{os.fspath(reference)}: is on this machine already; nothing is to be fetched")
    hinted, store, options = hint(os.fspath(reference)), store or Store(), options or PlanOptions()
    if client is not None:
        return Planner(found, hinted, client, store, options, cancel).run()
    with client_for(found.endpoint) as own:
        return Planner(found, hinted, own, store, options, cancel).run()


aplan = twin(plan, "aplan")


@dataclass(frozen=True)
class Hint:
    """What the catalog knows beside the reference."""

    projector: str = ""
    licence: str = ""


def hint(reference: str) -> Hint:
    entry = catalog().get(reference.strip().lower().partition(":")[0])
    return Hint(entry.projector, entry.licence) if entry is not None else Hint()


@dataclass
class Planner:
    """The steps from a reference to a plan."""

    reference: Reference
    hint: Hint
    client: HubClient
    store: Store
    options: PlanOptions
    cancel: CancelToken | None

    candidates: dict[str, Candidate] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    read: set[str] = field(default_factory=set)  # candidates whose own headers were read

    def run(self) -> Plan:
        place = self.place
        sets = self._sets()
        if not sets.models:
            beside = sets.projectors or sets.drafts or sets.adapters
            what = "only what goes with one" if beside else "and no GGUF file; look for a repository whose name ends in -GGUF"
            raise QuantNotFoundError(f"{self.listing.repo} holds no model, {what}")
        chosen, header, companions = self._choose(sets)
        files = self._files(chosen.files, companions)
        memory = self._estimate(header, companions)
        found = [companions.projector, companions.draft]
        made = Plan(
            reference=str(self.reference),
            repo=self.listing.repo,
            revision=self.listing.revision,
            commit=self.listing.commit,
            endpoint=self.reference.endpoint,
            tag=chosen.files.name.tag,
            files=files,
            present_bytes=sum(_present(place, self.listing.commit, kept) for kept in files),
            disk_free_bytes=free_bytes(place.blobs),
            reason=chosen.reason,
            companions=tuple(one.reason for one in found),
            warnings=(*chosen.warnings, *self._too_long(header), *self.notes.values()),
            memory=memory,
            free_bytes=self.machine.all_bytes,
            fits=chosen.fits,
            alternatives=self._alternatives(chosen.files),
            adapters=tuple(one.path for one in companions.adapters),
            licence=str(header.metadata.get("general.license") or self.hint.licence or ""),
            cache=place.root,
            header=header,
        )
        warning = disk_warning(made)
        return dataclasses.replace(made, warnings=(*made.warnings, warning)) if warning else made

    @functools.cached_property
    def listing(self) -> Listing:
        if not self.client.offline:
            return self.client.listing(self.reference.name, self.reference.revision or "main", self.cancel)
        manifest = self.store.find_manifest(self.reference)
        if manifest is not None:
            return manifest.listing
        foreign = self.store.find_foreign(self.reference)
        if foreign is not None:
            from localllm.hub.foreign import snapshot_files

            revision = foreign.revisions[0] if foreign.revisions else foreign.commit
            return Listing(foreign.place.repo, revision, foreign.commit, snapshot_files(foreign.place, foreign.commit))
        raise OfflineError(
            f"{self.reference} {absence(self.store, self.reference)}, and offline mode is on; switch it off to fetch it"
        )

    @functools.cached_property
    def place(self) -> RepoCache:
        if self.client.offline and (manifest := self.store.find_manifest(self.reference)) is not None:
            return manifest.place
        return RepoCache.of(self.listing.repo, self.store.cache)

    @functools.cached_property
    def machine(self) -> Machine:
        return self.options.machine or this_machine()

    @functools.cached_property
    def headers(self) -> Headers:
        return Headers(self.client, self.listing, self.place, self.cancel)

    def _too_long(self, header: Header) -> tuple[str, ...]:
        """A warning of a context that is longer than the model has learned."""
        n_ctx, trained = self.options.context.n_ctx, header.context_length
        if not 0 < trained < n_ctx:
            return ()
        return (f"n_ctx={n_ctx}, but the model was trained for {trained} tokens; beyond them it is likely to talk nonsense.",)

    # ---- which sets there are

    def _sets(self) -> Grouped:
        """The sets by what they are for; headers are asked where names do not tell."""
        by_name = grouped(self.listing)
        doubtful = [one for one in (*by_name.models, *by_name.drafts, *by_name.adapters) if not one.name.is_certain]
        roles: dict[str, Role] = {}
        for one in doubtful[:_MAX_UNCERTAIN]:
            if one.is_complete:
                roles[one.path] = role_of(self.headers.of(one))
        return grouped(self.listing, roles) if roles else by_name

    # ---- which one is taken

    def _choose(self, sets: Grouped) -> tuple[Choice, Header, CompanionSets]:
        """Chooses by names and sizes, reads that header, and chooses again by what it tells, until the choice stays."""
        self.candidates.update({one.path: candidate(one) for one in sets.models})
        chosen = self._by_policy()
        for _ in range(_MAX_HEADERS):
            header = self.headers.of(chosen.files)
            if role_of(header) != "model":
                raise QuantNotFoundError(
                    f"{self.listing.repo}/{chosen.files.path} is no language model, but {_a(header.kind)}; name another file"
                )
            companions = self._companions(chosen.files, header, sets)
            self._learn(chosen.files, header, companions)
            again = self._by_policy()
            if again.files == chosen.files:
                return again, header, companions
            chosen = again
        header = self.headers.of(chosen.files)
        return chosen, header, self._companions(chosen.files, header, sets)

    def _by_policy(self) -> Choice:
        tag, file = self.reference.tag, self.reference.file
        return choose_model(list(self.candidates.values()), self.machine, self.listing.repo, tag, file)

    def _learn(self, files: FileSet, header: Header, companions: CompanionSets) -> None:
        """What one header tells of it, and of the other quantizations of the same model."""
        found = self._estimate(header, companions)
        for path, other in self.candidates.items():
            if other.files.name.base.lower() != files.name.base.lower() or not other.files.is_complete:
                continue
            if path == files.path:
                self.read.add(path)
                share = found.repack_bytes / max(1, found.weights_bytes) if self.machine.on_cpu else None
                self.candidates[path] = Candidate(files, header.bits_per_weight, found.total_bytes, share)
            elif other.repacked_share is None:  # not read itself
                other_bytes = estimate_other(found, header, other.files.n_bytes).total_bytes
                self.candidates[path] = dataclasses.replace(candidate(other.files, header.n_parameters), needed_bytes=other_bytes)

    def _estimate(self, header: Header, companions: CompanionSets) -> MemoryEstimate:
        context = dataclasses.replace(
            self.options.context, repacked=self.machine.repacked if self.machine.on_cpu else frozenset()
        )
        taken = Companions(self._header_of(companions.projector), self._header_of(companions.draft))
        return estimate(header, context, taken)

    def _header_of(self, companion: Companion) -> Header | None:
        return self.headers.of(companion.files) if companion.files is not None else None

    # ---- what goes with it

    def _companions(self, model: FileSet, header: Header, sets: Grouped) -> CompanionSets:
        projectors, projector_headers = self._readable(self._wanted_projectors(sets))
        drafts, draft_headers = self._readable(sets.drafts[:_MAX_COMPANIONS] if self.options.draft else ())
        wanted = dataclasses.replace(sets, projectors=projectors, drafts=drafts)
        headers = {model.path: header, **projector_headers, **draft_headers}
        found = choose_companions(model, wanted, headers, prefers_bf16=not self.machine.on_cpu)
        named = self.options.projector
        if isinstance(named, str) and found.projector.files is None:
            raise QuantNotFoundError(f"{self.listing.repo}/{named} does not go with {model.path}: {found.projector.reason}")
        projector = found.projector if named else Companion(None, "No projector, as was asked.")
        inside = header.n_layer_nextn > 0
        draft = found.draft if self.options.draft or inside else Companion(None, "No draft, as was asked.")
        return CompanionSets(projector, draft, found.adapters)

    def _wanted_projectors(self, sets: Grouped) -> tuple[FileSet, ...]:
        if not self.options.projector:
            return ()
        wanted = self.options.projector if isinstance(self.options.projector, str) else ""
        named = tuple(one for one in sets.projectors if one.path == (wanted or self.hint.projector))
        if wanted and not named:
            listed = ", ".join(one.path for one in sets.projectors) or "none"
            raise QuantNotFoundError(f"{self.listing.repo} has no projector {wanted!r}; there is {listed}")
        return named or sets.projectors[:_MAX_COMPANIONS]

    def _readable(self, companions: Sequence[FileSet]) -> tuple[tuple[FileSet, ...], dict[str, Header]]:
        """The companions whose headers can be read; a damaged one is no reason not to take the model."""
        found = {}
        for one in companions:
            try:
                found[one.path] = self.headers.of(one)
            except (ModelError, IncompleteSetError) as error:
                self.notes[one.path] = f"{one.path} is not taken along: {error}."
        return tuple(one for one in companions if one.path in found), found

    # ---- the result

    def _files(self, model: FileSet, companions: CompanionSets) -> tuple[KeptFile, ...]:
        sets: list[tuple[KeptRole, FileSet | None]] = [
            ("model", model),
            ("projector", companions.projector.files),
            ("draft", companions.draft.files),
        ]
        return tuple(KeptFile(role, file) for role, files in sets if files is not None for file in files.files)

    def _alternatives(self, chosen: FileSet) -> tuple[Alternative, ...]:
        free = self.machine.all_bytes
        return tuple(
            Alternative(
                tag=one.tag,
                path=path,
                n_bytes=one.files.n_bytes,
                bits_per_weight=one.bits_per_weight,
                needed_bytes=one.needed_bytes,
                fits=None if one.needed_bytes is None or free is None else one.needed_bytes <= free,
                missing_files=len(one.files.missing),
                chosen=path == chosen.path,
                is_estimate=path not in self.read,
                is_here=self._is_here(one.files),
                speed=self._speed(one, chosen),
            )
            for path, one in self.candidates.items()
        )

    def _is_here(self, files: FileSet) -> bool:
        place, commit = self.place, self.listing.commit
        return files.is_complete and all(place.find(commit, file) or place.find_blob(file) for file in files.files)

    def _speed(self, one: Candidate, chosen: FileSet) -> Speed | None:
        """What is expected of a quantization: by its own header if that was read, else by the chosen one's and its name."""
        rates, other = self.options.rates, main_type(one.files.name.quant)
        if rates is None or not self.machine.on_cpu or not one.files.is_complete:
            return None
        if one.repacked_share is not None:
            return expected(self.headers.of(one.files), rates)
        if not other or one.files.name.base.lower() != chosen.name.base.lower():
            return None
        return expected_other(self.headers.of(chosen), rates, other)


def _a(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def _present(place: RepoCache, commit: str, kept: KeptFile) -> int:
    """Bytes of a file that are here: all of them, or what has come so far."""
    if place.find(commit, kept.file) is not None or place.find_blob(kept.file) is not None:
        return kept.file.n_bytes
    return min(kept.file.n_bytes, place.partial_bytes(kept.file))
