"""What the name of a GGUF file says: quantization, variant, shard and role.

Names follow no standard, but the well-known publishers agree on this much: the quantization is the last thing that a name (or,
without one, its folder) says, what belongs to it stands before it ("UD-", "i1-", "qat-"), and a shard ends in -00001-of-00003.
Comparing a tag with a name is comparing these parts, whole and blind to case: ":F16" is not BF16, ":NL" is nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Role = Literal["model", "mmproj", "draft", "adapter", "imatrix", "vocab", "other"]
DraftKind = Literal["", "mtp", "eagle3", "dflash", "dspark"]

# Quantizations as llama.cpp and its forks name them. Longer ones first: the first that matches counts.
_QUANT = (
    r"IQ\d+_(?:XXS|XS|NL|KSS|KS|KT|KL|K|S|M|L)(?:_(?:XXL|XL|L|R4|R8))?"  # i-quants, and those of ik_llama.cpp
    r"|I2_S"  # BitNet
    r"|TQ\d_\d"
    r"|Q\d_K_(?:XXL|XL|XS|S|M|L|P|H)(?:_(?:XXL|XL|L))?"
    r"|Q\d_K"
    r"|Q4_0_\d_\d"  # packed for ARM, before llama.cpp did that while loading
    r"|Q\d_\d(?:_(?:XXL|XL|L|R4|R8|G128))?"
    r"|(?:MXFP|NVFP)\d(?:_MOE)?"
    r"|BF16|FP?16|FP?32"
)
_SIDE = r"(?<![A-Za-z0-9])"
# A suffix that is not known makes another quantization of it: better none than a wrong one.
_QUANT_PART = re.compile(rf"{_SIDE}({_QUANT})(?![A-Za-z0-9]|_(?!imat)[A-Za-z0-9])", re.IGNORECASE)
_BARE_QUANT = re.compile(rf"{_SIDE}(Q[2-8])$", re.IGNORECASE)  # "model-q4.gguf": only as the very last part
_VARIANT = re.compile(r"(?:^|(?<=[-._]))(UD|i1|qat|imat|imatrix)$", re.IGNORECASE)
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})$")
_DEVICE = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)\s*", re.IGNORECASE)
_PARTS = re.compile(r"[-._\s]+")
_OTHER_SPELLINGS = {"FP16": "F16", "FP32": "F32"}
_VARIANT_SPELLINGS = {"UD": "UD", "I1": "i1", "QAT": "QAT", "IMAT": "imat", "IMATRIX": "imat"}


@dataclass(frozen=True)
class FileName:
    """The parts of a file's name.

    Attributes:
        path: str, as it was given.
        base: str, the name without folder, quantization, variant, shard and suffix.
        quant: str, in capitals ("Q4_K_M"); "" if the name does not say.
        variant: str, what marks the quantization: "UD", "i1", "QAT", "imat", several joined by "-"; "" for none.
        shard: (number from 1, number of shards), None for a file on its own.
        role: what the file is for, as far as a name tells.
        draft: for drafts, of which kind.
        is_certain: bool, False if only the header can tell the role.
    """

    path: str
    base: str
    quant: str
    variant: str
    shard: tuple[int, int] | None
    role: Role
    draft: DraftKind
    is_certain: bool

    @property
    def folder(self) -> str:
        """The folder of the file; "" for the root."""
        return self.path.rpartition("/")[0]

    @property
    def tag(self) -> str:
        """What to write after the colon to get this quantization and no other; "" if the name does not say."""
        return f"{self.variant}-{self.quant}" if self.variant and self.quant else self.quant


@dataclass(frozen=True)
class Tag:
    """A tag taken apart: "UD-Q4_K_XL" is the variant "UD" of "Q4_K_XL"."""

    quant: str
    variant: str


def parse_name(path: str) -> FileName:
    """Takes the name of a file apart.

    Args:
        path: str, relative, with "/" between folders, e.g. "Q4_K_M/model-Q4_K_M-00001-of-00003.gguf".

    Returns:
        FileName; for a name that says nothing its parts are empty and the role is "model" for *.gguf, else "other".
    """
    folder, _, name = path.rpartition("/")
    stem, suffix = _without_suffix(name)
    shard: tuple[int, int] | None = None
    is_sound = suffix == ".gguf" and is_safe_path(path)
    if found := _SHARD.search(stem):
        number, count = int(found[1]), int(found[2])
        is_sound = is_sound and 1 <= number <= count
        shard = (number, count) if is_sound else None
        stem = stem[: found.start()]
    base, variant, quant = _split_quant(stem)
    if not quant:
        _, folder_variant, quant = _split_quant(folder.rpartition("/")[2])
        variant = _joined(variant, folder_variant)
    role, draft, is_certain = _role(stem, quant, suffix, is_sound)
    return FileName(path, base, quant, variant, shard, role, draft, is_certain)


def is_safe_path(path: str) -> bool:
    """Whether the path of a file in a repository may become one on this machine, whatever its system.

    It is relative, normalised, with "/" between its parts, and no part means something else to any file system: no "..", drive,
    backslash, control character, name of a device of Windows, or dot or space at an end that Windows would drop.
    """
    if "\\" in path or any(ord(char) < 32 or ord(char) == 127 for char in path) or re.match(r"[A-Za-z]:", path):
        return False
    return all(
        part and not part.endswith((".", " ")) and not _DEVICE.fullmatch(part.partition(".")[0]) for part in path.split("/")
    )


def parse_tag(text: str) -> Tag | None:
    """The parts of a tag, in the spelling of `FileName`; None if it names no quantization."""
    base, variant, quant = _split_quant(text)
    return Tag(quant, variant) if quant and not base else None


@dataclass(frozen=True)
class TagMatch:
    """What a tag means among some names.

    Attributes:
        names: the FileNames that it means; empty if there are none, or if it could mean several variants.
        note: str, what the user should know: that a variant was taken, or between which ones the tag leaves the choice.
    """

    names: tuple[FileName, ...]
    note: str


def match_tag(text: str, names: Iterable[FileName]) -> TagMatch:
    """The names that have exactly this quantization and variant.

    A tag without a variant means the plain quantization. Where that does not exist, it means the only variant of it; where there
    are several, it means none of them.

    Args:
        text: str, e.g. "q4_k_m" or "UD-Q4_K_XL"; upper and lower case are the same.
        names: FileNames to choose from.
    """
    tag = parse_tag(text)
    if tag is None:
        return TagMatch((), f"{text!r} is not the name of a quantization")
    same = [name for name in names if name.quant == tag.quant]
    exact = tuple(name for name in same if name.variant == tag.variant)
    if exact or tag.variant:
        return TagMatch(exact, "")
    variants = sorted({name.tag for name in same})
    if len(variants) == 1:
        return TagMatch(tuple(same), f"{tag.quant} is there only as {variants[0]}")
    return TagMatch((), f"{tag.quant} could be {' or '.join(variants)}" if variants else "")


def _without_suffix(name: str) -> tuple[str, str]:
    lower = name.lower()
    for suffix in (".gguf", ".gguf_file"):
        if lower.endswith(suffix):
            return name[: -len(suffix)], suffix
    stem, dot, suffix = name.rpartition(".")
    return (stem, dot + suffix.lower()) if stem else (name, "")


def _split_quant(stem: str) -> tuple[str, str, str]:
    """(what is left, variant, quantization) of a name without folder, shard and suffix."""
    found = next(reversed(list(_QUANT_PART.finditer(stem))), None) or _BARE_QUANT.search(stem)
    if not found:
        left, variant = _take_variants(stem)
        # Without a quantization these letters mark nothing but "qat", which Google's repositories put before it.
        return (stem, "", "") if variant != "QAT" else (left, variant, "")
    quant = found[1].upper()
    before, after = stem[: found.start()], stem[found.end() :].strip("-._")
    before, variant = _take_variants(before.rstrip("-._"))
    after, after_variant = _take_variants(after)
    base = "-".join(part for part in (before, after) if part)
    if "qat" in _PARTS.split(base.lower()):
        variant = _joined("QAT", variant)
    return base, _joined(variant, after_variant), _OTHER_SPELLINGS.get(quant, quant)


def _take_variants(text: str) -> tuple[str, str]:
    variants: list[str] = []
    while found := _VARIANT.search(text):
        variants.insert(0, _VARIANT_SPELLINGS[found[1].upper()])
        text = text[: found.start()].rstrip("-._")
    return text, _joined(*variants)


def _joined(*variants: str) -> str:
    parts = [part for variant in variants if variant for part in variant.split("-")]
    return "-".join(dict.fromkeys(parts))


def _role(stem: str, quant: str, suffix: str, is_sound: bool) -> tuple[Role, DraftKind, bool]:
    """(role, kind of draft, whether that is certain) of a name."""
    parts = _PARTS.split(stem.lower())
    known = set(parts)
    if suffix == ".imatrix" or ("imatrix" in known and (not quant or suffix != ".gguf")):
        return "imatrix", "", True
    if not is_sound:
        return "other", "", True
    if "mmproj" in known:
        return "mmproj", "", True
    for draft in _DRAFTS:
        if draft in known:
            return "draft", draft, draft == parts[0]
    if parts[0] == "mtp":
        return "draft", "mtp", True
    if "vocab" in known and not quant:
        return "vocab", "", True
    if known & {"lora", "qlora", "adapter", "adapters"} and "merged" not in known:
        return "adapter", "", parts[0] in ("lora", "adapter")
    if "wavtokenizer" in known:  # turns the tokens of a speech model into sound
        return "other", "", False
    return "model", "", "mtp" not in known


_DRAFTS: tuple[DraftKind, ...] = ("eagle3", "dspark", "dflash")
