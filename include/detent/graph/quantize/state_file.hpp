// SPDX-License-Identifier: BSD-3-Clause
// What all saved calibration states have in common: what they were collected for, which must agree
// where states are merged or used, and how many samples they hold.
//
// A state is an envelope of byte_format.hpp ("detentst") whose content begins with
//
//   u64 number of settings; for each of them two texts, its name and its value
//   u64 fingerprint of the float model
//   u64 round, u64 samples of the first and of the second round, u64 checksum of the first round
//   u64 number of shards, and the u64 fingerprint of each, ascending
//
// A text is u64 number of bytes, and the bytes. calibration_state.hpp, weight_only_state.hpp and
// nncf/statistics.hpp say what follows.
#ifndef DETENT_GRAPH_QUANTIZE_STATE_FILE_HPP
#define DETENT_GRAPH_QUANTIZE_STATE_FILE_HPP

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <detent/base/byte_format.hpp>
#include <detent/config.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/files.hpp>
#include <detent/graph/model/fingerprint.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/model/read_limits.hpp>
#include <detent/graph/model/tensor.hpp>
#include <detent/version.hpp>

DETENT_NAMESPACE_BEGIN
namespace graph {

/// The bytes of a saved state, and the name that stands for them in messages.
struct saved_state {
  std::string name;              ///< For example the name of the file.
  std::vector<std::byte> bytes;  ///< What calibration_state::save() or another save() returned.
};

/// Reads a file with a saved state, whose content is not checked yet. Throws bad_file if the file
/// has more than `most_bytes`, before it allocates; io as read_file().
[[nodiscard]] inline saved_state read_state_file(
    const std::string& path, std::uint64_t most_bytes = read_limits().max_constant_bytes) {
  input_file file(path);
  require(file.size() <= most_bytes, error_kind::bad_file, path, " has ", file.size(),
          " bytes, the limit is ", most_bytes);
  saved_state state{path, std::vector<std::byte>(static_cast<std::size_t>(file.size()))};
  file.read(0, reinterpret_cast<char*>(state.bytes.data()), state.bytes.size());
  return state;
}

/// A source of saved states: each call returns the next one, or nothing at the end.
using state_source = std::function<std::optional<saved_state>()>;

/// A source of the states in files, each of which is read when its turn comes. Calls throw what
/// read_state_file() throws.
[[nodiscard]] inline state_source states_in_files(
    std::vector<std::string> paths, std::uint64_t most_bytes = read_limits().max_constant_bytes) {
  return [paths = std::move(paths), most_bytes, next = std::size_t{0}]() mutable {
    return next == paths.size() ? std::nullopt
                                : std::optional(read_state_file(paths[next++], most_bytes));
  };
}

/// Writes the bytes of a state as a file, which appears as a whole or not at all. Throws io.
inline void write_state_file(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  replacement_file file(path);
  file.write(bytes.data(), bytes.size());
  file.commit();
}

namespace detail {

inline constexpr detent::detail::byte_format state_format{"detentst", 1};

/// The setting that says whether a state has means for bias correction, "yes" or "no". States may
/// differ in it; whoever needs the means looks for them.
inline constexpr const char* means_setting = "means for bias correction";

inline void put_text(detent::detail::byte_writer& out, const std::string& text) {
  out.put(static_cast<std::uint64_t>(text.size()));
  out.put_array(std::span<const char>(text.data(), text.size()));
}
/// The beginning of a text from a file, for messages.
[[nodiscard]] inline std::string beginning_of(const std::string& text) {
  constexpr std::size_t most = 200;
  return text.size() > most ? text.substr(0, most) + "..." : text;
}
[[nodiscard]] inline std::string get_text(detent::detail::byte_reader& in) {
  std::string text;
  in.get_array(in.get_size(in.rest()), text);
  return text;
}

/// The shortest text that stands for the number among those of its type.
template <class Real>
[[nodiscard]] std::string shortest_text(Real number) {
  std::array<char, 32> text;
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), number).ptr};
}

/// The release of the library, MAJOR.MINOR.PATCH.
[[nodiscard]] inline std::string release_text() {
  return detent::detail::message(DETENT_VERSION_MAJOR, ".", DETENT_VERSION_MINOR, ".",
                                 DETENT_VERSION_PATCH);
}

/// The fingerprint of a model that states are for.
[[nodiscard]] inline std::uint64_t fingerprint_of(const model& m) {
  fingerprint f;
  f.add(m);
  for (const auto& [domain, version] : m.opsets) {
    f.add(domain);
    f.add(version);
  }
  return f.value();
}

/// What a state was collected for.
struct state_origin {
  std::map<std::string, std::string> settings;
  std::uint64_t model = 0;

  void write(detent::detail::byte_writer& out) const {
    out.put(static_cast<std::uint64_t>(settings.size()));
    for (const auto& [name, value] : settings) {
      put_text(out, name);
      put_text(out, value);
    }
    out.put(model);
  }
  [[nodiscard]] static state_origin read(detent::detail::byte_reader& in) {
    state_origin o;
    // Each setting has two sizes.
    const std::size_t count = in.get_size(in.rest() / (2 * sizeof(std::uint64_t)));
    for (std::size_t i = 0; i < count; ++i) {
      const std::string name = get_text(in);
      o.settings[name] = get_text(in);
    }
    o.model = in.get<std::uint64_t>();
    return o;
  }

  /// Throws invalid_argument, naming the state and the first difference, unless `saved`, which was
  /// read from it, is the same.
  void require_same(const state_origin& saved, const std::string& name) const {
    for (const auto& [key, value] : settings) {
      if (key == means_setting) {
        continue;
      }
      const auto found = saved.settings.find(key);
      require(found != saved.settings.end(), error_kind::invalid_argument, name, ": it has no ",
              key, ", expected ", value);
      require(found->second == value, error_kind::invalid_argument, name, ": its ", key, " is ",
              beginning_of(found->second), ", expected ", value);
    }
    for (const auto& [key, value] : saved.settings) {
      require(settings.count(key) != 0, error_kind::invalid_argument, name, ": its ",
              beginning_of(key), " is ", beginning_of(value), ", expected none");
    }
    require(saved.model == model, error_kind::invalid_argument, name,
            ": it was collected for another model");
  }
};

/// How much a state has seen.
struct state_progress {
  std::uint64_t round = 1;
  std::uint64_t samples = 0;         // of the first round
  std::uint64_t second_samples = 0;  // of the second round
  std::uint64_t first_round = 0;  // checksum of the merged state that the second round began with
  std::set<std::uint64_t> shards = {};  // fingerprints of the samples that were observed together

  void write(detent::detail::byte_writer& out) const {
    for (const std::uint64_t value : {round, samples, second_samples, first_round}) {
      out.put(value);
    }
    out.put(static_cast<std::uint64_t>(shards.size()));
    for (const std::uint64_t shard : shards) {
      out.put(shard);
    }
  }
  [[nodiscard]] static state_progress read(detent::detail::byte_reader& in) {
    state_progress p;
    p.round = in.get<std::uint64_t>();
    require(p.round == 1 || p.round == 2, error_kind::bad_file, "there is no round ", p.round);
    p.samples = in.get<std::uint64_t>();
    p.second_samples = in.get<std::uint64_t>();
    p.first_round = in.get<std::uint64_t>();
    require(p.round == 2 || (p.second_samples == 0 && p.first_round == 0), error_kind::bad_file,
            "a state of round 1 has a second round");
    const std::size_t count = in.get_size(in.rest() / sizeof(std::uint64_t));
    for (std::size_t i = 0; i < count; ++i) {
      p.shards.insert(in.get<std::uint64_t>());
    }
    require(p.shards.size() == count, error_kind::bad_file, "a shard is there twice");
    return p;
  }

  /// Takes note of samples that were observed together.
  void add(std::uint64_t shard, std::uint64_t count, const std::string& name) {
    require(shards.count(shard) == 0, error_kind::invalid_argument, name,
            ": its samples have been observed already; where two shards really hold the same, "
            "number their samples (--first-sample)");
    add_samples(count, name);
    shards.insert(shard);
  }
  /// Adds what another state has seen. Throws invalid_argument, naming it, if the two cannot be
  /// merged: one is in the second round, they go on from different first rounds, or have samples in
  /// common.
  void merge(const state_progress& other, const std::string& name) {
    require(round == other.round, error_kind::invalid_argument, name, ": it is of round ",
            other.round, ", others are of round ", round);
    require(first_round == other.first_round, error_kind::invalid_argument, name,
            ": its second round has followed another first round");
    for (const std::uint64_t shard : other.shards) {
      require(shards.count(shard) == 0, error_kind::invalid_argument, name,
              ": its samples are in another state as well; where two shards really hold the same, "
              "number their samples (--first-sample)");
    }
    add_samples(round == 1 ? other.samples : other.second_samples, name);
    shards.insert(other.shards.begin(), other.shards.end());
  }

 private:
  /// Counts samples of the present round.
  void add_samples(std::uint64_t count, const std::string& name) {
    std::uint64_t& all = round == 1 ? samples : second_samples;
    require(count <= (std::numeric_limits<std::uint64_t>::max)() - all, error_kind::overflow, name,
            ": its ", count, " samples and the ", all, " before them are 2^64 and more");
    all += count;
  }
};

/// Adds to a fingerprint what a run takes.
inline void add_inputs(fingerprint& f, const std::map<std::string, tensor>& inputs) {
  for (const auto& [name, value] : inputs) {
    f.add(name);
    f.add(value);
  }
}

}  // namespace detail

/// The settings of a saved state by their names, "approach" and "method" for example. Throws
/// bad_file or unsupported, naming the state, if the bytes are not a state that this release reads.
[[nodiscard]] inline std::map<std::string, std::string> settings_of_state(
    const saved_state& state) {
  detent::detail::byte_reader in(state.bytes, detail::state_format, state.name.c_str());
  return detail::state_origin::read(in).settings;
}

}  // namespace graph
DETENT_NAMESPACE_END

#endif  // DETENT_GRAPH_QUANTIZE_STATE_FILE_HPP
