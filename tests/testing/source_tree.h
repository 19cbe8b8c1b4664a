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

// The files under `root` that people wrote: C++, protos, CMake, scripts,
// configuration and documents; build folders and data apart. In order of path.
std::vector<SourceFile> ReadSourceTree(const std::string& root);

// The lines of `text`, without their ends.
std::vector<std::string> Lines(const std::string& text);

struct Include {
  int line;          // counted from 1
  std::string path;  // as spelled
  bool quoted;       // "..." and not <...>
};

// The #include lines of a C++ file.
std::vector<Include> Includes(const SourceFile& file);

}  // namespace gshard

#endif  // TESTS_TESTING_SOURCE_TREE_H_
