#!/usr/bin/env python3
"""Checks deploy/kubernetes against the programs: whatever a manifest names of
them, they have.

  tests/deploy/manifests.py --programs build/dev/bin

Flags and their variables, in arguments, environments and probes; commands of
gshard; ports; exit codes; files of secrets and names in certificates; images;
grace periods; restarts; messages in .textproto files. Reads the files as they lie there,
needs no tool of Kubernetes, and says what is wrong, a line each.
"""

import argparse
import pathlib
import re
import subprocess
import sys

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy/kubernetes"
# What cert-manager writes into a secret, by the flag that reads it.
SECRET_KEYS = {"GSHARD_TLS_CERTIFICATE": "tls.crt", "GSHARD_TLS_KEY": "tls.key",
               "GSHARD_TLS_CA": "ca.crt"}
# Ports at which others listen.
OTHERS = {"DNS": 53, "object stores": 443, "OTLP": 4318}
# The Service of a Prometheus Operator in the namespace that components expect.
PROMETHEUS = "http://prometheus-operated.monitoring.svc:9090"
NO_DEADLINE = 2**31 - 1  # of a Deployment, to Kubernetes


class Programs:
    """The flags of the programs, as their --help tells them."""

    def __init__(self, folder):
        self.folder = folder
        self.known = {}

    def flags(self, *command):
        """Flag by name: the help's words on it; None without such a command."""
        if command not in self.known:
            run = subprocess.run([self.folder / command[0], *command[1:], "--help"],
                                 capture_output=True, text=True, check=False)
            parts = re.split(r"^  --(\w+)", run.stdout, flags=re.M)
            self.known[command] = (dict(zip(parts[1::2], parts[2::2]))
                                   if run.returncode == 0 else None)
        return self.known[command]

    def servers(self):
        return ["gshard_coordinator", "gshard_router", "gshard_expert_worker"]

    def is_shell(self, image):
        """The base of ours, which has the tools that ours lack."""
        dockerfile = (ROOT / "docker/Dockerfile").read_text()
        return re.search(rf"^ARG BASE=(\S*/)?{re.escape(image)}$", dockerfile, re.M) is not None

    def of_image(self, image):
        """gshard-expert-worker runs gshard_expert_worker, gshard-client gshard."""
        name = image.rpartition("/")[2].partition(":")[0].replace("-", "_")
        return "gshard" if name == "gshard_client" else name


def walk(node, path=()):
    """Every node of a document, with the keys that lead to it."""
    yield path, node
    items = (node.items() if isinstance(node, dict)
             else enumerate(node) if isinstance(node, list) else ())
    for key, child in items:
        yield from walk(child, (*path, key))


def documents():
    """File and document; patches that are text in a kustomization, too."""
    for path in sorted(FOLDER.rglob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            yield path, document
            for where, node in walk(document):
                if where[-1:] == ("patch",) and isinstance(node, str):
                    yield path, yaml.safe_load(node)


class Check:
    def __init__(self, programs):
        self.programs = programs
        self.wrong = []
        self.documents = list(documents())
        self.settings = {}  # GSHARD_... in ConfigMaps: value
        self.seen = 0       # names that were looked up

    def require(self, path, holds, message):
        self.seen += 1
        if not holds:
            self.wrong.append(f"{path.relative_to(ROOT)}: {message}")

    def nodes(self, wanted):
        for path, document in self.documents:
            for where, node in walk(document):
                if wanted(where, node):
                    yield path, node

    def run(self):
        self.check_settings()
        self.check_containers()
        self.check_ports()
        self.check_secrets()
        self.check_claims()
        self.check_exit_codes()
        self.check_grace()
        self.check_restarts()
        self.check_progress()
        self.check_prometheus()
        self.check_messages()
        self.check_headers()
        if self.seen < 100:
            self.wrong.append(f"only {self.seen} names were found to look up")
        return self.wrong

    def check_settings(self):
        """ConfigMaps of flags: all programs read them, some know them."""
        everywhere = {flag for program in [*self.programs.servers()]
                      for flag in self.programs.flags(program)}
        for path, literals in self.nodes(lambda where, node: where[-1:] == ("literals",)):
            for name, _, value in (literal.partition("=") for literal in literals):
                if name.startswith("GSHARD_"):
                    self.settings.setdefault(name, []).append(value)
                    self.require(path, name[7:].lower() in everywhere,
                                 f"{name} is no flag of any process")

    def check_containers(self):
        def container(where, node):
            return isinstance(node, dict) and "containers" in where[-2:-1]
        for path, node in self.nodes(container):
            image = node.get("image")
            if image and self.programs.is_shell(image):
                continue
            programs = [self.programs.of_image(image)] if image else self.programs.servers()
            if image:
                self.check_image(path, image, programs[0])
                if programs[0] not in (*self.programs.servers(), "gshard"):
                    continue
            for variable in node.get("env") or []:
                if variable["name"].startswith("GSHARD_") and programs != ["gshard"]:
                    flag = variable["name"][7:].lower()
                    self.require(path, any(flag in self.programs.flags(program)
                                           for program in programs),
                                 f"{variable['name']}: {' and '.join(programs)} have no --{flag}")
            if node.get("args"):
                self.check_command(path, [*programs[:1], *node["args"]])
        for path, command in self.nodes(lambda where, node: where[-2:] == ("exec", "command")):
            self.require(path, command[0] in self.programs.servers(),
                         f"there is no program {command[0]}")
            if command[0] in self.programs.servers():
                self.check_command(path, command)

    def check_image(self, path, image, program):
        target = "client" if program == "gshard" else program.removeprefix("gshard_")
        dockerfile = (ROOT / "docker/Dockerfile").read_text()
        target = target.replace("_", "[-_]")
        self.require(path, re.search(rf"^FROM .* AS {target}$", dockerfile, re.M),
                     f"docker/Dockerfile makes no image {image}")

    def check_command(self, path, command):
        """A program, for gshard its command, and flags as --name=value."""
        words = [word for word in command[1:] if not word.startswith("--")]
        head = command[:1] + (words[:1] if command[0] == "gshard" else [])
        flags = self.programs.flags(*head)
        self.require(path, flags is not None, f"there is no command {' '.join(head)}")
        for word in command[1:] if flags is not None else []:
            if not word.startswith("--"):
                continue
            name, _, value = word[2:].partition("=")
            self.require(path, name in flags, f"{' '.join(head)} has no --{name}")
            choices = re.match(r"=CHOICE .*\(([^;)]*)", flags.get(name, ""), re.S)
            if choices:
                self.require(path, value in re.split(r"\s+or\s+", choices[1]),
                             f"--{name}={value}: expected {choices[1]}")

    def check_ports(self):
        listening = {name: {int(value.rpartition(":")[2]) for value in self.settings[name]}
                     for name in ("GSHARD_LISTEN", "GSHARD_METRICS_ADDRESS", "GSHARD_COORDINATOR")}
        grpc, metrics = listening["GSHARD_LISTEN"], listening["GSHARD_METRICS_ADDRESS"]
        named = {}
        for path, ports in self.nodes(lambda where, node: where[-1:] == ("ports",)):
            for port in ports or []:
                if "containerPort" in port:
                    named[port["name"]] = {port["containerPort"]}
                    self.require(path, {"grpc": grpc, "metrics": metrics}.get(port["name"])
                                 == {port["containerPort"]},
                                 f"nothing listens for {port['name']} at {port['containerPort']}")
                else:
                    self.require(path, port["port"] in grpc | metrics | {*OTHERS.values()},
                                 f"nothing listens at {port['port']}")
        for path, port in self.nodes(lambda where, node: where[-1:] == ("targetPort",)):
            self.require(path, port in named, f"no container has a port {port}")
        for path, node in self.nodes(lambda where, node: "podMetricsEndpoints" in where[-2:-1]):
            self.require(path, named[node["port"]] == metrics, f"{node['port']} has no metrics")
        for path, _ in self.documents[:1]:
            self.require(path, listening["GSHARD_COORDINATOR"] == grpc,
                         "GSHARD_COORDINATOR has a port at which no coordinator listens")
        for path, value in self.nodes(lambda where, node: where[-1:] == ("value",)
                                      and isinstance(node, str) and "$(POD_IP)" in node):
            self.require(path, int(value.rpartition(":")[2]) in grpc, f"nothing listens at {value}")

    def check_secrets(self):
        mounts, secrets, made, names = set(), [], set(), set()
        for path, node in self.nodes(lambda where, node: isinstance(node, dict)):
            if "mountPath" in node:
                mounts.add(node["mountPath"])
                self.require(path, "subPath" not in node, "subPath: updates would not arrive")
            if isinstance(node.get("secret"), dict):
                secrets.append((path, node["secret"]["secretName"]))
            if node.get("kind") == "Certificate":
                made.add(node["spec"]["secretName"])
                names.update(node["spec"].get("dnsNames", []))
        for path, variable in self.nodes(lambda where, node: where[-2:-1] == ("env",)
                                         and node.get("value", "").startswith("/")):
            value = variable["value"]
            self.require(path, any(f"{value}/".startswith(f"{mount}/") for mount in mounts),
                         f"{variable['name']}: nothing is mounted for {value}")
        for path, name in secrets:
            self.require(path, name in made, f"no Certificate makes the secret {name}")
        kustomization = FOLDER / "components/tls/kustomization.yaml"
        for name, key in SECRET_KEYS.items():
            for value in self.settings[name]:
                folder, _, file = value.rpartition("/")
                self.require(kustomization, folder in mounts and file == key,
                             f"{name}={value}: expected {key} in a mounted folder")
        self.require(kustomization, set(self.settings["GSHARD_TLS_PEER_NAME"]) <= names,
                     "GSHARD_TLS_PEER_NAME is in no certificate")
        callers = FOLDER / "components/tls/callers"
        for value in self.settings["GSHARD_AUTH_FILE"]:
            folder, _, file = value.rpartition("/")
            self.require(kustomization, folder in mounts and file == callers.name,
                         f"GSHARD_AUTH_FILE={value}: expected {callers.name} in a mounted folder")
        for line in callers.read_text().splitlines():
            if not line.startswith("#"):
                _, kind, name, roles = line.split()
                self.require(callers, kind == "certificate" and name in names,
                             f"{name} is in no certificate")
                self.require(callers, set(roles.split(",")) <= {"translate", "train", "admin", "expert"},
                             f"{roles}: unknown roles")

    def check_claims(self):
        """Volumes of pods: of claims that are there, or that a StatefulSet makes."""
        claims = set()
        for _, node in self.nodes(lambda where, node: isinstance(node, dict) and "spec" in node):
            if node.get("kind") == "PersistentVolumeClaim":
                claims.add(node["metadata"]["name"])
            if node.get("kind") == "StatefulSet":
                claims |= {f"{claim['metadata']['name']}-{node['metadata']['name']}-0"
                           for claim in node["spec"].get("volumeClaimTemplates", [])}
        for path, name in self.nodes(lambda where, node: where[-1:] == ("claimName",)):
            self.require(path, name in claims, f"there is no claim {name}")

    def check_exit_codes(self):
        source = (ROOT / "client/command.h").read_text()
        codes = {int(code) for code in re.findall(r"kExit\w+ = (\d+)", source)} | {1, 2}
        for path, node in self.nodes(lambda where, node: where[-1:] == ("onExitCodes",)):
            self.require(path, set(node["values"]) <= codes and 75 not in node["values"],
                         f"exit codes {node['values']}: gshard has {sorted(codes)}, 75 is to be retried")

    def seconds(self, name, env, program):
        """Of a flag: in the container, else in the ConfigMap, else its default."""
        values = [v["value"] for v in env if v["name"] == name and "value" in v]
        values += self.settings.get(name, [])[:1]
        if not values:
            flag = self.programs.flags(program).get(name[7:].lower())
            values = re.findall(r"default (\S+?)[;)]", flag) if flag else ["0"]
        number, unit = re.fullmatch(r"([\d.]+)(m?s|m|h|)", values[0]).groups()
        return float(number) * {"ms": .001, "s": 1, "": 1, "m": 60, "h": 3600}[unit]

    def check_grace(self):
        def pod(where, node):
            return isinstance(node, dict) and "terminationGracePeriodSeconds" in node
        for path, node in self.nodes(pod):
            for container in node.get("containers", []):
                program = self.programs.of_image(container["image"])
                if program not in self.programs.servers():
                    continue
                least = sum(self.seconds(name, container.get("env") or [], program) for name in
                            ("GSHARD_DRAIN_DELAY", "GSHARD_DRAIN_SECONDS", "GSHARD_LEAVE_TIMEOUT"))
                self.require(path, node["terminationGracePeriodSeconds"] > least,
                             f"terminationGracePeriodSeconds: {program} may take {least:g} s to drain")

    def check_restarts(self):
        """That a few restarts of a server's container neither fail nor end its Job."""
        for path, node in self.nodes(lambda where, node: isinstance(node, dict) and "template" in node):
            pod = node["template"].get("spec") or {}
            if pod.get("restartPolicy") == "OnFailure" and any(
                    self.programs.of_image(container["image"]) in self.programs.servers()
                    for container in pod.get("containers", [])):
                self.require(path, node.get("backoffLimit", 6) >= 20,
                             f"backoffLimit: {node.get('backoffLimit')} restarts fail the Job")
                # Then they are done, to the Job.
                settings = (path.parent / "kustomization.yaml").read_text()
                self.require(path, "GSHARD_EXIT_AS_KILLED=true" in settings,
                             "servers that leave a drained node are not started elsewhere")

    def check_progress(self):
        """That `kubectl rollout status` waits for routers without a model."""
        for path, document in self.nodes(lambda where, node: not where and isinstance(node, dict)):
            probes = [node for where, node in walk(document) if where[-1:] == ("readinessProbe",)]
            if document.get("kind") == "Deployment" and any("--probe=ready" in str(one) for one in probes):
                self.require(path, document["spec"].get("progressDeadlineSeconds") == NO_DEADLINE,
                             "routers may wait for a model for longer than progressDeadlineSeconds")

    def check_prometheus(self):
        """That whoever asks a Prometheus asks the one that README.md is about."""
        def adapter(where, node):
            return where[-1:] == ("rules",) and isinstance(node, dict) and "custom" in node
        for path, _ in self.nodes(adapter):
            chart = dict(self.documents)[path].get("prometheus", {})
            self.require(path, f"{chart.get('url')}:{chart.get('port')}" == PROMETHEUS,
                         f"expected prometheus.url and port of {PROMETHEUS}: the chart's default is another")
        for path, node in self.nodes(lambda where, node: where[-1:] == ("serverAddress",)):
            self.require(path, node == PROMETHEUS, f"serverAddress {node}: expected {PROMETHEUS}")

    def check_messages(self):
        """That each .textproto is what it is for."""
        for path in sorted(FOLDER.rglob("*.textproto")):
            message, proto = (("ModelsFile", "models_file.proto") if path.name == "models.textproto"
                              else ("TrainingJob", "job.proto"))
            run = subprocess.run(["protoc", f"--proto_path={ROOT}/proto",
                                  f"--encode=gshard.v1.{message}", f"gshard/v1/{proto}"],
                                 input=path.read_bytes(), capture_output=True, cwd=ROOT, check=False)
            self.require(path, run.returncode == 0, run.stderr.decode().strip())

    def check_headers(self):
        """That an overlay with images of this machine says how to make those."""
        for path, node in self.nodes(lambda where, node: where[-2:-1] == ("images",)):
            if "newName" not in node:
                header = re.match(r"(#.*\n)*", path.read_text())[0]
                self.require(path, f"docker/build.sh --tag {node['newTag']}\n" in header
                             and f"{node['name']}:{node['newTag']}" in header,
                             f"its header does not say how {node['name']}:{node['newTag']} gets there")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--programs", type=pathlib.Path, default=ROOT / "build/dev/bin")
    wrong = Check(Programs(parser.parse_args().programs.resolve())).run()
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
