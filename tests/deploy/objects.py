#!/usr/bin/env python3
"""Checks objects of Kubernetes, as `kubectl kustomize` prints them.

  tests/deploy/objects.py FILE...

Of a file, which is what one overlay deploys: that each object is one by its
schema, without a field that the schema does not have; that pods are what the
profile `restricted` asks for, and have limits; that objects that name each other
exist. Prints what is wrong, a line each. tests/deploy/kubernetes.sh installs the
schemas.
"""

import collections
import functools
import importlib
import json
import pathlib
import re
import sys

import kubernetes_validate
import yaml

# Some clusters are not the newest.
RELEASES = ("1.31", "1.37")
# Where the classes of others' kinds are, whose packages make each field one of
# theirs, and drop those that they do not know.
OTHERS = {
    "cert-manager.io/v1": "cloudcoil.models.cert_manager.v1",
    "keda.sh/v1alpha1": "cloudcoil.models.keda.v1alpha1",
    "monitoring.coreos.com/v1": "cloudcoil.models.prometheus_operator.v1",
    "jobset.x-k8s.io/v1alpha2": "kubeflow_trainer_api.models.jobset_v1alpha2_job_set",
}


def dropped(given, kept, path=""):
    """Fields of `given` that `kept` lacks."""
    if isinstance(given, dict) and isinstance(kept, dict):
        for key, value in given.items():
            if key not in kept:
                yield f"{path}.{key}"
            else:
                yield from dropped(value, kept[key], f"{path}.{key}")
    elif isinstance(given, list) and isinstance(kept, list):
        for i, (one, other) in enumerate(zip(given, kept)):
            yield from dropped(one, other, f"{path}[{i}]")


# The definitions of a release are a large file, and are read for each object.
kubernetes_validate.utils.schema_contents = functools.cache(
    kubernetes_validate.utils.schema_contents)


@functools.cache
def schema_errors(text):
    """Of an object as JSON: most are the same in several overlays."""
    thing = json.loads(text)
    if thing["apiVersion"] in OTHERS:
        module = importlib.import_module(OTHERS[thing["apiVersion"]])
        try:
            if thing["kind"] == "JobSet":
                kept = module.JobsetV1alpha2JobSet.from_dict(thing).to_dict()
            else:
                kept = getattr(module, thing["kind"]).model_validate(thing).model_dump(
                    mode="json", by_alias=True, exclude_unset=True)
        except ValueError as error:
            return [str(error)]
        return [f"unknown field {path}" for path in dropped(thing, kept)]
    errors = []
    for release in RELEASES:
        try:
            kubernetes_validate.validate(thing, release, strict=True)
        except kubernetes_validate.SchemaNotFoundError as error:
            errors.append(error.message)
        except kubernetes_validate.ValidationError as error:
            errors.append(f"{release}: {'.'.join(map(str, error.path))}: {error.message[:300]}")
    return errors


def pods(node):
    """The pod templates below a node."""
    if isinstance(node, dict):
        if isinstance(node.get("spec"), dict) and "containers" in node["spec"]:
            yield node
        for child in node.values():
            yield from pods(child)
    elif isinstance(node, list):
        for child in node:
            yield from pods(child)


def label_errors(pod):
    """Labels that variables are read from, and that only a cluster may add: without
    them the variable is empty."""
    for container in pod["spec"]["containers"]:
        for variable in container.get("env", []):
            path = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
            label = re.fullmatch(r"metadata\.labels\['(.*)'\]", path)
            if label and label[1] not in pod["metadata"]["labels"]:
                yield f"{variable['name']} is empty where pods do not get the label {label[1]}"


def pod_errors(pod, names, settings):
    """`names` are those of objects, by kind; `settings` the data of ConfigMaps, by name."""
    spec = pod["spec"]
    client = "gshard-client" in pod["metadata"]["labels"]
    security = spec.get("securityContext", {})
    volumes = {volume["name"]: volume for volume in spec.get("volumes", [])}
    errors = []

    def require(holds, message):
        if not holds:
            errors.append(message)

    require(spec.get("automountServiceAccountToken") is False, "has a token of a service account")
    require(spec.get("enableServiceLinks") is False, "has variables of services")
    require(spec.get("serviceAccountName") in names["ServiceAccount"], "its service account is missing")
    require(security.get("runAsNonRoot") and security.get("runAsUser") == 65532
            and security.get("fsGroup") == 65532, "is not the user 65532")
    require(security.get("seccompProfile") == {"type": "RuntimeDefault"}, "has no seccomp profile")
    for container in spec["containers"]:
        own = container.get("securityContext", {})
        require(own.get("allowPrivilegeEscalation") is False and own.get("readOnlyRootFilesystem")
                and own.get("capabilities") == {"drop": ["ALL"]}, "its container may do too much")
        resources = container.get("resources", {})
        require({"cpu", "memory"} <= set(resources.get("requests", {}))
                and "memory" in resources.get("limits", {}), "has no requests or no limit")
        variables = [variable["name"] for variable in container.get("env", [])]
        require(len(variables) == len(set(variables)), "has a variable twice")
        # The memory that experts may take is a GPU's where they are on one.
        if any(variable["name"] == "GSHARD_DEVICE" and variable["value"].startswith("cuda")
               for variable in container.get("env", [])):
            require(not any(variable["name"] == "GSHARD_MEMORY_MIB" and "valueFrom" in variable
                            for variable in container["env"]), "offers the pod's memory for its GPU's")
        # Files and folders that flags name.
        flags = {variable["name"]: variable.get("value", "") for variable in container.get("env", [])}
        for source in container.get("envFrom", []):
            flags = {**settings.get(source["configMapRef"]["name"], {}), **flags}
        mounts = [mount["mountPath"] for mount in container.get("volumeMounts", [])]
        for flag, value in flags.items():
            # Clients do not ask who calls, nor serve files.
            if value.startswith("/") and not (client and flag in ("GSHARD_AUTH_FILE", "GSHARD_DATA_ROOTS")):
                require(any(f"{value}/".startswith(f"{mount}/") for mount in mounts),
                        f"{flag}: nothing is mounted for {value}")
        # Kubernetes replaces $(NAME) where NAME comes before.
        known = set()
        for variable in container.get("env", []):
            used = re.findall(r"\$\((\w+)\)", variable.get("value", ""))
            require(set(used) <= known, f"{variable['name']} uses a later variable")
            known.add(variable["name"])
        require(set(re.findall(r"\$\((\w+)\)", " ".join(container.get("args", [])))) <= known,
                "its arguments use a variable that it does not have")
        for mount in container.get("volumeMounts", []):
            require(mount["name"] in volumes or mount["name"] in pod.get("claims", ()),
                    f"mounts {mount['name']}, which is no volume")
        for source in container.get("envFrom", []):
            require(source["configMapRef"]["name"] in names["ConfigMap"],
                    f"its ConfigMap {source['configMapRef']['name']} is missing")
    for volume in volumes.values():
        for kind, key, name in (("ConfigMap", "configMap", "name"),
                                ("Secret", "secret", "secretName"),
                                ("PersistentVolumeClaim", "persistentVolumeClaim", "claimName")):
            if key in volume:
                require(volume[key][name] in names[kind], f"its {kind} {volume[key][name]} is missing")
    return errors


def file_errors(path):
    things = [thing for thing in yaml.safe_load_all(path.read_text()) if thing]
    names, settings = collections.defaultdict(set), {}
    for thing in things:
        names[thing["kind"]].add(thing["metadata"]["name"])
        if thing["kind"] == "ConfigMap":
            settings[thing["metadata"]["name"]] = thing.get("data", {})
        if thing["kind"] == "Certificate":
            names["Secret"].add(thing["spec"]["secretName"])
        if thing["kind"] == "StatefulSet":
            names["PersistentVolumeClaim"] |= {
                f"{claim['metadata']['name']}-{thing['metadata']['name']}-0"
                for claim in thing["spec"].get("volumeClaimTemplates", [])}
    labels = [pod["metadata"]["labels"] for thing in things for pod in pods(thing)]
    for thing in things:
        where = f"{path.name}: {thing['kind']} {thing['metadata']['name']}"
        for error in schema_errors(json.dumps(thing, default=str)):
            yield f"{where}: {error}"
        claims = {claim["metadata"]["name"]
                  for claim in thing.get("spec", {}).get("volumeClaimTemplates", [])
                  } if thing["kind"] == "StatefulSet" else set()
        for pod in pods(thing):
            for error in pod_errors({**pod, "claims": claims}, names, settings):
                yield f"{where}: {error}"
            # Components say what they need; an example is to run anywhere.
            for error in label_errors(pod) if path.name.startswith("examples-") else ():
                yield f"{where}: {error}"
        if path.name.startswith("examples-"):
            namespace = thing["metadata"].get("namespace")
            if namespace and namespace not in names["Namespace"]:
                yield f"{where}: nothing makes its namespace {namespace}"
            for pod in pods(thing):
                for container in pod["spec"]["containers"]:
                    if ":" not in container["image"]:
                        yield f"{where}: its image {container['image']} has neither registry nor tag"
        # By which kube-prometheus-stack knows what it is to read.
        if (thing["kind"] in ("PodMonitor", "PrometheusRule") and path.name.startswith("examples-")
                and "release" not in thing["metadata"]["labels"]):
            yield f"{where}: has no label release"
        spec = thing.get("spec", {})
        if thing["kind"] == "Service":
            if not any(spec["selector"].items() <= one.items() for one in labels):
                yield f"{where}: selects no pod"
        if thing["kind"] in ("PodDisruptionBudget", "Deployment", "StatefulSet", "PodMonitor"):
            if not any(spec["selector"]["matchLabels"].items() <= one.items() for one in labels):
                yield f"{where}: selects no pod"
        if thing["kind"] == "NetworkPolicy":
            if not any(spec["podSelector"]["matchLabels"].items() <= one.items() for one in labels):
                yield f"{where}: selects no pod"
        if thing["kind"] == "ScaledObject":
            for trigger in spec["triggers"]:
                wanted = f'namespace="{thing["metadata"].get("namespace")}"'
                if wanted not in trigger["metadata"]["query"]:
                    yield f"{where}: a query is not of {wanted}"
        target = spec.get("scaleTargetRef")
        if target and target["name"] not in names["Deployment"]:
            yield f"{where}: {target['name']} is missing"
    replicas = [thing for thing in things if thing["kind"] == "Deployment" and "replicas" in thing["spec"]]
    if names["HorizontalPodAutoscaler"] | names["ScaledObject"] and replicas:
        yield f"{path.name}: an autoscaler and the manifest both say how many routers there are"


def main():
    count = 0
    errors = []
    for name in sys.argv[1:]:
        path = pathlib.Path(name)
        count += path.read_text().count("\nkind: ")
        errors += file_errors(path)
    for error in errors:
        print(error, file=sys.stderr)
    print(f"{count} objects of {len(sys.argv) - 1} overlays: {len(errors)} errors")
    return 1 if errors or not count else 0


if __name__ == "__main__":
    sys.exit(main())
