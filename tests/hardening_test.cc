// The shipped programs have the exploit mitigations that cmake/targets.cmake
// requests.

#include <elf.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace gshard {
namespace {

using ::testing::Contains;

// A trusted 64-bit ELF file; nothing in it is validated.
class ElfFile {
 public:
  explicit ElfFile(const std::string& path) {
    std::ostringstream bytes;
    bytes << std::ifstream(path, std::ios::binary).rdbuf();
    bytes_ = bytes.str();
  }

  Elf64_Ehdr header() const { return At<Elf64_Ehdr>(0); }
  std::vector<Elf64_Phdr> segments() const {
    return Array<Elf64_Phdr>(header().e_phoff, header().e_phnum);
  }
  // The value of the dynamic entry with this tag, or 0.
  uint64_t Dynamic(int64_t tag) const {
    for (const Elf64_Phdr& segment : segments()) {
      if (segment.p_type != PT_DYNAMIC) continue;
      for (const Elf64_Dyn& entry : Array<Elf64_Dyn>(
               segment.p_offset, segment.p_filesz / sizeof(Elf64_Dyn))) {
        if (entry.d_tag == tag) return entry.d_un.d_val;
      }
    }
    return 0;
  }
  // The names of the symbols that it imports.
  std::set<std::string> Imports() const {
    std::set<std::string> names;
    for (const Elf64_Shdr& section : Sections()) {
      if (section.sh_type != SHT_DYNSYM) continue;
      const uint64_t strings = Sections()[section.sh_link].sh_offset;
      for (const Elf64_Sym& symbol : Array<Elf64_Sym>(
               section.sh_offset, section.sh_size / sizeof(Elf64_Sym))) {
        if (symbol.st_shndx == SHN_UNDEF) {
          names.insert(bytes_.data() + strings + symbol.st_name);
        }
      }
    }
    return names;
  }
  // The number of occurrences of the instruction in executable segments.
  int Count(absl::string_view instruction) const {
    int count = 0;
    for (const Elf64_Phdr& segment : segments()) {
      if (segment.p_type != PT_LOAD || !(segment.p_flags & PF_X)) continue;
      const absl::string_view code(bytes_.data() + segment.p_offset,
                                   segment.p_filesz);
      for (size_t at = code.find(instruction); at != absl::string_view::npos;
           at = code.find(instruction, at + 1)) {
        ++count;
      }
    }
    return count;
  }

 private:
  template <typename T>
  T At(uint64_t offset) const {
    T value;
    memcpy(&value, bytes_.data() + offset, sizeof(value));
    return value;
  }
  template <typename T>
  std::vector<T> Array(uint64_t offset, size_t size) const {
    std::vector<T> values;
    for (size_t i = 0; i < size; ++i) {
      values.push_back(At<T>(offset + i * sizeof(T)));
    }
    return values;
  }
  std::vector<Elf64_Shdr> Sections() const {
    return Array<Elf64_Shdr>(header().e_shoff, header().e_shnum);
  }

  std::string bytes_;
};

class HardeningTest : public ::testing::TestWithParam<const char*> {
 protected:
  static bool IsProgram() { return !absl::EndsWith(GetParam(), ".so"); }

  const ElfFile file_{std::string(GSHARD_PROGRAMS "/") + GetParam()};
};

TEST_P(HardeningTest, LiesAnywhere) {
  EXPECT_EQ(file_.header().e_type, ET_DYN);
  if (IsProgram()) {
    EXPECT_TRUE(file_.Dynamic(DT_FLAGS_1) & DF_1_PIE);
  }
}

TEST_P(HardeningTest, RelocationsAreReadOnlyOnceItRuns) {
  bool found = false;
  for (const Elf64_Phdr& segment : file_.segments()) {
    found = found || segment.p_type == PT_GNU_RELRO;
  }
  EXPECT_TRUE(found);
  EXPECT_TRUE(file_.Dynamic(DT_FLAGS_1) & DF_1_NOW);
}

TEST_P(HardeningTest, NothingIsWrittenAndRun) {
  bool has_stack = false;
  for (const Elf64_Phdr& segment : file_.segments()) {
    has_stack = has_stack || segment.p_type == PT_GNU_STACK;
    EXPECT_NE(segment.p_flags & (PF_W | PF_X), uint32_t{PF_W | PF_X})
        << segment.p_type;
  }
  EXPECT_TRUE(has_stack);
}

TEST_P(HardeningTest, ChecksItsStackAndCopies) {
  EXPECT_THAT(file_.Imports(), Contains("__stack_chk_fail"));
  if (IsProgram()) {
    EXPECT_THAT(file_.Imports(), Contains("__memcpy_chk"));
  }
}

#ifdef __x86_64__
// Functions begin with endbr64. Debian's start files lack the mark that makes
// the loader enforce it, so the test counts the instructions.
TEST_P(HardeningTest, CallsLandWhereFunctionsBegin) {
  EXPECT_GT(file_.Count("\xF3\x0F\x1E\xFA"), IsProgram() ? 1000 : 10);
}
#endif

INSTANTIATE_TEST_SUITE_P(Shipped, HardeningTest,
                         ::testing::Values("gshard", "gshard_coordinator",
                                           "gshard_expert_worker",
                                           "gshard_router",
                                           "gshard_sentencepiece.so"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name) c = c == '.' ? '_' : c;
                           return name;
                         });

}  // namespace
}  // namespace gshard
