// SPDX-License-Identifier: BSD-3-Clause
// Runs a model with an operator of your own, and observes its output with an observer of your own.
// (observer_registry::add() gives an observer a name, under which static quantization can use it:
// static_quantization_options::activations.observers.)
// Build (sh examples/run.sh prepares build/release), and run:
//   cmake --build build/release --target example_06_own_operator_and_observer
//   build/release/examples/06_own_operator_and_observer
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include <detent/graph/run/executor.hpp>
#include <detent/graph/run/registry.hpp>
#include <detent/observers/observer.hpp>
#include <detent/quantize.hpp>

namespace {

namespace graph = detent::graph;
constexpr graph::element_type f32 = graph::element_type::f32;

// The operator com.example.SquaredRelu: y = max(x, 0)^2.
void infer(graph::operator_context& c) {
  c.require_supported(c.input(0).type() == f32, "the input is not float32");
  c.set_output(0, f32, c.input(0).dims());
}
void run(graph::operator_context& c) {
  const std::span<const float> x = c.input(0).data<float>();
  std::transform(x.begin(), x.end(), c.make_output(0).mutable_data<float>().begin(),
                 [](float v) { return v > 0.0F ? v * v : 0.0F; });
}
constexpr graph::operator_definition squared_relu{
    "com.example", "SquaredRelu", 1, 1, graph::layout_support::plain, infer, run};

// An observer whose scales are powers of two, so that shifts can rescale.
class shift_observer {
 public:
  void observe(std::span<const float> x) {
    for (const float v : x) {
      largest_ = std::max(largest_, std::fabs(v));
    }
  }
  [[nodiscard]] detent::quant_params finalize(detent::quant_scheme scheme) const {
    detent::require(scheme.symmetric && scheme.levels.qmin < 0, detent::error_kind::unsupported,
                    "shift_observer: the scheme is not symmetric and signed");
    const float scale = largest_ / static_cast<float>(scheme.levels.qmax);
    return {std::exp2(std::ceil(std::log2(scale))), 0};
  }

 private:
  float largest_ = 0x1p-100F;  // zeros alone have a scale, too
};

}  // namespace

int main() {
  graph::model m;  // y = SquaredRelu(x)
  m.opsets = {{"", 17}, {"com.example", 1}};
  m.inputs = {{"x", f32, true, {-1}, {}}};
  m.outputs = {{"y", f32, true, {-1}, {}}};
  m.nodes = {{"", "SquaredRelu", "com.example", {"x"}, {"y"}, {}}};

  graph::operator_registry operators = graph::default_operators();
  operators.add(squared_relu);
  graph::executor runner(m, {}, operators);

  const std::vector<float> x = {-1.0F, 0.5F, 2.0F, 2.5F};
  detent::any_observer observer = shift_observer();
  const auto show = [&](const std::string& name, const graph::tensor& value) {
    if (name == "y") {  // the executor calls this with every value of the run
      observer.observe(value.data<float>());
    }
  };
  const auto outputs = runner.run({{"x", graph::tensor::of<float>(f32, {4}, x)}}, show);

  const std::span<const float> y = outputs[0].data<float>();  // 0, 0.25, 4, 6.25
  const detent::quant_params p = observer.finalize(detent::symmetric<std::int8_t>).params;
  std::vector<std::int8_t> q(y.size());
  detent::quantize(y, q, p);  // the scale is 2^-4, since 2^-5 < 6.25 / 127 < 2^-4
  std::printf("scale %g, integers %d %d %d %d\n", double{p.scale}, q[0], q[1], q[2], q[3]);
  return p.scale == 0x1p-4F && q == std::vector<std::int8_t>{0, 4, 64, 100} ? 0 : 1;
}
