"""Entry point and commands. Answers go to standard output, everything else to standard error."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import re
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

import localllm
from localllm.cli import exits, hub, keep
from localllm.cli.bench import command as bench
from localllm.cli.convert import command as convert
from localllm.cli.drafts import Draft, Head, Speculation, chosen
from localllm.cli.entry import INTERRUPTED
from localllm.cli.optimize import command as optimize
from localllm.cli.printable import only_once, only_printable, print_json, say
from localllm.cli.ps import ps
from localllm.cli.tables import parse_context
from localllm.cli.wording import in_options
from localllm.errors import InvalidRequestError, LocalLLMError, ModelFileError

app = typer.Typer(
    help=f"GGUF models on this machine. {exits.HELP}",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

hub.register(app)

Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="Path of a GGUF file, org/repo:TAG on the Hub, ollama:NAME, or a name: smollm2.")
]
System = Annotated[str | None, typer.Option("--system", "-s", help="System message.")]
MaxTokens = Annotated[int | None, typer.Option("--max-tokens", "-n", help="Most tokens of an answer.")]
Temperature = Annotated[float | None, typer.Option("--temperature", "-t", help="0 always takes the most probable token.")]
TopK = Annotated[int | None, typer.Option(help="Sample from the k most probable tokens; 0: all.")]
TopP = Annotated[float | None, typer.Option(help="Sample from the most probable tokens that make up p.")]
MinP = Annotated[float | None, typer.Option(help="Drop tokens less probable than p times the best.")]
Seed = Annotated[int | None, typer.Option(help="The same seed gives the same answer.")]
Stop = Annotated[list[str] | None, typer.Option(help="Text that ends the answer; may be repeated.")]
Context = Annotated[
    str,
    typer.Option("--n-ctx", "-c", metavar="TOKENS", help="Context in tokens; 0: the model's own length; auto: what of it fits."),
]
Threads = Annotated[int, typer.Option("--threads", help="Threads; 0: one per physical core.")]
Layers = Annotated[str, typer.Option("--n-gpu-layers", help="Layers on the GPU, 'all', or 'auto': what fits.")]
Template = Annotated[
    str | None, typer.Option("--chat-template", help="File with a Jinja chat template, or the name of one in the model's file.")
]
Thinking = Annotated[bool, typer.Option("--think/--no-think", help="For models that can think before they answer.")]
Budget = Annotated[int | None, typer.Option("--reasoning-budget", help="Most tokens of a thought.")]
Loras = Annotated[list[str] | None, typer.Option("--lora", metavar="PATH[:SCALE]", help="LoRA adapter (GGUF); may be repeated.")]
Controls = Annotated[
    list[str] | None, typer.Option("--control-vector", metavar="PATH[:SCALE]", help="Control vector (GGUF); may be repeated.")
]
Truncate = Annotated[bool, typer.Option("--truncate", help="Cut texts that are too long.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show llama.cpp's messages, and speed at the end.")]


@app.command()
def run(
    model: Model,
    prompt: Annotated[str | None, typer.Argument(help="The question; standard input if it is missing or '-'.")] = None,
    system: System = None,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    seed: Seed = None,
    stop: Stop = None,
    lora: Loras = None,
    control_vector: Controls = None,
    json_schema: Annotated[str | None, typer.Option(help="The answer satisfies this JSON schema: text or a file.")] = None,
    choice: Annotated[list[str] | None, typer.Option(help="The answer is one of these; may be repeated.")] = None,
    regex: Annotated[str | None, typer.Option(help="The answer matches this pattern.")] = None,
    grammar: Annotated[str | None, typer.Option(help="The answer follows this GBNF: text or a file.")] = None,
    think: Thinking = True,
    reasoning_budget: Budget = None,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the text as it is, without the chat template.")] = False,
    n_ctx: Context = "4096",
    threads: Threads = 0,
    n_gpu_layers: Layers = "all",
    speculation: Speculation = "none",
    draft: Draft = None,
    head: Head = None,
    chat_template: Template = None,
    verbose: Verbose = False,
) -> None:
    """Answer one question and exit."""
    from localllm.cli.chat import show_answer, show_text

    text = _prompt_text(prompt)
    if not text.strip() and not raw:
        raise InvalidRequestError("PROMPT: is empty; there is no question to answer")
    speculating = chosen(speculation, draft, head)
    local = _model(model, n_ctx, threads, n_gpu_layers, speculating, chat_template, verbose, lora, control_vector)
    options = _given(max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed, stop=stop)
    if raw:
        if json_schema or choice or regex or not think or reasoning_budget is not None:
            raise InvalidRequestError("--raw: goes with --grammar, not with other options of a chat")
        show_text(local.stream_complete(text, **options, **_given(grammar=_text_or_file(grammar))), verbose)
    else:
        options.update(_given(choice=choice, regex=regex, grammar=_text_or_file(grammar), reasoning_budget=reasoning_budget))
        if json_schema is not None:
            options["json_schema"] = _schema(json_schema)
        options.update({} if think else {"enable_thinking": False})
        messages = [{"role": "system", "content": system}] if system else []
        show_answer(local.stream_chat([*messages, {"role": "user", "content": text}], **options), verbose)


@app.command()
def chat(
    model: Model,
    system: System = None,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    seed: Seed = None,
    stop: Stop = None,
    think: Thinking = True,
    reasoning_budget: Budget = None,
    lora: Loras = None,
    control_vector: Controls = None,
    n_ctx: Context = "4096",
    threads: Threads = 0,
    n_gpu_layers: Layers = "all",
    speculation: Speculation = "none",
    draft: Draft = None,
    head: Head = None,
    chat_template: Template = None,
    verbose: Verbose = False,
) -> None:
    """Talk with a model. Ctrl-C stops an answer, Ctrl-D ends the chat; /help lists the commands."""
    from localllm.cli.chat import converse

    speculating = chosen(speculation, draft, head)
    local = _model(model, n_ctx, threads, n_gpu_layers, speculating, chat_template, verbose, lora, control_vector)
    options = _given(max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed, stop=stop)
    options.update(_given(reasoning_budget=reasoning_budget))
    options.update({} if think else {"enable_thinking": False})
    converse(local, system, options, verbose)


@app.command()
def embed(
    model: Model,
    texts: Annotated[list[str], typer.Argument(metavar="TEXT...", help="Texts; '-': the lines of standard input.")],
    pooling: Annotated[str | None, typer.Option(help="mean, cls, last or none (per token); the file's own if missing.")] = None,
    normalize: Annotated[bool, typer.Option(help="Make every vector's length 1.")] = True,
    instruction: Annotated[str, typer.Option(help="Put before each text as it is, e.g. 'search_query: '.")] = "",
    dimensions: Annotated[int | None, typer.Option(help="Keep so many of the first dimensions.")] = None,
    truncate: Truncate = False,
    n_ctx: Context = "4096",
    threads: Threads = 0,
    n_gpu_layers: Layers = "all",
    verbose: Verbose = False,
) -> None:
    """Vectors of texts, one JSON object a line: index, tokens, embedding."""
    from localllm.cli.vectors import print_vectors, read_texts

    local = _model(model, n_ctx, threads, n_gpu_layers, "none", None, verbose)
    print_vectors(
        local.embed(
            read_texts(texts),
            pooling=pooling,
            normalize=normalize,
            instruction=instruction,
            dimensions=dimensions,
            truncate=truncate,
        )
    )


@app.command()
def rerank(
    model: Model,
    query: Annotated[str, typer.Argument(help="What the documents should answer.")],
    documents: Annotated[list[str], typer.Argument(metavar="DOCUMENT...", help="Texts; '-': the lines of standard input.")],
    top_n: Annotated[int | None, typer.Option(help="Only so many of the best.")] = None,
    truncate: Truncate = False,
    n_ctx: Context = "4096",
    threads: Threads = 0,
    n_gpu_layers: Layers = "all",
    verbose: Verbose = False,
) -> None:
    """Documents by relevance, best first, one JSON object a line: index, probability, logit, document."""
    from localllm.cli.vectors import print_ranking, read_texts

    texts = read_texts(documents)
    local = _model(model, n_ctx, threads, n_gpu_layers, "none", None, verbose)
    print_ranking(local.rerank(query, texts, top_n=top_n, truncate=truncate), texts)


@app.command()
def info(
    model: Model,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    metadata: Annotated[bool, typer.Option("--metadata", help="With all metadata of the file.")] = False,
) -> None:
    """What a model's file holds, from its header; of one on the Hub nothing else is fetched."""
    from localllm.cli.info import describe, print_facts

    facts = describe(*hub.header(model), with_metadata=metadata)
    if as_json:
        print_json(facts)
    else:
        print_facts(facts)


@app.command()
def doctor(as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False) -> None:
    """What this installation can do, and what is wrong with it. Exit code 4 if something is."""
    from localllm.cli.doctor import examine, print_report

    report = examine()
    if as_json:
        print_json(report)
    else:
        print_report(report)
    if report["problems"]:
        raise typer.Exit(exits.NATIVE)


app.command()(ps)
app.command("bench")(bench)
app.command("optimize")(optimize)
app.command("convert")(convert)
keep.register(app)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"localllm {localllm.__version__}")
        raise typer.Exit()


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def _model(
    reference: str,
    n_ctx: str,
    threads: int,
    n_gpu_layers: str,
    speculation: str | localllm.SpeculationConfig,
    template: str | None,
    verbose: bool,
    loras: list[str] | None = None,
    controls: list[str] | None = None,
) -> localllm.LocalModel:
    if verbose:
        logging.basicConfig(level=logging.DEBUG, format="%(message)s", stream=sys.stderr)
        for handler in logging.getLogger().handlers:
            handler.addFilter(only_printable)
    layers: int | str = int(n_gpu_layers) if re.fullmatch("[0-9]{1,9}", n_gpu_layers) else n_gpu_layers
    n_tokens = parse_context(n_ctx)
    return localllm.LocalModel(
        hub.fetched(reference, n_tokens),
        chat_template=Path(template) if template and Path(template).is_file() else template,
        n_ctx=n_tokens,
        n_threads=threads,
        n_gpu_layers=layers,
        speculation=speculation,
        loras=[_scaled(text) for text in loras or ()],
        control_vectors=[_scaled(text) for text in controls or ()],
    )


def _scaled(text: str) -> tuple[str, float]:
    """PATH[:SCALE]; a file whose name ends like a scale is meant as it is."""
    path, colon, scale = text.rpartition(":")
    if not colon or Path(text).exists():
        return text, 1.0
    try:
        return path, float(scale)
    except ValueError:
        return text, 1.0


def _prompt_text(prompt: str | None) -> str:
    if prompt is not None and prompt != "-":
        return prompt
    if prompt is None and sys.stdin.isatty():
        raise InvalidRequestError("PROMPT: missing; give it as an argument or on standard input")
    return sys.stdin.read().strip()


def _text_or_file(given: str | None) -> str | None:
    # A long text is no name of a file, and some systems say so with an error.
    return Path(given).read_text(encoding="utf-8") if given and len(given) < 256 and Path(given).is_file() else given


def _schema(given: str) -> dict[str, Any]:
    try:
        schema = json.loads(_text_or_file(given) or "")
    except ValueError as error:
        raise InvalidRequestError(f"--json-schema: neither a file nor JSON ({error})") from error
    if not isinstance(schema, dict):
        raise InvalidRequestError(f"--json-schema: must be an object, not {schema!r}")
    return schema


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def main() -> NoReturn:
    """Runs the command; errors of localllm become one line and an exit code."""
    once = only_once()
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(logging.Formatter("localllm: %(message)s"))
        logging.lastResort.addFilter(only_printable)
        logging.lastResort.addFilter(once)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: say(f"localllm: {in_options(str(message))}")
            _run()
    finally:
        if logging.lastResort is not None:
            logging.lastResort.removeFilter(once)


def _run() -> NoReturn:
    code = 0
    _open_what_is_closed()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Names of others may hold what cannot be encoded: half a pair of surrogates. In JSON this is an escape, too.
            stream.reconfigure(errors="backslashreplace")
    try:
        # Exit codes of commands come back as the result, and so does that of an interruption.
        result = app(standalone_mode=False)
        code = result if isinstance(result, int) else 0
        sys.stdout.flush()
    except LocalLLMError as error:
        say(f"localllm: {_message(error)}")
        sys.exit(exits.exit_code(error))
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # The reader has gone (`| head`): not our failure, and nobody to tell.
        sys.stderr.close()
        sys.exit(exits.FAILURE)
    except OSError as error:  # a full disk behind standard output, say
        _give_up_output()
        say(f"localllm: {error.filename or 'standard output'}: {error.strerror or error}")
        sys.exit(exits.FAILURE)
    except Exception as error:
        if not hasattr(error, "show"):
            raise
        error.show()
        sys.exit(getattr(error, "exit_code", exits.USAGE))
    sys.exit(code)


def _open_what_is_closed() -> None:
    """Standard streams that the caller has closed lead nowhere; else the next file that is opened would become one of them."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            mode, flags = ("r", os.O_RDONLY) if number == 0 else ("w", os.O_WRONLY)
            setattr(sys, name, os.fdopen(os.open(os.devnull, flags), mode, encoding="utf-8"))


def _give_up_output() -> None:
    """What is left in the buffer would be tried, and fail, once more at the end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _message(error: LocalLLMError) -> str:
    if not (isinstance(error, OSError) and error.filename):
        return in_options(str(error))
    told = f"{error.filename}: {error.strerror}"
    if not isinstance(error, ModelFileError) or error.errno in (errno.EACCES, errno.EISDIR):
        return told
    from localllm.hub.remedy import repair_of

    command = repair_of(str(error.filename))
    return f"{told}; {command} fetches it again" if command else told
