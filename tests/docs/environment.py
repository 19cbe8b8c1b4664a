#!/usr/bin/env python3
"""Checks of which variables in their environment the servers warn.

    tests/docs/environment.py --programs build/dev/bin

Each is started where it cannot listen, so that it ends at once. It warns of no
flag of another program, of nothing that deploy/ and docker/ name, and of none
of Kubernetes' variables of services; but of a misspelt flag of its own.

Prints a line for each that does not hold. Exit code: 0 if all hold, 1 if not.
"""

import argparse
import glob
import json
import os
import re
import subprocess
import sys

SERVERS = ["gshard_coordinator", "gshard_router", "gshard_expert_worker"]
OF_SERVICES = ["SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_GRPC", "PORT",
               "PORT_7000_TCP", "PORT_7000_TCP_ADDR", "PORT_7000_TCP_PORT",
               "PORT_7000_TCP_PROTO"]


def page(*command):
    return subprocess.run([*command, "--help"], capture_output=True, text=True,
                          timeout=60, check=True).stdout


def variables(*command):
    return {f"GSHARD_{flag.upper()}"
            for flag in re.findall(r"^  --(\w+)", page(*command), re.MULTILINE)}


def variables_of_files():
    names = set()
    for path in glob.glob("deploy/**", recursive=True) + glob.glob("docker/**"):
        if os.path.isfile(path):
            with open(path, encoding="utf-8") as file:
                names.update(re.findall(r"\bGSHARD_[A-Z_]+\b", file.read()))
    return names


def warned(program, names):
    """The variables of `names` of which the program warns, with the nearest."""
    environment = {"PATH": os.environ["PATH"], **dict.fromkeys(names, "1"),
                   "GSHARD_COORDINATOR": "unix:/none/coordinator"}
    done = subprocess.run([program, "--listen=unix:/none/socket"],
                          capture_output=True, text=True, env=environment,
                          timeout=60, check=False)
    lines = [json.loads(line) for line in done.stderr.splitlines()
             if line.startswith("{")]
    if "cannot make the socket" not in done.stderr:
        raise ValueError(f"{program} ended otherwise: {done.stderr}")
    return {line["variable"]: line["nearest"] for line in lines
            if "nearest" in line}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", required=True)
    programs = os.path.abspath(parser.parse_args().programs)
    client = os.path.join(programs, "gshard")
    known = variables_of_files()
    known.update(f"GSHARD_{service}_{name}" for name in OF_SERVICES
                 for service in ("COORDINATOR", "ROUTER", "EXPERT_WORKER"))
    for name in re.findall(r"^  ([a-z]+(?: [a-z]+)?)  ", page(client),
                           re.MULTILINE):
        known |= variables(client, *name.split())
    own = {name: variables(os.path.join(programs, name)) for name in SERVERS}
    wrong = 0
    for name in SERVERS:
        program = os.path.join(programs, name)
        found = warned(program, known.union(*own.values()) - own[name])
        for variable, nearest in found.items():
            wrong += 1
            print(f"{name} takes {variable} for {nearest}")
        found = warned(program, {"GSHARD_DRAIN_DELEY", "GSHARD_DRAIN"})
        if found != {"GSHARD_DRAIN_DELEY": "GSHARD_DRAIN_DELAY"}:
            wrong += 1
            print(f"{name} warned of {found}, not of GSHARD_DRAIN_DELEY")
    print(f"environment: {len(known)} variables of others")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
