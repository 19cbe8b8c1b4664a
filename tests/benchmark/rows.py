"""What ./bench.sh measures: rows, what stands beside them, their goals."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Case:
    program: str  # a benchmark of this folder, or one of PEERS
    name: str     # as the program calls the case
    counter: str
    scale: float = 1.0


@dataclasses.dataclass(frozen=True)
class Row:
    group: str  # rows of a group are measured together, programs in turns
    name: str
    unit: str
    ours: Case = None
    beside: tuple = ()  # cases, of which the best counts
    what: str = ""      # what they are
    # Of the ratio, ours to what stands beside; without that, of ours.
    goal: str = ""
    unmeasured: str = ""  # why there is nothing to run


# By the name of their package; each has its script in peers/.
PEERS = ("ctranslate2",)
TYPES = ("float32", "bfloat16", "int8")
# As ComputeType has them.
COMPUTE_TYPES = {"float32": "kFloat32", "bfloat16": "kBFloat16",
                 "int8": "kInt8"}


def gemm(element_type, threads=2):
    """The rate of large products: the better of oneDNN's and ours."""
    return tuple(Case("machine_benchmark",
                      f"{whose}/{element_type}/threads:{threads}", "gflops")
                 for whose in ("Onednn", "Ours")
                 if (whose, element_type) != ("Ours", "float32"))


def memory(threads=2):
    return (Case("machine_benchmark", f"ReadMemory/threads:{threads}", "GB/s"),)


def ceilings():
    for threads in (1, 2):
        count = f"{threads} thread{'s' if threads > 1 else ''}"
        for element_type in TYPES:
            for case in gemm(element_type, threads):
                whose = "oneDNN" if case.name.startswith("Onednn") else "ours"
                yield Row("ceilings", f"GEMM {element_type}, {count}, {whose}",
                          "GFLOP/s", case)
        yield Row("ceilings", f"read memory, {count}", "GB/s", *memory(threads))
        yield Row("ceilings", f"copy memory, {count}", "GB/s",
                  Case("machine_benchmark", f"CopyMemory/threads:{threads}",
                       "GB/s"))
    yield Row("ceilings", "loopback, 4 KiB there and back", "us",
              Case("machine_benchmark", "Loopback/bytes:4096", "real_time"))
    yield Row("ceilings", "loopback, 1 MiB there and back", "GB/s",
              Case("machine_benchmark", "Loopback/bytes:1048576", "GB/s"))


def sentence(element_type, experts, beam, sentences):
    return Case("sentence_benchmark",
                f"BM_Sentence<ComputeType::{COMPUTE_TYPES[element_type]}>"
                f"/experts:{experts}/beam:{beam}/threads:2"
                f"/sentences:{sentences}", "tokens/s")


def decoding():
    for element_type, theirs, goal in (("int8", "int8", 1.3),
                                       ("bfloat16", "float", 2.0),
                                       ("float32", "float", 1.3)):
        for sentences in (32, 1):
            for beam in (1, 4):
                yield Row(
                    f"decode-{element_type}",
                    f"decode dense {element_type}, batch {sentences}, "
                    f"beam {beam}", "tokens/s",
                    sentence(element_type, 0, beam, sentences),
                    (Case("ctranslate2",
                          f"{theirs}/beam:{beam}/sentences:{sentences}",
                          "tokens/s"),),
                    f"CTranslate2 {theirs}", f">= {goal}")
            yield Row(f"decode-{element_type}",
                      f"decode MoE-16 {element_type}, batch {sentences}",
                      "tokens/s", sentence(element_type, 16, 1, sentences),
                      (sentence(element_type, 0, 1, sentences),), "our dense",
                      ">= 0.85")


ROWS = (*ceilings(), *decoding())


if __name__ == "__main__":
    # For ./bench.sh: what has to be built.
    print(*sorted({case.program for row in ROWS
                   for case in (row.ours, *row.beside)
                   if case is not None and case.program not in PEERS}),
          sep="\n")
