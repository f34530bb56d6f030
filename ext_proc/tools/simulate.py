"""Run simulated model servers until told to stop: `forebay simulate`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from ext_proc.tools.arguments import at_least, duration, port, rate
from ext_proc.tools.kv_publisher import Form, load_zmq
from ext_proc.tools.replica_faults import ALL, Fault, Kind, fault_of
from ext_proc.tools.replica_life import SERVER, Model
from ext_proc.tools.replica_model import Hardware
from ext_proc.tools.replica_page import Names
from ext_proc.tools.simulator import HOST, Simulator
from ext_proc.tools.simulator_desk import PATH
from filters.errors import ConfigError
from filters.units import Duration

EVENTS_PORT: Final = 5557  # vLLM's own


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `forebay simulate`."""
    add = parser.add_argument
    # Two at 8081 and 8082 are what the shipped envoy/forebay.yaml has as its two pools.
    add("--replicas", type=at_least(1), default=2, metavar="N", help="how many (2)")
    add("--port", type=port, default=8081, help="of the first replica, 0 for free ones (8081)")
    add("--names", metavar="A,B", help="their names, instead of --replicas")
    add("--model", action="append", metavar="NAME", help="listed by /v1/models; all are answered")
    add("--metrics", type=Names, choices=list(Names), default=Names.VLLM, help="whose names (vllm)")
    add("--quiet", action="store_true", help="say nothing")
    _add_model(parser.add_argument_group("the model"))
    _add_events(parser.add_argument_group("what goes wrong, and who hears of blocks"))


def _add_model(group: argparse._ArgumentGroup) -> None:
    hardware, add = SERVER, group.add_argument
    add(
        "--speed",
        type=_factor,
        default=1.0,
        metavar="X",
        help="let time pass X times as fast, for short benches (1; 0.01 to 1000)",
    )
    add("--ttft", type=duration, default=Duration(0), help="before a request is taken in (0s)")
    add(
        "--rate",
        type=rate,
        default=round(1 / (hardware.step_s + hardware.decode_s)),
        help="tokens/s of an answer that is alone, 0: all at once (123)",
    )
    add(
        "--prefill",
        type=rate,
        default=1 / hardware.prefill_s,
        metavar="RATE",
        help="tokens/s of a prompt's beginning, 0: all at once (10000)",
    )
    add(
        "--step-tokens",
        type=at_least(1),
        default=hardware.step_tokens,
        metavar="N",
        help="most tokens of a step (2048)",
    )
    add("--slots", type=at_least(1), default=hardware.slots, help="most requests at once (256)")
    add(
        "--blocks",
        type=at_least(2),
        default=hardware.cache_tokens // hardware.block_tokens,
        help="KV blocks of 16 tokens (8192; at least 2)",
    )
    add(
        "--context",
        type=at_least(1),
        metavar="TOKENS",
        help="longer requests are refused (what the blocks hold)",
    )


def _add_events(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--fault",
        type=_fault,
        action="append",
        default=[],
        metavar="REPLICA:KIND[,for=10s]",
        help=f"{', '.join(Kind)}; also after=5s, factor=4 of slow, share=0.1 and status=500 of "
        f'error; "{ALL}" is every replica',
    )
    add(
        "--kv-events",
        type=port,
        nargs="?",
        const=EVENTS_PORT,
        metavar="PORT",
        help=f"tell of blocks at this port ({EVENTS_PORT}) and the next ones, one a replica, and "
        "replay what was missed at as many after those; 0 for free ones",
    )
    add(
        "--kv-form",
        type=Form,
        choices=list(Form),
        default=Form.ARRAYS,
        help="how events are written: maps as vLLM does of late (arrays)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run `forebay simulate` until SIGINT or SIGTERM."""
    import uvloop

    return uvloop.run(_simulate(arguments))


async def _simulate(arguments: argparse.Namespace) -> int:
    names = arguments.names.split(",") if arguments.names else ()
    known = names or [f"replica-{index}" for index in range(arguments.replicas)]
    _check_faults(arguments.fault, known)
    if arguments.kv_events is not None:
        load_zmq()
    model = model_of(arguments)
    simulator = Simulator(
        replicas=arguments.replicas,
        port=arguments.port,
        names=names,
        models=arguments.model or ["simulated"],
        model=model,
        faults=arguments.fault,
        events_port=arguments.kv_events,
        keep=0,
    )
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with contextlib.AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(simulator)
        except OSError as error:
            raise ConfigError(
                "--port",
                f"{arguments.port} or one of the next is not to be had ({error.strerror}); "
                "choose others, or 0 for free ones",
            ) from None
        if not arguments.quiet:
            print(_told(simulator, model, arguments.fault), flush=True)
        await stop.wait()
    return 0


def model_of(arguments: argparse.Namespace) -> Model:
    """Return what the options make of a replica."""
    hardware = replace(
        SERVER,
        prefill_s=1 / arguments.prefill if arguments.prefill else 0.0,
        step_tokens=arguments.step_tokens,
        slots=arguments.slots,
        cache_tokens=arguments.blocks * SERVER.block_tokens,
    )
    return Model(
        _at_rate(hardware, arguments.rate),
        speed=arguments.speed,
        door_s=arguments.ttft,
        context_tokens=min(arguments.context or hardware.cache_tokens, hardware.cache_tokens),
        names=arguments.metrics,
        form=arguments.kv_form,
    )


def _at_rate(hardware: Hardware, tokens_a_second: float) -> Hardware:
    if not tokens_a_second:
        return replace(hardware, step_s=0.0, decode_s=0.0, context_s=0.0)
    default = round(1 / (hardware.step_s + hardware.decode_s))
    if tokens_a_second == default:
        return hardware
    decode_s = min(hardware.decode_s, 1 / tokens_a_second)
    return replace(hardware, step_s=1 / tokens_a_second - decode_s, decode_s=decode_s)


def _told(simulator: Simulator, model: Model, faults: Sequence[tuple[str, Fault]]) -> str:
    """Say where replicas are, what they are made of, and how to have them fail."""
    hardware = model.hardware
    lines = []
    for replica in simulator.replicas:
        events = replica.publisher
        more = f"  events tcp://{HOST}:{events.port}, replay {events.replay_port}" if events else ""
        lines.append(f"{replica.name}  http://{HOST}:{replica.port}{more}")
    answer = f"{hardware.decode_s * 1e3:g} ms a step more"
    context = f"{hardware.context_s * 1e9:g} ns for each token of its context"
    rows = [
        ("a step", f"{hardware.step_s * 1e3:g} ms, of at most {hardware.step_tokens:,} tokens"),
        ("prefill", _prefill(hardware)),
        ("an answer", f"{answer}, and {context}"),
        ("memory", f"{hardware.cache_tokens:,} tokens, in blocks of {hardware.block_tokens}"),
        ("requests", f"{hardware.slots:,} at once, of {model.context_tokens:,} tokens at most"),
    ]
    if model.door_s:
        rows.append(("before that", f"{model.door_s * 1e3:g} ms"))
    if model.speed != 1:
        rows.append(("time", f"passes {model.speed:g} times as fast"))
    rows += [("fails", f"{name}: {fault.kind}") for name, fault in faults]
    lines += [f"  {name:<12} {text}" for name, text in rows]
    url = f"http://{HOST}:{simulator.port}{PATH}"
    lines += [
        f"fail:     curl -X POST '{url}/faults/slow?factor=4&for=10s'   # {', '.join(Kind)}",
        f"recover:  curl -X DELETE '{url}/faults?replica=*'",
        f"look:     curl {url}",
    ]
    return "\n".join(lines)


def _prefill(hardware: Hardware) -> str:
    if not hardware.prefill_s:
        return "takes no time"
    return (
        f"{1 / hardware.prefill_s:,.0f} tokens/s at first, half of it at token "
        f"{hardware.prefill_doubles:,}"
    )


def _check_faults(faults: Sequence[tuple[str, Fault]], names: Sequence[str]) -> None:
    for name, _ in faults:
        if name != ALL and name not in names:
            expected = ", ".join(names)
            raise ConfigError("--fault", f'expected one of {expected} or "{ALL}", got "{name}"')


def _fault(text: str) -> tuple[str, Fault]:
    try:
        return fault_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _factor(text: str) -> float:
    number = rate(text)
    if not 0.01 <= number <= 1_000:
        raise argparse.ArgumentTypeError(f'expected a number from 0.01 to 1000, got "{text}"')
    return number
