// The wire format of each protocol version stays unchanged for as long as
// programs speak that version: fields, enumerators and methods may be added,
// but not removed or changed. Those that no program of that version ever acted
// on may become reserved. protocol_<version>.txt lists the lines of a version;
// the newest grows with the .proto files.

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "proto/gshard/v1/coordinator.pb.h"
#include "proto/gshard/v1/error_details.pb.h"
#include "proto/gshard/v1/expert.pb.h"
#include "proto/gshard/v1/models_file.pb.h"
#include "proto/gshard/v1/translation.pb.h"
#include "services/base/check.h"
#include "services/cluster/protocol_versions.h"
#include "tests/services/rpc/wire/wire_lines.h"

namespace gshard {
namespace {

using google::protobuf::DescriptorPool;
using google::protobuf::FileDescriptor;
using Lines = std::set<std::string>;

// The lines of `all` that `some` lacks.
std::vector<std::string> Missing(const Lines& all, const Lines& some) {
  std::vector<std::string> missing;
  std::set_difference(all.begin(), all.end(), some.begin(), some.end(),
                      std::back_inserter(missing));
  return missing;
}

// Those of proto/, by the names under which programs import them.
std::vector<const FileDescriptor*> PresentFiles() {
  // Links these files and all their imports.
  (void)v1::RegisterMember::descriptor();
  (void)v1::ExpertFrame::descriptor();
  (void)v1::ModelsFile::descriptor();
  (void)v1::RetryInfo::descriptor();
  (void)v1::TranslateRequest::descriptor();
  std::vector<const FileDescriptor*> files;
  for (const auto& entry :
       std::filesystem::directory_iterator("proto/gshard/v1")) {
    if (entry.path().extension() != ".proto") continue;
    const FileDescriptor* const file =
        DescriptorPool::generated_pool()->FindFileByName(
            entry.path().lexically_relative("proto").string());
    EXPECT_NE(file, nullptr) << entry.path() << ": use a message of it above";
    if (file != nullptr) files.push_back(file);
  }
  return files;
}

Lines PresentLines() {
  Lines lines;
  for (const FileDescriptor* const file : PresentFiles()) {
    lines.merge(WireLines(*file));
  }
  return lines;
}

Lines LinesOfVersion(int version) {
  Lines lines;
  std::ifstream file(
      absl::StrCat("tests/services/rpc/wire/protocol_", version, ".txt"));
  for (std::string line; std::getline(file, line);) lines.insert(line);
  return lines;
}

TEST(WireTest, WhatProgramsSpokeBeforeIsStillThere) {
  const Lines present = PresentLines();
  for (int version = kProtocolVersions.oldest;
       version <= kProtocolVersions.newest; ++version) {
    const Lines lines = LinesOfVersion(version);
    EXPECT_FALSE(lines.empty()) << version;
    for (const std::string& line : Missing(lines, present)) {
      ADD_FAILURE() << "protocol " << version << " has: " << line;
    }
  }
}

TEST(WireTest, TheNewestVersionIsWrittenDown) {
  for (const std::string& line :
       Missing(PresentLines(), LinesOfVersion(kProtocolVersions.newest))) {
    ADD_FAILURE() << "add to tests/services/rpc/wire/protocol_"
                  << kProtocolVersions.newest << ".txt: " << line;
  }
}

// One, so that files that import each other are one package of Go.
TEST(WireTest, EveryFileIsOfOneGoPackage) {
  for (const FileDescriptor* const file : PresentFiles()) {
    EXPECT_EQ(file->options().go_package(), "gshard/v1;gshardv1")
        << file->name();
  }
}

TEST(WireTest, WhatIsChangedShows) {
  const auto lines = [](const std::string& text) {
    google::protobuf::FileDescriptorProto proto;
    CHECK(google::protobuf::TextFormat::ParseFromString(
        absl::StrCat("name: \"x.proto\" package: \"x\" syntax: \"proto3\" ",
                     text),
        &proto));
    DescriptorPool pool;
    return WireLines(*pool.BuildFile(proto));
  };
  const auto message = [&](const std::string& field) {
    return lines(absl::StrCat("message_type { name: \"A\" field { ", field,
                              " } nested_type { name: \"B\" } }"));
  };
  const Lines before =
      message("name: \"b\" number: 2 label: LABEL_OPTIONAL type: TYPE_INT64");
  EXPECT_EQ(before, Lines{"x.A.b = 2 int64"});
  EXPECT_EQ(message("name: \"b\" number: 3 label: LABEL_OPTIONAL "
                    "type: TYPE_INT64"),
            Lines{"x.A.b = 3 int64"});
  EXPECT_EQ(message("name: \"b\" number: 2 label: LABEL_OPTIONAL "
                    "type: TYPE_SINT64"),
            Lines{"x.A.b = 2 sint64"});
  EXPECT_EQ(message("name: \"b\" number: 2 label: LABEL_REPEATED "
                    "type: TYPE_MESSAGE type_name: \".x.A.B\""),
            Lines{"x.A.b = 2 repeated x.A.B"});
  EXPECT_EQ(message("name: \"b\" number: 2 label: LABEL_OPTIONAL "
                    "type: TYPE_INT64 oneof_index: 0 } oneof_decl { "
                    "name: \"o\""),
            Lines{"x.A.b = 2 int64 oneof o"});
  EXPECT_EQ(lines("message_type { name: \"A\" } "
                  "enum_type { name: \"E\" value { name: \"Z\" number: 0 } } "
                  "service { name: \"S\" method { name: \"M\" "
                  "input_type: \".x.A\" output_type: \".x.A\" "
                  "server_streaming: true } }"),
            (Lines{"x.E.Z = 0", "x.S.M(x.A) returns (stream x.A)"}));
}

}  // namespace
}  // namespace gshard
