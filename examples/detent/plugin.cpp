// SPDX-License-Identifier: BSD-3-Clause
#include "plugin.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include <dlfcn.h>

#include <detent/c_api_plugin.h>
#include <detent/error.hpp>
#include <detent/observers/observer.hpp>
#include <detent/scale_rules.hpp>
#include <detent/types.hpp>

namespace detent_cli {
namespace {

using detent::error_kind;
using detent::require;

/// An observer of a plugin, and how messages name it.
struct description {
  const detent_plugin_observer* functions;
  std::string label;
};

/// Calls a function of a plugin; throws invalid_argument with its text if it fails.
template <class Function, class... Arguments>
void call(const description& d, const Function& function, Arguments... arguments) {
  std::array<char, 512> text{};
  if (function(arguments..., text.data(), text.size()) != 0) {
    text.back() = '\0';
    detent::raise(error_kind::invalid_argument,
                  d.label + ": " + (text[0] == '\0' ? "failed without a reason" : text.data()));
  }
}

detent_observer_options c_options(const detent::observer_options& o) {
  detent_observer_options c{};
  c.size = sizeof c;
  c.scheme = {o.scheme.levels.qmin, o.scheme.levels.qmax, o.scheme.symmetric ? 1 : 0};
  c.percentile = o.percentile.value_or(0.0);
  c.exact_percentile = o.exact_percentile ? 1 : 0;
  c.moving_constant = o.moving_constant;
  c.p = o.p;
  c.top_k = o.top_k;
  c.repaired = o.behaviour == detent::parity::fixed ? 1 : 0;
  c.sparse = o.storage == detent::bin_storage::sparse ? 1 : 0;
  return c;
}

/// A state of a plugin's observer as an observer of the library. It counts what the observer sees,
/// so that nothing but finite values reaches the plugin.
class plugin_observer {
 public:
  plugin_observer(std::shared_ptr<const description> d, const detent::observer_options& options)
      : description_(std::move(d)) {
    const detent_observer_options c = c_options(options);
    void* state = nullptr;
    call(*description_, functions().create, &c, &state);
    adopt(state);
  }
  plugin_observer(const plugin_observer& other)
      : description_(other.description_),
        phase_(other.phase_),
        seen_(other.seen_),
        not_finite_(other.not_finite_),
        lower_(other.lower_),
        upper_(other.upper_) {
    void* state = nullptr;
    call(*description_, functions().copy, static_cast<const void*>(other.state_.get()), &state);
    adopt(state);
  }
  plugin_observer(plugin_observer&&) noexcept = default;
  plugin_observer& operator=(const plugin_observer& other) {
    *this = plugin_observer(other);
    return *this;
  }
  plugin_observer& operator=(plugin_observer&&) noexcept = default;
  ~plugin_observer() = default;

  [[nodiscard]] std::size_t phases() const noexcept { return functions().phases; }
  void begin_phase(std::size_t phase) {
    phase_ = phase;
    if (functions().begin_phase != nullptr) {
      call(*description_, functions().begin_phase, state_.get(), phase);
    }
  }
  void observe(std::span<const float> x) {
    const bool finite =
        std::all_of(x.begin(), x.end(), [](float value) { return std::isfinite(value); });
    not_finite_ = not_finite_ || !finite;
    if (x.empty() || not_finite_) {
      return;
    }
    if (phase_ == 0) {
      const auto [least, greatest] = std::minmax_element(x.begin(), x.end());
      lower_ = seen_ == 0 ? *least : (std::min)(lower_, *least);
      upper_ = seen_ == 0 ? *greatest : (std::max)(upper_, *greatest);
      seen_ += x.size();
    }
    call(*description_, functions().observe, state_.get(), x.data(), x.size());
  }
  void merge(const plugin_observer& other) {
    require(description_ == other.description_, error_kind::invalid_argument, description_->label,
            ": merging an observer of another kind");
    require(functions().merge != nullptr, error_kind::unsupported, description_->label,
            " does not merge");
    call(*description_, functions().merge, state_.get(),
         static_cast<const void*>(other.state_.get()));
    if (other.seen_ > 0) {
      lower_ = seen_ == 0 ? other.lower_ : (std::min)(lower_, other.lower_);
      upper_ = seen_ == 0 ? other.upper_ : (std::max)(upper_, other.upper_);
      seen_ += other.seen_;
    }
    not_finite_ = not_finite_ || other.not_finite_;
  }
  [[nodiscard]] detent::scale_solution finalize(detent::quant_scheme scheme) const {
    require(!not_finite_, error_kind::invalid_argument, description_->label,
            ": NaN or an infinity was observed");
    require(seen_ > 0, error_kind::invalid_argument, description_->label, ": nothing was observed");
    detent_plugin_result result{};
    result.size = sizeof result;
    const detent_scheme c{scheme.levels.qmin, scheme.levels.qmax, scheme.symmetric ? 1 : 0};
    call(*description_, functions().finalize, static_cast<const void*>(state_.get()), c, &result);
    detent::scale_solution solution;
    solution.params = parameters(result, scheme);
    solution.evidence = {.method = "plugin",
                         .objective = result.objective,
                         .count = seen_,
                         .lower = lower_,
                         .upper = upper_};
    return solution;
  }

 private:
  struct destroyer {
    void (*destroy)(void*);
    void operator()(void* state) const { destroy(state); }
  };

  [[nodiscard]] const detent_plugin_observer& functions() const noexcept {
    return *description_->functions;
  }
  void adopt(void* state) {
    require(state != nullptr, error_kind::invalid_argument, description_->label, ": made no state");
    state_ = {state, destroyer{functions().destroy}};
  }
  [[nodiscard]] detent::quant_params parameters(const detent_plugin_result& r,
                                                detent::quant_scheme scheme) const {
    if (r.scale != 0.0F) {
      require(std::isfinite(r.scale) && r.scale > 0.0F, error_kind::invalid_argument,
              description_->label, ": scale ", r.scale, " is not positive and finite");
      require(r.zero_point >= scheme.levels.qmin && r.zero_point <= scheme.levels.qmax,
              error_kind::invalid_argument, description_->label, ": zero point ", r.zero_point,
              " is outside ", scheme.levels.qmin, "..", scheme.levels.qmax);
      return {r.scale, r.zero_point};
    }
    require(std::isfinite(r.lower) && std::isfinite(r.upper) && r.lower <= r.upper,
            error_kind::invalid_argument, description_->label, ": range ", r.lower, "..", r.upper,
            " is not finite and ascending");
    return detent::reference::params_from_range({r.lower, r.upper}, scheme);
  }

  std::shared_ptr<const description> description_;
  std::size_t phase_ = 0;
  std::uint64_t seen_ = 0;
  bool not_finite_ = false;
  float lower_ = 0.0F;
  float upper_ = 0.0F;
  std::unique_ptr<void, destroyer> state_{nullptr, destroyer{nullptr}};
};

detent::observer_registry& registry() {
  static detent::observer_registry all = detent::default_observers();
  return all;
}

void add_observer(const std::string& path, const detent_plugin_observer* o) {
  // The structure of version 1; fields that are appended later are for plugins that have them.
  constexpr std::size_t least =
      offsetof(detent_plugin_observer, finalize) + sizeof(detent_plugin_observer::finalize);
  require(o != nullptr && o->size >= least, error_kind::invalid_argument, "plugin ", path,
          ": an observer is null, or its size is not set");
  require(o->name != nullptr && o->name[0] != '\0', error_kind::invalid_argument, "plugin ", path,
          ": an observer has no name");
  const std::string name = o->name;
  require(o->phases == 1 || o->phases == 2, error_kind::invalid_argument, "plugin ", path,
          ": observer '", name, "' has ", o->phases, " phases, not 1 or 2");
  require(o->create != nullptr && o->copy != nullptr && o->destroy != nullptr &&
              o->observe != nullptr && o->finalize != nullptr &&
              (o->phases == 1 || o->begin_phase != nullptr),
          error_kind::invalid_argument, "plugin ", path, ": observer '", name,
          "' lacks a function that it needs");
  require(registry().find(name) == nullptr && name != "auto", error_kind::invalid_argument,
          "plugin ", path, ": the name '", name, "' of an observer is taken");
  auto d = std::make_shared<const description>(
      description{o, "plugin " + path + ", observer '" + name + "'"});
  registry().add(name, [d](const detent::observer_options& options) {
    return detent::any_observer(plugin_observer(d, options));
  });
}

}  // namespace

const detent::observer_registry& known_observers() { return registry(); }

void load_plugin(const std::string& path) {
  // A name without a slash would be looked for in the system's folders, not in this one.
  const std::string file = path.find('/') == std::string::npos ? "./" + path : path;
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    detent::raise(error_kind::io,
                  "plugin " + path + ": " + (reason != nullptr ? reason : "cannot be loaded"));
  }
  const auto entry = reinterpret_cast<detent_plugin_entry>(dlsym(library, "detent_plugin_get"));
  require(entry != nullptr, error_kind::invalid_argument, "plugin ", path,
          " does not export detent_plugin_get");
  const detent_plugin* plugin = entry();
  require(plugin != nullptr, error_kind::invalid_argument, "plugin ", path,
          ": detent_plugin_get returned null");
  require(plugin->version == DETENT_PLUGIN_VERSION, error_kind::invalid_argument, "plugin ", path,
          " is of version ", plugin->version, ", not ", DETENT_PLUGIN_VERSION);
  constexpr std::size_t least =
      offsetof(detent_plugin, observers) + sizeof(detent_plugin::observers);
  require(plugin->size >= least, error_kind::invalid_argument, "plugin ", path,
          ": detent_plugin has ", plugin->size, " bytes, not ", least);
  require(plugin->observers != nullptr || plugin->observer_count == 0, error_kind::invalid_argument,
          "plugin ", path, " has ", plugin->observer_count, " observers at a null pointer");
  for (std::size_t i = 0; i < plugin->observer_count; ++i) {
    add_observer(path, plugin->observers[i]);
  }
}

}  // namespace detent_cli
