// SPDX-License-Identifier: BSD-3-Clause
// The command line tool: quantizes, runs and judges ONNX models.
// Exit codes: 0 ok, 1 the job failed (one line on standard error), 2 wrong usage.
#include <cstdio>
#include <exception>
#include <map>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include <detent/observers/registry.hpp>
#include <detent/version.hpp>

#include "commands.hpp"

namespace {

/// The observers that can do what activations are quantized to: not all are made for every scheme.
std::vector<std::string> methods() {
  std::vector<std::string> names;
  for (const std::string& name : detent::observer_names()) {
    try {
      static_cast<void>(detent::make_observer(name));
      names.push_back(name);
    } catch (const detent::error&) {
      // Not asymmetric.
    }
  }
  return names;
}

/// The approach and the format imply each other. 2 for combinations that do not exist.
int check_approach(detent_cli::quantize_arguments& a, const CLI::Option& approach,
                   const CLI::Option& format) {
  const auto approach_of = [](const std::string& name) {
    return name == "integerops" ? "dynamic" : name == "matmulnbits" ? "weight-only" : "static";
  };
  if (format.empty()) {
    a.format = a.approach == "dynamic"       ? "integerops"
               : a.approach == "weight-only" ? "matmulnbits"
                                             : "qdq";
  } else if (approach.empty()) {
    a.approach = approach_of(a.format);
  }
  if (a.approach != approach_of(a.format)) {
    std::fprintf(stderr, "detent: --approach %s has no --format %s\n", a.approach.c_str(),
                 a.format.c_str());
    return 2;
  }
  if (a.approach == "dynamic" && a.activations == "s8") {
    std::fprintf(stderr,
                 "detent: --approach dynamic has no --activations s8: DynamicQuantizeLinear makes "
                 "uint8\n");
    return 2;
  }
  if (!a.report.empty() && (a.report == a.output || a.report == a.model)) {
    std::fprintf(stderr, "detent: --report %s would overwrite a model\n", a.report.c_str());
    return 2;
  }
  if (!a.labels.empty() && a.report.empty()) {
    std::fprintf(stderr, "detent: --labels is for --report\n");
    return 2;
  }
  return 0;
}

/// "auto" chooses bias correction itself; other methods have none unless it is asked for. 2 for
/// options that would have no effect.
int check_method(detent_cli::quantize_arguments& a, const CLI::Option& method,
                 const CLI::Option& correction) {
  a.method = detent::detail::lower_case(a.method);
  if (method.empty() && (!correction.empty() || a.percentile != 0.0)) {
    a.method = a.percentile != 0.0 ? "percentile" : "minmax";
  }
  if (a.approach == "static" && a.method != "auto" && correction.empty()) {
    a.bias_correction = "none";
  }
  if (a.approach == "static" && a.method == "auto" && !correction.empty()) {
    std::fprintf(stderr, "detent: --method auto chooses --bias-correction itself\n");
    return 2;
  }
  if (a.percentile != 0.0 && a.method.find("percentile") == std::string::npos) {
    std::fprintf(stderr, "detent: --method %s has no --percentile\n", a.method.c_str());
    return 2;
  }
  if ((a.approach == "dynamic" && a.bias_correction == "full") ||
      (a.approach == "weight-only" && !correction.empty() && a.bias_correction != "none")) {
    std::fprintf(stderr, "detent: --approach %s has no --bias-correction %s\n", a.approach.c_str(),
                 a.bias_correction.c_str());
    return 2;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"detent: INT8 quantization of ONNX models"};
  app.require_subcommand(1);
  const std::string version = std::to_string(DETENT_VERSION_MAJOR) + "." +
                              std::to_string(DETENT_VERSION_MINOR) + "." +
                              std::to_string(DETENT_VERSION_PATCH);
  app.set_version_flag("--version", version);

  detent_cli::quantize_arguments quantize;
  CLI::App* quantize_command =
      app.add_subcommand("quantize", "Quantizes a float model with calibration samples");
  quantize_command->add_option("MODEL", quantize.model, "Float ONNX model")->required();
  quantize_command->add_option("-o,--output", quantize.output, "Quantized model to write")
      ->required();
  quantize_command->add_option("--calib", quantize.calibration,
                               "[NAME=]X.npy: samples of an input, first axis = samples");
  CLI::Option* approach =
      quantize_command
          ->add_option("--approach", quantize.approach,
                       "When ranges of activations are taken: from samples (static), in each run "
                       "(dynamic), or never (weight-only)")
          ->check(CLI::IsMember({"static", "dynamic", "weight-only"}));
  CLI::Option* format =
      quantize_command
          ->add_option("--format", quantize.format,
                       "How the model is written (static: qdq|qoperator, dynamic: integerops, "
                       "weight-only: matmulnbits)")
          ->check(CLI::IsMember({"qdq", "qoperator", "integerops", "matmulnbits"}));
  quantize_command->add_option("--activations", quantize.activations, "Type of activations")
      ->check(CLI::IsMember({"u8", "s8"}));
  CLI::Option* method =
      quantize_command
          ->add_option(
              "--method", quantize.method,
              "How ranges of activations are found (minmax|percentile|kl|mse|isotone|...); auto "
              "measures what is best, with equalization and bias correction; it is the "
              "default unless --bias-correction is given")
          ->check([](const std::string& v) -> std::string {
            std::string all = "auto";
            if (detent::detail::lower_case(v) == all) {
              return {};
            }
            for (const std::string& name : methods()) {
              if (name == detent::detail::lower_case(v)) {
                return {};
              }
              all += ", " + name;
            }
            return "'" + v + "' is not a value of --method; there are " + all;
          });
  quantize_command
      ->add_option("--percentile", quantize.percentile,
                   "Share of the values that --method percentile keeps, in percent")
      ->check(CLI::Range(50.0001, 100.0));
  CLI::Option* correction = quantize_command
                                ->add_option("--bias-correction", quantize.bias_correction,
                                             "Whether biases make up for rounding")
                                ->check(CLI::IsMember({"none", "fast", "full"}));
  std::string granularity = "per-channel";
  quantize_command
      ->add_option("--granularity", granularity, "Weight scales (per-channel|per-tensor)")
      ->check(CLI::IsMember({"per-channel", "per-tensor"}));
  quantize_command->add_option("--samples", quantize.samples, "Use only the first N samples")
      ->check(CLI::PositiveNumber);
  CLI::Option* bits =
      quantize_command->add_option("--bits", quantize.bits, "Of weights (weight-only)")
          ->check(CLI::IsMember({4, 8}));
  CLI::Option* block_size =
      quantize_command
          ->add_option(
              "--block-size", quantize.block_size,
              "Weights that share a scale (weight-only): 16, 32, 64, 128, 256; 0: as many as "
              "there can be")
          ->check(CLI::IsMember({0, 16, 32, 64, 128, 256}));
  CLI::Option* weight_algorithm =
      quantize_command
          ->add_option("--weight-algorithm", quantize.weight_algorithm,
                       "How weights are rounded (weight-only); gptq and awq need --calib")
          ->check(CLI::IsMember({"rtn", "gptq", "awq", "hqq"}));
  quantize_command->add_option("--report", quantize.report, "HTML page about the result");
  quantize_command->add_option("--labels", quantize.labels,
                               "Y.npy: one integer for each calibration sample, for the report");

  detent_cli::eval_arguments eval;
  CLI::App* eval_command = app.add_subcommand("eval", "Measures top-1 and top-5 accuracy");
  eval_command->add_option("MODEL", eval.model, "ONNX model, float or quantized")->required();
  eval_command->add_option("--data", eval.data, "[NAME=]X.npy: samples of an input")->required();
  eval_command->add_option("--labels", eval.labels, "Y.npy: one integer for each sample")
      ->required();
  eval_command->add_option("--samples", eval.samples,
                           "A:B: only samples A up to, not including, B");
  eval_command->add_option("--batch", eval.batch, "Samples in one run")->check(CLI::PositiveNumber);
  eval_command->add_option("--threads", eval.threads, "Threads in one run")
      ->check(CLI::PositiveNumber);
  eval_command->add_option("--target", eval.target, "CPU target (see: detent targets)");

  detent_cli::run_arguments run;
  CLI::App* run_command = app.add_subcommand("run", "Runs a model and writes its outputs as .npy");
  run_command->add_option("MODEL", run.model, "ONNX model, float or quantized")->required();
  run_command->add_option("--input", run.inputs, "[NAME=]X.npy: an input")->required();
  run_command->add_option("-o,--output", run.output, "Folder for one .npy for each output")
      ->required();

  detent_cli::compare_arguments compare;
  CLI::App* compare_command =
      app.add_subcommand("compare", "Compares a quantized model with its float original");
  compare_command->add_option("FLOAT", compare.reference, "Float ONNX model")->required();
  compare_command->add_option("QUANT", compare.quantized, "Quantized ONNX model")->required();
  compare_command->add_option("--data", compare.data, "[NAME=]X.npy: samples of an input")
      ->required();
  compare_command->add_option("--samples", compare.samples,
                              "A:B: only samples A up to, not including, B");

  detent_cli::inspect_arguments inspect;
  CLI::App* inspect_command = app.add_subcommand("inspect", "Describes a model");
  inspect_command->add_option("MODEL", inspect.model, "ONNX model")->required();

  detent_cli::conformance_arguments conformance;
  CLI::App* conformance_command = app.add_subcommand("conformance", "Runs ONNX node tests");
  conformance_command
      ->add_option("DIR", conformance.folders, "Folders that hold model.onnx, or others")
      ->required();

  CLI::App* targets_command = app.add_subcommand("targets", "Lists CPU targets");

  bool json = false;
  for (CLI::App* command : {quantize_command, eval_command, run_command, compare_command,
                            inspect_command, conformance_command, targets_command}) {
    command->add_flag("--json", json, "Print the same facts as JSON");
  }

  const auto is_first = [&](const CLI::App* command) { return command->check_name(argv[1]); };
  if (argc > 1 && argv[1][0] != '-' && app.get_subcommands(is_first).empty()) {
    std::fprintf(stderr, "detent: there is no command '%s' (see: detent --help)\n", argv[1]);
    return 2;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    const int code = app.exit(e);
    return code == 0 ? 0 : 2;
  }

  try {
    if (quantize_command->parsed()) {
      if (const int code = check_approach(quantize, *approach, *format); code != 0) {
        return code;
      }
      for (const CLI::Option* option : {bits, block_size, weight_algorithm}) {
        if (!option->empty() && quantize.approach != "weight-only") {
          std::fprintf(stderr, "detent: --approach %s has no %s\n", quantize.approach.c_str(),
                       option->get_name().c_str());
          return 2;
        }
      }
      if (const int code = check_method(quantize, *method, *correction); code != 0) {
        return code;
      }
      quantize.per_channel = granularity == "per-channel";
      quantize.json = json;
      return detent_cli::quantize(quantize);
    }
    if (eval_command->parsed()) {
      eval.json = json;
      return detent_cli::eval(eval);
    }
    if (run_command->parsed()) {
      run.json = json;
      return detent_cli::run(run);
    }
    if (compare_command->parsed()) {
      compare.json = json;
      return detent_cli::compare(compare);
    }
    if (inspect_command->parsed()) {
      inspect.json = json;
      return detent_cli::inspect(inspect);
    }
    if (conformance_command->parsed()) {
      conformance.json = json;
      return detent_cli::conformance(conformance);
    }
    return detent_cli::targets(json);
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "detent: not enough memory\n");
  } catch (const std::exception& e) {
    std::string text = e.what();
    for (char& c : text) {
      c = static_cast<unsigned char>(c) < ' ' || c == '\x7F' ? '?' : c;  // names come from files
    }
    std::fprintf(stderr, "%s%s\n", text.rfind("detent: ", 0) == 0 ? "" : "detent: ", text.c_str());
  }
  return 1;
}
