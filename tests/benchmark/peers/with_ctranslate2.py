#!/usr/bin/env python3
"""Translates with CTranslate2, beside sentence_benchmark: a Transformer of
6 + 6 layers, M 512, H 2048, V 32000 with random weights, 20 tokens in, 20 out.

    tests/benchmark/peers/with_ctranslate2.py int8/beam:4/sentences:32

A case is its type, int8 or float (the fastest that is not of integers), the
beam and the sentences of a batch. The better of two uses of the threads
counts: all on one batch, or the batch divided among them.
"""

import functools
import os

import ctranslate2
import numpy
import timing

LENGTH, VOCABULARY, WIDTH, HIDDEN, LAYERS, HEADS = 20, 32000, 512, 2048, 6, 8


def fill(spec):
    """Random weights for all layers, of the shapes that the names imply."""
    random = numpy.random.default_rng(1)

    def linear(layer, rows, columns, bias=True):
        scale = columns ** -0.5
        layer.weight = random.standard_normal(
            (rows, columns), dtype=numpy.float32) * numpy.float32(scale)
        if bias:
            layer.bias = numpy.zeros(rows, numpy.float32)

    def norm(layer):
        layer.gamma = numpy.ones(WIDTH, numpy.float32)
        layer.beta = numpy.zeros(WIDTH, numpy.float32)

    def attention(layer, inner):
        norm(layer.layer_norm)
        for each, rows in zip(layer.linear, inner):
            linear(each, rows, WIDTH)

    for stack in (spec.encoder, spec.decoder):
        embeddings = stack.embeddings
        if isinstance(embeddings, list):
            embeddings = embeddings[0]
        linear(embeddings, VOCABULARY, WIDTH, bias=False)
        norm(stack.layer_norm)
        for layer in stack.layer:
            attention(layer.self_attention, (3 * WIDTH, WIDTH))
            if stack is spec.decoder:
                attention(layer.attention, (WIDTH, 2 * WIDTH, WIDTH))
            norm(layer.ffn.layer_norm)
            linear(layer.ffn.linear_0, HIDDEN, WIDTH)
            linear(layer.ffn.linear_1, WIDTH, HIDDEN)
    linear(spec.decoder.projection, VOCABULARY, WIDTH)


def model(cache):
    folder = os.path.join(cache, "ctranslate2_base")
    if not os.path.exists(os.path.join(folder, "model.bin")):
        spec = ctranslate2.specs.TransformerSpec.from_config(LAYERS, HEADS)
        fill(spec)
        tokens = ["<s>", "</s>", "<unk>"] + [
            f"t{i}" for i in range(VOCABULARY - 3)]
        spec.register_source_vocabulary(tokens)
        spec.register_target_vocabulary(tokens)
        spec.validate()
        os.makedirs(folder, exist_ok=True)
        spec.save(folder)
    return folder


@functools.lru_cache
def translators(compute_type, threads, cache):
    """The ways to use the threads."""
    return [ctranslate2.Translator(
        model(cache), device="cpu", compute_type=compute_type,
        inter_threads=inter, intra_threads=threads // inter)
            for inter in sorted({1, threads})]


def types(name):
    supported = ctranslate2.get_supported_compute_types("cpu")
    return ["int8"] if name == "int8" else sorted(
        supported & {"float32", "bfloat16", "float16"})


def measure(case, arguments):
    name, beam, sentences = (part.split(":")[-1] for part in case.split("/"))
    beam, sentences = int(beam), int(sentences)
    random = numpy.random.default_rng(2)
    source = [[f"t{i}" for i in random.integers(0, VOCABULARY - 3, LENGTH)]
              for _ in range(sentences)]
    best = {"tokens/s": 0.0}
    for compute_type in types(name):
        for translator in translators(compute_type, arguments.threads,
                                      arguments.cache):
            if sentences < translator.num_translators:
                continue
            seconds = timing.seconds_of(
                lambda t=translator: t.translate_batch(
                    source, beam_size=beam, min_decoding_length=LENGTH,
                    max_decoding_length=LENGTH,
                    max_batch_size=sentences // t.num_translators),
                arguments.seconds / 2)
            best = max(best, {"tokens/s": sentences * LENGTH / seconds,
                              "type": compute_type,
                              "batches": translator.num_translators},
                       key=lambda result: result["tokens/s"])
    return best


if __name__ == "__main__":
    timing.main(__doc__, measure)
