"""What ./bench.sh measures: rows, what stands beside them, their goals."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Case:
    program: str  # a benchmark of this folder, or one of PEERS
    name: str     # as the program calls the case
    counter: str


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
    quick: bool = True  # whether --quick measures it


# By the name of their package; each has its script in peers/.
PEERS = ("ctranslate2", "torch", "hivemind")
TYPES = ("float32", "bfloat16", "int8")
# As ComputeType has them.
COMPUTE_TYPES = {"float32": "kFloat32", "bfloat16": "kBFloat16",
                 "int8": "kInt8"}


def gemm(element_type, threads=2):
    """The rate of large products: the better of oneDNN's and ours."""
    return tuple(Case("machine_benchmark",
                      f"{whose}/{element_type}/threads:{threads}", "gflops")
                 for whose in ("Onednn", "Ours"))


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


def ragged_dots():
    def served(element_type, shape, counter):
        return Case("ragged_dot_benchmark",
                    f"BM_Served/{element_type}/{shape}/threads:2", counter)

    for shape, what, goals in (
            ("sizes:0/experts:16/rows:64", "16 experts, 64 rows each",
             (0.90, 0.88, 0.85)),
            ("sizes:1/experts:64/rows:16", "64 experts, Zipf, mean 16",
             (0.80, 0.75, 0.75))):
        for element_type, goal in zip(TYPES, goals):
            yield Row("ragged-dot", f"ragged dot {element_type}, {what}",
                      "GFLOP/s", served(element_type, shape, "gflops"),
                      gemm(element_type), "GEMM", f">= {goal}")
    for element_type in TYPES:
        yield Row("ragged-dot",
                  f"ragged dot {element_type}, 64 experts, 1 to 4 rows", "GB/s",
                  served(element_type, "sizes:2/experts:64/rows:2", "GB/s"),
                  memory(), "reading memory", ">= 0.8")


def torch(case):
    """Eager and compiled, of which the better counts."""
    return tuple(Case("torch", f"{case}/{mode}", "tokens/s")
                 for mode in ("eager", "compiled"))


def layers():
    yield Row("moe-layer", "MoE layer forward + backward, S 512, E 128",
              "tokens/s",
              Case("gating_benchmark",
                   "ForwardBackward/E:128/S:512/M:512/H:2048/threads:2",
                   "tokens/s"),
              torch("layer"), "PyTorch", ">= 4")
    for counter, what, goal in (
            ("share", "gate + dispatch + combine, E 2048", "<= 0.05"),
            ("projected_share", "... with the gate's projection", "")):
        yield Row("gate", what, "of experts",
                  Case("gating_benchmark",
                       "Bookkeeping/E:2048/S:2048/M:1024/H:8192/bf16:1"
                       "/threads:2", counter), goal=goal)


def training():
    for index, element_type in enumerate(TYPES[:2]):
        def step(counter, index=index):
            return Case("training_benchmark",
                        f"BM_TrainingStep/experts:16/threads:2/bf16:{index}",
                        counter)

        yield Row("training", f"train MoE-16 {element_type}", "tokens/s",
                  step("tokens/s"), torch(f"training/{element_type}"),
                  "PyTorch", ">= 2")
        yield Row("training", f"train MoE-16 {element_type}, useful arithmetic",
                  "GFLOP/s", step("gflops"), gemm(element_type), "GEMM",
                  f">= {(0.85, 0.75)[index]}")
    yield Row("training-experts", "gradients of a step, E 2048", "ms",
              Case("training_benchmark", "BM_Gradients/experts:2048/threads:2",
                   "real_time"),
              (Case("training_benchmark", "BM_Gradients/experts:128/threads:2",
                    "real_time"),), "itself at E 128", "<= 1.3")


def service():
    def ours(case, counter):
        return Case("service_benchmark", case, counter)

    expert = "M:512/H:2048"
    for what, case, theirs, goal in (
            ("forward", "Forward/tcp", "forward", 3),
            ("forward + backward + Adam", "Step/tcp", "training", 4)):
        yield Row("service", f"expert over TCP, batch 256, {what}", "rows/s",
                  ours(f"{case}/rows:256/{expert}", "rows/s"),
                  (Case("hivemind", f"{theirs}/256", "rows/s"),), "hivemind",
                  f">= {goal}")
    yield Row("service", "expert over TCP, round trips of one row", "1/s",
              ours(f"Forward/tcp/rows:1/{expert}", "rows/s"),
              (Case("hivemind", "forward/1", "rows/s"),), "hivemind", ">= 10")
    yield Row("exchange", "exchange of 8 MiB each way, one host", "GB/s",
              ours("Forward/unix/rows:2048/M:1024/H:1", "GB/s"),
              (Case("machine_benchmark", "CopyMemory/threads:1", "GB/s"),),
              "memcpy", ">= 0.5")
    yield Row("exchange", "exchange of 4 KiB there and back, one host", "us",
              ours("Forward/unix/rows:2/M:512/H:1", "real_time"),
              goal="<= 20")
    for what, case, counter, goal in (
            ("the demo's job by 5 processes", "demo", "tokens", 0.85),
            ("train M 512 float32 by 6 processes", "wide/float32", "tokens",
             0.92),
            ("translate M 512 float32 by 6 processes", "wide/float32",
             "translated", 0.92),
            ("train M 512 bfloat16 by 6 processes", "wide/bfloat16", "tokens",
             0.92),
            ("translate M 512 bfloat16 by 6 processes", "wide/bfloat16",
             "translated", 0.92)):
        yield Row("job", what, "tokens/CPU s",
                  Case("job_benchmark", f"BM_Job/{case}", f"{counter}/cpu_s"),
                  (Case("job_benchmark", f"BM_Job/{case}",
                        f"local_{counter}/cpu_s"),),
                  "in one process", f">= {goal}",
                  quick=case != "wide/float32")


ROWS = (*ceilings(), *decoding(), *ragged_dots(), *layers(), *training(),
        *service())


if __name__ == "__main__":
    # For ./bench.sh: what has to be built.
    print(*sorted({case.program for row in ROWS
                   for case in (row.ours, *row.beside)
                   if case is not None and case.program not in PEERS}),
          sep="\n")
