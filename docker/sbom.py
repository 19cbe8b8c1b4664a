#!/usr/bin/env python3
"""Writes the SPDX 2.3 bill of materials of an image, as JSON.

  docker/sbom.py NAME VERSION FOLDER...

The folders are laid over each other to make the image. Debian's packages and
their files are those of var/lib/dpkg/status.d; all other files are the
project's. Licences are those of THIRD_PARTY.md; whole texts are in
/usr/share/doc of the image. Nothing depends on when or where this runs, but
for SOURCE_DATE_EPOCH.
"""

import datetime
import hashlib
import json
import os
import pathlib
import re
import sys
import urllib.parse

STATUS = "var/lib/dpkg/status.d"


def licences():
  """SPDX expressions by package, as THIRD_PARTY.md has them."""
  rows = re.findall(r"^\| `([^`]+)`(?: \| [^|]*){2} \| ([^|]*) \|$",
                    pathlib.Path("THIRD_PARTY.md").read_text(), re.MULTILINE)
  return {name: licence for name, licence in rows
          if re.fullmatch(r"[A-Za-z0-9.+-]+( (AND|OR|WITH) [A-Za-z0-9.+-]+)*",
                          licence)}


def identifier(kind, name):
  return f"SPDXRef-{kind}-" + re.sub(r"[^A-Za-z0-9.-]", "-", name)


def packages_of(folders):
  """The fields of each package, and its name by file."""
  packages, owners = {}, {}
  for folder in folders:
    for path in sorted(folder.glob(STATUS + "/*")):
      text = path.read_text()
      if path.suffix == ".md5sums":
        for line in text.splitlines():
          owners[line.split("  ", 1)[1]] = path.name.removesuffix(".md5sums")
      else:
        packages[path.name] = dict(
            re.findall(r"^([A-Za-z-]+): (.*)$", text, re.MULTILINE))
  return packages, owners


def debian_package(name, fields, licence):
  version, machine = fields["Version"], fields["Architecture"]
  source = fields.get("Source", name)
  quoted = urllib.parse.quote(version, safe="")
  return {
      "SPDXID": identifier("Package", name),
      "name": name,
      "versionInfo": version,
      "supplier": "Organization: Debian",
      "originator": "Person: " + fields["Maintainer"],
      "sourceInfo": f"built from the Debian source package {source}",
      "downloadLocation": "NOASSERTION",
      "filesAnalyzed": False,
      "licenseConcluded": "NOASSERTION",
      "licenseDeclared": licence or "NOASSERTION",
      "copyrightText": "NOASSERTION",
      "externalRefs": [{
          "referenceCategory": "PACKAGE-MANAGER",
          "referenceType": "purl",
          "referenceLocator":
              f"pkg:deb/debian/{urllib.parse.quote(name, safe='')}@{quoted}"
              f"?arch={machine}&distro=bookworm"}],
  }


def main():
  name, version = sys.argv[1:3]
  folders = [pathlib.Path(folder) for folder in sys.argv[3:]]
  declared = licences()
  packages, owners = packages_of(folders)

  files, relationships = [], []
  own = identifier("Package", name)
  for folder in folders:
    for path in sorted(folder.rglob("*")):
      place = str(path.relative_to(folder))
      if path.is_symlink() or not path.is_file():
        continue
      content = path.read_bytes()
      files.append({
          "SPDXID": identifier(
              "File", hashlib.sha256(place.encode()).hexdigest()[:16]),
          "fileName": "./" + place,
          "checksums": [
              {"algorithm": "SHA1",
               "checksumValue": hashlib.sha1(content).hexdigest()},
              {"algorithm": "SHA256",
               "checksumValue": hashlib.sha256(content).hexdigest()}],
          "licenseConcluded": "NOASSERTION",
          "copyrightText": "NOASSERTION"})
      owner = owners.get(place)
      relationships.append(
          (identifier("Package", owner) if owner else own, "CONTAINS",
           files[-1]["SPDXID"]))

  described = [{
      "SPDXID": own, "name": name, "versionInfo": version,
      "supplier": "NOASSERTION",
      "downloadLocation": "NOASSERTION", "filesAnalyzed": False,
      "licenseConcluded": "Apache-2.0", "licenseDeclared": "Apache-2.0",
      "copyrightText": "NOASSERTION", "primaryPackagePurpose": "CONTAINER"}]
  relationships.insert(0, ("SPDXRef-DOCUMENT", "DESCRIBES", own))
  for package, fields in packages.items():
    described.append(debian_package(package, fields, declared.get(package)))
    relationships.append((own, "DEPENDS_ON", identifier("Package", package)))

  created = datetime.datetime.fromtimestamp(
      int(os.environ.get("SOURCE_DATE_EPOCH", "0")), datetime.timezone.utc)
  digest = hashlib.sha256(json.dumps([described, files]).encode()).hexdigest()
  json.dump({
      "spdxVersion": "SPDX-2.3",
      "dataLicense": "CC0-1.0",
      "SPDXID": "SPDXRef-DOCUMENT",
      "name": f"{name}-{version}",
      "documentNamespace": f"https://spdx.org/spdxdocs/{name}-{digest}",
      "creationInfo": {
          "created": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
          "creators": ["Tool: gshard-sbom"]},
      "packages": described,
      "files": files,
      "relationships": [
          {"spdxElementId": a, "relationshipType": kind,
           "relatedSpdxElement": b} for a, kind, b in relationships],
  }, sys.stdout, indent=1)
  print()


if __name__ == "__main__":
  main()
