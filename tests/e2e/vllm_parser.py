"""Run in vLLM's environment: what its own parser says of argument lists.

Reads a JSON list of argument lists from stdin. Prints one JSON object: `refused`, one sentence for each list that is
not accepted; `options`, every long option that the parser knows; `speculative`, the keys of its speculative
configuration. Nothing is loaded and nothing is started.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import sys

from vllm.config import SpeculativeConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.utils.argparse_utils import FlexibleArgumentParser


def main() -> None:
    parser = make_arg_parser(FlexibleArgumentParser(prog="vllm serve"))
    known = {field.name for field in dataclasses.fields(SpeculativeConfig)}
    refused = [problem for words in json.load(sys.stdin) if (problem := look(parser, words, known))]
    options = sorted(option for option in parser._option_string_actions if option.startswith("--"))
    print(json.dumps({"refused": refused, "options": options, "speculative": sorted(known)}))


def look(parser: FlexibleArgumentParser, words: list[str], speculative: set[str]) -> str | None:
    """One sentence about a list that vLLM would refuse, None for one that it takes."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            arguments = parser.parse_args(words[1:])
            validate_parsed_serve_args(arguments)
            AsyncEngineArgs.from_cli_args(arguments)
    except (SystemExit, TypeError, ValueError) as error:
        # The parser prints its whole usage before what is wrong.
        return f"{' '.join(words)}: {(said.getvalue().strip() or str(error)).splitlines()[-1]}"
    if arguments.model_tag != words[1]:
        return f"{' '.join(words)}: the model is read as {arguments.model_tag}"
    unknown = set(arguments.speculative_config or {}) - speculative
    return f"{' '.join(words)}: speculative configuration has no {sorted(unknown)}" if unknown else None


main()
