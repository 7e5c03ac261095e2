"""Writes the ctypes tables in `bindings/` and the list of structure fields in `src/layout.inc` from the C headers.

    python -m localllm.native.generate          writes the files
    python -m localllm.native.generate --check  compares them with the headers; exit status 1 if they differ

The headers are read by libclang as C, for one fixed target and with our own few lines in place of the system's headers,
so that the result is the same on every machine. Whatever cannot be expressed is an error, not a guess.
"""

from __future__ import annotations

import argparse
import ctypes
import difflib
import fnmatch
import itertools
import json
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clang import cindex  # type: ignore[import-untyped]
from clang.cindex import CursorKind, TypeKind  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parents[2]
INCLUDE_DIRS = (
    "vendor/llama.cpp/include",
    "vendor/llama.cpp/ggml/include",
    "vendor/llama.cpp/tools/mtmd",
    "localllm/native/src",
)
PACKAGE = "localllm.native.bindings"
LINE_LENGTH = 120


@dataclass(frozen=True)
class Module:
    """What one file of `bindings/` is made from.

    Attributes:
        name: str, the module's name.
        libraries: tuple of str, shared libraries that hold its functions, in the order in which to look.
        headers: tuple of str, headers that are bound completely.
        partly: tuple of str, headers of which constants, enums, what other headers use, and FUNCTIONS_OF are bound.
        optional: tuple of str, headers whose functions some builds lack.
    """

    name: str
    libraries: tuple[str, ...]
    headers: tuple[str, ...]
    partly: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()

    def all_headers(self) -> tuple[str, ...]:
        return self.partly + self.headers


# A module may use types of those before it.
MODULES = (
    Module(
        name="ggml",
        libraries=("ggml-base", "ggml", "ggml-cpu"),
        headers=("ggml-backend.h", "ggml-cpu.h", "gguf.h"),
        partly=("ggml.h", "ggml-alloc.h", "ggml-opt.h"),
        optional=("ggml-cpu.h",),  # builds for many CPUs load the kernels at run time, out of our reach
    ),
    Module(name="llama", libraries=("llama",), headers=("llama.h",)),
    Module(name="mtmd", libraries=("mtmd",), headers=("mtmd.h", "mtmd-helper.h")),
    Module(name="localllm", libraries=("localllm",), headers=("localllm.h",)),
)

# ggml.h declares some 400 functions, most of which build computation graphs. These are of use to somebody who reads or
# writes tensors and GGUF files, or asks about types. Every pattern must match something.
FUNCTIONS_OF = {
    "ggml.h": (
        *("ggml_version", "ggml_commit", "ggml_time_*", "ggml_guid_matches", "ggml_status_to_string"),
        *("ggml_log_get", "ggml_log_set", "ggml_set_abort_callback"),
        # types of tensor data
        *("ggml_type_*", "ggml_blck_size", "ggml_row_size", "ggml_is_quantized", "ggml_ftype_to_ggml_type"),
        *("ggml_get_type_traits", "ggml_validate_row_data", "ggml_quantize_*"),
        *("ggml_fp16_to_fp32*", "ggml_fp32_to_fp16*", "ggml_bf16_to_fp32*", "ggml_fp32_to_bf16*"),
        # contexts
        *("ggml_init", "ggml_reset", "ggml_free", "ggml_used_mem", "ggml_tensor_overhead"),
        *("ggml_get_no_alloc", "ggml_set_no_alloc", "ggml_get_mem_*", "ggml_get_max_tensor_size"),
        *("ggml_new_tensor", "ggml_new_tensor_?d", "ggml_dup_tensor", "ggml_view_tensor"),
        *("ggml_get_first_tensor", "ggml_get_next_tensor", "ggml_get_tensor"),
        # tensors
        *("ggml_nelements", "ggml_nrows", "ggml_nbytes", "ggml_nbytes_pad", "ggml_n_dims", "ggml_element_size"),
        *("ggml_is_*", "ggml_are_same_*", "ggml_unravel_index", "ggml_get_data", "ggml_get_data_f32"),
        *("ggml_get_name", "ggml_set_name", "ggml_op_name", "ggml_op_desc"),
        "ggml_threadpool_params_*",
    ),
}

# `const char *` that is no NUL-terminated text: c_char_p would read such a result only up to its first NUL.
BINARY = frozenset(
    {
        "lm_row.bytes",
        "lm_text_flush.bytes",
        "lm_text_push.bytes",
        "mtmd_gen_inp.state_data",
        "mtmd_gen_out.state_data",
        "mtmd_helper_gen_audio_get_output.out_data",
    }
)

# The standard headers, as far as the bound ones use them: no compiler's own are needed, and none can make a difference.
WIDTHS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
SHIMS = {
    "stddef.h": "typedef __SIZE_TYPE__ size_t;\n",
    "stdbool.h": "#define bool _Bool\n",
    "stdint.h": "#define UINTPTR_MAX __UINTPTR_MAX__\n"
    + "".join(f"typedef __{width.upper()}_TYPE__ {width}_t;\n" for width in WIDTHS),
    "stdio.h": "typedef struct lm_shim_file FILE;\n",
}
SHIM_DIR = "localllm-shims"
MAIN_FILE = "localllm-bindings.c"
CLANG_ARGUMENTS = ("-x", "c", "-std=gnu11", "-nostdinc", "--target=x86_64-unknown-linux-gnu", "-ferror-limit=0")

# By name where the width is part of it, else by what the type is.
CTYPES_OF_TYPEDEF = {"size_t": "c_size_t", **{f"{width}_t": f"c_{width}" for width in WIDTHS}}
CTYPES_OF_KIND = {
    TypeKind.BOOL: "c_bool",
    TypeKind.CHAR_S: "c_char",
    TypeKind.UCHAR: "c_ubyte",
    TypeKind.INT: "c_int",
    TypeKind.UINT: "c_uint",
    TypeKind.FLOAT: "c_float",
    TypeKind.DOUBLE: "c_double",
}


class GenerateError(Exception):
    """The headers cannot be read, or hold something that the tables cannot express."""


# ---- reading -------------------------------------------------------------------------------------------------------


def parse(extra: str = "") -> Any:
    """Parses all headers as one C file.

    Args:
        extra: str, C text to put behind the `#include` lines.

    Returns:
        clang.cindex.TranslationUnit; its diagnostics have not been looked at.
    """
    headers = [header for module in MODULES for header in module.all_headers()]
    shim_dir = ROOT / SHIM_DIR
    files = [(str(shim_dir / name), text) for name, text in SHIMS.items()]
    files.append((str(ROOT / MAIN_FILE), "".join(f'#include "{header}"\n' for header in headers) + extra))
    arguments = [*CLANG_ARGUMENTS, f"-I{shim_dir}", *(f"-I{ROOT / folder}" for folder in INCLUDE_DIRS)]
    options = cindex.TranslationUnit.PARSE_DETAILED_PROCESSING_RECORD
    return cindex.TranslationUnit.from_source(str(ROOT / MAIN_FILE), arguments, files, options)


def errors_of(unit: Any) -> Iterator[Any]:
    """The diagnostics of a translation unit that are errors."""
    return (found for found in unit.diagnostics if found.severity >= cindex.Diagnostic.Error)


def header_of(cursor: Any) -> str:
    """The file name, without folder, that a cursor lies in; "" for the compiler's own declarations."""
    file = cursor.location.file
    return Path(file.name).name if file else ""


def read_constants(unit: Any) -> dict[str, dict[str, str]]:
    """Evaluates the macros that are integer, floating-point or string expressions.

    The compiler does it: each macro initialises a variable of a second translation unit, and those that are no
    expressions are errors there.

    Returns:
        dict, header to dict of name to Python literal, in the order of the header.
    """
    macros = {
        cursor.spelling: cursor
        for cursor in unit.cursor.get_children()
        if cursor.kind == CursorKind.MACRO_DEFINITION and not _is_function_like(cursor)
    }
    headers = {header for module in MODULES for header in module.all_headers()}
    names = [name for name, cursor in macros.items() if header_of(cursor) in headers]
    probe = parse("".join(f"__auto_type lm_value_of_{name} = {name};\n" for name in names))
    wrong = {found.location.line for found in errors_of(probe)}
    result: dict[str, dict[str, str]] = {}
    for variable in probe.cursor.get_children():
        name = variable.spelling.removeprefix("lm_value_of_")
        if variable.spelling == name or variable.location.line in wrong:
            continue
        value = _evaluate(variable)
        if isinstance(value, int) and any(token.spelling.startswith("0x") for token in macros[name].get_tokens()):
            literal = f"0x{value:X}" if value >= 0 else str(value)
        else:
            literal = _quote(value) if isinstance(value, str) else repr(value)
        result.setdefault(header_of(macros[name]), {})[name] = literal
    return result


def _is_function_like(cursor: Any) -> bool:
    return bool(cindex.conf.lib.clang_Cursor_isMacroFunctionLike(cursor))


_INTEGER, _FLOATING, _STRING = 1, 2, 4  # CXEvalResultKind


def _evaluate(variable: Any) -> int | float | str:
    """The value of a variable with a constant initialiser, by the part of libclang that has no Python interface."""
    library = cindex.conf.lib
    library.clang_Cursor_Evaluate.restype = ctypes.c_void_p
    library.clang_EvalResult_getAsLongLong.restype = ctypes.c_longlong
    library.clang_EvalResult_getAsUnsigned.restype = ctypes.c_ulonglong
    library.clang_EvalResult_getAsDouble.restype = ctypes.c_double
    library.clang_EvalResult_getAsStr.restype = ctypes.c_char_p
    evaluated = ctypes.c_void_p(library.clang_Cursor_Evaluate(variable))
    try:
        kind = library.clang_EvalResult_getKind(evaluated) if evaluated else 0
        if kind == _INTEGER:
            if library.clang_EvalResult_isUnsignedInt(evaluated):
                return int(library.clang_EvalResult_getAsUnsigned(evaluated))
            return int(library.clang_EvalResult_getAsLongLong(evaluated))
        if kind == _FLOATING:
            return float(library.clang_EvalResult_getAsDouble(evaluated))
        if kind == _STRING:
            return str(library.clang_EvalResult_getAsStr(evaluated).decode())
        raise GenerateError(f"cannot evaluate {variable.spelling} (kind {kind})")
    finally:
        library.clang_EvalResult_dispose(evaluated)


def _quote(text: str) -> str:
    return json.dumps(text)


# ---- types ---------------------------------------------------------------------------------------------------------


@dataclass
class Declaration:
    """A name of a generated module that stands for a C type.

    Attributes:
        name: str, in Python.
        module: str, the module that it belongs to.
        text: str, the statement that defines it; "" for structures, see `render_structure`.
        uses: set of str, the names that its definition contains.
        c_type: str, how C names a structure; "" for other types, and for structures that C gives no name.
        base: str, "Structure" or "Union"; "" for other types.
        anonymous: list of str, fields whose own fields C sees as the structure's.
        members: list of Field, for structures.
        forward: bool, it is referred to before its fields are known.
        done: bool, it is complete.
    """

    name: str
    module: str
    text: str = ""
    uses: set[str] = field(default_factory=set)
    c_type: str = ""
    base: str = ""
    anonymous: list[str] = field(default_factory=list)
    members: list[Field] = field(default_factory=list)
    forward: bool = False
    done: bool = False


@dataclass(frozen=True)
class Field:
    """A field of a structure: its name, its ctypes expression, and the nameless structure that it holds, if it does."""

    name: str
    type: str
    inline: Declaration | None = None


class Types:
    """Translates C types to ctypes expressions, and collects the declarations that these need.

    Attributes:
        order: list of Declaration, each behind those that it needs; those marked `forward` need a class statement in
            front of all.
        seen: set of str, where `char *` that is no text was found.
    """

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self.order: list[Declaration] = []
        self._known: dict[str, Declaration] = {}
        self._module_of = {header: module.name for module in MODULES for header in module.all_headers()}

    def expression(self, c_type: Any, where: str, uses: set[str]) -> str:
        """The ctypes expression for a C type.

        Args:
            c_type: clang.cindex.Type.
            where: str, "function.argument" or "structure.field", to find exceptions and to name what C does not name.
            uses: set of str, receives the names that the expression contains.

        Raises:
            GenerateError: ctypes cannot express it.
        """
        if c_type.kind == TypeKind.ELABORATED:
            c_type = c_type.get_named_type()
        kind = c_type.kind
        if kind == TypeKind.TYPEDEF:
            return self._typedef(c_type.get_declaration(), where, uses)
        if kind == TypeKind.POINTER:
            return self._pointer(c_type.get_pointee(), where, uses)
        if kind == TypeKind.ENUM:
            return _note("c_int", uses)
        if kind == TypeKind.RECORD:
            declaration = self._record(c_type.get_declaration(), where)
            if not declaration.done:
                raise GenerateError(f"{where}: {declaration.name} contains itself")
            return _note(declaration.name, uses)
        if kind == TypeKind.CONSTANTARRAY:
            return f"{self.expression(c_type.element_type, where, uses)} * {c_type.element_count}"
        if kind in CTYPES_OF_KIND:
            return _note(CTYPES_OF_KIND[kind], uses)
        raise GenerateError(f"{where}: cannot express the C type `{c_type.spelling}`")

    def argument(self, c_type: Any, where: str, uses: set[str]) -> str:
        """Like `expression`, for an argument: arrays are pointers there."""
        if c_type.kind in (TypeKind.CONSTANTARRAY, TypeKind.INCOMPLETEARRAY):
            return self._pointer(c_type.element_type, where, uses)
        return self.expression(c_type, where, uses)

    def result(self, c_type: Any, where: str, uses: set[str]) -> str:
        """Like `expression`, for the result of a function, which may be void."""
        return "None" if c_type.kind == TypeKind.VOID else self.expression(c_type, where, uses)

    def declare(self, cursor: Any) -> None:
        """Collects the type that a typedef, structure or union declares."""
        if cursor.kind == CursorKind.TYPEDEF_DECL:
            self._typedef(cursor, cursor.spelling, set())
        elif cursor.get_definition() is None:
            self._opaque(cursor, set())
        else:
            self._record(cursor, cursor.spelling)

    def _typedef(self, cursor: Any, where: str, uses: set[str]) -> str:
        name = cursor.spelling
        if name in CTYPES_OF_TYPEDEF:
            return _note(CTYPES_OF_TYPEDEF[name], uses)
        target = cursor.underlying_typedef_type
        canonical = target.get_canonical().kind
        if canonical == TypeKind.ENUM:
            return _note("c_int", uses)
        if canonical == TypeKind.RECORD:  # `typedef struct x x;`
            record = target.get_canonical().get_declaration()
            # C has no values of a hidden structure, so only pointers to it can be meant.
            return self.expression(target, where, uses) if record.get_definition() else self._opaque(record, uses)
        if name not in self._known:
            self._alias(name, cursor, target)
        if not self._known[name].done:
            raise GenerateError(f"{where}: the typedef {name} refers to itself")
        return _note(name, uses)

    def _pointer(self, target: Any, where: str, uses: set[str]) -> str:
        canonical = target.get_canonical()
        if canonical.kind == TypeKind.VOID:
            return _note("c_void_p", uses)
        if canonical.kind == TypeKind.CHAR_S:
            if canonical.is_const_qualified() and where not in BINARY:
                return _note("c_char_p", uses)
            self.seen.add(where)
            uses.add("POINTER")
            return f"POINTER({_note('c_char', uses)})"
        if canonical.kind == TypeKind.FUNCTIONPROTO:
            return f"CFUNCTYPE({', '.join(self._callback(target, where, uses))})"
        if canonical.kind == TypeKind.RECORD:
            record = canonical.get_declaration()
            if record.get_definition() is None:
                return self._opaque(record, uses)
            declaration = self._record(record.get_definition(), where)
            declaration.forward = declaration.forward or not declaration.done
            uses.add("POINTER")
            return f"POINTER({_note(declaration.name, uses)})"
        uses.add("POINTER")
        return f"POINTER({self.expression(target, where, uses)})"

    def _opaque(self, record: Any, uses: set[str]) -> str:
        """The name for a pointer to a structure whose fields are hidden."""
        if header_of(record) not in self._module_of:  # FILE
            return _note("c_void_p", uses)
        name = f"{record.spelling}_p"
        if name not in self._known:
            declaration = self._new(name, record)
            declaration.text = f"{name} = {_note('c_void_p', declaration.uses)}\n"
            self._finish(declaration)
        return _note(name, uses)

    def _alias(self, name: str, cursor: Any, target: Any) -> None:
        """Declares a name for the type `target`. `cursor` says where the header has it."""
        declaration = self._new(name, cursor)
        if _is_callback(target):
            parts = self._callback(target.get_pointee(), name, declaration.uses)
            declaration.text = _assign(name, "CFUNCTYPE(", parts, ")")
        else:
            declaration.text = f"{name} = {self.expression(target, name, declaration.uses)}\n"
        self._finish(declaration)

    def _callback(self, function: Any, where: str, uses: set[str]) -> list[str]:
        """The arguments of CFUNCTYPE for a pointer to a function."""
        if function.get_canonical().is_function_variadic():
            raise GenerateError(f"{where}: a callback with a variable number of arguments")
        uses.add("CFUNCTYPE")
        result = self.result(function.get_result(), where, uses)
        return [result, *(self.argument(argument, where, uses) for argument in function.argument_types())]

    def _record(self, record: Any, where: str) -> Declaration:
        definition = record.get_definition()
        named = _has_name(definition)
        name = definition.spelling if named else where.replace(".", "_")
        if name in self._known:
            return self._known[name]
        declaration = self._new(name, definition)
        declaration.base = "Union" if definition.kind == CursorKind.UNION_DECL else "Structure"
        if named:
            declaration.c_type = definition.type.spelling
        for member in definition.type.get_fields():
            declaration.members.append(self._member(member, declaration))
        self._finish(declaration)
        return declaration

    def _member(self, member: Any, owner: Declaration) -> Field:
        if member.is_bitfield():
            raise GenerateError(f"{owner.name}.{member.spelling}: a bit field")
        name = member.spelling
        if not name or "(" in name:
            name = f"_anonymous_{len(owner.anonymous)}"
            owner.anonymous.append(name)
        record = member.type.get_canonical().get_declaration()
        if member.type.get_canonical().kind == TypeKind.RECORD and not _has_name(record):
            inline = self._record(record, f"{owner.name}.{name.lstrip('_')}")
            return Field(name, _note(inline.name, owner.uses), inline)
        if _is_callback(member.type):
            callback = f"{owner.name}_{name}"
            self._alias(callback, member, member.type)
            return Field(name, _note(callback, owner.uses))
        return Field(name, self.expression(member.type, f"{owner.name}.{name}", owner.uses))

    def _new(self, name: str, cursor: Any) -> Declaration:
        if name in self._known:
            raise GenerateError(f"two types want the name {name}")
        if header_of(cursor) not in self._module_of:
            raise GenerateError(f"{name} is declared in {header_of(cursor)}, which is not bound")
        declaration = self._known[name] = Declaration(name, self._module_of[header_of(cursor)])
        return declaration

    def _finish(self, declaration: Declaration) -> None:
        declaration.done = True
        self.order.append(declaration)


def _note(name: str, uses: set[str]) -> str:
    uses.add(name)
    return name


def _is_callback(c_type: Any) -> bool:
    """Whether this is a pointer to a function, and not a typedef of one."""
    is_pointer = c_type.kind == TypeKind.POINTER
    return bool(is_pointer and c_type.get_pointee().get_canonical().kind == TypeKind.FUNCTIONPROTO)


def _has_name(record: Any) -> bool:
    # libclang calls a nameless one "struct (unnamed at FILE:LINE)".
    return bool(record.spelling) and "(" not in record.spelling


# ---- writing -------------------------------------------------------------------------------------------------------


@dataclass
class Content:
    """What goes into one generated module, in order."""

    module: Module
    constants: dict[str, str] = field(default_factory=dict)
    enums: dict[str, dict[str, int]] = field(default_factory=dict)
    functions: dict[str, tuple[str, list[str]]] = field(default_factory=dict)
    optional: list[str] = field(default_factory=list)
    uses: set[str] = field(default_factory=set)


def read() -> tuple[list[Content], list[Declaration]]:
    """Reads all headers.

    Returns:
        The content of each module, and the types of all of them.

    Raises:
        GenerateError: A header is wrong C, or holds something that cannot be expressed.
    """
    unit = parse()
    for found in errors_of(unit):
        raise GenerateError(f"{header_of(found)}:{found.location.line}: {found.spelling}")
    types = Types()
    constants = read_constants(unit)
    contents = [Content(module) for module in MODULES]
    for content in contents:
        for header in content.module.all_headers():
            content.constants.update(constants.get(header, {}))
        for cursor in unit.cursor.get_children():
            if header_of(cursor) in content.module.all_headers():
                _read_declaration(cursor, content, types)
    _check_patterns(contents)
    if BINARY - types.seen:
        raise GenerateError(f"no such `const char *`: {sorted(BINARY - types.seen)} (BINARY in {Path(__file__).name})")
    return contents, types.order


def _read_declaration(cursor: Any, content: Content, types: Types) -> None:
    complete = header_of(cursor) in content.module.headers
    if cursor.kind == CursorKind.ENUM_DECL:
        _read_enum(cursor, content)
    elif cursor.kind == CursorKind.FUNCTION_DECL:
        patterns = FUNCTIONS_OF.get(header_of(cursor), ())
        if complete or any(fnmatch.fnmatchcase(cursor.spelling, pattern) for pattern in patterns):
            _read_function(cursor, content, types)
    elif complete and cursor.kind in (CursorKind.TYPEDEF_DECL, CursorKind.STRUCT_DECL, CursorKind.UNION_DECL):
        types.declare(cursor)


def _read_enum(cursor: Any, content: Content) -> None:
    values = {item.spelling: item.enum_value for item in cursor.get_children()}
    for name, value in values.items():
        if not -(2**31) <= value < 2**31:
            raise GenerateError(f"{name} = {value} does not fit a C int")
    if _has_name(cursor):
        content.enums[cursor.spelling] = values
    else:
        content.constants.update({name: str(value) for name, value in values.items()})


def _read_function(cursor: Any, content: Content, types: Types) -> None:
    name = cursor.spelling
    if cursor.storage_class == cindex.StorageClass.STATIC:
        return
    if cursor.type.is_function_variadic():
        raise GenerateError(f"{name} takes a variable number of arguments")
    result = types.result(cursor.result_type, name, content.uses)
    arguments = [types.argument(item.type, f"{name}.{item.spelling}", content.uses) for item in cursor.get_arguments()]
    content.functions[name] = (result, arguments)
    if header_of(cursor) in content.module.optional:
        content.optional.append(name)


def _check_patterns(contents: Iterable[Content]) -> None:
    functions = [name for content in contents for name in content.functions]
    for header, patterns in FUNCTIONS_OF.items():
        for pattern in patterns:
            if not fnmatch.filter(functions, pattern):
                raise GenerateError(f"{header} has no function {pattern} (FUNCTIONS_OF in {Path(__file__).name})")


def pinned_commit() -> str:
    """The commit of llama.cpp in vendor/pin.json.

    Raises:
        GenerateError: The unpacked source is of another commit.
    """
    commit = str(json.loads((ROOT / "vendor/pin.json").read_text(encoding="utf-8"))["commit"])
    stamp = ROOT / "vendor/llama.cpp/.localllm-commit"
    if stamp.is_file() and stamp.read_text(encoding="utf-8").strip() != commit:
        raise GenerateError("vendor/llama.cpp is not of the pinned commit: run python3 vendor/fetch.py")
    return commit


def render_module(content: Content, types: list[Declaration], commit: str) -> str:
    """The text of one generated module."""
    module = content.module
    own = [declaration for declaration in types if declaration.module == module.name]
    statements = [
        *(f"{name} = {value}\n" for name, value in content.constants.items()),
        *(text for name, values in content.enums.items() for text in _render_enum(name, values)),
        *(_render_class(declaration, [_SLOTS]) for declaration in own if declaration.forward),
        *(render_structure(declaration) if declaration.base else declaration.text for declaration in own),
        _assign("STRUCTURES: tuple[type[Structure], ...]", "(", (item.name for item in own if item.c_type), ")"),
        _assign("LIBRARIES: tuple[str, ...]", "(", map(_quote, module.libraries), ")"),
        _assign("OPTIONAL: tuple[str, ...]", "(", map(_quote, content.optional), ")"),
        _render_functions(content.functions),
    ]
    imports = _render_imports(content, types)
    return _banner("#", module.all_headers(), commit) + _join([imports, *statements])


_SLOTS = '__slots__ = ("_keep",)'


def _banner(comment: str, headers: Iterable[str], commit: str) -> str:
    names = ", ".join(headers).replace("localllm.h", "localllm/native/src/localllm.h")
    lines = textwrap.wrap(f"Generated from {names}", LINE_LENGTH - 4)
    lines += [f"(llama.cpp {commit}).", "Do not edit; regenerate with: python -m localllm.native.generate"]
    return "".join(f"{comment} {line}\n" for line in lines) + "\n"


def _join(statements: list[str]) -> str:
    """Puts statements below each other, with blank lines as usual: two at classes, one at other long statements."""
    result = statements[0]
    for previous, statement in itertools.pairwise(statements):
        if previous.startswith("class") or statement.startswith("class"):
            result += "\n\n"
        elif previous.count("\n") > 1 or statement.count("\n") > 1:
            result += "\n"
        result += statement
    return result


def _render_imports(content: Content, types: list[Declaration]) -> str:
    name = content.module.name
    home = {declaration.name: declaration.module for declaration in types}
    uses = content.uses | {"Structure"}
    for declaration in types:
        if declaration.module == name:
            uses |= declaration.uses | ({declaration.base} - {""})
    lines = ["from __future__ import annotations\n", "\n"]
    lines.append(_import("ctypes", (item for item in uses if item not in home)))
    if content.enums:
        lines.append("from enum import IntEnum\n")
    for other in MODULES:
        # Written twice, each name is offered to users of this module as well.
        found = [f"{item} as {item}" for item in uses if other.name != name and home.get(item) == other.name]
        if found:
            lines.append("\n" + _import(f"{PACKAGE}.{other.name}", found))
    return "".join(lines)


def _import(module: str, names: Iterable[str]) -> str:
    return f"from {module} import (\n" + "".join(f"    {name},\n" for name in sorted(names)) + ")\n"


def _render_enum(name: str, values: dict[str, int]) -> list[str]:
    lines = [f"{item} = {value}" for item, value in values.items()]
    return ["\n".join(lines) + "\n", f"class {name}(IntEnum):\n" + textwrap.indent("\n".join(lines), "    ") + "\n"]


def render_structure(declaration: Declaration) -> str:
    """The class statement of a structure, or the assignment of its fields if the class was declared before."""
    parts = ["_fields_ = [\n" + "".join(f"    ({_quote(item.name)}, {item.type}),\n" for item in declaration.members) + "]"]
    if declaration.anonymous:
        parts.insert(0, f"_anonymous_ = {_tuple(map(_quote, declaration.anonymous))}")
    if declaration.forward:
        return "".join(f"{declaration.name}.{part}\n" for part in parts)
    return _render_class(declaration, [_SLOTS, *parts])


def _render_class(declaration: Declaration, body: list[str]) -> str:
    return f"class {declaration.name}({declaration.base}):\n" + textwrap.indent("\n".join(body), "    ") + "\n"


def _render_functions(functions: dict[str, tuple[str, list[str]]]) -> str:
    text = "FUNCTIONS: dict[str, tuple[type | None, tuple[type, ...]]] = {\n"
    for name, (result, arguments) in functions.items():
        line = f"    {_quote(name)}: ({result}, {_tuple(arguments)}),\n"
        if len(line) > LINE_LENGTH:
            line = f"    {_quote(name)}: (\n        {result},\n        {_tuple(arguments)},\n    ),\n"
        if max(map(len, line.splitlines())) > LINE_LENGTH:
            lines = "".join(f"            {argument},\n" for argument in arguments)
            line = f"    {_quote(name)}: (\n        {result},\n        (\n{lines}        ),\n    ),\n"
        text += line
    return text + "}\n"


def _tuple(items: Iterable[str]) -> str:
    found = list(items)
    return f"({', '.join(found)}{',' if len(found) == 1 else ''})"


def _assign(target: str, opening: str, items: Iterable[str], closing: str) -> str:
    found = list(items)
    line = f"{target} = {opening}{', '.join(found)}{',' if len(found) == 1 and opening == '(' else ''}{closing}\n"
    if len(line) <= LINE_LENGTH:
        return line
    return f"{target} = {opening}\n" + "".join(f"    {item},\n" for item in found) + f"{closing}\n"


def render_layout(types: list[Declaration], commit: str) -> str:
    """The text of src/layout.inc: every structure and field, for the compiler to fill in sizes and offsets."""
    headers = [header for module in MODULES for header in module.all_headers()]
    text = _banner("//", headers, commit).rstrip() + "\n"
    for declaration in types:
        if declaration.c_type:
            text += f"\nLM_STRUCT({declaration.name}, {declaration.c_type})\n"
            text += "".join(f"LM_FIELD({declaration.c_type}, {path})\n" for path in _paths(declaration))
    return text


def _paths(declaration: Declaration) -> Iterator[str]:
    for item in declaration.members:
        hidden = item.name in declaration.anonymous
        if not hidden:
            yield item.name
        if item.inline:
            yield from (path if hidden else f"{item.name}.{path}" for path in _paths(item.inline))


def generate() -> dict[Path, str]:
    """All generated files.

    Returns:
        dict, path to text.

    Raises:
        GenerateError: See `read` and `pinned_commit`.
    """
    commit = pinned_commit()
    contents, types = read()
    folder = ROOT / "localllm/native"
    files = {folder / f"bindings/{content.module.name}.py": render_module(content, types, commit) for content in contents}
    files[folder / "src/layout.inc"] = render_layout(types, commit)
    return files


# ---- command -------------------------------------------------------------------------------------------------------


def differences(files: dict[Path, str]) -> str:
    """What writing these files would change, as a unified diff; "" if nothing."""
    result = ""
    for path, text in files.items():
        old = path.read_bytes().decode("utf-8") if path.is_file() else ""
        if old != text:
            name = path.relative_to(ROOT).as_posix()
            lines = difflib.unified_diff(old.splitlines(), text.splitlines(), name, f"{name} (generated)", lineterm="")
            result += "\n".join(lines) + "\n"
    return result


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; see the module's docstring. Returns its exit status."""
    parser = argparse.ArgumentParser(description="Generate the ctypes tables from the C headers.")
    parser.add_argument("--check", action="store_true", help="only compare; exit status 1 if the files differ")
    options = parser.parse_args(arguments)
    try:
        files = generate()
    except GenerateError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if options.check:
        changed = differences(files).splitlines()
        for line in changed[:40]:
            print(line)
        if changed:
            print("The bindings differ from the headers: run python -m localllm.native.generate", file=sys.stderr)
        return 1 if changed else 0
    for path, text in files.items():
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(text.encode("utf-8"))
        print(path.relative_to(ROOT).as_posix())
    return 0


if __name__ == "__main__":
    sys.exit(main())
