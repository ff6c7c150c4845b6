"""Random machines: boards of real GPUs, with what a real machine may differ in drawn again for each.

Seeds have a kind: constants of a policy may be chosen on `development` machines, never on `reported` ones.
"""

import math
import random
from dataclasses import dataclass
from pathlib import Path

from powerccl.platforms.conf import changed, keys_of, points_of, value_of

PLATFORMS = Path(__file__).resolve().parents[2] / "native/testbed/emulator/platforms"
# By kind of GPU: the platform that has its server, and the board files that machines are drawn from.
BOARDS = {
    "a100": ("a100x4", ("a100-sxm", "a100-pcie", "a800-sxm")),
    "h100": ("h100x8", ("h100-sxm",)),
    "h200": ("h200x4", ("h200-sxm", "h200-sxm-flat")),
    "t4": ("t4x8", ("rtx8000",)),
}
# Power of a T4 against its clock was not published. The RTX 8000 is of the same architecture, for 260 W in place of 70.
# The T4's cooling and leakage would boil it. The T4's governor is made to swing as PCCL's publication shows: under it a
# job runs up to 17 % faster at a clock that is held. These machines have the governor that was measured on Hopper.
T4_LIKE = {
    "thermal_k_per_w": "0.13",
    "leakage_w_per_kv": "0",
    "governor_low_w": "-12",
    "governor_high_w": "2",
    "governor_slow_gain": "1",
}
GPUS = (4, 8, 16)
# Shares of the board's power limit. One site holds its 700 W H100s to 500 W. A T4 draws more than its limit already at
# 1,000 of 1,590 MHz (published), an RTX 8000 nowhere.
POWER_LIMITS, T4_LIMITS = (0.7, 1.0), (0.35, 0.65)
# Factors. Idle power of two A100s, and of an H100 and an H200, differs by a fifth; so does what a product draws.
POWERS = {"static_w": (0.8, 1.25), "compute_w": (0.85, 1.15), "memory_static_w": (0.8, 1.25), "memory_w": (0.8, 1.25)}
# Of the clocks of the voltage's points, and of its rise: curves of three A100 boards differ by 5 % and by a fifth.
VOLTAGE_CLOCKS, VOLTAGE_RISE = (0.95, 1.05), (0.85, 1.15)
# Clocks of four H100s at their limit have standard deviations of 60 to 84 MHz. With these: 34 to 119, simulated.
GOVERNOR_STEP_MHZ, GOVERNOR_PERIOD_MS = (7, 30), (2, 20)
# Of the board's median, for each of three targets. What it is by target is published without a figure.
TRANSITIONS = (0.33, 10)
LEASE_INTERVAL_MS = "50"  # powerccld's default
LEASE_LOST_AT_S, LEASE_LOST_FOR_S = (5.0, 200.0), (1.0, 60.0)
GPU_SPREAD = (0.01, 0.06)  # by which GPUs of a machine draw more or less: default clocks of four differ by 5 to 6 %
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

    `board`: the kind of its GPUs, of BOARDS; empty for a built-in platform. `options`: of powerccl-sim, what befalls a
    policy on it.
    """

    name: str
    base: str
    gpus: int
    conf: str
    drawn: dict[str, float]
    options: tuple[str, ...] = ()
    board: str = ""


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


def board_values(name: str) -> dict[str, str]:
    """The keys of a board's file."""
    return keys_of((PLATFORMS / f"boards/{name}.conf").read_text())


def voltage(conf: str, clocks: float, rise: float) -> str:
    """The curve with clocks and its rise above the lowest voltage stretched."""
    points = [(float(mhz), volts) for mhz, volts in points_of(conf, "voltage_v")]
    least = points[0][1]
    return " ".join(f"{mhz * clocks:.0f}:{least + rise * (volts - least):.4f}" for mhz, volts in points)


def machine(kind: str, number: int) -> Machine:
    """The machine of that number; the same wherever it is drawn. Four in a row have one kind of GPU each."""
    draw = random.Random(f"machine {kind} {number}")
    board = list(BOARDS)[number % len(BOARDS)]
    base, files = BOARDS[board]
    conf = changed((PLATFORMS / f"{base}.conf").read_text(), board_values(draw.choice(files)))
    if board == "t4":
        conf = changed(conf, T4_LIKE)

    def scaled(key: str, low: float, high: float) -> float:
        return float(value_of(conf, key)) * draw.uniform(low, high)

    drawn = {
        "gpus": float(draw.choice(GPUS)),
        "power_limit_w": scaled("power_limit_w", *(T4_LIMITS if board == "t4" else POWER_LIMITS)),
        "governor_step_mhz": log_uniform(draw, *GOVERNOR_STEP_MHZ),
        "governor_period_ms": log_uniform(draw, *GOVERNOR_PERIOD_MS),
        "link_scale": log_uniform(draw, 0.25, 2),  # PCIe in place of NVLink, or another NVLink
        "set_clock_call_us": scaled("set_clock_call_us", 0.5, 2),
        "set_clock_serialised": float(draw.random() < 0.5),
        "refresh_ms": draw.choice((20.0, 100.0)),
        # GPUs that are all alike have governors that swing together, until a clock is set.
        "gpu_spread": draw.uniform(*GPU_SPREAD),
    }
    drawn |= {key: scaled(key, *limits) for key, limits in POWERS.items()}
    drawn |= {
        "peak_limit_w": 1.1 * drawn["power_limit_w"],
        "governor_start_w": drawn["power_limit_w"],
    }
    values = {key: f"{value:.6g}" for key, value in drawn.items()}
    values["voltage_v"] = voltage(conf, draw.uniform(*VOLTAGE_CLOCKS), draw.uniform(*VOLTAGE_RISE))
    median = float(value_of(conf, "clock_transition_us"))
    least, most = (float(value_of(conf, f"clock_{end}_mhz")) for end in ("min", "max"))
    targets = [(mhz, median * log_uniform(draw, *TRANSITIONS)) for mhz in (least, (least + most) / 2, most)]
    values["clock_transition_us"] = " ".join(f"{mhz:.0f}:{us:.0f}" for mhz, us in targets)
    befalls = incidents(random.Random(f"incidents {kind} {number}"), int(drawn["gpus"]), 1)
    return Machine(f"{kind}-{number}", base, int(drawn["gpus"]), changed(conf, values), drawn, befalls, board)


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
    name = f"{host.name}-hosts"
    return Machine(name, host.base, hosts * host.gpus, conf, {**host.drawn, **drawn}, befalls, host.board)
