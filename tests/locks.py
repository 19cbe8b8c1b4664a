#!/usr/bin/env python3
"""Lets Clang check what the code says of its locks (services/base/mutex.h).

  cmake --preset fuzz && cmake --build --preset fuzz --target gshard_grpc
  tests/locks.py build/fuzz        every source file but the tests
  tests/locks.py build/fuzz FILE.. some of them

GCC, which builds the programs, ignores the annotations. Nothing is compiled:
the files are only parsed and analyzed, with the flags that the folder's
compile_commands.json has for them and -Wthread-safety. Exits with 1 and Clang's
words if a file is refused.
"""

import concurrent.futures
import json
import os
import shlex
import subprocess
import sys

ROOMS = ('services/', 'router/', 'expert_worker/', 'client/')


def check(entry):
    """What Clang says of one file, and whether it accepts it."""
    command = shlex.split(entry['command'])
    while command and 'clang' not in os.path.basename(command[0]):
        del command[0]  # ccache and its settings
    output = command.index('-o')
    del command[output:output + 2]
    # Instrumentation is work and says nothing of locks.
    command = [word for word in command
               if word != '-c' and not word.startswith('-fsanitize=')]
    command += ['-fsyntax-only', '-Wno-unused-command-line-argument']
    run = subprocess.run(command, cwd=entry['directory'], text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                         check=False)
    return run.stdout, run.returncode == 0


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    with open(os.path.join(sys.argv[1], 'compile_commands.json'),
              encoding='utf-8') as file:
        database = {os.path.relpath(e['file'], root): e for e in json.load(file)}
    files = sys.argv[2:] or [f for f in database if f.startswith(ROOMS)]
    unknown = [f for f in files if f not in database]
    if unknown or not files:
        sys.exit(f'{sys.argv[1]} has no command for: {" ".join(unknown)}')
    refused = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as threads:
        results = threads.map(check, (database[f] for f in files))
        for file, (words, accepted) in zip(files, results):
            refused += not accepted
            if not accepted:
                print(f'{file}:\n{words}', flush=True)
    print(f'Clang refuses {refused} of {len(files)} files')
    sys.exit(refused > 0)


main()
