#!/usr/bin/env python3
"""Translates lines of standard input by a router, as an example of a client.

  python3 client/python/translate.py --router localhost:7001 --from de < text

Needs grpcio, and to make the stubs from the protos either protoc with
grpc_python_plugin or grpcio-tools. On Debian 12:

  apt-get install python3-grpcio python3-protobuf protobuf-compiler \\
    protobuf-compiler-grpc

Elsewhere: pip install grpcio grpcio-tools. Debian's python3-grpc-tools is too
old for the protos, which have optional fields.
"""

import argparse
import importlib.util
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import grpc

HERE = pathlib.Path(__file__).resolve().parent
# The root of the protos' imports: in the source tree, and as installed.
ROOTS = (HERE / "../../proto", HERE / "../../../../gshard/proto")
# Calls go in turns to the target's routers that can translate, and are repeated
# if one is lost or drains. Translations have no side effects.
SERVICE_CONFIG = {
    "loadBalancingConfig": [{"round_robin": {}}],
    "healthCheckConfig": {"serviceName": "gshard.v1.TranslationService"},
    "methodConfig": [{
        "name": [{"service": "gshard.v1.TranslationService",
                  "method": "Translate"}],
        "retryPolicy": {
            "maxAttempts": 4, "initialBackoff": "0.2s", "maxBackoff": "2s",
            "backoffMultiplier": 2, "retryableStatusCodes": ["UNAVAILABLE"]},
    }],
}
SENTENCES_PER_CALL = 64
TIMEOUT_SECONDS = 60


def make_stubs(folder):
  """Generates the modules of the protos; returns those of translation.proto."""
  root = next((root for root in ROOTS if root.is_dir()), None)
  if root is None:
    sys.exit(f"protos: expected the folder {ROOTS[0]} or {ROOTS[1]}")
  plugin = shutil.which("grpc_python_plugin")
  if plugin and shutil.which("protoc"):
    command = ["protoc", f"--grpc_out={folder}",
               f"--plugin=protoc-gen-grpc={plugin}"]
  elif importlib.util.find_spec("grpc_tools"):
    command = [sys.executable, "-m", "grpc_tools.protoc",
               f"--grpc_python_out={folder}"]
  else:
    sys.exit("expected protoc and grpc_python_plugin, or grpcio-tools")
  subprocess.run([*command, f"-I{root}", f"--python_out={folder}",
                  *map(str, root.glob("gshard/v1/*.proto"))], check=True)
  sys.path.insert(0, str(folder))
  package = "gshard.v1."
  return (importlib.import_module(package + "translation_pb2"),
          importlib.import_module(package + "translation_pb2_grpc"))


def connect(arguments):
  """A channel to the router: over TLS if there is an authority."""
  options = [("grpc.service_config", json.dumps(SERVICE_CONFIG))]
  if not arguments.tls_ca:
    return grpc.insecure_channel(arguments.router, options)

  def read(path):
    return pathlib.Path(path).read_bytes() if path else None

  if arguments.tls_peer_name:
    options.append(("grpc.ssl_target_name_override", arguments.tls_peer_name))
  return grpc.secure_channel(arguments.router, grpc.ssl_channel_credentials(
      read(arguments.tls_ca), read(arguments.tls_key),
      read(arguments.tls_certificate)), options)


def metadata(arguments):
  """The token, which must not travel without TLS but on this machine."""
  if not arguments.token_file:
    return ()
  local = arguments.router.startswith(("unix:", "localhost:", "127.0.0.1:"))
  if not arguments.tls_ca and not local:
    sys.exit("--token_file: expected --tls_ca to send a token elsewhere")
  token = pathlib.Path(arguments.token_file).read_text().strip()
  return (("authorization", f"Bearer {token}"),)


def translate(stub, messages, lines, language, model, metadata=()):
  """Returns the best translation of each line; blank lines stay blank."""
  sentences = [messages.Sentence(text=line, source_language=language)
               for line in lines if line.strip()]
  if not sentences:
    return ["" for _ in lines]
  response = stub.Translate(
      messages.TranslateRequest(sentences=sentences, model=model),
      timeout=TIMEOUT_SECONDS, metadata=metadata)
  results = iter(response.results)
  return [next(results).hypotheses[0].text if line.strip() else ""
          for line in lines]


def read_lines(file):
  """The lines of a binary file; the API takes UTF-8 only, in any locale."""
  lines = []
  for number, line in enumerate(file, 1):
    try:
      lines.append(line.decode("utf-8").rstrip("\r\n"))
    except UnicodeDecodeError as error:
      sys.exit(f"line {number}: expected UTF-8, got {error.reason} at byte "
               f"{error.start}")
  return lines


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--router", default="localhost:7001",
                      help="host:port, unix:/path or, for several, "
                           "dns:///host:port")
  parser.add_argument("--from", dest="language", default="",
                      help="language of the text, e.g. de")
  parser.add_argument("--model", default="")
  for name in ("tls_ca", "tls_certificate", "tls_key", "tls_peer_name",
               "token_file"):
    parser.add_argument("--" + name, default="", help="as of gshard translate")
  arguments = parser.parse_args()

  lines = read_lines(sys.stdin.buffer)
  with tempfile.TemporaryDirectory() as folder:
    messages, services = make_stubs(folder)
    with connect(arguments) as channel:
      stub = services.TranslationServiceStub(channel)
      for start in range(0, len(lines), SENTENCES_PER_CALL):
        try:
          translations = translate(
              stub, messages, lines[start:start + SENTENCES_PER_CALL],
              arguments.language, arguments.model, metadata(arguments))
        except grpc.RpcError as error:
          sys.exit(f"{error.code().name.lower()}: {error.details()}")
        print("\n".join(translations), flush=True)


if __name__ == "__main__":
  main()
