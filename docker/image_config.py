#!/usr/bin/env python3
"""Takes out of an image's configuration what differs from build to build.

  docker/image_config.py FOLDER      of an image as "buildah push ... dir:FOLDER"

In Docker's format buildah 1.28 writes the IDs of its containers and of the
images in between, which are random, and a host name made of one.
"""

import hashlib
import json
import pathlib
import sys


def main():
  folder = pathlib.Path(sys.argv[1])
  manifest = json.loads((folder / "manifest.json").read_text())
  described = manifest["config"]
  old = folder / described["digest"].removeprefix("sha256:")
  image = json.loads(old.read_text())
  for key in ("id", "parent", "container"):
    image.pop(key, None)
  for key in ("config", "container_config"):
    image.get(key, {}).pop("Hostname", None)
  for step in image["history"]:
    step.pop("comment", None)
  content = json.dumps(image).encode()
  digest = hashlib.sha256(content).hexdigest()
  old.unlink()
  (folder / digest).write_bytes(content)
  described.update(digest=f"sha256:{digest}", size=len(content))
  (folder / "manifest.json").write_text(json.dumps(manifest))


if __name__ == "__main__":
  main()
