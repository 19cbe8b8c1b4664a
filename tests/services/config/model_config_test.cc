#include "services/config/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <limits>
#include <string>

#include "services/config/model_config_proto.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// No field has its default.
ModelConfig UnusualModel() {
  ModelConfig model;
  model.name = "un-usual_1.0";
  model.encoder_layers = 3;
  model.decoder_layers = 5;
  model.model_width = 33;
  model.ffn_width = 65;
  model.expert_width = 129;
  model.heads = 3;
  model.head_width = 7;
  model.experts = 2048;
  model.moe_period = 3;
  model.moe_offset = 1;
  model.source_vocabulary_size = 100;
  model.target_vocabulary_size = 100;
  model.shared_vocabulary = true;
  model.tie_output = false;
  model.scale_tied_logits = false;
  model.positions = Positions::kLearned;
  model.max_positions = 77;
  model.expert_bias = true;
  model.compute_type = ComputeType::kBFloat16;
  model.wire_type = ComputeType::kBFloat16;
  model.dropout = {0.15, 0.25, 0.35, 0.45, 0.55};
  model.gate = {.training_policy = SecondExpertPolicy::kSampling,
                .evaluation_policy = SecondExpertPolicy::kRandom,
                .normalize = GateNormalize::kAfterDropping,
                .training_capacity_factor = 1.0 / 3.0,
                .evaluation_capacity_factor = 2.5,
                .min_capacity = 4,
                .group_size = 1024,
                .batch_prioritized = true,
                .literal = true,
                .balance_loss_coefficient = 0.1,
                .z_loss_coefficient = 1e-3};
  return model;
}

TEST(ModelConfigTest, EmptyTextGivesTheDefaults) {
  ASSERT_OK_AND_ASSIGN(const ModelConfig model, ParseModelConfig(""));
  EXPECT_EQ(model, ModelConfig());
}

TEST(ModelConfigTest, ReadsBackWhatItPrints) {
  for (const ModelConfig& model : {ModelConfig(), UnusualModel()}) {
    const std::string text = ModelConfigToText(model);
    SCOPED_TRACE(text);
    ASSERT_OK_AND_ASSIGN(const ModelConfig again, ParseModelConfig(text));
    EXPECT_EQ(again, model);
    EXPECT_EQ(ModelConfigToText(again), text);
  }
}

// A field that is in the message but not in the struct fails this test.
TEST(ModelConfigTest, PrintsEveryFieldOfTheMessage) {
  const v1::ModelConfig message = ModelConfigToProto(ModelConfig());
  const auto expect_all_set = [](const google::protobuf::Message& group) {
    const auto* descriptor = group.GetDescriptor();
    for (int i = 0; i < descriptor->field_count(); ++i) {
      EXPECT_TRUE(group.GetReflection()->HasField(group, descriptor->field(i)))
          << descriptor->field(i)->full_name();
    }
  };
  expect_all_set(message);
  expect_all_set(message.dropout());
  expect_all_set(message.gate());
}

TEST(ModelConfigTest, ReadsComments) {
  ASSERT_OK_AND_ASSIGN(const ModelConfig model,
                       ParseModelConfig("# small\nexperts: 4  # few\n"
                                        "gate { training_policy: ALL }\n"));
  EXPECT_EQ(model.experts, 4);
  EXPECT_EQ(model.gate.training_policy, SecondExpertPolicy::kAll);
}

struct BadText {
  const char* text;
  const char* message;  // or a part of it
};

// Reserved fields, which checkpoints of earlier releases have, are ignored.
TEST(ModelConfigTest, ReadsReservedFieldsAsIfTheyWereNotThere) {
  ASSERT_OK_AND_ASSIGN(const ModelConfig config,
                       ParseModelConfig("normalization: RMS\nexperts: 8"));
  ASSERT_OK_AND_ASSIGN(const ModelConfig plain, ParseModelConfig("experts: 8"));
  EXPECT_EQ(config, plain);
}

TEST(ModelConfigTest, SaysWhereTextIsNotAModelConfig) {
  const BadText cases[] = {
      {"heads: 4\n  expert: 4", "line 2, column 9: "},
      {"expert: 4", "has no field named \"expert\""},
      {"experts: many", "line 1, column 10: Expected integer"},
      {"experts: 4 experts: 8",
       "Non-repeated field \"experts\" is specified multiple times"},
      {"experts: 99999999999999999999", "line 1, column 10: "},
      {"gate { training_policy: SOME }",
       "Unknown enumeration value of "
       "\"SOME\""},
      {"dropout { input: 0.1", "line 1, column 21: "},
  };
  for (const BadText& bad : cases) {
    EXPECT_THAT(
        ParseModelConfig(bad.text),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(bad.message)));
  }
}

TEST(ModelConfigTest, NamesTheFieldTheRangeAndTheValue) {
  const BadText cases[] = {
      {"encoder_layers: 0", "encoder_layers: expected 1 to 1000, got 0"},
      {"decoder_layers: 1001", "decoder_layers: expected 1 to 1000, got 1001"},
      {"model_width: 65537", "model_width: expected 1 to 65536, got 65537"},
      {"ffn_width: -1", "ffn_width: expected 1 to 65536, got -1"},
      {"heads: 0", "heads: expected 1 to 1024, got 0"},
      {"experts: 2049", "experts: expected 0 to 2048, got 2049"},
      {"source_vocabulary_size: 3",
       "source_vocabulary_size: expected 4 to 16777216, got 3"},
      {"name: \"\"", "name: expected a value, got nothing"},
      {"name: \"a/b\"",
       "name: expected 1 to 128 letters, digits, '.', '_' or '-', got "
       "\"a/b\""},
      {"positions: POSITIONS_UNSPECIFIED",
       "positions: expected SINUSOIDAL or LEARNED, got "
       "POSITIONS_UNSPECIFIED"},
      {"dropout { attention: 1 }",
       "dropout.attention: expected at least 0 and less than 1, got 1"},
      // 1 as a float, which kernels get.
      {"dropout { input: 0.99999999 }",
       "dropout.input: expected at least 0 and less than 1, got 1"},
      {"dropout { moe: nan }",
       "dropout.moe: expected at least 0 and less than 1, got nan"},
      {"gate { training_capacity_factor: -0.5 }",
       "gate.training_capacity_factor: expected 0 to 1000, got -0.5"},
      {"gate { min_capacity: 65537 }",
       "gate.min_capacity: expected 0 to 65536, got 65537"},
      {"gate { balance_loss_coefficient: inf }",
       "gate.balance_loss_coefficient: expected 0 to 100, got inf"},
  };
  for (const BadText& bad : cases) {
    EXPECT_THAT(ParseModelConfig(bad.text),
                StatusIs(absl::StatusCode::kInvalidArgument, bad.message));
  }
}

TEST(ModelConfigTest, ComputeTypesHaveNamesAndNumbers) {
  for (const ComputeType type :
       {ComputeType::kFloat32, ComputeType::kBFloat16, ComputeType::kInt8}) {
    ASSERT_OK_AND_ASSIGN(const ComputeType parsed,
                         ParseComputeType(ComputeTypeName(type)));
    EXPECT_EQ(parsed, type);
    ASSERT_OK_AND_ASSIGN(const std::optional<ComputeType> number,
                         ComputeTypeFromProto(ComputeTypeToProto(type)));
    EXPECT_EQ(number, type);
  }
  EXPECT_THAT(ParseComputeType("int4"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("int8, got 'int4'")));
  EXPECT_EQ(ComputeTypeToProto(std::nullopt), 0);
  ASSERT_OK_AND_ASSIGN(const auto none, ComputeTypeFromProto(0));
  EXPECT_EQ(none, std::nullopt);
  for (const int64_t number : {int64_t{-1}, int64_t{4}, int64_t{1} << 32}) {
    EXPECT_THAT(
        ComputeTypeFromProto(number).status(),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("got number")));
  }
}

TEST(ModelConfigTest, ChecksFieldsAgainstEachOther) {
  const BadText cases[] = {
      {"wire_type: INT8", "wire_type: expected FLOAT32 or BFLOAT16, got INT8"},
      {"experts: 1",
       "experts: expected 0 (dense) or 2 to 2048, as each token "
       "has two choices, got 1"},
      {"moe_period: 2 moe_offset: 2",
       "moe_offset: expected less than moe_period, which is 2, got 2"},
      {"encoder_layers: 2 decoder_layers: 3 moe_period: 9 moe_offset: 3",
       "experts: expected 0, as moe_offset 3 leaves no MoE layer in 2 encoder "
       "and 3 decoder layers, got 16"},
      {"shared_vocabulary: true source_vocabulary_size: 8 "
       "target_vocabulary_size: 9",
       "target_vocabulary_size: expected source_vocabulary_size, which is 8, "
       "as shared_vocabulary is set, got 9"},
      {"model_width: 513",
       "model_width: expected an even number, as positions is SINUSOIDAL, got "
       "513"},
  };
  for (const BadText& bad : cases) {
    EXPECT_THAT(ParseModelConfig(bad.text),
                StatusIs(absl::StatusCode::kInvalidArgument, bad.message));
  }
  EXPECT_OK(ParseModelConfig("experts: 0 moe_period: 9 moe_offset: 8"));
  EXPECT_OK(ParseModelConfig("model_width: 513 positions: LEARNED"));
}

// Unknown enum numbers, which only the wire format allows, are refused.
TEST(ModelConfigTest, RefusesEnumNumbersFromANewerSender) {
  v1::ModelConfig message;
  message.mutable_gate()->set_training_policy(
      static_cast<v1::GateConfig::SecondExpertPolicy>(7));
  EXPECT_THAT(ModelConfigFromProto(message),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "gate.training_policy: expected RANDOM or ALL or "
                       "SAMPLING, got 7"));
}

TEST(ModelConfigTest, RefusesHugeTextUnread) {
  EXPECT_THAT(ParseModelConfig(std::string((1 << 20) + 1, ' ')),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "expected at most 1048576 bytes of configuration, got "
                       "1048577"));
}

TEST(ModelConfigTest, CountsMoeLayersAsTheyAreLaidOut) {
  ModelConfig model;
  for (model.moe_period = 1; model.moe_period < 6; ++model.moe_period) {
    for (model.moe_offset = 0; model.moe_offset < model.moe_period;
         ++model.moe_offset) {
      int64_t count = 0;
      for (int64_t layers = 0; layers < 20; ++layers) {
        EXPECT_EQ(model.NumMoeLayers(layers), count)
            << layers << " layers, " << model.moe_offset << " of "
            << model.moe_period;
        count += model.IsMoeLayer(layers);
      }
    }
  }
  model.experts = 0;
  EXPECT_EQ(model.NumMoeLayers(20), 0);
}

TEST(ModelConfigTest, PutsThePathInFrontOfErrorsInFiles) {
  EXPECT_THAT(
      LoadModelConfig("no/such.textproto"),
      StatusIs(absl::StatusCode::kNotFound, StartsWith("no/such.textproto")));
  EXPECT_THAT(LoadModelConfig("deploy/config"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       StartsWith("deploy/config: expected a file")));

  const std::string path = ::testing::TempDir() + "/bad_model.textproto";
  std::ofstream(path) << "experts: 1";
  EXPECT_THAT(
      LoadModelConfig(path),
      StatusIs(absl::StatusCode::kInvalidArgument,
               AllOf(StartsWith(path), HasSubstr(": experts: expected 0"))));
  std::remove(path.c_str());
}

}  // namespace
}  // namespace gshard
