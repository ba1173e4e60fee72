"""Makes the schemas in `schemas/` from the definitions of custom resources (CRDs), which are too large to keep here.

    derive_schemas.py REPOSITORY COMMIT PATH CRD.yaml

A schema has what the definition says about the fields that deploy/kubernetes uses, and no other field, so that a field
that a cluster would drop is an error. After a manifest uses a new field, run this again with the definition of its
kind, and name the definition's origin in the first three arguments.
"""

import json
import sys
from pathlib import Path

import yaml

import kustomize
import manifests

SCHEMAS = Path(__file__).parent / "schemas"
# Descriptions are long. The rules of x-kubernetes-validations are in a language that nothing here evaluates.
LEFT_OUT = {"description", "default", "format", "example", "properties", "items", "additionalProperties"}


def used(schema, values, path):
    """Returns the part of `schema` that describes `values`, which are all values at this place."""
    part = {key: value for key, value in schema.items() if key not in LEFT_OUT and not key.startswith("x-")}
    if schema.get("x-kubernetes-int-or-string"):
        part.pop("anyOf", None)
        part["type"] = ["integer", "string"]
    maps = [value for value in values if isinstance(value, dict)]
    if "properties" in schema:
        names = {name for value in maps for name in value} | set(schema.get("required", []))
        unknown = names - set(schema["properties"])
        if unknown and not schema.get("x-kubernetes-preserve-unknown-fields"):
            sys.exit(f"{path} has no field {', '.join(sorted(unknown))}")
        part["properties"] = {
            name: used(schema["properties"][name], [value[name] for value in maps if name in value], f"{path}.{name}")
            for name in sorted(names - unknown)
        }
        part["additionalProperties"] = bool(unknown)
    elif isinstance(schema.get("additionalProperties"), dict):
        inner = [item for value in maps for item in value.values()]
        part["additionalProperties"] = used(schema["additionalProperties"], inner, f"{path}.*")
    if "items" in schema:
        items = [item for value in values if isinstance(value, list) for item in value]
        part["items"] = used(schema["items"], items, f"{path}[]")
    return part


def main():
    repository, commit, path, file = sys.argv[1:]
    definition = yaml.safe_load(Path(file).read_text())["spec"]
    kind = definition["names"]["kind"]
    documents = [
        document for name in manifests.FOLDERS for document in kustomize.build(manifests.ROOT / name)
        if document["kind"] == kind
    ]
    [version] = {document["apiVersion"] for document in documents}
    [schema] = [
        each["schema"]["openAPIV3Schema"] for each in definition["versions"]
        if f"{definition['group']}/{each['name']}" == version
    ]
    derived = {"$comment": f"From {path} of github.com/{repository} at {commit}, by derive_schemas.py"}
    # The definitions say nothing about metadata; the server checks it.
    derived |= used(schema, [{**document, "metadata": {}} for document in documents], kind)
    derived["required"] = ["apiVersion", "kind", "metadata", "spec"]
    SCHEMAS.mkdir(exist_ok=True)
    (SCHEMAS / f"{kind}.json").write_text(json.dumps(derived, indent=1) + "\n")


if __name__ == "__main__":
    main()
