"""Random machines: the emulator's platform files with what a real machine may differ in drawn anew.

Seeds have a kind: constants of a policy may be chosen on `development` machines, never on `reported` ones.
"""

import math
import random
from dataclasses import dataclass
from pathlib import Path

from powerccl.whatif.machines import changed, value_of

PLATFORMS = Path(__file__).resolve().parents[2] / "native/testbed/emulator/platforms"
BASES = ("t4x8", "h200x4", "a100x4")
GPUS = (4, 8, 16)
LEASE_INTERVAL_MS = "50"  # powerccld's default
LEASE_LOST_AT_S, LEASE_LOST_FOR_S = (5.0, 200.0), (1.0, 60.0)
GPU_SPREAD = (0.01, 0.05)  # by which GPUs draw more or less
MOST_GPUS, HOSTS = 64, (2, 4, 8)  # of several hosts; powerccl-sim has room for 64 GPUs
# The emulator's platforms, and changed ones: the platform, and what is changed.
BUILT_IN = {
    "t4x8": ("t4x8", {}),
    "t4x8-fastlink": ("t4x8", {"link_scale": "4"}),
    "t4x8-fastswitch": ("t4x8", {"set_clock_call_us": "20", "clock_transition_us": "30"}),
    "t4x8-slowswitch": ("t4x8", {"set_clock_call_us": "4500", "clock_transition_us": "20000"}),
    "t4x8-crawl": ("t4x8", {"set_clock_call_us": "4500", "clock_transition_us": "100000"}),
    "h200x4": ("h200x4", {}),
    "a100x4": ("a100x4", {}),
    "h100x8": ("h100x8", {}),
    # Two hosts, one adapter of 400 Gbit/s a GPU: what the file has is InfiniBand.
    "h100x16-infiniband": ("h100x8", {"gpus": "16", "hosts": "2"}),
    "h100x16-roce": ("h100x8", {"gpus": "16", "hosts": "2", "network_gbs": "42", "network_latency_us": "8"}),
}


@dataclass(frozen=True)
class Machine:
    """A machine: `conf` is the text of its platform file, `drawn` what was drawn, by key.

    `options`: of powerccl-sim, for what befalls a policy on it.
    """

    name: str
    base: str
    gpus: int
    conf: str
    drawn: dict[str, float]
    options: tuple[str, ...] = ()


def log_uniform(draw: random.Random, least: float, most: float) -> float:
    """A factor as likely between 1 and 2 as between 2 and 4."""
    return math.exp(draw.uniform(math.log(least), math.log(most)))


def built_in(name: str, base: str, changes: dict[str, str]) -> Machine:
    """One of the emulator's platforms, with some keys changed."""
    conf = changed((PLATFORMS / f"{base}.conf").read_text(), changes)
    return Machine(name, base, int(value_of(conf, "gpus")), conf, {})


def incidents(draw: random.Random, gpus: int, hosts: int) -> tuple[str, ...]:
    """A daemon's rate on half of the machines; on a tenth a rank that is one iteration off, on another a lost lease."""
    options = [] if draw.random() < 0.5 else ["--lease-interval", LEASE_INTERVAL_MS]
    chance = draw.random()
    if chance < 0.1:
        options += ["--ranks-off", str(draw.randrange(gpus))]
    elif chance < 0.2:
        begin, host = draw.uniform(*LEASE_LOST_AT_S), draw.randrange(hosts)
        options += ["--lease-lost", f"{host}:{begin:.3f}:{begin + draw.uniform(*LEASE_LOST_FOR_S):.3f}"]
    return tuple(options)


def machine(kind: str, number: int) -> Machine:
    """The machine of that number; the same wherever it is drawn."""
    draw = random.Random(f"machine {kind} {number}")
    base = draw.choice(BASES)
    conf = (PLATFORMS / f"{base}.conf").read_text()
    least, most = (float(value_of(conf, f"clock_{end}_mhz")) for end in ("min", "max"))

    def scaled(key: str, low: float, high: float) -> float:
        return float(value_of(conf, key)) * draw.uniform(low, high)

    drawn = {
        "gpus": float(draw.choice(GPUS)),
        "memory_bound_share": draw.uniform(0.0, 0.8),
        "governor_step_mhz": log_uniform(draw, 7, 375),
        "governor_period_ms": log_uniform(draw, 1, 50),
        "static_w": scaled("static_w", 0.5, 2.0),
        "power_limit_w": scaled("power_limit_w", 0.7, 1.5),
        "link_scale": log_uniform(draw, 0.25, 16),
        "clock_transition_us": log_uniform(draw, 30, 150_000),
        "set_clock_call_us": log_uniform(draw, 20, 5000),
        "set_clock_serialised": float(draw.random() < 0.5),
        "refresh_ms": log_uniform(draw, 5, 100),
    }
    # A voltage that is level up to some clock, and rises from there to the top.
    top = float(value_of(conf, "voltage_v").split()[-1].split(":")[1])
    floor, knee = top * draw.uniform(0.6, 0.85), least + (most - least) * draw.uniform(0.1, 0.7)
    values = {key: f"{value:.6g}" for key, value in drawn.items()}
    values["voltage_v"] = f"{least:.0f}:{floor:.4f} {knee:.0f}:{floor:.4f} {most:.0f}:{top:.4f}"
    drawn["voltage_floor"] = floor / top
    # Default clocks of four H200s of one host differ by 5 % at their power limit. GPUs that are all alike have
    # governors that swing together, until a clock is set.
    drawn["gpu_spread"] = random.Random(f"spread {kind} {number}").uniform(*GPU_SPREAD)
    values["gpu_spread"] = f"{drawn['gpu_spread']:.6g}"
    befalls = incidents(random.Random(f"incidents {kind} {number}"), int(drawn["gpus"]), 1)
    return Machine(f"{kind}-{number}", base, int(drawn["gpus"]), changed(conf, values), drawn, befalls)


def cluster(kind: str, number: int) -> Machine:
    """Two to eight hosts like the machine of that number, with a network between them that is drawn as well."""
    host = machine(kind, number)
    draw = random.Random(f"cluster {kind} {number}")
    hosts = draw.choice([each for each in HOSTS if each * host.gpus <= MOST_GPUS])
    drawn = {
        "gpus": float(hosts * host.gpus),
        "hosts": float(hosts),
        "network_gbs": log_uniform(draw, 1, 50),  # a GPU's part of 10 Gbit/s Ethernet, up to 400 Gbit/s for each
        "network_latency_us": log_uniform(draw, 2, 50),
    }
    conf = changed(host.conf, {key: f"{value:.6g}" for key, value in drawn.items()})
    befalls = incidents(random.Random(f"incidents {kind} {number}"), hosts * host.gpus, hosts)
    return Machine(f"{host.name}-hosts", host.base, hosts * host.gpus, conf, {**host.drawn, **drawn}, befalls)
