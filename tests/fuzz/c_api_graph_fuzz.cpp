// SPDX-License-Identifier: BSD-3-Clause
// The C interface of models: one small network, and options, samples, inputs and bytes of models
// that the input gives. Everything may fail with a status; nothing may crash, hang or leak.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include <detent/c_api_graph.h>

#include "fuzz_target.hpp"

namespace {

void check(detent_status status) {
  if (status == DETENT_INTERNAL) {
    fuzz::finding("internal error", detent_last_error());
  }
  if (status != DETENT_OK && std::strchr(detent_last_error(), '\n') != nullptr) {
    fuzz::finding("a message of several lines", detent_last_error());
  }
}

/// Writes fields of the wire format of Protocol Buffers.
class message {
 public:
  message& number(unsigned field, std::uint64_t value) {
    varint(field << 3U);
    varint(value);
    return *this;
  }
  message& bytes(unsigned field, std::string_view value) {
    varint(field << 3U | 2U);
    varint(value.size());
    text_ += value;
    return *this;
  }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  void varint(std::uint64_t value) {
    for (; value >= 128; value >>= 7U) {
      text_ += static_cast<char>(value | 128U);
    }
    text_ += static_cast<char>(value);
  }
  std::string text_;
};

/// The ValueInfoProto of a float matrix of `columns` columns.
std::string matrix(const char* name, std::uint64_t columns) {
  const message rows = message().bytes(2, "batch");
  const message width = message().number(1, columns);
  const message shape = message().bytes(1, rows.text()).bytes(1, width.text());
  const message tensor = message().number(1, 1).bytes(2, shape.text());
  return message().bytes(1, name).bytes(2, message().bytes(1, tensor.text()).text()).text();
}

constexpr std::size_t inputs = 8;
constexpr std::size_t outputs = 4;

/// y = Relu(x W), x of 8 columns and y of 4.
std::string network() {
  std::string values(inputs * outputs * sizeof(float), '\0');
  for (std::size_t i = 0; i < inputs * outputs; ++i) {
    const float w = static_cast<float>(static_cast<int>(i * 7 % 13) - 6) * 0.125F;
    std::memcpy(values.data() + i * sizeof w, &w, sizeof w);
  }
  const message w =
      message().number(1, inputs).number(1, outputs).number(2, 1).bytes(8, "w").bytes(9, values);
  const message product = message().bytes(1, "x").bytes(1, "w").bytes(2, "p").bytes(4, "MatMul");
  const message relu = message().bytes(1, "p").bytes(2, "y").bytes(4, "Relu");
  const message graph = message()
                            .bytes(1, product.text())
                            .bytes(1, relu.text())
                            .bytes(2, "g")
                            .bytes(5, w.text())
                            .bytes(11, matrix("x", inputs))
                            .bytes(12, matrix("y", outputs));
  return message()
      .number(1, 8)
      .bytes(7, graph.text())
      .bytes(8, message().number(2, 17).text())
      .text();
}

detent_graph_limits small() {
  detent_graph_limits l;
  detent_graph_limits_init(&l);
  l.max_constant_bytes = l.max_memory_bytes = std::size_t{1} << 24U;
  l.max_tensor_bytes = l.max_constant_tensor_bytes = std::size_t{1} << 22U;
  l.max_nodes = 1000;
  l.max_iterations = 100;
  l.max_multiply_adds = std::uint64_t{1} << 22U;
  return l;
}

/// A tensor of the network's input, which is wrong now and then.
struct some_tensor {
  explicit some_tensor(fuzz::numbers& in)
      : shape{static_cast<std::int64_t>(1 + in.below(3)), inputs},
        values(static_cast<std::size_t>(shape[0]) * inputs) {
    for (float& v : values) {
      v = static_cast<float>(in.get<std::int8_t>()) * 0.0625F;
    }
    detent_tensor_init(&value);
    value.type = DETENT_F32;
    value.rank = 2;
    value.bytes = values.size() * sizeof(float);
    switch (in.below(40)) {
      case 0:
        value.type = static_cast<detent_type>(in.get<std::int8_t>());
        break;
      case 1:
        value.rank = in.below(3);
        break;
      case 2:
        shape[in.below(2)] = in.get<std::int64_t>();
        break;
      case 3:
        value.bytes = in.get<std::size_t>();
        break;
      case 4:
        value.size = in.below(2 * sizeof value);
        break;
      default:
        break;
    }
  }
  std::int64_t shape[2];
  std::vector<float> values;
  detent_tensor value;

  /// The tensor with pointers to this object.
  [[nodiscard]] detent_tensor view() const {
    detent_tensor t = value;
    t.shape = shape;
    t.data = values.data();
    return t;
  }
};

/// Runs a model with its first input, or with too few.
void run(const detent_model* model, fuzz::numbers& in) {
  const detent_graph_limits limits = small();
  detent_session* session = nullptr;
  detent_session* shared = nullptr;
  check(detent_session_create(model, &limits, nullptr, &session));
  if (session != nullptr) {
    check(detent_session_share(session, &limits, nullptr, &shared));
  }
  for (detent_session* s : {session, shared}) {
    const some_tensor x(in);
    const detent_tensor t = x.view();
    detent_results* results = nullptr;
    check(detent_session_run(s, &t, detent_model_input_count(model) == 1 ? 1 : 0, &results));
    for (std::size_t i = 0; i <= detent_results_count(results); ++i) {
      detent_tensor y;
      detent_tensor_init(&y);
      check(detent_results_tensor(results, i, &y));
    }
    detent_results_free(results);
  }
  detent_session_free(session);
  detent_session_free(shared);
}

int stop_after(void* user, const char* /*step*/, std::size_t /*done*/, std::size_t /*total*/) {
  auto& left = *static_cast<std::size_t*>(user);
  return left-- == 0 ? 1 : 0;
}

/// Options that are valid more often than bytes are.
std::string options(fuzz::numbers& in) {
  static constexpr const char* lines[] = {"approach: static\n",
                                          "approach: dynamic\n",
                                          "approach: weight-only\n",
                                          "method: minmax\n",
                                          "method: kl\n",
                                          "method: auto\n",
                                          "format: qoperator\n",
                                          "bits: 4\n",
                                          "bits: 8\n",
                                          "granularity: per-tensor\n",
                                          "weight-scales: exact-mse\n",
                                          "weight-algorithm: gptq\n",
                                          "weight-algorithm: hqq\n",
                                          "block-size: 16\n",
                                          "bias-correction: full\n",
                                          "activations: s8\n",
                                          "tensors: {x: {range: [0, 1]}}\n",
                                          "ignored: {types: [MatMul]}\n",
                                          "operators: {types: {MatMul: {bits: 4}}}\n",
                                          "percentile: 99\n",
                                          "{",
                                          ": [\n"};
  std::string text;
  for (std::size_t i = in.below(5); i < 4; ++i) {
    text += lines[in.below(std::size(lines))];
  }
  return text;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::numbers in({data, size});
  const detent_graph_limits limits = small();
  std::string bytes = network();
  const bool is_changed = in.below(4) == 0;
  if (is_changed) {  // a few bytes are others
    for (std::size_t i = in.below(4); i < 4; ++i) {
      bytes[in.below(bytes.size())] = in.get<char>();
    }
  }
  detent_model* model = nullptr;
  check(detent_model_parse(bytes.data(), bytes.size(), &limits, &model));
  if (model == nullptr) {
    if (!is_changed) {
      fuzz::finding("the network was refused", detent_last_error());
    }
    return 0;
  }
  run(model, in);
  const std::string text =
      in.below(8) == 0
          ? std::string(reinterpret_cast<const char*>(in.rest().data()), in.rest().size())
          : options(in);
  const some_tensor first(in);
  const some_tensor second(in);
  const detent_tensor samples[] = {first.view(), second.view()};
  std::size_t left = 1 + in.below(60);
  detent_quantize_options o;
  detent_quantize_options_init(&o);
  o.limits = &limits;
  o.progress = in.below(4) == 0 ? &stop_after : nullptr;
  o.user = &left;
  detent_model* quantized = nullptr;
  check(detent_model_quantize(model, text.data(), text.size(), samples,
                              detent_model_input_count(model) == 1 ? in.below(3) : 0, &o,
                              &quantized));
  if (quantized != nullptr) {
    run(quantized, in);
    std::size_t needed = 0;
    check(detent_model_serialize(quantized, nullptr, 0, &needed));
    std::vector<char> written(needed);
    check(detent_model_serialize(quantized, written.data(), needed, &needed));
    detent_model* again = nullptr;
    check(detent_model_parse(written.data(), needed, &limits, &again));
    if (again == nullptr) {
      fuzz::finding("a model that was written", "cannot be read");
    }
    detent_model_free(again);
  }
  detent_model_free(quantized);
  detent_model_free(model);
  return 0;
}
