// Text of several files and languages, good and bad lines, for tests.

#ifndef TESTS_SERVICES_DATA_SAMPLE_TEXT_H_
#define TESTS_SERVICES_DATA_SAMPLE_TEXT_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/base/check.h"
#include "services/base/random.h"
#include "services/data/corpus.h"
#include "services/data/pair_encoder.h"
#include "services/tokenizer/trainer.h"
#include "tests/services/storage/scratch_directory.h"

namespace gshard {

// Trained once per process on tests/data/names.tsv, with tags of de, fr and es.
inline TextTokenizers SampleTokenizers() {
  static const std::shared_ptr<const Tokenizer> tokenizer = [] {
    const auto corpus = ReadCorpus("tests/data/names.tsv");
    CHECK(corpus.ok());
    std::vector<std::string> sentences;
    for (const SentencePair& pair : corpus->pairs) {
      sentences.push_back(pair.source);
      sentences.push_back(pair.target);
    }
    TokenizerOptions options;
    options.vocab_size = 300;
    options.languages = {"de", "fr", "es"};
    const ScratchDirectory scratch;
    CHECK(TrainTokenizer(options, sentences, scratch / "model").ok());
    return *Tokenizer::Load(scratch / "model");
  }();
  return {tokenizer, tokenizer};
}

// Random lines, determined by `seed`: mostly pairs of names.tsv, and some of
// each kind of bad line.
inline std::string SampleLines(int count, uint64_t seed) {
  static const Corpus corpus = *ReadCorpus("tests/data/names.tsv");
  const std::vector<std::string> bad = {
      "",
      "one column",
      "de\ta\tb\tc",
      "de\t\xFF\tb",
      std::string("de\ta\0b\tc", 8),
      "d e\ta\tb",
      "de\t \tb",
      "sv\tokänt\tunknown",
      "de\t\u3000\tspaces",
      absl::StrCat("de\t", std::string(70000, 'x'), "\ty"),
      absl::StrCat("fr\t", std::string(500, 'y'), "\tz")};
  std::string text;
  for (int i = 0; i < count; ++i) {
    if (RandomBelow(seed, 2 * i, 5) == 0) {
      text += bad[RandomBelow(seed, 2 * i + 1, bad.size())];
    } else {
      const SentencePair& pair =
          corpus.pairs[RandomBelow(seed, 2 * i + 1, corpus.pairs.size())];
      absl::StrAppend(&text, pair.language, "\t", pair.source, "\t",
                      pair.target);
    }
    text += RandomBelow(seed + 1, i, 7) == 0 ? "\r\n" : "\n";
  }
  return text;
}

}  // namespace gshard

#endif  // TESTS_SERVICES_DATA_SAMPLE_TEXT_H_
