"""Kubernetes' own schemas, strictly: an unknown key is an error, as for `kubectl apply --validate=strict`."""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import msgspec
import yaml


class _Strict(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The base of the generated models here."""


def _field(metadata: dict[str, str], **options: Any) -> Any:
    return msgspec.field(name=metadata["json"], **options)


def _models(name: str) -> ModuleType:
    # The models need a base class of their client, which is not needed to read documents.
    base: Any = ModuleType("lightkube.core.schema")
    base.DictMixin, base.dataclass, base.field = _Strict, lambda made: made, _field
    for module in (ModuleType("lightkube.core"), base):
        sys.modules.setdefault(module.__name__, module)
    return import_module(f"lightkube.models.{name}")


MODULES: Final = {
    "v1": "core_v1",
    "apps/v1": "apps_v1",
    "policy/v1": "policy_v1",
    "networking.k8s.io/v1": "networking_v1",
}


def documents(file: Path) -> list[dict[str, Any]]:
    """All documents of a file."""
    return list(yaml.safe_load_all(file.read_text()))


def check(document: dict[str, Any]) -> None:
    """Raises `msgspec.ValidationError`, with the place, if a document does not fit its kind."""
    kind: type[msgspec.Struct] = getattr(_models(MODULES[document["apiVersion"]]), document["kind"])
    msgspec.convert(document, kind)
