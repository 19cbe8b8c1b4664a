// A small network over images and its training steps, for tests that split
// images over devices.

#ifndef TESTS_TESTING_CONVOLUTION_NETWORK_H_
#define TESTS_TESTING_CONVOLUTION_NETWORK_H_

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/graph/gradient.h"
#include "services/sharding/annotation.h"
#include "tests/testing/builder_ops.h"
#include "tests/testing/partitioned_steps.h"
#include "tests/testing/tensors.h"

namespace gshard {

// Images [B, X, Y, C] = [5, 13, 11, 3]: prime sizes, so that no split is even.
inline constexpr int64_t kImageSizes[] = {5, 13, 11, 3};
inline constexpr int64_t kImageClasses = 4;

// Dimensions of the images to split, and the mesh axes to split them along.
using ImageCuts = std::vector<std::pair<int, std::string>>;

// Steps of gradient descent on one batch, on a mesh of `axes`. The images are
// annotated with `cuts` and the parameters are replicated; propagation decides
// the rest. Outputs: "loss", "logits" and "next/" parameters.
//
//   conv 3x3 - relu - conv 3x3, stride 2 - relu - conv 2x2, dilated - relu -
//   mean over positions - dense - cross entropy
inline absl::StatusOr<StepsRun> ConvolutionNetwork(std::vector<MeshAxis> axes,
                                                   const ImageCuts& cuts,
                                                   int steps) {
  Builder b("convolution network");
  StepsRun run{.program = {},
               .axes = std::move(axes),
               .inputs = {},
               .parameters = {},
               .steps = steps};
  const Shape images(std::begin(kImageSizes), std::end(kImageSizes));
  const int64_t batch = kImageSizes[0];
  std::vector<std::string> names;
  std::vector<ValueId> parameters;
  const auto parameter = [&](const std::string& name, Dims dims, float scale) {
    names.push_back(name);
    parameters.push_back(
        Replicate(b, b.Parameter(name, Shape(dims.begin(), dims.end()))));
    run.parameters[name] = RandomTensor(dims, names.size(), scale);
    return parameters.back();
  };

  ValueId x = b.Input("images", {ElementType::kFloat32, images});
  for (const auto& [dim, axis] : cuts) Split(b, x, dim, axis);
  x = b.Relu(Convolution(b, x, parameter("conv1", {3, 3, 3, 6}, 0.4f),
                         {.pad_low = {1, 1}, .pad_high = {1, 1}}));
  x = b.Relu(
      Convolution(b, x, parameter("conv2", {3, 3, 6, 7}, 0.3f),
                  {.stride = {2, 2}, .pad_low = {1, 1}, .pad_high = {1, 1}}));
  x = b.Relu(Convolution(
      b, x, parameter("conv3", {2, 2, 7, 8}, 0.4f),
      {.pad_low = {1, 1}, .pad_high = {1, 1}, .window_dilation = {2, 2}}));
  RETURN_IF_ERROR(b.status());
  const Shape features = b.type(x).shape;
  const double positions = features[1].size() * features[2].size();
  const ValueId mean = b.Scale(b.ReduceSum(x, {1, 2}), 1.0 / positions);
  const ValueId logits =
      b.Einsum("bc,co->bo", mean, parameter("dense", {8, kImageClasses}, 0.5f));
  const ValueId labels = b.Input("labels", {ElementType::kInt32, {batch}});
  const ValueId loss =
      b.Scale(b.CrossEntropy(logits, labels, 0.0, 0.0), 1.0 / batch);
  b.Output("loss", loss);
  b.Output("logits", logits);
  ASSIGN_OR_RETURN(const std::vector<ValueId> gradients,
                   AddGradients(b, loss, parameters));
  for (size_t i = 0; i < names.size(); ++i) {
    const ValueId next = Subtract(b, parameters[i], b.Scale(gradients[i], 0.5));
    b.Output(absl::StrCat("next/", names[i]), Replicate(b, next));
  }
  ASSIGN_OR_RETURN(run.program, std::move(b).Finish());

  run.inputs["images"] =
      RandomTensor(Dims(std::begin(kImageSizes), std::end(kImageSizes)), 100);
  Tensor classes(ElementType::kInt32, {batch});
  for (int64_t i = 0; i < batch; ++i) classes.i32()[i] = i % kImageClasses;
  run.inputs["labels"] = std::move(classes);
  return run;
}

// The splits that tests try, on 4 devices.
struct ImageMesh {
  std::vector<MeshAxis> axes;
  ImageCuts cuts;
};
inline std::vector<ImageMesh> ImageMeshes() {
  const std::vector<MeshAxis> line = {{"d", 4, ""}};
  const std::vector<MeshAxis> square = {{"x", 2, ""}, {"y", 2, ""}};
  return {{line, {{0, "d"}}},
          {line, {{1, "d"}}},
          {square, {{1, "x"}, {2, "y"}}},
          {square, {{0, "x"}, {2, "y"}}}};
}

}  // namespace gshard

#endif  // TESTS_TESTING_CONVOLUTION_NETWORK_H_
