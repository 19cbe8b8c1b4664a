#!/usr/bin/env python3
"""Measures which source files a translation and a training step execute.

  tests/executed_files.py [--programs build/dev/bin]

Runs a coordinator, a router and an expert worker under valgrind's callgrind
(Debian package valgrind), which knows the source file of each instruction from
the programs' line tables; trains a small job, serves it, and counts the
instructions of three windows: a translation, a minute with nothing to do, and
two steps of a job from its third on. A function is of the translation or of the
step if it has more than twice as many instructions a second in that window as
in the idle one.

Compares the files with those that ARCHITECTURE.md lists and exits with 1 if
they differ. Takes some minutes.
"""

import argparse
import collections
import pathlib
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCE = re.compile(
    r'(?:^|/)((?:services|router|expert_worker|client)/[\w/]+)\.(?:cc|h)$')

# What any program is computed with, and what any file uses.
NOT_LISTED = ('services/tensor/', 'services/ops/', 'services/graph/ops/',
              'services/base/', 'services/metrics/')

# The processes that a translation and a step run in.
PROCESSES = {'translation': ('router', 'expert_worker'),
             'step': ('coordinator', 'router', 'expert_worker')}

JOB = f'''name: "NAME" steps: 100000
model {{
  encoder_layers: 2 decoder_layers: 2 model_width: 32 ffn_width: 48
  expert_width: 40 heads: 2 head_width: 16 experts: 8 max_positions: 64
  source_vocabulary_size: 300 target_vocabulary_size: 300
  shared_vocabulary: true dropout {{ moe: 0.1 }}
}}
data {{ train_path: "{ROOT}/tests/data/names.tsv" }}
microbatches_per_step: 2 tokens_per_microbatch: 128 max_length: 48 adam {{}}
schedule {{ multiplier: 0.02 warmup_steps: 4 linear_warmup: true }}
checkpoint {{ directory: "FOLDER/NAME" }} progress_every_steps: 1
'''


def count_instructions(path):
    """Instructions by (source file without its ending, function)."""
    counts = collections.Counter()
    names = {}  # callgrind writes a name once and then its number
    file = function = ''
    of_callee = False

    def name(kind, word):
        number, _, text = word.partition(' ')
        if text:
            names[kind, number] = text
        return names.get((kind, number), word)

    with open(path, encoding='utf-8', errors='replace') as lines:
        for line in map(str.rstrip, lines):
            key, _, word = line.partition('=')
            if key in ('fl', 'fi', 'fe'):
                file = name('file', word)
            elif key in ('cfi', 'cfl'):
                name('file', word)
            elif key == 'fn':
                function = name('function', word)
            elif key == 'cfn':
                name('function', word)
            elif key == 'calls':
                of_callee = True  # the next line
            elif line[:1] in tuple('0123456789+-*'):
                source = SOURCE.search(file)
                words = line.split()
                if source and not of_callee and len(words) > 1:
                    counts[source[1], function] += int(words[1])
                of_callee = False
    return counts


class Cluster:
    """The three processes, in a folder of their own."""

    def __init__(self, programs, folder):
        self.programs = pathlib.Path(programs).resolve()
        self.folder = folder
        self.processes = {}
        coordinator = f'--coordinator=unix:{folder}/coordinator'
        for name, flags in (('coordinator', []), ('router', [coordinator]),
                            ('expert_worker', [coordinator])):
            command = ['valgrind', '--tool=callgrind', '--instr-atstart=no',
                       '--fair-sched=yes',
                       f'--callgrind-out-file={folder}/{name}.out',
                       f'{self.programs}/gshard_{name}',
                       f'--listen=unix:{folder}/{name}', '--threads=1',
                       '--lease_ms=600000'] + flags
            with open(f'{folder}/{name}.log', 'wb') as log:
                self.processes[name] = subprocess.Popen(
                    command, stdout=log, stderr=log, cwd=ROOT)

    def command(self, *words):
        return [f'{self.programs}/gshard', *words,
                f'--coordinator=unix:{self.folder}/coordinator']

    def control(self, *words):
        """callgrind_control for all three."""
        for process in self.processes.values():
            subprocess.run(['callgrind_control', *words, str(process.pid)],
                           check=True, stdout=subprocess.DEVNULL)

    def window(self, name, run):
        """Instructions a second while `run` runs, by process."""
        self.control('-z')
        start = time.monotonic()
        run()
        seconds = time.monotonic() - start
        self.control(f'--dump={name}')
        counts = {}
        for process in self.processes:
            dumps = pathlib.Path(self.folder).glob(f'{process}.out.*')
            newest = max(dumps, key=lambda path: int(path.suffix[1:]))
            counts[process] = collections.Counter({
                place: count / seconds
                for place, count in count_instructions(newest).items()})
        return counts

    def stop(self):
        for process in self.processes.values():
            process.kill()
            process.wait()


def measure(cluster):
    """The three windows."""
    def gshard(*words, attempts=1):
        # Connecting may take longer than gRPC waits for it, while valgrind
        # translates what has not run yet.
        for _ in range(attempts):
            if subprocess.run(cluster.command(*words), cwd=ROOT, check=False,
                              stdout=subprocess.DEVNULL).returncode == 0:
                return
        sys.exit(f'gshard {" ".join(words)}: failed')

    def write_job(name, more):
        path = pathlib.Path(cluster.folder) / f'{name}.job'
        text = JOB.replace('NAME', name).replace('FOLDER', cluster.folder)
        path.write_text(text + more, encoding='utf-8')
        return str(path)

    def translate():
        gshard('translate', 'Bibliothek zum Lesen', '--from=de', '--timeout=5m',
               attempts=20)

    gshard('wait', '--routers=1', '--workers=1', '--timeout=5m')
    served = write_job('served', 'serve_as: "served" time_limit_seconds: 1')
    gshard('train', served, '--follow')
    cluster.control('-i', 'on')
    translate()  # valgrind has seen the code from here on
    windows = {'translation': cluster.window('translation', translate),
               'idle': cluster.window('idle', lambda: time.sleep(60))}
    cluster.control('-i', 'off')
    gshard('unload', 'served', attempts=20)

    with subprocess.Popen(
            cluster.command('train', write_job('steps', ''), '--follow',
                            '--json'),
            cwd=ROOT, stdout=subprocess.PIPE, text=True) as follow:
        def wait_for(step):
            for line in follow.stdout:
                at = re.search(r'"step":"(\d+)"', line)
                if at and int(at[1]) >= step:
                    return int(at[1])
            return sys.exit('the job ended')

        step = wait_for(2)
        cluster.control('-i', 'on')
        step = wait_for(step + 1)
        windows['step'] = cluster.window('step', lambda: wait_for(step + 2))
        follow.kill()
    return windows


def listed_files(heading):
    """The files of the list in ARCHITECTURE.md with this in its heading; see
    tests/testing/file_lists.h."""
    files, room, inside = set(), '', False
    text = (ROOT / 'ARCHITECTURE.md').read_text(encoding='utf-8')
    for line in text.splitlines():
        if line.startswith('#'):
            inside = bool(re.match(rf'### The \d+ files that a {heading}', line))
        item = re.match(r'- `([\w/]+)`:(.*)', line)
        if item:
            room, line = item.groups()
        room = room if line else ''
        if inside and room:
            files |= {f'{room}/{name}' for name in re.findall(r'`(\w+)`', line)}
    return files


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument('--programs', default=ROOT / 'build/dev/bin')
    with tempfile.TemporaryDirectory(prefix='gshard-') as folder:
        cluster = Cluster(parser.parse_args().programs, folder)
        try:
            windows = measure(cluster)
        finally:
            cluster.stop()
    differences = 0
    for name, heading in (('translation', 'translation'),
                          ('step', 'training step')):
        executed = {
            file
            for process in PROCESSES[name]
            for (file, function), count in windows[name][process].items()
            if count > 2 * windows['idle'][process][file, function]}
        files = {file for file in executed if not file.startswith(NOT_LISTED)}
        listed = listed_files(heading)
        print(f'a {heading} executes {len(files)} files, and '
              f'{len(executed - files)} of {", ".join(NOT_LISTED)}')
        for file in sorted(files - listed):
            print(f'  {file} is executed, but not listed')
        for file in sorted(listed - files):
            print(f'  {file} is listed, but not executed')
        differences += len(files ^ listed)
    sys.exit(differences > 0)


main()
