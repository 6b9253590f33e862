// SPDX-License-Identifier: BSD-3-Clause
// The execution provider of a session of ONNX Runtime: it says which nodes it takes, and prepares
// these for execution.
#ifndef DETENT_RUNTIMES_ONNXRUNTIME_PROVIDER_HPP
#define DETENT_RUNTIMES_ONNXRUNTIME_PROVIDER_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <onnxruntime_c_api.h>

#include <detent/config.hpp>
#include <detent/dispatch.hpp>
#include <detent/error.hpp>
#include <detent/graph/model/files.hpp>
#include <detent/graph/model/ir.hpp>
#include <detent/graph/run/unsupported_nodes.hpp>
#include <detent/parallel.hpp>
#include <detent/runtimes/integer_regions.hpp>
#include <detent/runtimes/onnxruntime/api.hpp>
#include <detent/runtimes/onnxruntime/compiled_region.hpp>
#include <detent/runtimes/onnxruntime/graph_reader.hpp>
#include <detent/runtimes/onnxruntime/options.hpp>
#include <detent/runtimes/onnxruntime/report.hpp>
#include <detent/version.hpp>

DETENT_NAMESPACE_BEGIN
namespace runtimes::onnxruntime {

/// The functions with which ONNX Runtime runs a region, and the region.
struct region_functions : OrtNodeComputeInfo {
  region_functions(const api& a, graph::model m, const thread_source& threads)
      : OrtNodeComputeInfo{}, functions(a), region(a, std::move(m), threads) {
    ort_version_supported = ORT_API_VERSION;
    CreateState = [](OrtNodeComputeInfo*, OrtNodeComputeContext*,
                     void** state) noexcept -> OrtStatus* {
      *state = nullptr;  // each run has a state of its own, which compiled_region keeps
      return nullptr;
    };
    Compute = [](OrtNodeComputeInfo* self, void*,
                 OrtKernelContext* context) noexcept -> OrtStatus* {
      auto& f = static_cast<region_functions&>(*self);
      return as_status(f.functions, [&] { f.region.run(context); });
    };
    ReleaseState = [](OrtNodeComputeInfo*, void*) noexcept {};
  }

  const api functions;
  compiled_region region;
};

/// The provider of one session. ONNX Runtime calls it through the functions of OrtEp.
class provider : public OrtEp {
 public:
  /// Reads the options of the session; errors as read_options().
  provider(const api& a, const OrtSessionOptions* session, const OrtLogger* logger)
      : OrtEp{}, api_(a), logger_(logger), options_(read_options(a, session)) {
    ort_version_supported = ORT_API_VERSION;
    OrtEp::GetName = [](const OrtEp*) noexcept { return provider_name; };
    OrtEp::GetCapability = [](OrtEp* self, const OrtGraph* graph,
                              OrtEpGraphSupportInfo* claims) noexcept {
      auto& p = static_cast<provider&>(*self);
      return as_status(p.api_, [&] { p.claim(graph, claims); });
    };
    OrtEp::Compile = [](OrtEp* self, const OrtGraph** graphs, const OrtNode** fused,
                        std::size_t count, OrtNodeComputeInfo** infos, OrtNode**) noexcept {
      auto& p = static_cast<provider&>(*self);
      return as_status(p.api_, [&] { p.compile(graphs, fused, count, infos); });
    };
    OrtEp::ReleaseNodeComputeInfos = [](OrtEp*, OrtNodeComputeInfo** infos,
                                        std::size_t count) noexcept {
      for (std::size_t i = 0; i < count; ++i) {
        delete static_cast<region_functions*>(infos[i]);
      }
    };
    if (options_.target) {
      set_target(*options_.target);
    }
    threads_.uses_session = !options_.threads;
    if (options_.threads.value_or(1) > 1) {
      threads_.pool = std::make_shared<thread_pool>(*options_.threads);
    }
  }

 private:
  void log(const std::string& message) const {
    api_.check(api_.core->Logger_LogMessage(logger_, ORT_LOGGING_LEVEL_INFO, message.c_str(),
                                            ORT_FILE, __LINE__, "GetCapability"));
  }

  /// Tells ONNX Runtime which nodes of a graph the provider takes, and as which regions. A graph
  /// that the library cannot read is left alone.
  void claim(const OrtGraph* graph, OrtEpGraphSupportInfo* claims) {
    if (options_.regions.claim == claim_mode::none && options_.report.empty()) {
      return;
    }
    const graph::model m = read_graph(api_, graph, constants::borrowed);
    if (m.opset() > graph::newest_opset) {
      log("detent: graph '" + m.graph_name + "' has opset " + std::to_string(m.opset()) +
          ", operators are known up to " + std::to_string(graph::newest_opset));
      return;
    }
    region_search found = find_integer_regions(m, options_.regions);
    const std::string obstacle = found.regions.empty() ? "" : obstacle_to_regions(graph, m);
    if (!obstacle.empty()) {
      found.regions.clear();
      std::fill(found.reasons.begin(), found.reasons.end(), obstacle);
    }
    const auto nodes =
        list<const OrtNode*>(api_, api_.core->Graph_GetNumNodes, api_.core->Graph_GetNodes, graph);
    for (const integer_region& region : found.regions) {
      std::vector<const OrtNode*> members;
      for (const std::size_t i : region.nodes) {
        members.push_back(nodes[i]);
      }
      OrtNodeFusionOptions fusion{};
      fusion.ort_version_supported = ORT_API_VERSION;
      fusion.drop_constant_initializers = true;  // compile() copies them
      api_.check(api_.ep->EpGraphSupportInfo_AddNodesToFuse(claims, members.data(), members.size(),
                                                            &fusion));
    }
    log(summary(m, found));
    if (!options_.report.empty()) {
      report_ += report(m, found);
      graph::write_file(options_.report, report_);
    }
  }

  /// Why a graph in which regions were found may not have them; empty if it may.
  std::string obstacle_to_regions(const OrtGraph* graph, const graph::model& m) {
    if (const std::string op_type = function_around(graph); !op_type.empty()) {
      return "it lies in the graph of a node of " + op_type + ", which ONNX Runtime may replace";
    }
    return may_have_regions(graph, m)
               ? ""
               : "ONNX Runtime before 1.25 does not load regions of several graphs";
  }

  /// The operator of a node around a graph that is none of If, Loop and Scan: SequenceMap, for
  /// example, which is a function. ONNX Runtime puts the nodes of functions in the place of such a
  /// node after it has asked for the graphs within, and would find regions in them that it no
  /// longer knows. Empty if there is no such node, or if ONNX Runtime does not tell: 1.23 knows the
  /// parent of no graph that it asks for.
  [[nodiscard]] std::string function_around(const OrtGraph* graph) const {
    while (graph != nullptr) {
      const auto* node = get<const OrtNode*>(api_, api_.core->Graph_GetParentNode, graph);
      if (node == nullptr) {
        return {};
      }
      const std::string op_type = get<const char*>(api_, api_.core->Node_GetOperatorType, node);
      const std::string domain = domain_of(get<const char*>(api_, api_.core->Node_GetDomain, node));
      const bool is_known = op_type == "If" || op_type == "Loop" || op_type == "Scan";
      if (!domain.empty() || !is_known) {
        return op_type;
      }
      graph = get<const OrtGraph*>(api_, api_.core->Node_GetGraph, node);
    }
    return {};
  }

  /// Whether a graph in which regions were found may have them. Where only one graph of a model
  /// may, that is the outer one, if possible: a graph that takes values of another one has none.
  /// Those within others are asked first.
  bool may_have_regions(const OrtGraph* graph, const graph::model& m) {
    if (api_.names_regions_apart) {
      return true;
    }
    const bool takes_values_of_others =
        m.inputs.size() > get<std::size_t>(api_, api_.core->Graph_GetNumInputs, graph);
    if (takes_values_of_others || has_regions_) {
      return false;
    }
    has_regions_ = true;
    return true;
  }

  void compile(const OrtGraph** graphs, const OrtNode** fused, std::size_t count,
               OrtNodeComputeInfo** infos) {
    std::vector<std::unique_ptr<region_functions>> compiled;
    for (std::size_t i = 0; i < count; ++i) {
      graph::model m = read_graph(api_, graphs[i], constants::copied);
      reorder(m.inputs, list<const OrtValueInfo*>(api_, api_.core->Node_GetNumInputs,
                                                  api_.core->Node_GetInputs, fused[i]));
      reorder(m.outputs, list<const OrtValueInfo*>(api_, api_.core->Node_GetNumOutputs,
                                                   api_.core->Node_GetOutputs, fused[i]));
      compiled.push_back(std::make_unique<region_functions>(api_, std::move(m), threads_));
    }
    for (std::size_t i = 0; i < count; ++i) {
      infos[i] = compiled[i].release();
    }
  }

  /// Brings declarations into the order of the values of a fused node. Inputs of a graph that the
  /// node does not pass are constants, which the model has.
  void reorder(std::vector<graph::value_info>& declared,
               const std::vector<const OrtValueInfo*>& values) const {
    std::map<std::string, graph::value_info> by_name;
    for (graph::value_info& v : declared) {
      by_name.emplace(v.name, std::move(v));
    }
    declared.clear();
    for (const OrtValueInfo* v : values) {
      const std::string name = get<const char*>(api_, api_.core->GetValueInfoName, v);
      const auto found = by_name.find(name);
      require(found != by_name.end(), error_kind::unsupported, provider_name, ": the value '", name,
              "' of a region is unknown");
      declared.push_back(found->second);
    }
  }

  const api api_;
  const OrtLogger* logger_;
  const provider_options options_;
  thread_source threads_;
  std::string report_;
  bool has_regions_ = false;  // in a graph of the model
};

/// The version of the library, as ONNX Runtime shows it.
[[nodiscard]] inline const char* library_version() noexcept {
  static const std::string text = std::to_string(DETENT_VERSION_MAJOR) + "." +
                                  std::to_string(DETENT_VERSION_MINOR) + "." +
                                  std::to_string(DETENT_VERSION_PATCH);
  return text.c_str();
}

/// Makes providers for sessions. ONNX Runtime calls it through the functions of OrtEpFactory.
class provider_factory : public OrtEpFactory {
 public:
  explicit provider_factory(const api& a) : OrtEpFactory{}, api_(a) {
    ort_version_supported = ORT_API_VERSION;
    OrtEpFactory::GetName = [](const OrtEpFactory*) noexcept { return provider_name; };
    OrtEpFactory::GetVendor = [](const OrtEpFactory*) noexcept { return "detent"; };
    OrtEpFactory::GetVendorId = [](const OrtEpFactory*) noexcept -> std::uint32_t { return 0; };
    OrtEpFactory::GetVersion = [](const OrtEpFactory*) noexcept { return library_version(); };
    OrtEpFactory::GetSupportedDevices =
        [](OrtEpFactory* self, const OrtHardwareDevice* const* devices, std::size_t count,
           OrtEpDevice** made, std::size_t most, std::size_t* number) noexcept {
          auto& f = static_cast<provider_factory&>(*self);
          return as_status(f.api_, [&] { f.find_devices(devices, count, made, most, *number); });
        };
    OrtEpFactory::CreateEp = [](OrtEpFactory* self, const OrtHardwareDevice* const*,
                                const OrtKeyValuePairs* const*, std::size_t,
                                const OrtSessionOptions* session, const OrtLogger* logger,
                                OrtEp** made) noexcept {
      auto& f = static_cast<provider_factory&>(*self);
      *made = nullptr;
      return as_status(f.api_, [&] { *made = new provider(f.api_, session, logger); });
    };
    OrtEpFactory::ReleaseEp = [](OrtEpFactory*, OrtEp* p) noexcept {
      delete static_cast<provider*>(p);
    };
    OrtEpFactory::CreateAllocator = [](OrtEpFactory*, const OrtMemoryInfo*, const OrtKeyValuePairs*,
                                       OrtAllocator** allocator) noexcept -> OrtStatus* {
      *allocator = nullptr;  // ONNX Runtime's own for the processor
      return nullptr;
    };
    OrtEpFactory::ReleaseAllocator = [](OrtEpFactory*, OrtAllocator*) noexcept {};
    OrtEpFactory::CreateDataTransfer = [](OrtEpFactory*,
                                          OrtDataTransferImpl** transfer) noexcept -> OrtStatus* {
      *transfer = nullptr;  // all values are in the memory of the processor
      return nullptr;
    };
    OrtEpFactory::IsStreamAware = [](const OrtEpFactory*) noexcept { return false; };
    OrtEpFactory::CreateSyncStreamForDevice =
        [](OrtEpFactory*, const OrtMemoryDevice*, const OrtKeyValuePairs*,
           OrtSyncStreamImpl** stream) noexcept -> OrtStatus* {
      *stream = nullptr;
      return nullptr;
    };
  }

 private:
  /// The provider runs on every processor.
  void find_devices(const OrtHardwareDevice* const* devices, std::size_t count, OrtEpDevice** made,
                    std::size_t most, std::size_t& number) {
    number = 0;
    for (std::size_t i = 0; i < count && number < most; ++i) {
      if (api_.core->HardwareDevice_Type(devices[i]) == OrtHardwareDeviceType_CPU) {
        api_.check(api_.ep->CreateEpDevice(this, devices[i], nullptr, nullptr, &made[number]));
        ++number;
      }
    }
  }

  const api api_;
};

}  // namespace runtimes::onnxruntime
DETENT_NAMESPACE_END

#endif  // DETENT_RUNTIMES_ONNXRUNTIME_PROVIDER_HPP
