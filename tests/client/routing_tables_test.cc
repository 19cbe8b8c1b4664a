#include "client/routing_tables.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace gshard {
namespace {

void AddToken(const std::string& piece, int32_t first, int32_t second,
              google::protobuf::RepeatedPtrField<v1::TokenRouting>* tokens) {
  v1::TokenRouting& token = *tokens->Add();
  token.set_piece(piece);
  for (const char* name : {"encoder.0.moe", "encoder.2.moe"}) {
    v1::TokenLayerRouting& layer = *token.add_layers();
    layer.set_layer(name);
    layer.add_visits()->set_expert(first);
    layer.mutable_visits(0)->set_weight(0.75f);
    layer.add_visits()->set_expert(second);
    layer.mutable_visits(1)->set_weight(0.25f);
    for (v1::ExpertVisit& visit : *layer.mutable_visits()) {
      visit.add_hosts("worker-0");
      visit.add_hosts("worker-1");
    }
  }
}

TEST(RoutingTablesTest, AlignsTokensLayersAndExperts) {
  v1::ExplainRoutingResponse routing;
  routing.set_model("titles@1000");
  AddToken("<2de>", 3, 127, routing.mutable_source());
  AddToken("▁Bücher", 3, 1, routing.mutable_source());
  EXPECT_EQ(RoutingTables(routing),
            "titles@1000\n"
            "\n"
            "   source      encoder.0.moe         encoder.2.moe\n"
            "0  <2de>       3 0.75  127 0.25      3 0.75  127 0.25\n"
            "1  ▁Bücher     3 0.75    1 0.25      3 0.75    1 0.25\n"
            "\n"
            "expert  choices  weight  held by\n"
            "     3        4    3.00  worker-0, worker-1\n"
            "     1        2    0.50  worker-0, worker-1\n"
            "   127        2    0.50  worker-0, worker-1\n");
}

TEST(RoutingTablesTest, SaysWhatIsFullOrLost) {
  v1::ExplainRoutingResponse routing;
  AddToken("a", 0, 1, routing.mutable_source());
  AddToken("b", 0, 1, routing.mutable_target());
  routing.mutable_source(0)
      ->mutable_layers(0)
      ->mutable_visits(1)
      ->set_overflowed(true);
  routing.mutable_target(0)
      ->mutable_layers(1)
      ->mutable_visits(0)
      ->clear_hosts();
  const std::string text = RoutingTables(routing);
  for (const char* part :
       {"1 full", "0 lost", "target", "\nfull: the expert had no slot left\n",
        "\nlost: no worker holds the expert\n"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
}

TEST(RoutingTablesTest, AModelWithoutExperts) {
  v1::ExplainRoutingResponse routing;
  routing.set_model("dense@1");
  routing.add_source()->set_piece("a");
  EXPECT_EQ(RoutingTables(routing),
            "dense@1\n\n   source\n0  a\n\nNo layer has experts.\n");
}

}  // namespace
}  // namespace gshard
