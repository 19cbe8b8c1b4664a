// The text of the tree's files, for tests that check its shape.

#ifndef TESTS_TESTING_SOURCE_TREE_H_
#define TESTS_TESTING_SOURCE_TREE_H_

#include <string>
#include <vector>

namespace gshard {

struct SourceFile {
  std::string path;  // from the project root, e.g. "services/moe/gating.h"
  std::string text;
};

// The hand-written files under `root`, in order of path: C++, protos, CMake,
// scripts, configuration and documents, but no build folders or data.
std::vector<SourceFile> ReadSourceTree(const std::string& root);

// The lines of `text`, without line ends.
std::vector<std::string> Lines(const std::string& text);

struct Include {
  int line;          // counted from 1
  std::string path;  // as spelled
  bool quoted;       // "..." instead of <...>
};

// The #include lines of a C++ file.
std::vector<Include> Includes(const SourceFile& file);

}  // namespace gshard

#endif  // TESTS_TESTING_SOURCE_TREE_H_
