// Inputs of a command: a complete text, or a pipe written line by line.

#ifndef TESTS_CLIENT_TEXT_INPUT_H_
#define TESTS_CLIENT_TEXT_INPUT_H_

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>

namespace gshard {

inline void WriteAll(int file, const std::string& text) {
  ASSERT_EQ(write(file, text.data(), text.size()),
            static_cast<ssize_t>(text.size()));
}

class TextInput {
 public:
  explicit TextInput(const std::string& text)
      : file_(memfd_create("input", MFD_CLOEXEC)) {
    WriteAll(file_, text);
    EXPECT_EQ(lseek(file_, 0, SEEK_SET), 0);
  }
  ~TextInput() { close(file_); }
  TextInput(const TextInput&) = delete;
  TextInput& operator=(const TextInput&) = delete;

  int file() const { return file_; }

 private:
  const int file_;
};

class PipeInput {
 public:
  PipeInput() { EXPECT_EQ(pipe(ends_), 0); }
  ~PipeInput() {
    close(ends_[0]);
    End();
  }
  PipeInput(const PipeInput&) = delete;
  PipeInput& operator=(const PipeInput&) = delete;

  int file() const { return ends_[0]; }
  void Write(const std::string& text) { WriteAll(ends_[1], text); }
  void End() {
    if (ends_[1] >= 0) close(ends_[1]);
    ends_[1] = -1;
  }

 private:
  int ends_[2];
};

}  // namespace gshard

#endif  // TESTS_CLIENT_TEXT_INPUT_H_
