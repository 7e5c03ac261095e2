"""The generated ctypes tables: that they are what the headers say, and that a library of another layout is refused."""

from __future__ import annotations

import ast
import copy
import ctypes
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from localllm.errors import NativeLibraryError
from localllm.native import generate
from localllm.native.bindings import ggml, llama, localllm, mtmd
from localllm.native.layout import check_layout, expected_layout

ROOT = Path(__file__).resolve().parents[2]
VENDOR = ROOT / "vendor/llama.cpp"
HEADERS = {
    "ggml.h": VENDOR / "ggml/include/ggml.h",
    "ggml-backend.h": VENDOR / "ggml/include/ggml-backend.h",
    "ggml-cpu.h": VENDOR / "ggml/include/ggml-cpu.h",
    "gguf.h": VENDOR / "ggml/include/gguf.h",
    "llama.h": VENDOR / "include/llama.h",
    "mtmd.h": VENDOR / "tools/mtmd/mtmd.h",
    "mtmd-helper.h": VENDOR / "tools/mtmd/mtmd-helper.h",
    "localllm.h": ROOT / "localllm/native/src/localllm.h",
}
MODULES = (ggml, llama, mtmd, localllm)


def c_functions(header: str) -> dict[str, int]:
    """The exported functions of a header and their number of arguments, read without a C parser."""
    text = re.sub(r"/\*.*?\*/", "", HEADERS[header].read_text(encoding="utf-8"), flags=re.DOTALL)
    kept: list[str] = []
    skipped = [False]  # one entry per open #if: whether its lines are for C++ only
    for line in (re.sub(r"//.*", "", line).strip() for line in text.splitlines()):
        directive = re.match(r"#\s*(if|else|endif)", line)
        if directive is None:
            kept += [] if any(skipped) or line.startswith("#") else [line]
        elif directive[1] == "if":
            skipped.append(re.search(r"ifdef\s+__cplusplus", line) is not None)
        elif directive[1] == "else":
            skipped[-1] = False
        else:
            skipped.pop()
    code = " ".join(kept)
    found = re.finditer(r"\b(?:LLAMA|MTMD|GGML|GGML_BACKEND|LM)_API\s+(?:DEPRECATED\()?[^;(]*?\b(\w+)\s*\(", code)
    return {match[1]: count_arguments(code[match.end() :]) for match in found}


def count_arguments(text: str) -> int:
    """The number of arguments in C text that begins behind an opening parenthesis."""
    depth, count, first = 1, 1, ""
    for character in text:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth == 0:
            break
        count += character == "," and depth == 1
        first += character
    return 0 if first.strip() in ("", "void") else count


# ---- the checked-in files ------------------------------------------------------------------------------------------


def test_checked_in_files_are_what_the_headers_give() -> None:
    files = generate.generate()
    assert generate.differences(files) == ""
    assert {path.relative_to(ROOT).as_posix() for path in files} == {
        *(f"localllm/native/bindings/{name}.py" for name in ("ggml", "llama", "mtmd", "localllm")),
        "localllm/native/src/layout.inc",
    }
    for path, text in files.items():
        assert path.read_bytes() == text.encode()


def test_generated_files_are_independent_of_the_machine() -> None:
    commit = json.loads((ROOT / "vendor/pin.json").read_text(encoding="utf-8"))["commit"]
    for path, text in generate.generate().items():
        assert str(ROOT) not in text
        assert "/usr/" not in text
        assert commit in "".join(text.splitlines()[:5])
        assert path.read_bytes().endswith(b"\n")


def test_check_reports_differences(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    files = generate.generate()
    assert generate.main(["--check"]) == 0
    path = next(path for path in files if path.name == "llama.py")
    files[path] = files[path].replace("LLAMA_TOKEN_NULL = -1", "LLAMA_TOKEN_NULL = -2")
    monkeypatch.setattr(generate, "generate", lambda: files)
    assert generate.main(["--check"]) == 1
    output = capsys.readouterr().out
    assert "-LLAMA_TOKEN_NULL = -1\n+LLAMA_TOKEN_NULL = -2" in output
    assert "localllm/native/bindings/llama.py" in output


@pytest.mark.parametrize("module", MODULES)
def test_modules_import_only_ctypes_enum_and_each_other(module: ModuleType) -> None:
    assert module.__file__
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    sources = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not any(isinstance(node, ast.Import) for node in ast.walk(tree))
    allowed = {"__future__", "ctypes", "enum", *(other.__name__ for other in MODULES)}
    assert sources <= allowed


# ---- functions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "headers"),
    [(llama, ["llama.h"]), (mtmd, ["mtmd.h", "mtmd-helper.h"]), (localllm, ["localllm.h"])],
)
def test_tables_hold_exactly_the_functions_of_their_headers(module: Any, headers: list[str]) -> None:
    expected = {name: count for header in headers for name, count in c_functions(header).items()}
    assert {name: len(arguments) for name, (_, arguments) in module.FUNCTIONS.items()} == expected


def test_ggml_holds_all_of_three_headers_and_a_part_of_ggml_h() -> None:
    complete = {**c_functions("ggml-backend.h"), **c_functions("ggml-cpu.h"), **c_functions("gguf.h")}
    found = {name: len(arguments) for name, (_, arguments) in ggml.FUNCTIONS.items()}
    assert {name: found.get(name) for name in complete} == complete
    rest = {name: count for name, count in found.items() if name not in complete}
    in_header = c_functions("ggml.h")
    assert rest == {name: in_header.get(name) for name in rest}
    assert {"ggml_type_name", "ggml_row_size", "ggml_nbytes", "ggml_log_set", "ggml_quantize_chunk"} <= rest.keys()
    assert not {"ggml_abort", "ggml_mul_mat", "ggml_format_name"} & rest.keys()


def test_optional_functions_are_those_of_ggml_cpu_h() -> None:
    assert set(ggml.OPTIONAL) == set(c_functions("ggml-cpu.h"))
    assert llama.OPTIONAL == mtmd.OPTIONAL == localllm.OPTIONAL == ()


def test_no_function_is_in_two_tables() -> None:
    names = [name for module in MODULES for name in module.FUNCTIONS]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("module", MODULES)
def test_signatures_are_valid_ctypes(module: Any) -> None:
    for result, arguments in module.FUNCTIONS.values():
        prototype = ctypes.CFUNCTYPE(result, *arguments)
        assert not prototype()
        assert all(ctypes.sizeof(kind) > 0 for kind in (*arguments, *([result] if result else [])))
    assert all(isinstance(library, str) for library in module.LIBRARIES)


def test_signatures_of_each_kind() -> None:
    pointer = ctypes.POINTER
    assert llama.FUNCTIONS["llama_backend_init"] == (None, ())
    assert llama.FUNCTIONS["llama_model_load_from_file"] == (
        ctypes.c_void_p,
        (ctypes.c_char_p, llama.llama_model_params),
    )
    assert llama.FUNCTIONS["llama_load_model_from_file"] == llama.FUNCTIONS["llama_model_load_from_file"]
    assert llama.FUNCTIONS["llama_decode"] == (ctypes.c_int32, (ctypes.c_void_p, llama.llama_batch))
    assert llama.FUNCTIONS["llama_get_logits_ith"] == (pointer(ctypes.c_float), (ctypes.c_void_p, ctypes.c_int32))
    assert llama.FUNCTIONS["llama_token_to_piece"][1][2] is pointer(ctypes.c_char)
    assert llama.FUNCTIONS["llama_vocab_get_text"][0] is ctypes.c_char_p
    assert llama.FUNCTIONS["llama_model_load_from_splits"][1][0] is pointer(ctypes.c_char_p)
    assert llama.FUNCTIONS["llama_model_load_from_file_ptr"][1][0] is ctypes.c_void_p
    assert llama.FUNCTIONS["llama_log_get"][1] == (pointer(ggml.ggml_log_callback), pointer(ctypes.c_void_p))
    assert llama.FUNCTIONS["llama_sampler_init_greedy"][0] is pointer(llama.llama_sampler)
    assert ggml.FUNCTIONS["ggml_type_size"] == (ctypes.c_size_t, (ctypes.c_int,))
    assert ggml.FUNCTIONS["ggml_new_tensor"][1][3] is pointer(ctypes.c_int64)
    assert mtmd.FUNCTIONS["mtmd_helper_gen_audio_get_output"][1][2] is pointer(pointer(ctypes.c_char))
    assert localllm.FUNCTIONS["lm_chat_apply"][1] == (
        ctypes.c_void_p,
        ctypes.c_char_p,
        pointer(pointer(ctypes.c_char)),
    )


# ---- constants, structures, callbacks --------------------------------------------------------------------------------


def test_constants() -> None:
    assert llama.LLAMA_DEFAULT_SEED == 0xFFFFFFFF
    assert llama.LLAMA_TOKEN_NULL == -1
    assert int.to_bytes(llama.LLAMA_SESSION_MAGIC, 4, "big") == b"ggsn"
    assert llama.LLAMA_STATE_SEQ_FLAGS_ON_DEVICE == 2
    assert llama.LLAMA_TOKEN_ATTR_SINGLE_WORD == 1 << 9
    assert llama.LLAMA_ROPE_TYPE_NONE == -1
    assert llama.LLAMA_ROPE_TYPE_NEOX == ggml.GGML_ROPE_TYPE_NEOX == 2
    assert ggml.GGML_TYPE_Q4_K == 12
    assert ggml.GGML_N_TASKS_MAX == -1
    assert ggml.GGUF_MAGIC == "GGUF"
    assert ggml.GGUF_DEFAULT_ALIGNMENT == 32
    assert mtmd.MTMD_INPUT_CHUNK_TYPE_AUDIO == 2
    assert localllm.LM_OK == 0
    assert not any(name.endswith(("_API", "_H", "_RESTRICT", "_NORETURN")) for name in vars(llama) | vars(ggml))


def test_enums_have_names_and_may_repeat_values() -> None:
    assert repr(ggml.ggml_type(12)) == "<ggml_type.GGML_TYPE_Q4_K: 12>"
    assert ggml.ggml_prec["GGML_PREC_DEFAULT"] is ggml.ggml_prec["GGML_PREC_UNDEFINED"]
    assert llama.llama_rope_type(-1).name == "LLAMA_ROPE_TYPE_NONE"
    assert localllm.lm_status(localllm.LM_NO_SLOT).name == "LM_NO_SLOT"
    for module in MODULES:
        for kind in vars(module).values():
            for name, value in getattr(kind, "__members__", {}).items():
                assert getattr(module, name) == value


def test_structures() -> None:
    assert ctypes.sizeof(ctypes.c_void_p) == 8
    assert ctypes.sizeof(llama.llama_batch) == 56
    assert ctypes.sizeof(llama.llama_token_data) == 12
    assert ctypes.sizeof(ggml.ggml_bf16_t) == 2
    assert ctypes.sizeof(llama.llama_model_kv_override) == 4 + 128 + 4 + 128
    assert [name for name, *_ in llama.llama_batch._fields_] == [
        *("n_tokens", "token", "embd", "pos", "n_seq_id", "seq_id", "logits")
    ]


def test_fields_of_each_kind() -> None:
    override = llama.llama_model_kv_override(tag=llama.LLAMA_KV_OVERRIDE_TYPE_INT, key=b"a.b")
    override.val_i64 = -3
    assert (override.key, override.val_i64, override.val_bool) == (b"a.b", -3, True)
    assert llama.llama_model_kv_override.val_str.offset == 136
    tensor = ggml.ggml_tensor()
    tensor.view_src = ctypes.pointer(ggml.ggml_tensor(type=ggml.GGML_TYPE_Q8_0))
    tensor.ne[:] = [1, 2, 3, 4]
    assert tensor.view_src.contents.type == ggml.GGML_TYPE_Q8_0
    assert not tensor.src[0]
    row = localllm.lm_row()
    data = ctypes.create_string_buffer(b"a\0b", 3)
    row.bytes = ctypes.cast(data, ctypes.POINTER(ctypes.c_char))
    assert ctypes.string_at(row.bytes, 3) == b"a\0b"
    assert getattr(ggml.ggml_backend_dev_caps(), "async") is False


def test_a_mistyped_field_is_an_error() -> None:
    params = llama.llama_context_params()
    with pytest.raises(AttributeError):
        params.n_contexts = 1
    params._keep = [1]
    assert params._keep == [1]


def test_callbacks() -> None:
    seen: list[tuple[int, bytes]] = []
    callback = ggml.ggml_log_callback(lambda level, text, _: seen.append((level, text)))
    callback(ggml.GGML_LOG_LEVEL_WARN, b"text", None)
    assert seen == [(3, b"text")]
    assert not ggml.ggml_log_callback()
    params = llama.llama_model_params()
    params.progress_callback = llama.llama_progress_callback(lambda progress, _: progress < 0.5)
    assert params.progress_callback(0.25, None) is True
    assert params.progress_callback(0.75, None) is False
    interface = llama.llama_sampler_i(name=llama.llama_sampler_i_name(lambda sampler: None))
    assert interface.name(None) is None


# ---- the generator ---------------------------------------------------------------------------------------------------


@pytest.fixture
def generated(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Generates and loads a module from the text of one header; with patterns, it is bound partly."""

    def build(header: str, patterns: tuple[str, ...] | None = None) -> Any:
        names = ((), ("test.h",)) if patterns is not None else (("test.h",), ())
        module = generate.Module("test", ("test",), *names)
        monkeypatch.setattr(generate, "MODULES", (module,))
        monkeypatch.setattr(generate, "BINARY", frozenset())
        monkeypatch.setattr(generate, "FUNCTIONS_OF", {"test.h": patterns} if patterns else {})
        monkeypatch.setitem(generate.SHIMS, "test.h", "#include <stdint.h>\n#include <stdbool.h>\n" + header)
        contents, types = generate.read()
        result: Any = ModuleType("test")
        exec(generate.render_module(contents[0], types, "0"), result.__dict__)
        result.layout = generate.render_layout(types, "0")
        return result

    return build


def test_macros_are_evaluated_as_c(generated: Callable[..., Any]) -> None:
    module = generated(
        """
        #define FLAG (1 << 4)
        #define MINUS -2
        #define MASK ((uint32_t) ~0u)
        #define BIG 0x8000000000000000ull
        #define CAST ((uint8_t) 300)
        #define HALF (1.0 / 2)
        #define OF_ENUM (THREE * 2)
        #define TEXT "a" "\\"b"
        #define EMPTY
        #define CALL(x) (x)
        #define KEYWORD static
        #define UNKNOWN (no_such_name + 1)
        enum { THREE = 3 };
        """
    )
    values = {name: value for name, value in vars(module).items() if name.isupper() and type(value) is not tuple}
    del values["FUNCTIONS"]
    numbers = {"FLAG": 16, "MINUS": -2, "MASK": 0xFFFFFFFF, "BIG": 1 << 63, "CAST": 44, "HALF": 0.5, "OF_ENUM": 6}
    assert values == {**numbers, "TEXT": 'a"b', "THREE": 3}


def test_structures_that_refer_to_each_other(generated: Callable[..., Any]) -> None:
    module = generated(
        """
        struct a; struct hidden;
        struct b { struct a * a; int (*call)(struct b * self, const struct hidden * what); };
        typedef struct a { struct b b; struct { int x; union { float f; int i; }; } in; struct hidden ** list; } a_t;
        a_t make(struct hidden * from, int values[4], const char * const * names, void (*done)(a_t *));
        static inline int not_exported(void) { return 1; }
        """
    )
    assert [structure.__name__ for structure in module.STRUCTURES] == ["b", "a"]
    assert module.a.b.size == ctypes.sizeof(module.b) == 16
    assert module.b.call.size == 8
    assert "LM_FIELD(struct a, in.f)" in module.layout
    assert "_anonymous" not in module.layout
    result, arguments = module.FUNCTIONS["make"]
    assert list(module.FUNCTIONS) == ["make"]
    assert result is module.a
    assert arguments == (
        *(ctypes.c_void_p, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_char_p)),
        ctypes.CFUNCTYPE(None, ctypes.POINTER(module.a)),
    )


def test_headers_bound_partly(generated: Callable[..., Any]) -> None:
    module = generated(
        "struct used { int x; }; struct unused { int y; };\n"
        "void f_one(struct used *); void f_two(void); void other(struct unused *);",
        ("f_*",),
    )
    assert list(module.FUNCTIONS) == ["f_one", "f_two"]
    assert [structure.__name__ for structure in module.STRUCTURES] == ["used"]


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("struct a { int x : 3; };", r"a\.x: a bit field"),
        ("void f(long x);", r"f\.x: cannot express the C type `long`"),
        ("struct a { long double x; };", r"a\.x: cannot express"),
        ("int f(const char * format, ...);", "f takes a variable number of arguments"),
        ("typedef void (*call)(int, ...);", "call: a callback with a variable number"),
        ("enum big { BIG = 0x80000000 };", "BIG = 2147483648 does not fit"),
        ("int x = ;", r"test\.h:3: expected expression"),
        ("no_such_type f(void);", r"test\.h:3: unknown type name 'no_such_type'"),
    ],
)
def test_what_cannot_be_bound_is_an_error(generated: Callable[..., Any], header: str, message: str) -> None:
    with pytest.raises(generate.GenerateError, match=message):
        generated(header)


def test_a_pattern_without_a_function_is_an_error(generated: Callable[..., Any]) -> None:
    with pytest.raises(generate.GenerateError, match=r"test\.h has no function g_\*"):
        generated("void f_one(void);", ("f_*", "g_*"))


def test_an_exception_that_is_not_in_the_headers_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "BINARY", generate.BINARY | {"lm_row.nothing"})
    with pytest.raises(generate.GenerateError, match=r"no such .*lm_row\.nothing"):
        generate.read()


# ---- the layout check ------------------------------------------------------------------------------------------------


def test_equal_layouts_pass() -> None:
    check_layout(json.dumps(expected_layout()))


def test_layout_lists_every_field_once() -> None:
    text = (ROOT / "localllm/native/src/layout.inc").read_text(encoding="utf-8")
    structures = re.findall(r"LM_STRUCT\((\w+), ", text)
    fields = re.findall(r"LM_FIELD\((?:struct )?(\w+), ([\w.]+)\)", text)
    expected = expected_layout()
    assert sorted(structures) == sorted(expected)
    assert sorted(fields) == sorted((name, path) for name, entry in expected.items() for path in entry["fields"])
    assert ("llama_model_kv_override", "val_i64") in fields
    assert ("ggml_opt_optimizer_params", "adamw.alpha") in fields


def _swap_field(table: Any) -> None:
    table["llama_batch"]["fields"]["token"] = [16, 4]


def _grow_structure(table: Any) -> None:
    table["llama_model_params"]["size"] = 1234


def _change_alignment(table: Any) -> None:
    table["llama_batch"]["align"] = 4


def _lose_field(table: Any) -> None:
    del table["llama_context_params"]["fields"]["n_ctx"]


def _gain_field(table: Any) -> None:
    table["lm_row"]["fields"]["novelty"] = [0, 4]


def _lose_structure(table: Any) -> None:
    del table["mtmd_caps"]


def _gain_structure(table: Any) -> None:
    table["novelty"] = {"size": 4, "align": 4, "fields": {}}


@pytest.mark.parametrize(
    ("tamper", "messages"),
    [
        (
            _swap_field,
            [
                "llama_batch.token has offset 8 in Python, 16 in the library",
                "llama_batch.token has size 8 in Python, 4 in the library",
            ],
        ),
        (_grow_structure, ["llama_model_params has size", "1234 in the library"]),
        (_change_alignment, ["llama_batch has align 8 in Python, 4 in the library"]),
        (_lose_field, ["llama_context_params.n_ctx is missing in the library"]),
        (_gain_field, ["lm_row.novelty is missing in Python"]),
        (_lose_structure, ["struct mtmd_caps is missing in the library"]),
        (_gain_structure, ["struct novelty is missing in Python"]),
    ],
)
def test_differing_layouts_are_refused(tamper: Callable[[Any], None], messages: list[str]) -> None:
    table = copy.deepcopy(expected_layout())
    tamper(table)
    with pytest.raises(NativeLibraryError) as caught:
        check_layout(json.dumps(table))
    for message in messages:
        assert message in str(caught.value)


def test_all_differences_are_named_at_once() -> None:
    table = expected_layout()
    _lose_field(table)
    _gain_structure(table)
    with pytest.raises(NativeLibraryError, match=r"struct novelty.*llama_context_params\.n_ctx"):
        check_layout(json.dumps(table))


@pytest.mark.parametrize("text", ["", "nonsense", "[]", "{", '{"llama_batch": 1}', '{"llama_batch": {"size": 56}}'])
def test_damaged_tables_are_refused(text: str) -> None:
    with pytest.raises(NativeLibraryError):
        check_layout(text)
