#!/usr/bin/python3
"""Checks that the files of deploy/compose and deploy/monitoring fit together:
what one names is in another. Needs no container, so it is quick."""

import json
import pathlib
import re
import sys
import urllib.parse

import yaml

COMPOSE = pathlib.Path("deploy/compose")
MONITORING = pathlib.Path("deploy/monitoring")
failures = []


def expect(condition, message):
  if not condition:
    failures.append(message)


def load(path):
  return yaml.safe_load(path.read_text())


def mounts(service):
  """(host's or volume's name, place) of each, with the defaults of variables."""
  for mount in service.get("volumes", []):
    source, place = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", mount).split(":")[:2]
    yield source, place


def check_compose(compose):
  services = compose["services"]
  targets = re.findall(r"^FROM \S+ AS (\S+)$",
                       pathlib.Path("docker/Dockerfile").read_text(), re.M)
  secrets = (COMPOSE / "secrets.sh").read_text()
  for name, service in services.items():
    if "build" in service:
      expect(service["build"]["target"] in targets,
             f"{name}: docker/Dockerfile has no {service['build']['target']}")
    for source, place in mounts(service):
      if not source.startswith("."):
        expect(source in compose["volumes"], f"{name}: no volume {source}")
      elif place != "/secrets":
        expect((COMPOSE / source).exists(), f"{name}: there is no {source}")
    for variable, value in service.get("environment", {}).items():
      if value.startswith("/secrets/"):
        stem = pathlib.Path(value).stem
        expect(re.search(rf"\b{stem}\b", secrets),
               f"{name}: secrets.sh makes no {value} for {variable}")
  places = {place for _, place in mounts(services["router"])}
  for job in (COMPOSE / "jobs").glob("*.textproto"):
    for path in re.findall(r'_?(?:path|directory): "([^"]*)"', job.read_text()):
      expect(any(path.startswith(place + "/") for place in places),
             f"{job}: no router has {path}")


def listens(service, port):
  """By its ports, or by its configuration where it has none."""
  if "ports" in service:
    return any(mapped.endswith(f":{port}") for mapped in service["ports"])
  return any(re.search(rf"\b{port}\b", (COMPOSE / source).read_text())
             for source, _ in mounts(service) if (COMPOSE / source).is_file())


def check_tracing(compose):
  """What the head of compose.yaml says to set is taken up, and reaches Tempo."""
  head = (COMPOSE / "compose.yaml").read_text().partition("name: gshard")[0]
  settings = dict(re.findall(r"(GSHARD_\w+)=(\S+)", head))
  profile, = re.findall(r"--profile (\w+)", head)
  for role in ("coordinator", "router", "expert_worker"):
    for name in settings:
      value = compose["services"][role]["environment"].get(name, "")
      expect(value.startswith("${" + name + ":-"), f"{role} does not take {name}")
  url = urllib.parse.urlparse(settings["GSHARD_OTLP_ENDPOINT"])
  backend = compose["services"].get(url.hostname, {})
  expect(backend.get("profiles") == [profile] and listens(backend, url.port),
         f"nobody listens at {url.geturl()} with the profile {profile}")
  command = compose["services"]["prometheus"]["command"]
  expect("--enable-feature=exemplar-storage" in command,
         "Prometheus drops exemplars")


def seconds(text):
  number, unit = re.fullmatch(r"(\d+)(s|m|)", text).groups()
  return int(number) * (60 if unit == "m" else 1)


def check_stop(services):
  """A running job writes a checkpoint when all is stopped: in time, and while its
  members are there. Compose stops what depends on others before them."""
  coordinator = services["coordinator"]
  expect({"router", "expert_worker"} <= set(coordinator.get("depends_on", [])),
         "coordinator: members are stopped before it")
  for name in ("router", "expert_worker"):
    expect("coordinator" not in services[name].get("depends_on", []),
           f"{name}: the coordinator is stopped after it")
  drain = re.findall(r"--drain_seconds=(\d+)", " ".join(coordinator["command"]))
  expect(drain == ["90"], f"coordinator: {drain} s for a checkpoint, elsewhere 90")
  least = seconds(coordinator["environment"]["GSHARD_DRAIN_DELAY"]) + sum(map(int, drain))
  expect(seconds(coordinator["stop_grace_period"]) > least,
         f"coordinator: stop_grace_period: it may take {least} s")


def check_prometheus(services):
  scraped = set()
  config = load(MONITORING / "prometheus.yml")
  for job in config["scrape_configs"]:
    for source in job.get("dns_sd_configs", []):
      scraped.update(source["names"])
      expect(source["port"] == 9464, f"{job['job_name']}: not port 9464")
  programs = {name for name, service in services.items()
              if "build" in service and "profiles" not in service}
  expect(scraped == programs, f"scraped are {scraped}, running {programs}")
  for pattern in config["rule_files"]:
    expect(list(MONITORING.glob(pattern)), f"there are no {pattern}")


def check_grafana(services):
  inside = {place: (COMPOSE / source).resolve()
            for source, place in mounts(services["grafana"])}
  provisioning = MONITORING / "grafana"
  expect(inside.get("/etc/grafana/provisioning") == provisioning.resolve(),
         "Grafana does not read deploy/monitoring/grafana")
  sources = load(provisioning / "datasources/prometheus.yml")
  expect(sources["apiVersion"] == 1, "datasources: apiVersion is not 1")
  known, links = set(), []
  for source in sources["datasources"]:
    known.add(source["uid"])
    url = urllib.parse.urlparse(source["url"])
    expect(source["type"] == url.hostname and source["access"] == "proxy",
           f"{source['name']}: not reached by Grafana")
    expect(url.hostname in services and listens(services[url.hostname], url.port),
           f"{source['name']}: nobody listens at {source['url']}")
    for link in source.get("jsonData", {}).get("exemplarTraceIdDestinations", []):
      links.append(link["datasourceUid"])
  expect(links and set(links) <= known, f"exemplars lead to {links}")
  providers = load(provisioning / "dashboards/gshard.yml")
  expect(providers["apiVersion"] == 1, "dashboards: apiVersion is not 1")
  dashboards = {}
  for provider in providers["providers"]:
    expect(provider["type"] == "file", f"{provider['name']}: not of files")
    folder = inside.get(provider["options"]["path"])
    expect(folder and list(folder.glob("*.json")),
           f"no dashboards in {provider['options']['path']}")
    for path in sorted(folder.glob("*.json")) if folder else []:
      dashboard = json.loads(path.read_text())
      expect(dashboards.setdefault(dashboard["uid"], path) == path,
             f"{path} has the uid of {dashboards[dashboard['uid']]}")
      variables = {v["name"] for v in dashboard["templating"]["list"]}
      for uid in re.findall(r'"uid": "([^"]*)"', path.read_text()):
        expect(uid in known or uid in dashboards or uid.strip("${}") in variables,
               f"{path}: there is no {uid}")
  home = services["grafana"]["environment"][
      "GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
  folder, name = home.rsplit("/", 1)
  expect(folder in inside and (inside[folder] / name).exists(),
         f"there is no home dashboard {home}")


def main():
  compose = load(COMPOSE / "compose.yaml")
  check_compose(compose)
  check_prometheus(compose["services"])
  check_grafana(compose["services"])
  check_tracing(compose)
  check_stop(compose["services"])
  for failure in failures:
    print("FAILED:", failure, file=sys.stderr)
  print(f"{len(compose['services'])} services: "
        + ("their files fit together" if not failures else "see above"))
  return 1 if failures else 0


if __name__ == "__main__":
  sys.exit(main())
