"""The configuration of a prober's process, given at its start."""

from typing import Final, Literal

import msgspec

from control.cluster import specs
from control.cluster.instance import Folder
from control.config.options import Config, Probes
from plane.spec import Registration

NAME: Final = "prober"


class Spec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The prober's settings. Secrets are named by file."""

    instance: str
    folder: str
    """The nodes of the instance, if there is no registry."""
    admin: tuple[str, int]
    registry: Registration | None
    token_file: str
    name_key_file: str
    probes: Probes
    log_level: Literal["debug", "info", "warning", "error"]
    log_format: Literal["json", "text"]


def spec(config: Config, place: Folder, admin: tuple[str, int], registry: str) -> Spec:
    """The settings for the instance in this folder, or for the nodes that register there."""
    return Spec(
        instance=config.instance.name,
        folder=str(place.path),
        admin=admin,
        registry=specs.reader(config, registry) if registry else None,
        token_file=specs.token_file(config, place),
        name_key_file=specs.absolute(config.cluster.names_file) or str(place.name_key),
        probes=config.probes,
        log_level=config.log.level,
        log_format=config.log.format,
    )
