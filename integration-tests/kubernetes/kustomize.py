"""Resolves kustomizations: the features that deploy/kubernetes uses, and an error for every other one.

The result is what `kubectl kustomize` prints. manifests_test.py compares the two where that program is installed.
"""

import copy
import hashlib
import json

import yaml

KNOWN = {
    "apiVersion",
    "kind",
    "resources",
    "components",
    "configurations",
    "labels",
    "images",
    "configMapGenerator",
    "patches",
}
# Kinds in which kustomize itself finds the names of ConfigMaps. For others, a configuration has their paths.
WITH_REFERENCES = {"Deployment", "StatefulSet", "DaemonSet", "Job", "CronJob", "Pod"}


def build(folder):
    """Returns the documents of the kustomization in `folder`."""
    fields = []
    documents = resolve(folder, [], fields)
    names = {}
    for document in documents:
        suffix = document.pop("suffix", None)
        if suffix is not None:
            plain = document["metadata"]["name"]
            document["metadata"]["name"] = names[plain] = f"{plain}-{suffix}"
    for document in documents:
        if document["kind"] in WITH_REFERENCES:
            rename(document, names)
        for field in fields:
            if field["kind"] == document["kind"]:
                rename_at(document, field["path"].split("/"), names)
    return documents


def resolve(folder, documents, fields):
    """Returns `documents` after the kustomization in `folder` has added to them and changed them. A base starts with
    none; a component starts with those of the kustomization that includes it. Adds to `fields` where other kinds name
    ConfigMaps."""
    steps = yaml.safe_load((folder / "kustomization.yaml").read_text())
    unknown = set(steps) - KNOWN
    assert not unknown, f"{folder}: this resolver does not know {unknown}"
    for resource in steps.get("resources", []):
        path = (folder / resource).resolve()
        if path.is_dir():
            added = resolve(path, [], fields)
        else:
            # As kustomize, which reads no file above the folder of the kustomization.
            assert path.is_relative_to(folder.resolve()), f"{folder}: {resource} is outside"
            added = list(yaml.safe_load_all(path.read_text()))
        for document in added:
            assert identity(document) not in map(identity, documents), f"{folder}: two of {identity(document)}"
            documents.append(document)
    for file in steps.get("configurations", []):
        configuration = yaml.safe_load((folder / file).read_text())
        assert set(configuration) == {"nameReference"}, configuration
        for reference in configuration["nameReference"]:
            assert (reference["kind"], reference["version"]) == ("ConfigMap", "v1"), reference
            fields.extend(reference["fieldSpecs"])
    for generator in steps.get("configMapGenerator", []):
        generate(folder, generator, documents)
    for component in steps.get("components", []):
        documents = resolve(folder / component, documents, fields)
    for change in steps.get("patches", []):
        documents = patch(documents, change)
    for change in steps.get("labels", []):
        assert set(change) == {"pairs"}, change
        for document in documents:
            document["metadata"].setdefault("labels", {}).update(change["pairs"])
    for image in steps.get("images", []):
        for document in documents:
            replace_image(document, image)
    return documents


def identity(document):
    return document["apiVersion"].rpartition("/")[0], document["kind"], document["metadata"]["name"]


def generate(folder, generator, documents):
    assert set(generator) <= {"name", "literals", "files", "options", "behavior"}, generator
    data = dict(literal.split("=", 1) for literal in generator.get("literals", []))
    data |= {file: (folder / file).read_text() for file in generator.get("files", [])}
    document = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": generator["name"]}, "data": data}
    if generator.get("behavior") == "merge":
        [document] = [each for each in documents if identity(each) == identity(document)]
        document["data"].update(data)
    else:
        documents.append(document)
    options = generator.get("options", {})
    assert set(options) <= {"labels", "disableNameSuffixHash"}, options
    if "labels" in options:
        document["metadata"]["labels"] = dict(options["labels"])
    if not options.get("disableNameSuffixHash"):
        document["suffix"] = content_hash(document)


def content_hash(document):
    """Returns the hash that kustomize appends to the name of a generated ConfigMap. It always hashes an empty name."""
    content = {"data": document["data"], "kind": "ConfigMap", "name": ""}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    for special in "<>&\u2028\u2029":
        text = text.replace(special, f"\\u{ord(special):04x}")
    digits = hashlib.sha256(text.encode()).hexdigest()[:10]
    return digits.translate(str.maketrans("013ae", "ghkmt"))


def rename(node, names):
    """Gives references to generated ConfigMaps their new names."""
    if isinstance(node, list):
        for item in node:
            rename(item, names)
    elif isinstance(node, dict):
        for key, value in node.items():
            if key in ("configMapRef", "configMapKeyRef") and value["name"] in names:
                value["name"] = names[value["name"]]
            else:
                rename(value, names)


def rename_at(node, path, names):
    """Gives the generated ConfigMaps that are named at `path` their new names."""
    if isinstance(node, list):
        for item in node:
            rename_at(item, path, names)
    elif path[0] in node and len(path) > 1:
        rename_at(node[path[0]], path[1:], names)
    elif path[0] in node:
        node[path[0]] = names.get(node[path[0]], node[path[0]])


def replace_image(node, image):
    if isinstance(node, list):
        for item in node:
            replace_image(item, image)
    elif isinstance(node, dict):
        for container in node.get("containers", []) if isinstance(node.get("containers"), list) else []:
            name, _, tag = container["image"].partition(":")
            if name == image["name"]:
                container["image"] = f"{image.get('newName', name)}:{image.get('newTag', tag)}"
        for value in node.values():
            replace_image(value, image)


def patch(documents, change):
    operations = yaml.safe_load(change["patch"])
    if isinstance(operations, dict):
        # Of the merge patches only the one that deletes a document is used.
        assert operations.pop("$patch") == "delete" and set(operations) == {"apiVersion", "kind", "metadata"}, change
        kept = [document for document in documents if identity(document) != identity(operations)]
        assert len(kept) == len(documents) - 1, f"no document for {change}"
        return kept
    assert set(change["target"]) == {"kind", "name"}, change
    wanted = change["target"]["kind"], change["target"]["name"]
    chosen = [document for document in documents if identity(document)[1:] == wanted]
    assert chosen, f"no document for {change}"
    for document in chosen:
        for operation in operations:
            apply(document, copy.deepcopy(operation))
    return documents


def apply(document, operation):
    """Applies an operation of a JSON patch (RFC 6902)."""
    *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
    node = document
    for part in parents:
        node = node[int(part)] if isinstance(node, list) else node[part]
    if isinstance(node, list):
        last = len(node) if last == "-" else int(last)
    match operation["op"]:
        case "test":
            assert node[last] == operation["value"], operation
        case "add" if isinstance(node, list):
            node.insert(last, operation["value"])
        case "add":
            node[last] = operation["value"]
        case "replace":
            node[last]  # must exist
            node[last] = operation["value"]
        case other:
            raise AssertionError(f"this resolver does not know {other}")
