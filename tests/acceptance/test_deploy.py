"""The files in deploy/, used as an operator uses them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def objects() -> dict[tuple[str, str], Any]:
    """The objects that `kubectl apply -k` would make, by kind and name."""
    rendered = subprocess.run(
        ["kubectl", "kustomize", str(ROOT / "deploy/kubernetes")], capture_output=True, text=True, check=True
    )
    return {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(rendered.stdout)}


def test_every_object_fits_the_schemas_of_kubernetes(objects: dict[tuple[str, str], Any]) -> None:
    assert {kind for kind, _ in objects} == {"ConfigMap", "Service", "StatefulSet", "PodDisruptionBudget"}
    for each in objects.values():
        kubernetes_validate.validate(each, "1.31", strict=True)


def test_services_probes_and_mounts_lead_somewhere(objects: dict[tuple[str, str], Any]) -> None:
    nodes = objects["StatefulSet", "everbell"]["spec"]
    pod = nodes["template"]
    [container] = pod["spec"]["containers"]
    labels = pod["metadata"]["labels"]
    ports = {port["name"] for port in container["ports"]}
    for kind, name in objects:
        if kind == "Service":
            service = objects[kind, name]["spec"]
            assert service["selector"].items() <= labels.items()
            assert {port["targetPort"] for port in service["ports"]} <= ports
    assert ("Service", nodes["serviceName"]) in objects
    assert nodes["selector"]["matchLabels"].items() <= labels.items()
    assert objects["PodDisruptionBudget", "everbell"]["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert {container[f"{kind}Probe"]["httpGet"]["port"] for kind in ("startup", "liveness", "readiness")} <= ports
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes.keys()
    assert ("ConfigMap", volumes["settings"]["configMap"]["name"]) in objects


def test_the_image_is_built_and_runs() -> None:
    engine = shutil.which("docker") or shutil.which("podman")
    if engine is None or subprocess.run([engine, "info"], capture_output=True, check=False).returncode:
        pytest.skip("there is no container engine here: the image was not built")
    subprocess.run([engine, "build", "-q", "-f", "deploy/Dockerfile", "-t", "everbell-test", "."], cwd=ROOT, check=True)
    shown = subprocess.run(
        [engine, "run", "--rm", "everbell-test", "--version"], capture_output=True, text=True, check=True
    )
    assert shown.stdout.startswith("everbell ")
