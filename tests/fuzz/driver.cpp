// SPDX-License-Identifier: BSD-3-Clause
// Runs a fuzz target without libFuzzer: on files, and on changed copies of them that depend on a
// seed alone, so that every machine runs the same inputs.
//
//   TARGET [--runs N] [--seed S] [FILE or FOLDER]...
//
// Each file is an input; N more are made from them (from an empty input, if there are no files).
// The name of a file is printed before it is run with --names: what is printed last is what
// crashed.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz_target.hpp"

namespace {

using bytes = std::vector<std::uint8_t>;

class random_numbers {
 public:
  explicit random_numbers(std::uint64_t seed) : state_(seed * 2 + 1) {}
  std::uint64_t next() {
    state_ += 0x9E3779B97F4A7C15U;
    std::uint64_t z = state_;
    z = (z ^ z >> 30U) * 0xBF58476D1CE4E5B9U;
    z = (z ^ z >> 27U) * 0x94D049BB133111EBU;
    return z ^ z >> 31U;
  }
  std::size_t below(std::size_t end) { return end == 0 ? 0 : next() % end; }

 private:
  std::uint64_t state_;
};

bytes read(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

/// A copy of one input with some bytes changed, removed, inserted, or taken from another input.
bytes changed(const std::vector<bytes>& inputs, random_numbers& random) {
  bytes b = inputs[random.below(inputs.size())];
  const std::size_t changes = 1 + random.below(8);
  for (std::size_t i = 0; i < changes; ++i) {
    const auto at = static_cast<std::ptrdiff_t>(random.below(b.size() + 1));
    const bool inside = at < static_cast<std::ptrdiff_t>(b.size());
    switch (random.below(6)) {
      case 0:
        if (inside) {
          b[static_cast<std::size_t>(at)] = static_cast<std::uint8_t>(random.next());
        }
        break;
      case 1:
        if (inside) {
          b[static_cast<std::size_t>(at)] ^= static_cast<std::uint8_t>(1U << random.below(8));
        }
        break;
      case 2: {
        constexpr std::uint8_t special[] = {0x00, 0x01, 0x7F, 0x80, 0xFF};
        if (inside) {
          b[static_cast<std::size_t>(at)] = special[random.below(std::size(special))];
        }
        break;
      }
      case 3: {
        const auto end =
            at + static_cast<std::ptrdiff_t>(random.below(
                     (std::min)(b.size() - static_cast<std::size_t>(at), std::size_t{16}) + 1));
        b.erase(b.begin() + at, b.begin() + end);
        break;
      }
      case 4: {
        bytes more(1 + random.below(16));
        for (std::uint8_t& v : more) {
          v = static_cast<std::uint8_t>(random.next());
        }
        b.insert(b.begin() + at, more.begin(), more.end());
        break;
      }
      default: {
        const bytes& other = inputs[random.below(inputs.size())];
        const auto first = static_cast<std::ptrdiff_t>(random.below(other.size() + 1));
        const auto rest = other.size() - static_cast<std::size_t>(first);
        const auto count =
            static_cast<std::ptrdiff_t>(random.below((std::min)(rest, std::size_t{64}) + 1));
        b.insert(b.begin() + at, other.begin() + first, other.begin() + first + count);
      }
    }
  }
  return b;
}

}  // namespace

int main(int argc, char** argv) {
  std::size_t runs = 0;
  std::uint64_t seed = 1;
  bool prints_names = false;
  std::vector<std::filesystem::path> paths;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--runs" && i + 1 < argc) {
      runs = std::strtoull(argv[++i], nullptr, 10);
    } else if (argument == "--seed" && i + 1 < argc) {
      seed = std::strtoull(argv[++i], nullptr, 10);
    } else if (argument == "--names") {
      prints_names = true;
    } else if (std::filesystem::is_directory(argument)) {
      for (const auto& entry : std::filesystem::directory_iterator(argument)) {
        paths.push_back(entry.path());
      }
    } else {
      paths.emplace_back(argument);
    }
  }
  std::sort(paths.begin(), paths.end());
  std::vector<bytes> inputs;
  for (const auto& path : paths) {
    inputs.push_back(read(path));
    if (prints_names) {
      std::printf("%s\n", path.c_str());
      std::fflush(stdout);
    }
    LLVMFuzzerTestOneInput(inputs.back().data(), inputs.back().size());
  }
  if (inputs.empty()) {
    inputs.emplace_back();
  }
  random_numbers random(seed);
  for (std::size_t i = 0; i < runs; ++i) {
    // Inputs that are numbers rather than a file are all new.
    bytes b;
    if (paths.empty()) {
      b.resize(random.below(400));
      std::generate(b.begin(), b.end(), [&] { return static_cast<std::uint8_t>(random.next()); });
    } else {
      b = changed(inputs, random);
    }
    // If the process dies, the input can be made again from the seed and this number.
    if (prints_names) {
      std::printf("run %zu of seed %llu\n", i, static_cast<unsigned long long>(seed));
      std::fflush(stdout);
    }
    LLVMFuzzerTestOneInput(b.data(), b.size());
  }
  std::printf("%zu files and %zu runs of seed %llu: nothing found\n", paths.size(), runs,
              static_cast<unsigned long long>(seed));
  return 0;
}
