// SPDX-License-Identifier: BSD-3-Clause
// The samples that the command line asks for.
#ifndef DETENT_CLI_SAMPLES_HPP
#define DETENT_CLI_SAMPLES_HPP

#include <cstddef>
#include <string>
#include <vector>

#include <detent/error.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/npy.hpp>
#include <detent/graph/model/samples.hpp>
#include <detent/graph/model/tensor.hpp>

#include "common_arguments.hpp"
#include "usage_error.hpp"

namespace detent_cli {

using detent::error_kind;
using detent::require;
using detent::graph::list_inputs;
using detent::graph::model;
using detent::graph::read_npy;
using detent::graph::sample_range;
using detent::graph::sample_set;
using detent::graph::shape;
using detent::graph::slice_samples;
using detent::graph::tensor;
using detent::graph::to_string;
using detent::graph::value_info;
using detent::graph::write_npy;

/// The half-open range of samples that "A:B" asks for; either side may be empty. Throws usage_error
/// for another text or an empty range.
inline sample_range parse_range(const std::string& text) {
  sample_range r;
  if (text.empty()) {
    return r;
  }
  const std::size_t colon = text.find(':');
  const auto number = [&](const std::string& part, std::size_t otherwise) {
    if (part.empty()) {
      return otherwise;
    }
    if (part.find_first_not_of("0123456789") != std::string::npos || part.size() > 15) {
      throw usage_error("--samples " + text + " is not of the form A:B");
    }
    return static_cast<std::size_t>(std::stoull(part));
  };
  if (colon == std::string::npos) {
    throw usage_error("--samples " + text + " is not of the form A:B");
  }
  r.first = number(text.substr(0, colon), r.first);
  r.last = number(text.substr(colon + 1), r.last);
  if (r.first >= r.last) {
    throw usage_error("--samples " + text + " is empty");
  }
  return r;
}

/// The samples that the values of `option` (for example "--input") name. Throws usage_error if
/// there are none although the model has inputs.
inline sample_set open_samples(const model& m, const std::vector<std::string>& texts,
                               const std::string& option, const common_arguments& a) {
  if (texts.empty() && !m.inputs.empty()) {
    throw usage_error(option + " is required: write " + option + " " + m.inputs[0].name +
                      "=FILE.npy; the model's inputs are " + list_inputs(m));
  }
  return sample_set(m, texts, {a.read_limits(), option + " "});
}

/// Leaves out all samples but those of a range, which is the text of --samples.
inline void select_range(sample_set& samples, const std::string& range_text) {
  const sample_range range = parse_range(range_text);
  require(range.first < samples.size(), error_kind::invalid_argument, "--samples ", range_text,
          ": there are only ", samples.size(), " samples");
  samples.select(range);
}

}  // namespace detent_cli

#endif  // DETENT_CLI_SAMPLES_HPP
