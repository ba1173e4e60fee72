"""Reads chat templates from downloaded packages, without unpacking the packages to disk or running their code."""

import json
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path


def templates(folder: Path) -> dict[str, str]:
    """Returns templates by name. A template that several models share has the name of the first."""
    names: dict[str, str] = {}
    for package in sorted(folder.iterdir()):
        if package.name.startswith("llama_cpp"):
            found = llama_cpp(package)
        elif package.name.startswith("xinference"):
            found = xinference(package)
        else:
            found = wheel(package)
        for name, template in found:
            names.setdefault(template, name)
    return {name: template for template, name in names.items()}


def llama_cpp(package: Path) -> Iterator[tuple[str, str]]:
    """Reads templates from a package that has one file for each."""
    with tarfile.open(package) as archive:
        for member in archive:
            if "/models/templates/" in member.name and member.name.endswith(".jinja"):
                # Jinja also reads files in text mode, which converts line ends.
                text = archive.extractfile(member).read().decode()
                yield f"llama.cpp {Path(member.name).stem}", text.replace("\r\n", "\n")


def wheel(package: Path) -> Iterator[tuple[str, str]]:
    """Reads templates from a wheel that has one file for each. Those for training, which TRL changes, are left out."""
    with zipfile.ZipFile(package) as archive:
        for name in sorted(archive.namelist()):
            path = Path(name)
            if "chat_templates" in path.parts and path.suffix == ".jinja" and not path.stem.endswith("_training"):
                text = archive.read(name).decode()
                yield f"{path.parts[0]} {path.stem}", text.replace("\r\n", "\n")


def xinference(package: Path) -> Iterator[tuple[str, str]]:
    """Reads templates from a package that has one JSON file for each model, with the template somewhere inside."""
    with zipfile.ZipFile(package) as archive:
        for name in sorted(archive.namelist()):
            if name.startswith("xinference/model/llm/models/") and name.endswith(".json"):
                for number, template in enumerate(dict.fromkeys(inside(json.loads(archive.read(name))))):
                    suffix = f" {number + 1}" if number else ""
                    yield f"xinference {Path(name).stem}{suffix}", template


def inside(value: object) -> Iterator[str]:
    """Yields values of `chat_template`, at any depth, that are Jinja templates."""
    if isinstance(value, dict):
        template = value.get("chat_template")
        if isinstance(template, str) and "{%" in template:
            yield template
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from inside(item)
