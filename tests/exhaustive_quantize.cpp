// SPDX-License-Identifier: BSD-3-Clause
// exhaustive_quantize u8|s8 SCALE: compares quantize with its definition for all 2^32 floats, on
// every available target. Takes minutes, so that it is not part of the usual run.
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <span>
#include <string_view>
#include <vector>

#include <detent/detent.hpp>

namespace {

template <class Q>
int run(float scale) {
  constexpr std::uint64_t chunk = std::uint64_t{1} << 16;  // stays in the second-level cache
  const detent::quant_params p{scale, 11};
  std::vector<float> x(chunk);
  std::vector<Q> expected(chunk);
  std::vector<Q> actual(chunk);
  std::uint64_t differences = 0;
  for (std::uint64_t first = 0; first < std::uint64_t{1} << 32; first += chunk) {
    for (std::size_t i = 0; i < chunk; ++i) {
      x[i] = std::bit_cast<float>(static_cast<std::uint32_t>(first + i));
      expected[i] = static_cast<Q>(detent::reference::quantize(x[i], p, detent::full_grid<Q>));
    }
    for (const detent::target t : detent::available_targets()) {
      detent::set_target(t);
      detent::quantize(std::span<const float>(x), std::span<Q>(actual), p);
      if (actual == expected) {
        continue;
      }
      for (std::size_t i = 0; i < chunk; ++i) {
        if (actual[i] != expected[i] && ++differences <= 10) {
          std::cout << detent::name(t) << ": " << std::hexfloat << x[i] << " / " << scale << " is "
                    << +actual[i] << ", not " << +expected[i] << '\n';
        }
      }
    }
  }
  std::cout << std::dec << differences << " differences\n";
  return differences == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view type = argc == 3 ? argv[1] : "";
  const float scale = argc == 3 ? std::strtof(argv[2], nullptr) : 0.0F;
  if ((type != "u8" && type != "s8") || !(scale > 0.0F)) {
    std::cerr << "usage: exhaustive_quantize u8|s8 SCALE\n";
    return 2;
  }
  return type == "u8" ? run<std::uint8_t>(scale) : run<std::int8_t>(scale);
}
