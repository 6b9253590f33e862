// SPDX-License-Identifier: BSD-3-Clause
// Saved states of all observers: a state is made, some of its bytes are changed, the checksum is
// mended so that the damage gets past it, and the state is loaded, merged, saved and finalized.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <detent/observer_registry.hpp>

#include "envelope.hpp"
#include "fuzz_target.hpp"

using detent::any_observer;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::numbers in({data, size});
  const std::vector<std::string> names = detent::default_observers().names();
  const std::string name = names[in.below(names.size())];
  const auto shown = static_cast<std::size_t>(in.get<std::uint8_t>());
  std::vector<float> values(shown);
  for (float& v : values) {
    v = static_cast<float>(in.get<std::int8_t>()) / 16.0F;
  }
  std::vector<std::byte> state;
  if (!fuzz::harmless("save", [&] {
        any_observer seen = detent::make_observer(name);
        if (!values.empty()) {
          seen.observe(std::span<const float>(values));
        }
        state = seen.save();
      })) {
    return 0;
  }
  fuzz::damage(state, in, 15);
  any_observer loaded = detent::make_observer(name);
  if (!fuzz::harmless("load", [&] { loaded.load(state); })) {
    return 0;
  }
  const bool is_signed = in.get<std::uint8_t>() % 2 != 0;
  const auto finalize = [&](const any_observer& o) {
    fuzz::harmless("finalize", [&] {
      static_cast<void>(o.finalize(is_signed ? detent::symmetric<std::int8_t>
                                             : detent::asymmetric<std::uint8_t>));
    });
  };
  finalize(loaded);
  fuzz::harmless("save again", [&] {
    any_observer again = detent::make_observer(name);
    again.load(loaded.save());
    if (again.save() != loaded.save()) {
      fuzz::finding("a state that was loaded and saved", name);
    }
  });
  fuzz::harmless("merge", [&] {
    any_observer other = detent::make_observer(name);
    other.observe(std::span<const float>(values));
    loaded.merge(other);
  });
  finalize(loaded);
  fuzz::harmless("observe", [&] { loaded.observe(std::span<const float>(values)); });
  finalize(loaded);
  return 0;
}
