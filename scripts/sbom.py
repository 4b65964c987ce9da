#!/usr/bin/env python3
"""Writes the software bill of materials of the built files: CycloneDX 1.6 as JSON.

    scripts/sbom.py OUT

It lists the packages that scripts/third_party.py finds, with their licences, sources and the checksums of Cargo.lock. The
same sources give the same file: its time is that of the commit, or SOURCE_DATE_EPOCH.
"""

from __future__ import annotations

import sys
import tomllib
import uuid
from datetime import datetime, timezone
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from package import epoch, version
from third_party import ROOT, linked, metadata

LICENCES = LicenseFactory()


def checksums() -> dict[tuple[str, str], str]:
    """The checksum of each package of a registry."""
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())
    return {(entry["name"], entry["version"]): entry["checksum"] for entry in lock["package"] if "checksum" in entry}


def component(package: dict, sha256: str | None) -> Component:
    """A package whose code is in the files."""
    name, number = package["name"], package["version"]
    purl = PackageURL("cargo", None, name, number)
    source = package["repository"]
    return Component(
        type=ComponentType.LIBRARY,
        name=name,
        version=number,
        purl=purl,
        bom_ref=str(purl),
        # The older form of a choice between licences.
        licenses=[LICENCES.make_from_string(package["license"].replace("/", " OR "))],
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=sha256)] if sha256 else [],
        external_references=[ExternalReference(type=ExternalReferenceType.VCS, url=XsUri(source))] if source else [],
    )


def bill(packages: list[dict]) -> Bom:
    """The bill of materials."""
    sums = checksums()
    described = Component(
        type=ComponentType.LIBRARY,
        name="weft",
        version=version(),
        bom_ref="weft",
        licenses=[LICENCES.make_from_string("BSD-2-Clause")],
    )
    parts = [component(package, sums.get((package["name"], package["version"]))) for package in packages]
    made = Bom(components=parts)
    made.metadata.component = described
    made.metadata.timestamp = datetime.fromtimestamp(epoch(), timezone.utc)
    made.serial_number = uuid.uuid5(uuid.NAMESPACE_URL, ",".join(["weft", version(), *(str(part.bom_ref.value) for part in parts)]))
    made.register_dependency(described, parts)
    return made


def main() -> int:
    """Writes the file."""
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    text = JsonV1Dot6(bill(linked(metadata()))).output_as_string(indent=1)
    Path(sys.argv[1]).write_text(f"{text}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
