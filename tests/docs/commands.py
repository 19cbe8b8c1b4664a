#!/usr/bin/env python3
"""Checks that commands in documents are such that a reader can type them.

    tests/docs/commands.py --programs build/dev/bin [DOCUMENT...]

Reads the fenced `sh` blocks of README.md, docs/*.md and deploy/**/*.md, or of
the documents named. Of each command line

  * our programs parse the flags, which have to exist and have such values, and
    the number of arguments is what they take;
  * a script of this project exists, is executable, and says each of its flags;
  * presets and targets of CMake exist;
  * what `kubectl` is told of deploy/kubernetes is there: namespaces, files,
    objects as TYPE/NAME, pods of `kubectl cp`, and ports; `helm` is told of
    files that are there;
  * any other program is one of those that a reader is expected to have;
  * `jq` behind `journalctl` takes lines that are not JSON;
  * what names /var/lib/gshard is of root, or of the group gshard;
  * what `gshard plan` and `gshard partition` print, in a `text` block behind
    theirs, is what they print, though not all of it.

And each limit of a server, --max_*, has its row with its default in the table
of limits of docs/operations.md, and the service config of README.md is the one
of client/python/translate.py.

Prints a line for each that does not hold. Exit code: 0 if all hold, 1 if not,
2 if there are no commands or no programs.
"""

import argparse
import ast
import glob
import json
import os
import re
import shlex
import subprocess
import sys

# Of Debian, or of whoever runs containers, clusters and monitoring, or writes
# clients.
OTHERS = {
    ".", "adduser", "apt", "apt-get", "awk", "cat", "cd", "chmod", "chown", "cp",
    "cpack", "curl", "cut", "date", "diff", "docker", "du", "echo", "export",
    "false", "grep", "grpcurl", "head", "helm", "install", "journalctl", "jq", "kill",
    "kind", "ls", "man", "mkdir", "mv", "openssl", "printf", "promtool", "protoc", "ps",
    "python3", "rm", "rsync", "sbatch", "scontrol", "sed", "set", "sha256sum", "sleep",
    "sort", "source", "sqlite3", "stat", "systemctl", "systemd-analyze", "tail", "uniq",
    "tar", "tee", "test", "tr", "true", "umask", "wait", "wc", "xargs",
}
# What another command is behind of.
PREFIXES = {"sudo", "env", "time", "nice", "nohup", "exec", "command"}
KEYWORDS = {"for", "do", "done", "while", "until", "if", "then", "else", "fi",
            "in", "!", "{", "}"}
PROGRAMS = {"gshard", "gshard_coordinator", "gshard_router",
            "gshard_expert_worker"}
NO_FLAG = "--no_program_has_this_flag"


def blocks(path):
    """(language, number of the first line, lines) of each fenced block."""
    language, first, lines = None, 0, []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            line = line.rstrip("\n")
            fence = re.fullmatch(r"\s*```(\w*)", line)
            if fence is None:
                lines.append(line)
            elif language is None:
                language, first, lines = fence.group(1), number + 1, []
            else:
                yield language, first, lines
                language = None
    if language is not None:
        raise ValueError(f"{path}:{first}: a block without an end")


def logical_lines(first, lines):
    """(number, text), with lines that end in a backslash, or in the midst of
    quotes or a here-document, joined."""
    text, number = "", first
    until = None
    for offset, line in enumerate(lines):
        if until is not None:
            if line.strip() == until:
                until = None
            continue
        here = re.search(r"<<-?\s*'?(\w+)'?", line)
        if here:
            until = here.group(1)
            line = line[:here.start()] + line[here.end():]
        text += line
        if text.endswith("\\"):
            text = text[:-1] + " "
            continue
        try:
            shlex.split(text, comments=True)
        except ValueError:  # an open quote
            text += "\n"
            continue
        if text.strip():
            yield number, text
        text, number = "", first + offset + 1
    if text.strip():
        yield number, text


def commands(text):
    """The simple commands of a line, each a list of words. Commands in
    $(...) come as commands of their own, and are X where they stood."""
    inner = []

    def take(match):
        inner.append(match.group(1))
        return "X"

    text = re.sub(r"\$\(([^()]*)\)", take, text)
    text = re.sub(r"<\(([^()]*)\)", take, text)
    lexer = shlex.shlex(text, posix=True, punctuation_chars="();<>|&")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    found, words, skip = [], [], False
    for word in lexer:
        if skip:  # the file of a redirection
            skip = False
        elif set(word) <= set("<>&") and set(word) & set("<>"):
            if words and re.fullmatch(r"\d", words[-1]):
                words.pop()
            skip = True
        elif set(word) <= set("();|&"):
            found.append(words)
            words = []
        else:
            words.append(word)
    found.append(words)
    for text in inner:
        found.extend(commands(text))
    return [words for words in found if words]


def manifests():
    """The objects of deploy/kubernetes, as type/name, and the ports of pods."""
    objects, ports = set(), set()
    for path in glob.glob("deploy/kubernetes/**/*.yaml", recursive=True):
        with open(path, encoding="utf-8") as file:
            text = file.read()
        ports.update(re.findall(r"containerPort: (\d+)", text))
        for name in re.findall(r"secretName: ([\w-]+)", text):
            objects.add(f"secret/{name}")
        for document in re.split(r"^---$", text, flags=re.MULTILINE):
            kind = re.search(r"^kind: (\w+)$", document, re.MULTILINE)
            name = re.search(r"^metadata:(?: \{|\n  )name: ([\w-]+)", document,
                             re.MULTILINE)
            if kind and name:
                objects.add(f"{kind.group(1).lower()}/{name.group(1)}")
    return objects, ports


class Checker:
    def __init__(self, programs):
        self.programs = programs
        self.pages = {}
        self.sourced = set()  # flags that the environment has, in an `sh -c`
        self.objects, self.ports = manifests()
        presets = json.load(open("CMakePresets.json", encoding="utf-8"))
        self.presets = {preset["name"] for preset in presets["configurePresets"]
                        if not preset.get("hidden")}

    def run(self, *words):
        # What the environment sets would count as given.
        environment = {name: value for name, value in os.environ.items()
                       if not name.startswith("GSHARD_")}
        return subprocess.run(words, capture_output=True, text=True,
                              env=environment, stdin=subprocess.DEVNULL,
                              timeout=300, check=False)

    def help(self, *words):
        if words not in self.pages:
            done = self.run(*words, "--help")
            self.pages[words] = done.stdout if done.returncode == 0 else None
        return self.pages[words]

    def check(self, words):
        """What is wrong with a command, or None."""
        while words and (words[0] in PREFIXES | KEYWORDS or
                         re.fullmatch(r"\w+=.*", words[0], re.DOTALL)):
            if words[0] in {"for"}:  # its words are no command
                return None
            words = words[1:]
            while words and words[0].startswith("-"):  # flags of sudo
                words = words[2 if words[0] in {"-u", "-n"} else 1:]
        if not words:
            return None
        if words[0] in {"sh", "bash"} and words[1:2] == ["-c"]:
            problems = [self.check(inner) for inner in commands(words[2])]
            self.sourced = set()
            return next(filter(None, problems), None)
        if words[0] == "." and words[1].startswith("/etc/gshard/"):
            with open("deploy/debian/" + os.path.basename(words[1]),
                      encoding="utf-8") as file:
                self.sourced = {name.lower() for name in re.findall(
                    r"^GSHARD_(\w+)=", file.read(), re.MULTILINE)}
            return None
        name = words[0]
        base = name.rsplit("/", 1)[-1]
        if base in PROGRAMS:
            return self.check_program(base, words[1:])
        if "/" in name:
            return self.check_script(name, words[1:])
        if name in {"cmake", "ctest"}:
            return self.check_preset(words)
        if name == "kubectl":
            return self.check_kubectl(words[1:])
        if name == "helm":
            for before, word in zip(words, words[1:]):
                if before == "--values" and not os.path.isfile(word):
                    return f"there is no {word}"
        return None if name in OTHERS else f"nobody said what `{name}` is"

    def check_program(self, name, arguments):
        program = os.path.join(self.programs, name)
        command = [program]
        if name == "gshard":
            if arguments[:1] == ["--help"] or arguments[:1] == ["--version"]:
                return None
            listed = re.findall(r"^  ([a-z]+(?: [a-z]+)?) ", self.help(program),
                                re.MULTILINE)
            for count in (2, 1):
                if " ".join(arguments[:count]) in listed:
                    command += arguments[:count]
                    arguments = arguments[count:]
                    break
            else:
                return f"no command `gshard {' '.join(arguments[:2])}`"
        if "--help" in arguments:
            return None
        # The parser goes from left to right: what it says of the last flag, it
        # says only if it has taken all those before.
        done = self.run(*command, *arguments, NO_FLAG)
        if done.returncode != 2:
            return f"parsing ended with {done.returncode}: {done.stderr.strip()}"
        if f"unknown flag {NO_FLAG}" not in done.stderr:
            return done.stderr.strip()
        return self.check_counts(self.help(*command), arguments)

    def check_counts(self, page, arguments):
        """Arguments that are no flags, and flags that are required: what the
        parser looks at in the end."""
        takes_value = set(re.findall(r"^  --([a-z_]+)=", page, re.MULTILINE))
        given, positional, skip = set(), 0, False
        for word in arguments:
            if skip:
                skip = False
            elif word.startswith("--"):
                flag = word[2:].split("=")[0].replace("-", "_")
                given.add(flag)
                skip = flag in takes_value and "=" not in word
            else:
                positional += 1
        for entry in re.split(r"\n(?=  --)", page):
            name = re.match(r"  --([a-z_]+)", entry)
            flat = " ".join(entry.split())
            if name and re.search(r"[(;] ?required\)", flat) and \
                    name.group(1) not in given | self.sourced:
                return f"--{name.group(1)} is required"
        usage = re.search(r"^Usage: .* \[flags\](.*)$", page, re.MULTILINE)
        wanted = usage.group(1).split() if usage else []
        if positional and not wanted:
            return f"takes no arguments, got {positional}"
        if positional > len(wanted) and not any("..." in w for w in wanted):
            return f"takes {' '.join(wanted)}, got {positional} arguments"
        return None

    def check_output(self, words, first, lines):
        """What of a text block the command before it does not print."""
        if words[:2] not in (["gshard", "plan"], ["gshard", "partition"]):
            return
        done = self.run(os.path.join(self.programs, "gshard"), *words[1:])
        printed = {" ".join(line.split()) for line in done.stdout.splitlines()}
        for number, line in enumerate(lines, first):
            if " ".join(line.split()) not in printed:
                yield number, line

    def check_script(self, name, arguments):
        if name.startswith(("/", "~", "$", "<")) or "<" in name:
            return None  # of the reader's machine
        if name.startswith("build/"):
            target = name.rsplit("/", 1)[-1]
            if target.startswith("<"):
                return None
            named = subprocess.run(
                ["grep", "-rqwF", "--include=CMakeLists.txt", target, "."],
                check=False)
            return None if named.returncode == 0 else f"nothing builds {name}"
        if not os.path.isfile(name):
            return f"there is no {name}"
        if not os.access(name, os.X_OK):
            return f"{name} is not executable"
        text = open(name, encoding="utf-8").read()
        for word in arguments:
            flag = word.split("=")[0]
            if word.startswith("--") and not re.search(
                    re.escape(flag) + r"(?![a-z_-])", text):
                return f"{name} has no {flag}"
        return None

    def check_preset(self, words):
        for flag, value in zip(words, words[1:]):
            if flag == "--preset" and value not in self.presets:
                return f"there is no preset {value}"
        return None


    def check_kubectl(self, words):
        if "--" in words:  # behind it is a command in a pod
            words = words[:words.index("--")]
        kinds = {thing.split("/")[0] for thing in self.objects}
        for before, word in zip([""] + words, words):
            thing = None
            if before == "-n":
                thing = f"namespace/{word}"
            elif before == "-f" and not os.path.isfile(word):
                return f"there is no {word}"
            elif before == "-k" and not os.path.isfile(f"{word}/kustomization.yaml"):
                return f"there is no {word}/kustomization.yaml"
            elif "cp" in words and re.match(r"[\w-]+:/", word):
                thing = f"pod/{word.split(':')[0]}"
            elif "port-forward" in words and re.fullmatch(r"\d+:\d+", word):
                if word.split(":")[1] not in self.ports:
                    return f"no pod listens for {word}"
            elif re.fullmatch(r"[a-z]+/[\w-]+", word) and \
                    word.split("/")[0] in kinds:
                thing = word
            # A StatefulSet numbers its pods.
            numbered = re.sub(r"^pod/(.*)-\d+$", r"statefulset/\1", thing or "")
            if thing and not {thing, numbered} & self.objects:
                return f"deploy/kubernetes has no {thing}"
        return None


def check_journal(behind, words):
    """Of a command and the one behind of which it is: the journal of a unit also
    has lines of systemd, at which jq would stop."""
    if behind and behind[0] == "journalctl" and words[0] == "jq" and not any(
            "fromjson?" in word for word in words):
        return "not all lines of a journal are JSON: expected -R and fromjson?"
    return None


def check_rights(document, words):
    """Of a command that names the packages' folder, which is closed to others than
    root and the group gshard, into which the document has to put the reader."""
    if words[0] == "sudo" or not any(word.startswith("/var/lib/gshard") for word in words):
        return None
    with open(document, encoding="utf-8") as file:
        member = 'sudo adduser "$USER" gshard\n' in file.read()
    if words[0] != "gshard" or not member:
        return "who is neither root nor in the group gshard may not look there"
    return None


def missing_limits(checker, path):
    """Flags --max_* of the servers that the table lacks, or has otherwise."""
    with open(path, encoding="utf-8") as file:
        rows = [[cell.strip() for cell in line.split("|")[1:-1]]
                for line in file if line.startswith("| `--")]
    table = {row[0].strip("`"): row[2] for row in rows}
    for name in sorted(PROGRAMS - {"gshard"}):
        page = checker.help(os.path.join(checker.programs, name))
        for entry in re.split(r"\n(?=  --)", page):
            flag = re.match(r"  (--max_[a-z_]+)=", entry)
            if flag is None:
                continue
            default = re.search(r"default ([^;)]*)\)", " ".join(entry.split()))
            if flag.group(1) not in table:
                yield f"{path}: no row for {flag.group(1)} of {name}"
            elif table[flag.group(1)] != default.group(1):
                yield (f"{path}: the default of {flag.group(1)} is "
                       f"{default.group(1)}, not {table[flag.group(1)]}")


def other_service_config(document, program):
    """Whether a document has no service config of a client, or another than the
    program."""
    documented = [json.loads("\n".join(lines))
                  for language, _, lines in blocks(document) if language == "json"]
    with open(program, encoding="utf-8") as file:
        used = [ast.literal_eval(node.value) for node in ast.parse(file.read()).body
                if isinstance(node, ast.Assign) and
                node.targets[0].id == "SERVICE_CONFIG"]
    return not used or documented != used


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", required=True)
    parser.add_argument("--list", action="store_true",
                        help="print the commands")
    parser.add_argument("documents", nargs="*")
    arguments = parser.parse_args()
    documents = arguments.documents or sorted(
        ["README.md", *glob.glob("docs/*.md"),
         *glob.glob("deploy/**/*.md", recursive=True)])
    programs = os.path.abspath(arguments.programs)
    for name in PROGRAMS:
        if not os.access(os.path.join(programs, name), os.X_OK):
            print(f"there is no {programs}/{name}", file=sys.stderr)
            return 2
    checker = Checker(programs)
    count, wrong = 0, 0
    for document in documents:
        words = []  # of the last command
        for language, first, lines in blocks(document):
            if language == "text":
                for number, line in checker.check_output(words, first, lines):
                    wrong += 1
                    print(f"{document}:{number}: {line}\n"
                          f"  `{shlex.join(words)}` does not print that")
            if language not in {"sh", "bash", "shell"}:
                words = []
                continue
            for number, text in logical_lines(first, lines):
                behind = None
                for words in commands(text):
                    count += 1
                    if arguments.list:
                        print(f"{document}:{number}: {shlex.join(words)}")
                    problem = (checker.check(words) or check_journal(behind, words)
                               or check_rights(document, words))
                    behind = words
                    if problem is not None:
                        wrong += 1
                        print(f"{document}:{number}: {shlex.join(words)}\n"
                              f"  {problem}")
    if not arguments.documents:
        for problem in missing_limits(checker, "docs/operations.md"):
            wrong += 1
            print(problem)
        if other_service_config("README.md", "client/python/translate.py"):
            wrong += 1
            print("README.md: expected one block of json, the SERVICE_CONFIG of "
                  "client/python/translate.py")
    print(f"{count} commands in {len(documents)} documents: {wrong} wrong")
    return 2 if count == 0 else min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
