#!/usr/bin/env python3
"""Checks the manifests of deploy/kubernetes and deploy/train, or of overlays that build on them.

    pip install kubernetes-validate cloudcoil-models-keda
    deploy/checks/manifests.py [FOLDER|FILE...] [--existing KIND/NAME] [--crd FILE] [--self-test]

Without FOLDER: each overlay, the base with each component, and the MPIJob. Checked are schemas, names of objects that others refer to,
selectors, and times that must fit. `--existing` names an object that is in the cluster already. `--crd` has the schema of a kind that
no package has, such as https://github.com/kubeflow/mpi-operator/blob/v0.8.2/manifests/base/kubeflow.org_mpijobs.yaml for the MPIJob
(Apache-2.0; SHA-256 78b0131f931fcc8d99f6ce0407281f41b62527e443ec691d26d9634b390ad3bb). `--self-test` breaks the manifests on purpose
and expects a message for each.
"""

import argparse
import copy
import json
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

from replicas import ROOT, CheckFailed, program

try:
    import kubernetes_validate
    import yaml
except ImportError as error:
    raise SystemExit(f"error: the package `{error.name}` is missing\nhint: pip install kubernetes-validate cloudcoil-models-keda") from None

KUBERNETES = ROOT / "deploy/kubernetes"
MPI_JOB = ROOT / "deploy/train/mpijob.yaml"
# What README.md tells the reader to create.
EXISTING = {
    "Secret/hearth-api-keys": "kubectl create secret generic hearth-api-keys --from-file=api-keys",
    "Secret/hearth-tls": "a certificate, such as one of cert-manager",
    "PersistentVolumeClaim/hearth-models": "a volume with the model",
    "Gateway/inference": "a gateway that supports the Gateway API Inference Extension",
    "PersistentVolumeClaim/hearth-train": "a volume that all machines share, for the data and the run",
}
# Kinds without a schema in a package: the fields that their documentation requires.
REQUIRED = {
    "InferencePool": ["spec.selector.matchLabels", "spec.targetPorts.0.number", "spec.endpointPickerRef.name", "spec.endpointPickerRef.port.number"],
    "HTTPRoute": ["spec.parentRefs.0.name", "spec.rules.0.backendRefs.0.name"],
    "EndpointPickerConfig": ["plugins.0.type", "schedulingProfiles.0.name"],
    "MPIJob": [f"spec.mpiReplicaSpecs.{role}.{what}" for role in ("Launcher", "Worker") for what in ("replicas", "template.spec.containers.0.name")],
}
# Schemas of `--crd`, by kind.
CRDS: dict[str, dict] = {}


def build(folder: Path) -> list[dict]:
    if folder.is_file():
        return [document for document in yaml.safe_load_all(folder.read_text()) if document]
    built = subprocess.run([program("kubectl"), "kustomize", str(folder)], capture_output=True, text=True)
    if built.returncode:
        raise CheckFailed(f"`kubectl kustomize {folder}` failed: {built.stderr.strip()}")
    return [document for document in yaml.safe_load_all(built.stdout) if document]


def at(value, path: str, default=None):
    for key in path.split("."):
        try:
            value = value[int(key) if isinstance(value, list) else key]
        except (KeyError, IndexError, TypeError, ValueError):
            return default
    return value


def name_of(document: dict) -> str:
    return f"{document['kind']}/{at(document, 'metadata.name', '?')}"


def strict(schema):
    """The schema of a definition, in which unknown fields are errors."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: strict(value) for key, value in schema.items()}
    if isinstance(found.get("properties"), dict) and not found.get("x-kubernetes-preserve-unknown-fields"):
        found.setdefault("additionalProperties", False)
    if found.get("x-kubernetes-int-or-string"):
        found.pop("type", None)
    return found


def read_crd(file: Path) -> None:
    definition = yaml.safe_load(file.read_text())
    schema = strict(definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
    # The server checks these by themselves.
    schema["properties"]["metadata"] = {"type": "object"}
    CRDS[definition["spec"]["names"]["kind"]] = schema


def schema_errors(document: dict) -> list[str]:
    kind = document["kind"]
    if kind not in CRDS and kind not in REQUIRED:
        return core_schema_errors(document)
    found = [f"the field `{path}` is missing" for path in REQUIRED.get(kind, []) if at(document, path) is None]
    if kind in CRDS:
        import jsonschema

        validator = jsonschema.Draft202012Validator(CRDS[kind])
        found += [f"{'.'.join(map(str, error.path))}: {error.message}" for error in validator.iter_errors(document)]
    if kind == "MPIJob" and not found:
        for role, replica in document["spec"]["mpiReplicaSpecs"].items():
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": role.lower()}, "spec": replica["template"]["spec"]}
            found += [f"{role}: {what}" for what in core_schema_errors(pod)]
    return found


def core_schema_errors(document: dict) -> list[str]:
    kind = document["kind"]
    if kind == "ScaledObject":
        try:
            from cloudcoil.models.keda.v1alpha1 import ScaledObject
            from pydantic import ValidationError
        except ImportError:
            return ["its schema is in the package `cloudcoil-models-keda`\nhint: pip install cloudcoil-models-keda"]
        try:
            ScaledObject.model_validate(document)
        except ValidationError as error:
            return [f"{'.'.join(map(str, what['loc']))}: {what['msg']}" for what in error.errors()]
        return []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kubernetes_validate.validate(document, "1.37", strict=True)
    except kubernetes_validate.ValidationError as error:
        return [f"{'.'.join(map(str, error.path))}: {error.message}"]
    except kubernetes_validate.SchemaNotFoundError:
        return ["there is no schema for this kind"]
    return []


def pod_specs(documents):
    for document in documents:
        if document["kind"] in ("Deployment", "Job"):
            yield document, document["spec"]["template"]
        if document["kind"] == "MPIJob":
            for replica in document["spec"]["mpiReplicaSpecs"].values():
                yield document, replica["template"]


def references(document: dict, template: dict):
    """The objects that a pod needs: kind, name."""
    pod = template["spec"]
    if name := pod.get("serviceAccountName"):
        yield "ServiceAccount", name
    for volume in pod.get("volumes", []):
        for key, kind, path in [
            ("secret", "Secret", "secretName"),
            ("configMap", "ConfigMap", "name"),
            ("persistentVolumeClaim", "PersistentVolumeClaim", "claimName"),
        ]:
            if key in volume and not volume[key].get("optional"):
                yield kind, volume[key][path]
    for container in pod.get("initContainers", []) + pod["containers"]:
        for source in container.get("envFrom", []):
            for key, kind in [("configMapRef", "ConfigMap"), ("secretRef", "Secret")]:
                if key in source and not source[key].get("optional"):
                    yield kind, source[key]["name"]
        for variable in container.get("env", []):
            for key, kind in [("secretKeyRef", "Secret"), ("configMapKeyRef", "ConfigMap")]:
                if (source := at(variable, f"valueFrom.{key}")) and not source.get("optional"):
                    yield kind, source["name"]


def setting(documents: list[dict], name: str) -> str | None:
    maps = [document for document in documents if document["kind"] == "ConfigMap"]
    return next((value for document in maps if (value := at(document, "data", {}).get(name))), None)


def errors(documents: list[dict], existing: dict[str, str]) -> list[str]:
    found = []
    known = {name_of(document) for document in documents}
    for document in documents:
        found += [f"{name_of(document)}: {what}" for what in schema_errors(document)]
    if found:
        return found

    def require(user: str, kind: str, name: str):
        if f"{kind}/{name}" not in known | set(existing):
            hint = f"create it, or say with `--existing {kind}/{name}` that it is in the cluster"
            found.append(f"{user} needs the {kind} `{name}`, which none of these manifests has\nhint: {hint}")

    pods = []
    for document, template in pod_specs(documents):
        user, pod = name_of(document), template["spec"]
        pods.append((at(template, "metadata.labels", {}), pod))
        for kind, name in references(document, template):
            require(user, kind, name)
        volumes = {volume["name"] for volume in pod.get("volumes", [])}
        for container in pod.get("initContainers", []) + pod["containers"]:
            place = f"{user}, container `{container['name']}`"
            for mount in container.get("volumeMounts", []):
                if mount["name"] not in volumes:
                    found.append(f"{place} mounts the volume `{mount['name']}`, which the pod does not have")
            rights = container.get("securityContext", {})
            for path, wanted in [("allowPrivilegeEscalation", False), ("readOnlyRootFilesystem", True), ("capabilities.drop", ["ALL"])]:
                if at(rights, path) != wanted:
                    found.append(f"{place}: `securityContext.{path}` must be {json.dumps(wanted)}")
            ports = {port.get("name") for port in container.get("ports", [])}
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                port = at(container, f"{probe}.httpGet.port")
                if isinstance(port, str) and port not in ports:
                    found.append(f"{place}: `{probe}` asks the port `{port}`, which the container does not have")
            if container["name"] == "hearth":
                found += time_errors(place, pod, container, documents)
        if at(pod, "securityContext.runAsNonRoot") is not True:
            found.append(f"{user}: `securityContext.runAsNonRoot` must be true")

    for document in documents:
        if document["kind"] == "MPIJob":
            found += mpi_errors(name_of(document), document["spec"])

    def select(user: str, labels: dict):
        if not labels or not any(labels.items() <= own.items() for own, _ in pods):
            found.append(f"{user} selects pods by {labels}, which no pod has")

    for document in documents:
        user, kind = name_of(document), document["kind"]
        if kind == "Service":
            select(user, at(document, "spec.selector", {}))
        if kind in ("PodDisruptionBudget", "Deployment", "InferencePool"):
            select(user, at(document, "spec.selector.matchLabels", {}))
        if kind == "NetworkPolicy":
            select(user, at(document, "spec.podSelector.matchLabels", {}))
        if kind in ("HorizontalPodAutoscaler", "ScaledObject"):
            target = document["spec"]["scaleTargetRef"]
            require(user, target.get("kind", "Deployment"), target["name"])
        if kind == "InferencePool":
            require(user, "Service", document["spec"]["endpointPickerRef"]["name"])
        if kind == "HTTPRoute":
            for parent in document["spec"]["parentRefs"]:
                require(user, "Gateway", parent["name"])
            for rule in document["spec"]["rules"]:
                for backend in rule.get("backendRefs", []):
                    require(user, backend.get("kind", "Service"), backend["name"])
        for name, text in (at(document, "data", {}) or {}).items() if kind == "ConfigMap" else []:
            if name.endswith(".yaml"):
                inner = yaml.safe_load(text)
                found += [f"{user}, `{name}`: {what}" for what in schema_errors(inner)]
                plugins = {plugin.get("name", plugin["type"]) for plugin in inner.get("plugins", [])}
                for profile in inner.get("schedulingProfiles", []):
                    for plugin in profile["plugins"]:
                        if plugin["pluginRef"] not in plugins:
                            found.append(f"{user}, `{name}`: the profile names the plugin `{plugin['pluginRef']}`, which is not declared")
    return found


def mpi_errors(user: str, spec: dict) -> list[str]:
    """What does not fit between the launcher's command and the workers."""
    found = []
    workers, launcher = spec["mpiReplicaSpecs"]["Worker"], spec["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
    slots = workers["replicas"] * spec.get("slotsPerWorker", 1)
    command = launcher.get("command", []) + launcher.get("args", [])
    n = command[command.index("-np") + 1] if "-np" in command[:-1] else None
    if n != str(slots):
        found.append(f"{user}: the launcher starts {n} processes (`-np`), but the workers have {slots} slots")
    if slots & (slots - 1):
        found.append(f"{user}: the number of processes must be a power of two, got {slots}")
    if "--resume" not in command:
        found.append(f"{user}: the launcher starts again when a worker is lost, so its command needs `--resume`")
    if spec.get("sshAuthMountPath") != "/home/hearth/.ssh":
        found.append(f"{user}: `sshAuthMountPath` must be /home/hearth/.ssh, where the image looks for keys")
    return found


def time_errors(place: str, pod: dict, container: dict, documents: list[dict]) -> list[str]:
    found = []
    stop = at(container, "lifecycle.preStop.sleep.seconds", 0)
    drain = int(setting(documents, "HEARTH_DRAIN_TIMEOUT") or 25)
    grace = pod.get("terminationGracePeriodSeconds", 30)
    if grace < stop + drain + 5:
        found.append(
            f"{place}: `terminationGracePeriodSeconds` is {grace}, but preStop ({stop} s), HEARTH_DRAIN_TIMEOUT ({drain} s) and 5 s "
            f"for the last answers need {stop + drain + 5}\nhint: raise it, or lower HEARTH_DRAIN_TIMEOUT"
        )
    ready = container.get("readinessProbe", {})
    # The pod must be out of the Service by its readiness before it ends, also where the proxy does not see that it ends.
    if ready.get("periodSeconds", 10) * ready.get("failureThreshold", 3) > max(stop, 1):
        found.append(f"{place}: `readinessProbe` needs more time to fail than preStop lasts ({stop} s)")
    for probe, path in [("startupProbe", "/ready"), ("readinessProbe", "/ready"), ("livenessProbe", "/health")]:
        if at(container, f"{probe}.httpGet.path") != path:
            found.append(f"{place}: `{probe}` must ask `{path}`")
    scheme = "HTTPS" if any(variable["name"] == "HEARTH_TLS_CERT" for variable in container.get("env", [])) else "HTTP"
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        if at(container, f"{probe}.httpGet.scheme", "HTTP") != scheme:
            found.append(f"{place}: `{probe}` must speak {scheme}")
    cores = at(container, "resources.limits.cpu")
    if not str(cores or "").isdigit():
        found.append(f"{place}: `resources.limits.cpu` must be a whole number of cores, got {cores}; HEARTH_THREADS follows it")
    return found


def folders(work: Path) -> list[Path]:
    """The overlays, and the CPU overlay with each component that they do not have."""
    overlays = sorted(path.parent for path in KUBERNETES.glob("overlays/*/kustomization.yaml"))
    for component in ("tls", "model-volume"):
        folder = work / f"cpu-with-{component}"
        folder.mkdir()
        # Kustomize takes only relative paths.
        text = {"resources": ["cpu"], "components": [component], "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
        up = Path(*[".."] * (len(folder.resolve().parts) - 1)) / str(KUBERNETES)[1:]
        text["resources"], text["components"] = [str(up / "overlays/cpu")], [str(up / "components" / component)]
        (folder / "kustomization.yaml").write_text(yaml.safe_dump(text))
        overlays.append(folder)
    return overlays


def self_test(documents: list[dict]) -> list[str]:
    """Breaks the manifests; returns what was not noticed."""

    def deployment(all_documents):
        return next(document for document in all_documents if document["kind"] == "Deployment")

    def pod(all_documents):
        return deployment(all_documents)["spec"]["template"]["spec"]

    def kind(all_documents, name):
        return next(document for document in all_documents if document["kind"] == name)

    def drop(name):
        return lambda all_documents: all_documents.remove(kind(all_documents, name))

    breaks = [
        ("needs the Secret `keys`", lambda d: pod(d)["volumes"][1]["secret"].update(secretName="keys")),
        ("needs the ConfigMap `hearth-", drop("ConfigMap")),
        ("needs the ServiceAccount `hearth`", drop("ServiceAccount")),
        ("`terminationGracePeriodSeconds` is 30", lambda d: pod(d).update(terminationGracePeriodSeconds=30)),
        ("`securityContext.readOnlyRootFilesystem` must be true", lambda d: pod(d)["containers"][0]["securityContext"].pop("readOnlyRootFilesystem")),
        ("`securityContext.runAsNonRoot` must be true", lambda d: pod(d)["securityContext"].pop("runAsNonRoot")),
        ("asks the port `web`", lambda d: pod(d)["containers"][0]["livenessProbe"]["httpGet"].update(port="web")),
        ("`livenessProbe` must ask `/health`", lambda d: pod(d)["containers"][0]["livenessProbe"]["httpGet"].update(path="/ready")),
        ("must be a whole number of cores", lambda d: pod(d)["containers"][0]["resources"]["limits"].update(cpu="500m")),
        ("mounts the volume `models`", lambda d: pod(d)["volumes"].pop(0)),
        ("Service/hearth selects pods by", lambda d: kind(d, "Service")["spec"].update(selector={"app": "other"})),
        ("needs the Deployment `other`", lambda d: kind(d, "HorizontalPodAutoscaler")["spec"]["scaleTargetRef"].update(name="other")),
        ("Deployment/hearth: spec", lambda d: deployment(d)["spec"].update(replicaz=3)),
        ("Deployment/hearth: spec.template.spec.containers.0", lambda d: pod(d)["containers"][0].update(image=7)),
    ]
    job = build(MPI_JOB)

    def replicas_of(all_documents):
        return all_documents[0]["spec"]["mpiReplicaSpecs"]

    job_breaks = [
        ("the launcher starts 4 processes (`-np`), but the workers have 2 slots", lambda d: replicas_of(d)["Worker"].update(replicas=2)),
        ("must be a power of two, got 3", lambda d: replicas_of(d)["Worker"].update(replicas=3)),
        ("its command needs `--resume`", lambda d: replicas_of(d)["Launcher"]["template"]["spec"]["containers"][0]["args"].remove("--resume")),
        ("`sshAuthMountPath` must be", lambda d: d[0]["spec"].pop("sshAuthMountPath")),
        ("spec.containers.0", lambda d: replicas_of(d)["Worker"]["template"]["spec"]["containers"][0].update(image=7)),
        ("needs the PersistentVolumeClaim `data`", lambda d: replicas_of(d)["Worker"]["template"]["spec"]["volumes"][0]["persistentVolumeClaim"].update(claimName="data")),
        ("Launcher", lambda d: replicas_of(d).pop("Launcher")),
    ]
    if "MPIJob" in CRDS:
        job_breaks += [
            ("mpiImplementation: 'openmpi' is not one of", lambda d: d[0]["spec"].update(mpiImplementation="openmpi")),
            ("'slots' was unexpected", lambda d: d[0]["spec"].update(slots=1)),
        ]
    breaks = [(documents, *one) for one in breaks] + [(job, *one) for one in job_breaks]
    unnoticed = []
    for whole, expected, change in breaks:
        broken = copy.deepcopy(whole)
        change(broken)
        if not any(expected in what for what in errors(broken, EXISTING)):
            unnoticed.append(f"a manifest that is broken on purpose is not noticed: expected `{expected}`, got {errors(broken, EXISTING)}")
    print(f"{len(breaks) - len(unnoticed)} of {len(breaks)} manifests that are broken on purpose are noticed")
    return unnoticed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="*", type=Path, help="folders with a kustomization.yaml, or files [default: those of deploy]")
    parser.add_argument("--crd", action="append", default=[], type=Path, metavar="FILE", help="a CustomResourceDefinition with a schema")
    parser.add_argument("--existing", action="append", default=[], metavar="KIND/NAME", help="an object that is in the cluster already")
    parser.add_argument("--self-test", action="store_true", help="also break manifests on purpose")
    arguments = parser.parse_args()
    existing = EXISTING | dict.fromkeys(arguments.existing, "given")
    for file in arguments.crd:
        read_crd(file)
    n_wrong = 0
    with tempfile.TemporaryDirectory(prefix="manifests-") as work:
        for folder in arguments.folder or [*folders(Path(work)), MPI_JOB]:
            documents = build(folder)
            wrong = errors(documents, existing)
            n_wrong += len(wrong)
            for what in wrong:
                print(f"error: {folder.name}: {what}")
            by_fields = sorted({document["kind"] for document in documents} & (set(REQUIRED) - set(CRDS)))
            note = f", of which {', '.join(by_fields)} by required fields only" if by_fields else ""
            print(f"{folder.name}: {len(documents)} objects{note}")
        if arguments.self_test:
            unnoticed = self_test(build(KUBERNETES / "overlays/cpu"))
            n_wrong += len(unnoticed)
            for what in unnoticed:
                print(f"error: {what}")
    return 1 if n_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
